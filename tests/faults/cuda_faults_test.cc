// SPDX-License-Identifier: Apache-2.0
//
// Every driver call fails in turn, at each of its first calls, with each kind of
// error. Nothing leaks and no byte of the books is lost.
#if defined(HBMALLOC_HAVE_CUDA)

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "sources/cuda/cuda_device.h"
#include "tests/support/fake_driver.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A capture, and a launch of its graph.
void Capture(FakeDriver& fake, Allocator& allocator, StreamRef stream) {
  const absl::StatusOr<CapturePool> pool = allocator.BeginCapturePool(stream);
  if (!pool.ok()) return;
  fake.SetCapturing(stream, true);
  AllocateOptions options;
  options.stream = stream;
  for (int i = 0; i < 4; ++i) {
    void* const block = allocator.TryAllocate(kMiB, options);
    if (block == nullptr) continue;
    EXPECT_TRUE(allocator.Deallocate(block).ok());
  }
  fake.SetCapturing(stream, false);
  EXPECT_TRUE(allocator.EndCapturePool(*pool).ok());
  // What could not be given back is still the pool's.
  if (!allocator.ReleaseCapturePool(*pool, stream).ok()) {
    EXPECT_TRUE(allocator.ReleaseCapturePool(*pool, stream).ok());
  }
}

// Some of everything, on three streams. Errors are allowed; a wrong book is not.
void Exercise(FakeDriver& fake, const std::string& policy) {
  auto device = sources::OpenCudaDevice("cuda:0", fake.table());
  if (!device.ok()) return;
  auto allocator = MakeAllocator(*ParsePolicy(policy), *device);
  if (!allocator.ok()) return;
  const std::vector<StreamRef> streams = {StreamRef(), fake.CreateStream(), fake.CreateStream()};
  std::vector<void*> live;
  for (std::size_t i = 0; i < 60; ++i) {
    AllocateOptions options;
    options.stream = streams[i % 3];
    void* const block = (*allocator)->TryAllocate((i % 7 + 1) * kMiB / 2, options);
    if (block != nullptr) live.push_back(block);
    if (block != nullptr && i % 5 == 0) {
      (*allocator)->RecordUse(block, streams[(i + 1) % 3]).IgnoreError();
    }
    if (live.size() > 6) {
      if ((*allocator)->Deallocate(live.front()).ok()) live.erase(live.begin());
    }
    if (i % 11 == 0) fake.Finish(options.stream);
    if (i % 20 == 19) (*allocator)->Trim().IgnoreError();
  }
  Capture(fake, **allocator, streams[1]);
  for (void* const block : live) {
    if (!(*allocator)->Deallocate(block).ok()) {
      EXPECT_TRUE((*allocator)->Deallocate(block).ok());  // still held, so it can be tried again
    }
  }
  const Stats stats = (*allocator)->GetStats();
  EXPECT_EQ(stats.bytes_in_use, 0);
  EXPECT_EQ(stats.requested_bytes, 0);
  EXPECT_EQ(stats.num_allocs, stats.num_frees);
}

class CudaFaultsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { SetLogSink(nullptr); }
};

TEST_P(CudaFaultsTest, NoFaultLeaks) {
  for (const std::string& call : FakeDriver::CallNames()) {
    for (const CUresult error : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                 CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_SUPPORTED}) {
      for (int k = 1; k <= 50; ++k) {
        FakeDriver fake(24 * kMiB);
        fake.FailCall(call, k, error);
        Exercise(fake, GetParam());
        const bool reached = fake.calls(call) >= k;
        // The context itself is the one thing that is given back only once.
        const int allowed = call == "DevicePrimaryCtxRelease" ? 1 : 0;
        ASSERT_LE(fake.Outstanding(), allowed) << call << " " << k << " " << error;
        ASSERT_EQ(fake.bytes_in_use(), 0U) << call << " " << k << " " << error;
        ASSERT_EQ(fake.current(), nullptr) << call << " " << k << " " << error;
        if (!reached) break;
      }
    }
  }
}

TEST_P(CudaFaultsTest, ShutdownAndCrashesAreQuiet) {
  for (const CUresult error :
       {CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_ILLEGAL_ADDRESS}) {
    FakeDriver fake(64 * kMiB);
    int warnings = 0;
    SetLogSink([&](LogSeverity, std::string_view) { ++warnings; });
    auto device = sources::OpenCudaDevice("cuda:0", fake.table());
    ASSERT_TRUE(device.ok());
    auto allocator = MakeAllocator(*ParsePolicy(GetParam()), *device);
    ASSERT_TRUE(allocator.ok()) << allocator.status();
    void* const block = (*allocator)->TryAllocate(kMiB);
    ASSERT_NE(block, nullptr);
    fake.FailEverything(error);
    const bool crashed = error == CUDA_ERROR_ILLEGAL_ADDRESS;
    const absl::StatusOr<void*> more = (*allocator)->Allocate(8 * kMiB);
    EXPECT_FALSE(more.ok() && *more == nullptr);
    EXPECT_FALSE(crashed && absl::IsResourceExhausted(more.status()));
    if (more.ok()) {
      EXPECT_TRUE((*allocator)->Deallocate(*more).ok());
    }
    warnings = 0;
    if ((*allocator)->Deallocate(block).ok()) {
      allocator->reset();
      EXPECT_TRUE(crashed || warnings == 0);
    }
    allocator->reset();
    device->reset();
    SetLogSink(nullptr);
  }
}

// A driver packs small blocks at 512 bytes: one that is aligned less than asked for
// may lie right below a block that is live.
TEST(CudaPlatformTest, ABlockThatIsTakenAgainForItsAlignmentLeavesItsNeighbourAlone) {
  FakeDriver fake;
  auto device = sources::OpenCudaDevice("cuda:0", fake.table());
  ASSERT_TRUE(device.ok());
  auto allocator = *MakeAllocator(*ParsePolicy("platform"), *device);
  AllocateOptions options;
  options.alignment = 2 * kMiB;
  const auto first = allocator->Allocate(512, options);
  ASSERT_TRUE(first.ok());
  fake.SetNextAllocation(reinterpret_cast<std::uintptr_t>(*first) - 512);
  const auto second = allocator->Allocate(512, options);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*second) % options.alignment, 0U);
  EXPECT_TRUE(allocator->Deallocate(*first).ok());
  EXPECT_TRUE(allocator->Deallocate(*second).ok());
}

INSTANTIATE_TEST_SUITE_P(Strategies, CudaFaultsTest,
                         ::testing::Values("bfc:memory_limit=16MiB", "on_demand:memory_limit=16MiB",
                                           "platform:memory_limit=16MiB",
                                           "cuda_async:memory_limit=16MiB",
                                           "elastic:memory_limit=16MiB",
                                           "on_demand:memory_limit=16MiB,peers=1"),
                         [](const auto& instance) {
                           std::string name;
                           for (const char c : instance.param) {
                             if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace hbm::testing

#endif  // HBMALLOC_HAVE_CUDA
