// SPDX-License-Identifier: Apache-2.0
//
// Two devices of the model driver: memory lies where it should, peers reach it, the
// caller's device stays as it was, and work on a peer's stream counts.
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

class TwoDevicesTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { SetLogSink(nullptr); }
  std::unique_ptr<Allocator> Make(const char* device, const std::string& more = "") {
    auto opened = sources::OpenCudaDevice(device, fake_.table());
    EXPECT_TRUE(opened.ok()) << opened.status();
    auto made = MakeAllocator(*ParsePolicy(GetParam() + ":memory_limit=32MiB" + more), *opened);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  static void* Take(Allocator& allocator, std::size_t bytes, StreamRef stream) {
    AllocateOptions options;
    options.stream = stream;
    return allocator.TryAllocate(bytes, options);
  }
  FakeDriver fake_;
};

TEST_P(TwoDevicesTest, EachPoolLiesOnItsDeviceWhateverIsCurrent) {
  const StreamRef first = fake_.CreateStream(0);
  const StreamRef second = fake_.CreateStream(1);
  for (const int current : {0, 1}) {
    fake_.SetCurrent(fake_.ContextOfDevice(current));
    {
      auto a = Make("cuda:0");
      auto b = Make("cuda:1");
      ASSERT_NE(a, nullptr);
      ASSERT_NE(b, nullptr);
      for (int i = 0; i < 20; ++i) {
        void* const on_first = Take(*a, kMiB, first);
        void* const on_second = Take(*b, kMiB, second);
        if (GetParam() != "cuda_async") {
          EXPECT_EQ(fake_.DeviceOf(on_first), 0);
          EXPECT_EQ(fake_.DeviceOf(on_second), 1);
        }
        fake_.Launch(first);
        fake_.Launch(second);
        EXPECT_TRUE(a->Deallocate(on_first).ok());
        EXPECT_TRUE(b->Deallocate(on_second).ok());
      }
      EXPECT_FALSE(a->Deallocate(Take(*b, kMiB, second)).ok());  // another pool's block
    }
    EXPECT_EQ(fake_.current(), fake_.ContextOfDevice(current));
  }
  EXPECT_EQ(fake_.bytes_in_use(), 0U);
}

TEST_P(TwoDevicesTest, WorkOnAPeersStreamHoldsTheBlockBack) {
  if (GetParam() == "cuda_async") GTEST_SKIP() << "the driver's pool keeps the order itself";
  auto allocator = Make("cuda:0", ",peers=1");
  const StreamRef own = fake_.CreateStream(0);
  const StreamRef other = fake_.CreateStream(0);
  const StreamRef peer = fake_.CreateStream(1);
  void* const block = Take(*allocator, 20 * kMiB, own);
  ASSERT_NE(block, nullptr);
  EXPECT_TRUE(fake_.HasAccess(block, 0));
  EXPECT_TRUE(fake_.HasAccess(block, 1));
  ASSERT_TRUE(allocator->RecordUse(block, peer).ok());
  const std::uint64_t work = fake_.Launch(peer);
  fake_.SetCurrent(fake_.ContextOfDevice(1));
  ASSERT_TRUE(allocator->Deallocate(block).ok());
  for (const StreamRef next : {own, other}) {
    void* const taken = Take(*allocator, 20 * kMiB, next);
    if (taken == nullptr) continue;
    EXPECT_TRUE(fake_.IsOrdered(peer, work, next));
    ASSERT_TRUE(allocator->Deallocate(taken).ok());
  }
  EXPECT_EQ(fake_.current(), fake_.ContextOfDevice(1));
  allocator.reset();
  EXPECT_EQ(fake_.bytes_in_use(), 0U);
}

TEST_P(TwoDevicesTest, APoolDiesWhileAnotherDeviceIsCurrent) {
  auto allocator = Make("cuda:0");
  ASSERT_NE(Take(*allocator, kMiB, StreamRef()), nullptr);
  fake_.SetCurrent(fake_.ContextOfDevice(1));
  allocator.reset();
  EXPECT_EQ(fake_.current(), fake_.ContextOfDevice(1));
  EXPECT_EQ(fake_.bytes_in_use(), 0U);
}

// A peer that comes later reaches all that is there and all that comes.
TEST_P(TwoDevicesTest, APeerMayBeAddedLater) {
  for (const bool from_the_start : {true, false}) {
    auto allocator = Make("cuda:0", from_the_start ? ",exportable=true" : "");
    ASSERT_NE(allocator, nullptr);
    std::vector<void*> blocks;
    for (int i = 0; i < 6; ++i) blocks.push_back(Take(*allocator, 2 * kMiB, StreamRef()));
    EXPECT_FALSE(allocator->AddPeer(7).ok());
    const bool possible = GetParam() == "elastic" || (from_the_start && GetParam() != "cuda_async");
    if (!possible) {
      EXPECT_TRUE(absl::IsUnimplemented(allocator->AddPeer(1))) << allocator->AddPeer(1);
    } else {
      EXPECT_FALSE(fake_.HasAccess(blocks[0], 1));
      // A failure on the way leaves nobody half let in.
      fake_.FailCall("MemSetAccess", GetParam() == "bfc" ? 1 : 2, CUDA_ERROR_INVALID_VALUE);
      const absl::Status failed = allocator->AddPeer(1);
      if (!failed.ok()) {
        for (void* const block : blocks) EXPECT_FALSE(fake_.HasAccess(block, 1));
      }
      fake_.FailCall("MemSetAccess", 0, CUDA_SUCCESS);
      ASSERT_TRUE(allocator->AddPeer(1).ok());
      ASSERT_TRUE(allocator->AddPeer(1).ok());
      ASSERT_TRUE(allocator->AddPeer(0).ok());  // itself
      for (int i = 0; i < 6; ++i) blocks.push_back(Take(*allocator, 2 * kMiB, StreamRef()));
      for (void* const block : blocks) {
        ASSERT_NE(block, nullptr);
        EXPECT_TRUE(fake_.HasAccess(block, 0));
        EXPECT_TRUE(fake_.HasAccess(block, 1));
      }
    }
    for (void* const block : blocks) EXPECT_TRUE(allocator->Deallocate(block).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, TwoDevicesTest,
                         ::testing::Values("bfc", "on_demand", "platform", "cuda_async", "elastic"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace hbm::testing

#endif  // HBMALLOC_HAVE_CUDA
