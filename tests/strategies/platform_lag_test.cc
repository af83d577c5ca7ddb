// SPDX-License-Identifier: Apache-2.0
//
// platform waits for the work on a block before it gives the block back, and says
// how long it took, on the clock of the device.
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"

namespace hbm {
namespace {

StreamRef Stream(std::uintptr_t number) {
  return StreamRef::FromHandle(reinterpret_cast<void*>(number));
}

TEST(PlatformLag, WaitsAreCountedInSimulatedTime) {
  const auto device = *OpenDevice("sim:1GiB,lag=3ms");
  const auto allocator = *MakeAllocator(*ParsePolicy("platform"), device);
  AllocateOptions options;
  options.stream = Stream(1);
  void* const first = *allocator->Allocate(1 << 20, options);
  void* const second = *allocator->Allocate(1 << 20, options);
  ASSERT_TRUE(allocator->Deallocate(first).ok());
  EXPECT_EQ(device->simulated_clock()->Now(), absl::Milliseconds(3));
  // The caller vouches for all of the work: nothing is waited for.
  ASSERT_TRUE(allocator->RecordUse(second, Stream(2)).ok());
  ASSERT_TRUE(allocator->Deallocate(second, StreamRef::Synchronized()).ok());
  const Stats stats = allocator->GetStats();
  EXPECT_EQ(stats.num_waits, 1);
  EXPECT_EQ(stats.wait_nanoseconds, 3'000'000);
}

TEST(PlatformLag, NothingIsWaitedForWithoutLag) {
  const auto device = *OpenDevice("sim:1GiB");
  const auto allocator = *MakeAllocator(*ParsePolicy("platform"), device);
  ASSERT_TRUE(allocator->Deallocate(*allocator->Allocate(100)).ok());
  EXPECT_EQ(allocator->GetStats().num_waits, 0);
  EXPECT_EQ(allocator->GetStats().wait_nanoseconds, 0);
}

}  // namespace
}  // namespace hbm
