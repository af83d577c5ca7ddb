// SPDX-License-Identifier: Apache-2.0
//
// Several GPUs: for every pair of them, whatever the number. Skipped where there is
// one.
#include <cuda_runtime_api.h>

#include <string>

#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/kernels.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr const char* kStrategies[] = {"bfc", "on_demand", "platform", "elastic", "cuda_async"};

class GpuDevicesTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudaGetDeviceCount(&count_), cudaSuccess);
    if (count_ < 2) GTEST_SKIP() << "needs two GPUs, this machine has " << count_;
  }
  // Calls `check(owner, other)` for each pair.
  template <typename Check>
  void ForEachPair(Check check) {
    for (int owner = 0; owner < count_; ++owner) {
      for (int other = 0; other < count_; ++other) {
        if (other != owner) check(owner, other);
      }
    }
  }
  static int Current() {
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    return current;
  }
  int count_ = 0;
};

TEST_F(GpuDevicesTest, APoolWorksAndDiesWhileAnotherDeviceIsCurrent) {
  ForEachPair([&](int owner, int other) {
    for (const char* strategy : kStrategies) {
      ASSERT_EQ(cudaSetDevice(owner), cudaSuccess);
      const Stream stream;
      const SharedCount mismatches;
      auto allocator = Make(std::string(strategy) + ":memory_limit=64MiB", owner);
      ASSERT_NE(allocator, nullptr);
      ASSERT_EQ(cudaSetDevice(other), cudaSuccess);
      void* const block = GpuTake(*allocator, kMiB, stream.get());
      ASSERT_NE(block, nullptr);
      cudaPointerAttributes where = {};
      EXPECT_EQ(cudaPointerGetAttributes(&where, block), cudaSuccess);
      EXPECT_EQ(where.device, owner) << strategy;
      ASSERT_EQ(cudaSetDevice(owner), cudaSuccess);
      FillPattern(block, kMiB / 4, 3, stream.get());
      CheckPattern(block, kMiB / 4, 3, mismatches.get(), stream.get());
      ASSERT_EQ(cudaSetDevice(other), cudaSuccess);
      EXPECT_TRUE(allocator->Deallocate(block).ok());
      EXPECT_TRUE(allocator->Trim().ok());
      allocator.reset();
      EXPECT_EQ(Current(), other);
      ASSERT_EQ(cudaSetDevice(owner), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(mismatches.value(), 0U);
    }
  });
}

// A block of one device is written by the other, whose stream RecordUse names; its
// memory is not used again before that is done.
TEST_F(GpuDevicesTest, APeersWorkHoldsABlockBack) {
  ForEachPair([&](int owner, int other) {
    int can = 0;
    ASSERT_EQ(cudaDeviceCanAccessPeer(&can, other, owner), cudaSuccess);
    if (can == 0) return;
    for (const char* strategy : kStrategies) {
      ASSERT_EQ(cudaSetDevice(other), cudaSuccess);
      const Stream peer;
      ASSERT_EQ(cudaSetDevice(owner), cudaSuccess);
      const Stream own;
      const SharedCount mismatches;
      auto allocator =
          Make(std::string(strategy) + ":memory_limit=8MiB,peers=" + std::to_string(other), owner);
      ASSERT_NE(allocator, nullptr);
      for (std::uint32_t i = 0; i < 200; ++i) {
        void* const block = GpuTake(*allocator, 2 * kMiB, own.get());
        if (block == nullptr) continue;
        cudaEvent_t ready = nullptr;
        cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
        FillPattern(block, kMiB / 2, i, own.get());
        cudaEventRecord(ready, own.get());
        ASSERT_EQ(cudaSetDevice(other), cudaSuccess);
        cudaStreamWaitEvent(peer.get(), ready, 0);
        Spin(100'000, peer.get());
        CheckPattern(block, kMiB / 2, i, mismatches.get(), peer.get());
        EXPECT_TRUE(allocator->RecordUse(block, peer.ref()).ok()) << strategy;
        EXPECT_TRUE(allocator->Deallocate(block).ok()) << strategy;
        ASSERT_EQ(cudaSetDevice(owner), cudaSuccess);
        cudaEventDestroy(ready);
      }
      for (const int device : {other, owner}) {
        ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      }
      EXPECT_EQ(mismatches.value(), 0U) << strategy;
    }
  });
}

}  // namespace
}  // namespace hbm::testing
