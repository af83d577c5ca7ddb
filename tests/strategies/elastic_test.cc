// SPDX-License-Identifier: Apache-2.0
//
// What elastic does with its memory: giving it back, limits, preallocation,
// contiguous blocks, addresses.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/faulty_source.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class ElasticTest : public ::testing::Test {
 protected:
  void Open(const std::string& policy_text, const std::string& device_text = "sim:256MiB",
            MemoryFraction fraction = {1.0, {}}) {
    device_ = std::make_shared<FaultyDevice>(*OpenDevice(device_text));
    Policy policy = *ParsePolicy(policy_text);
    policy.memory_fraction = fraction;
    allocator_ = *MakeAllocator(policy, device_);
  }
  std::size_t pool() const { return static_cast<std::size_t>(allocator_->GetStats().pool_bytes); }
  void Free(void* block) { ASSERT_TRUE(allocator_->Deallocate(block).ok()); }

  std::shared_ptr<FaultyDevice> device_;
  std::unique_ptr<Allocator> allocator_;
};

TEST_F(ElasticTest, HoldsOnlyWhatIsLive) {
  Open("elastic:slack=0");
  EXPECT_EQ(pool(), 0u);
  void* const a = *allocator_->Allocate(10 * kMiB);
  void* const wall = *allocator_->Allocate(2 * kMiB);
  EXPECT_EQ(pool(), 12 * kMiB);
  Free(a);
  // A larger block does not fit where the first was, but its pages serve it.
  void* const b = *allocator_->Allocate(12 * kMiB);
  EXPECT_NE(b, a);
  EXPECT_EQ(pool(), 14 * kMiB);
  Free(b);
  Free(wall);
}

TEST_F(ElasticTest, TrimGivesBackAllThatIsIdleAndSaysWhatIsNot) {
  Open("elastic:slack=0");
  void* const a = *allocator_->Allocate(21 * kMiB);  // half of its last page is free
  void* const b = *allocator_->Allocate(40 * kMiB);
  Free(b);
  const auto result = allocator_->Trim();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->released, 40 * kMiB);
  EXPECT_EQ(result->pinned, 1 * kMiB);
  EXPECT_EQ(result->pending, 0u);
  EXPECT_EQ(pool(), 22 * kMiB);
  Free(a);
  TrimOptions keep;
  keep.keep_pool_bytes = 10 * kMiB;
  EXPECT_EQ(allocator_->Trim(keep)->released, 12 * kMiB);
  EXPECT_EQ(pool(), 10 * kMiB);
}

TEST_F(ElasticTest, IdleMemoryGoesBackAfterIdleRelease) {
  Open("elastic:slack=inf,idle_release=10ms");
  SimulatedClock& clock = *device_->simulated_clock();
  void* const a = *allocator_->Allocate(32 * kMiB);
  void* const b = *allocator_->Allocate(32 * kMiB);
  Free(a);
  clock.AdvanceTo(absl::Milliseconds(9));
  Free(*allocator_->Allocate(256));
  const std::size_t before = pool();
  clock.AdvanceTo(absl::Milliseconds(10));
  // By itself: no call is needed.
  EXPECT_EQ(pool(), before - 32 * kMiB);
  Free(b);
}

TEST_F(ElasticTest, WhatWorkStillUsesGoesBackWhenThatIsDone) {
  Open("elastic:slack=inf,idle_release=0", "sim:256MiB,lag=10ms");
  SimulatedClock& clock = *device_->simulated_clock();
  Free(*allocator_->Allocate(32 * kMiB));
  clock.AdvanceTo(absl::Milliseconds(9));
  EXPECT_GE(pool(), 32 * kMiB);
  // The marker is recorded at the next call that has the stream at hand, or here.
  clock.AdvanceTo(absl::Milliseconds(40));
  EXPECT_EQ(pool(), 0u);
}

TEST_F(ElasticTest, AVetoIsAskedForAgainAfterIdleRelease) {
  Open("elastic:slack=inf,idle_release=10ms");
  SimulatedClock& clock = *device_->simulated_clock();
  bool stays = true;
  ASSERT_TRUE(allocator_->SetRegionCallback([&](const RegionChange&) { return !stays; }).ok());
  Free(*allocator_->Allocate(32 * kMiB));
  clock.AdvanceTo(absl::Milliseconds(15));
  EXPECT_GE(pool(), 32 * kMiB);
  stays = false;
  clock.AdvanceTo(absl::Milliseconds(24));
  EXPECT_GE(pool(), 32 * kMiB);
  clock.AdvanceTo(absl::Milliseconds(25));
  EXPECT_EQ(pool(), 0u);
}

TEST(ElasticHostTest, IdleMemoryGoesBackWithoutAnyCall) {
  const auto device = std::make_shared<FaultyDevice>(*OpenDevice("host:256MiB"));
  const auto allocator =
      *MakeAllocator(*ParsePolicy("elastic:memory_fraction=1,slack=inf,idle_release=20ms"), device);
  void* const kept = *allocator->Allocate(8 * kMiB);
  ASSERT_TRUE(allocator->Deallocate(*allocator->Allocate(64 * kMiB)).ok());
  const int released = device->source()->Count(SourceCall::kRelease);
  const absl::Time start = absl::Now();
  while (device->source()->Count(SourceCall::kRelease) == released) {
    ASSERT_LT(absl::Now() - start, absl::Seconds(30));
    absl::SleepFor(absl::Milliseconds(2));
  }
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(15));
  ASSERT_TRUE(allocator->Deallocate(kept).ok());
}

TEST_F(ElasticTest, TheLimitCanBeLoweredAndRaised) {
  Open("elastic:slack=inf");
  void* const a = *allocator_->Allocate(64 * kMiB);
  void* const b = *allocator_->Allocate(64 * kMiB);
  Free(a);
  ASSERT_TRUE(allocator_->SetMemoryLimit(80 * kMiB).ok());
  EXPECT_LE(pool(), 80 * kMiB);
  EXPECT_EQ(allocator_->GetStats().limit_source, LimitSource::kSetMemoryLimit);
  const auto too_much = allocator_->Allocate(32 * kMiB);
  EXPECT_EQ(GetOomCause(too_much.status()), OomCause::kLimit);
  // Below what is live, nothing is taken; what is freed then goes back.
  ASSERT_TRUE(allocator_->SetMemoryLimit(32 * kMiB).ok());
  EXPECT_GE(pool(), 64 * kMiB);
  Free(b);
  EXPECT_LE(pool(), 32 * kMiB);
  ASSERT_TRUE(allocator_->SetMemoryLimit(200 * kMiB).ok());
  EXPECT_TRUE(allocator_->Allocate(190 * kMiB).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(allocator_->SetMemoryLimit(100)));
}

TEST_F(ElasticTest, PreallocatesItsStartAndGrowsAndShrinksFromThere) {
  Open("elastic:preallocate=true", "sim:400MiB", {0.5, 1.0});
  EXPECT_EQ(pool(), 200 * kMiB);
  const int calls = device_->source()->CountAll();
  void* const a = *allocator_->Allocate(180 * kMiB);
  EXPECT_EQ(device_->source()->Count(SourceCall::kCreate), 2);
  EXPECT_GE(device_->source()->CountAll(), calls);
  void* const b = *allocator_->Allocate(180 * kMiB);
  EXPECT_GE(pool(), 360 * kMiB);
  Free(a);
  Free(b);
  ASSERT_TRUE(allocator_->Trim().ok());
  EXPECT_EQ(pool(), 0u);
}

TEST_F(ElasticTest, AStartThatDoesNotFitShrinksOrFails) {
  Open("elastic:preallocate=true", "sim:400MiB,used=100MiB");
  EXPECT_EQ(pool(), 300 * kMiB);
  Policy policy = *ParsePolicy("elastic:preallocate=true,memory_fraction=1,on_shortage=fail");
  const auto failed = MakeAllocator(policy, *OpenDevice("sim:400MiB,used=100MiB"));
  EXPECT_TRUE(absl::IsResourceExhausted(failed.status())) << failed.status();
}

TEST_F(ElasticTest, ContiguousBlocksHaveOneHandle) {
  Open("elastic:slack=0");
  AllocateOptions contiguous;
  contiguous.contiguous = true;
  // Pages of 2 MiB lie about; the block gets a handle of its own all the same.
  void* const a = *allocator_->Allocate(33 * kMiB);
  Free(a);
  void* const block = *allocator_->Allocate(33 * kMiB, contiguous);
  const BlockInfo info = *allocator_->Describe(block);
  EXPECT_EQ(info.region.bytes, 34 * kMiB);
  EXPECT_EQ(info.region.address, block);
  // Whatever else happens, it stays there.
  std::vector<void*> others;
  for (;;) {
    const auto other = allocator_->Allocate(7 * kMiB);
    if (!other.ok()) break;
    others.push_back(*other);
  }
  EXPECT_EQ(allocator_->Describe(block)->region.bytes, 34 * kMiB);
  EXPECT_TRUE(device_->source()->IsUsable({block, 33 * kMiB}));
  for (void* other : others) Free(other);
  Free(block);
  // Freed, it serves the next one.
  EXPECT_EQ(*allocator_->Allocate(33 * kMiB, contiguous), block);
}

// The addresses are few times the device's memory; a program that goes on for long
// uses them again and again.
TEST_F(ElasticTest, AddressesAreReused) {
  Open("elastic:slack=0", "sim:64MiB");
  void* const wall = *allocator_->Allocate(3 * kMiB);
  for (std::size_t i = 0; i < 5000; ++i) {
    const std::size_t bytes = (1 + i * 7 % 57) * kMiB + i % 1000 * 256;
    const auto block = allocator_->Allocate(bytes);
    ASSERT_TRUE(block.ok()) << i << ": " << block.status();
    ASSERT_TRUE(device_->source()->IsUsable({*block, bytes}));
    Free(*block);
  }
  EXPECT_LE(device_->source()->GetPeak().mappings, 64u / 2);
  Free(wall);
}

TEST_F(ElasticTest, FewAddressesSuffice) {
  auto device = *OpenDevice("sim:64MiB");
  Policy policy = *ParsePolicy("elastic:slack=0,memory_fraction=1");
  auto source = std::make_shared<FaultySource>(*device->MakeSource(policy));
  source->LimitReservations(160 * kMiB);
  const auto allocator = MakeAllocator(policy, source);
  ASSERT_TRUE(allocator.ok()) << allocator.status();
  for (int i = 0; i < 200; ++i) {
    void* const a = *(*allocator)->Allocate(40 * kMiB);
    void* const b = *(*allocator)->Allocate(20 * kMiB);
    ASSERT_TRUE((*allocator)->Deallocate(a).ok());
    ASSERT_TRUE((*allocator)->Deallocate(b).ok());
  }
}

}  // namespace
}  // namespace hbm::testing
