// SPDX-License-Identifier: Apache-2.0
//
// The debug checks on a CUDA device: by the driver, on the stream, and never in the way
// of a graph capture.
#if defined(HBMALLOC_HAVE_CUDA)

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "sources/cuda/cuda_device.h"
#include "tests/support/fake_driver.h"

namespace hbm::testing {
namespace {

using ::testing::HasSubstr;

class CudaDebugTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    SetLogSink(nullptr);
    auto device = sources::OpenCudaDevice("cuda:0", fake_.table());
    auto allocator =
        MakeAllocator(*ParsePolicy(GetParam() + ":debug=guard+poison,quarantine=1MiB"), *device);
    ASSERT_TRUE(allocator.ok()) << allocator.status();
    allocator_ = *std::move(allocator);
  }

  FakeDriver fake_;
  std::unique_ptr<Allocator> allocator_;
};

TEST_P(CudaDebugTest, DamageOnTheDeviceIsFound) {
  AllocateOptions options;
  options.stream = fake_.CreateStream();
  auto* const block = static_cast<char*>(*allocator_->Allocate(5000, options));
  EXPECT_TRUE(allocator_->CheckMemory().ok());
  fake_.WriteByte(block + 5001, 3);
  const absl::Status freed = allocator_->Deallocate(block, options.stream);
  EXPECT_TRUE(absl::IsDataLoss(freed));
  EXPECT_THAT(std::string(freed.message()), HasSubstr("at offset 1; there is 03"));
  EXPECT_TRUE(allocator_->CheckMemory().ok());
  fake_.WriteByte(block + 7, 3);
  EXPECT_THAT(std::string(allocator_->CheckMemory().message()), HasSubstr("after it was freed"));
}

TEST_P(CudaDebugTest, ABlockMayBeFreedAfterItsStreamIsGone) {
  AllocateOptions options;
  options.stream = fake_.CreateStream();
  void* const block = *allocator_->Allocate(5000, options);
  fake_.DestroyStream(options.stream);
  EXPECT_TRUE(allocator_->Deallocate(block, StreamRef::Synchronized()).ok());
  EXPECT_EQ(fake_.dead_streams_touched(), 0);
}

TEST_P(CudaDebugTest, ACaptureIsLeftAlone) {
  AllocateOptions options;
  options.stream = fake_.CreateStream();
  // The first request may need more than a hit.
  ASSERT_TRUE(allocator_->Deallocate(*allocator_->Allocate(5000, options), options.stream).ok());
  fake_.SetCapturing(options.stream, true);
  void* const block = allocator_->TryAllocate(1000, options);
  if (block != nullptr) allocator_->Deallocate(block, options.stream).IgnoreError();
  EXPECT_EQ(fake_.spoilt_captures(), 0);
  fake_.SetCapturing(options.stream, false);
  // Nothing was filled, so nothing is missed.
  EXPECT_TRUE(allocator_->CheckMemory().ok());
}

TEST_P(CudaDebugTest, AFailingDriverIsNoDamage) {
  void* const block = *allocator_->Allocate(5000);
  fake_.FailCall("MemcpyAsync", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(allocator_->Deallocate(block, StreamRef()).ok());
  fake_.FailCall("MemsetD8Async", 1, CUDA_ERROR_INVALID_VALUE);
  void* const second = *allocator_->Allocate(5000);
  EXPECT_TRUE(allocator_->Deallocate(second, StreamRef()).ok());
}

INSTANTIATE_TEST_SUITE_P(All, CudaDebugTest,
                         ::testing::Values("bfc", "on_demand", "platform", "elastic", "cuda_async"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace hbm::testing

#endif  // HBMALLOC_HAVE_CUDA
