// SPDX-License-Identifier: Apache-2.0
//
// Callbacks may do to the allocator what anyone may, and are told what happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "hbmalloc/hbmalloc.h"
#include "observe/replay.h"
#include "tests/support/golden.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::unique_ptr<Allocator> Make(const std::string& spec, const std::string& device = "sim:64MiB") {
  auto allocator = MakeAllocator(*ParsePolicy(spec), *OpenDevice(device));
  EXPECT_TRUE(allocator.ok()) << allocator.status();
  return allocator.ok() ? *std::move(allocator) : nullptr;
}

class EveryStrategyTest : public ::testing::TestWithParam<const char*> {};

// A cache that gives up its blocks when memory is low.
TEST_P(EveryStrategyTest, LowMemoryIsALastChance) {
  const auto allocator =
      Make(absl::StrCat(GetParam(), ":memory_fraction=1,garbage_collection=true"));
  std::vector<void*> cache;
  while (void* const block = allocator->TryAllocate(10 * kMiB)) cache.push_back(block);
  std::vector<LowMemory> seen;
  allocator->SetLowMemoryCallback([&](const LowMemory& low) {
    seen.push_back(low);
    if (cache.empty()) return false;
    EXPECT_TRUE(allocator->Deallocate(cache.back()).ok());
    cache.pop_back();
    return true;
  });
  AllocateOptions options;
  options.tag = RegisterTag("big");
  const auto block = allocator->Allocate(30 * kMiB, options);
  ASSERT_TRUE(block.ok()) << block.status();
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen[0].bytes, 30 * kMiB);
  EXPECT_EQ(seen[0].attempt, 0);
  EXPECT_EQ(seen[0].tag, options.tag);
  EXPECT_NE(seen[0].cause, OomCause::kNone);
  EXPECT_EQ(seen.back().attempt, static_cast<int>(seen.size()) - 1);
  EXPECT_LE(cache.size(), 3u);
  // With nothing left to give, the request fails as it would without.
  seen.clear();
  const auto too_large = allocator->Allocate(60 * kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(too_large.status()));
  allocator->SetLowMemoryCallback(nullptr);
  seen.clear();
  EXPECT_FALSE(allocator->Allocate(60 * kMiB).ok());
  EXPECT_TRUE(seen.empty());
  EXPECT_TRUE(allocator->Deallocate(*block).ok());
  for (void* const left : cache) EXPECT_TRUE(allocator->Deallocate(left).ok());
}

// It may use everything, also what is short, and is not called for its own requests.
TEST_P(EveryStrategyTest, LowMemoryMayUseTheAllocator) {
  const auto allocator = Make(absl::StrCat(GetParam(), ":memory_fraction=1"));
  int calls = 0;
  allocator->SetLowMemoryCallback([&](const LowMemory&) {
    ++calls;
    EXPECT_FALSE(allocator->Allocate(100 * kMiB).ok());
    const auto small = allocator->Allocate(1000);
    EXPECT_TRUE(small.ok());
    EXPECT_TRUE(allocator->Describe(*small).ok());
    EXPECT_TRUE(allocator->Deallocate(*small).ok());
    EXPECT_TRUE(allocator->Trim().ok());
    EXPECT_EQ(allocator->GetStats().requested_bytes, 0);
    EXPECT_FALSE(allocator->TakeSnapshot().regions.size() > 1000);
    allocator->SetLowMemoryCallback(nullptr);
    return true;  // without having freed anything
  });
  EXPECT_FALSE(allocator->Allocate(100 * kMiB).ok());
  EXPECT_EQ(calls, kMostLowMemoryAttempts);
}

TEST_P(EveryStrategyTest, EventsTellWhatHappened) {
  const auto allocator = Make(absl::StrCat(GetParam(), ":memory_fraction=1"));
  std::vector<Event> events;
  allocator->SetEventCallback([&](const Event& event) {
    events.push_back(event);
    // What is done in here is not told.
    EXPECT_TRUE(allocator->Deallocate(*allocator->Allocate(100)).ok());
  });
  AllocateOptions options;
  options.tag = RegisterTag("told");
  void* const block = *allocator->Allocate(3 * kMiB, options);
  EXPECT_EQ(allocator->TryAllocate(100 * kMiB), nullptr);
  EXPECT_FALSE(allocator->Deallocate(static_cast<char*>(block) + 256).ok());
  EXPECT_TRUE(allocator->Deallocate(block).ok());
  EXPECT_TRUE(allocator->Trim().ok());
  EXPECT_TRUE(allocator->SetMemoryLimit(32 * kMiB).ok());
  allocator->SetEventCallback(nullptr);
  EXPECT_TRUE(allocator->Deallocate(*allocator->Allocate(100)).ok());

  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].kind, Event::Kind::kAllocate);
  EXPECT_EQ(events[0].address, block);
  EXPECT_EQ(events[0].bytes, 3 * kMiB);
  EXPECT_EQ(events[0].tag, options.tag);
  EXPECT_EQ(events[0].stats.requested_bytes, static_cast<std::int64_t>(3 * kMiB));
  EXPECT_EQ(events[1].kind, Event::Kind::kAllocateFailure);
  EXPECT_NE(events[1].cause, OomCause::kNone);
  EXPECT_EQ(events[2].kind, Event::Kind::kFree);
  EXPECT_EQ(events[2].bytes, 3 * kMiB);
  EXPECT_EQ(events[2].tag, options.tag);
  EXPECT_EQ(events[2].stats.requested_bytes, 0);
  EXPECT_EQ(events[3].kind, Event::Kind::kTrim);
  EXPECT_EQ(events[4].kind, Event::Kind::kSetMemoryLimit);
  EXPECT_EQ(events[4].bytes, 32 * kMiB);
  if (GetParam() != std::string("bfc")) {
    EXPECT_GT(events[0].driver_calls, 0);
    EXPECT_GT(events[0].driver_nanoseconds, 0);
  }
}

TEST_P(EveryStrategyTest, CallbacksComeAndGoWhileOthersAllocate) {
  const auto allocator = Make(absl::StrCat(GetParam(), ":memory_fraction=1"));
  std::atomic<bool> ends{false};
  std::atomic<std::uint64_t> events{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!ends) {
        const auto block = allocator->Allocate(30 * kMiB);
        if (!block.ok()) continue;
        EXPECT_TRUE(allocator->Deallocate(*block).ok());
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    allocator->SetEventCallback([&](const Event&) { ++events; });
    allocator->SetLowMemoryCallback([](const LowMemory& low) { return low.attempt < 2; });
    std::this_thread::yield();
    allocator->SetEventCallback(nullptr);
    allocator->SetLowMemoryCallback(nullptr);
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator->GetStats().requested_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(Strategies, EveryStrategyTest,
                         ::testing::Values("bfc", "on_demand", "platform", "elastic"),
                         [](const auto& strategy) { return std::string(strategy.param); });

// Against the integrals of the replay, which counts for itself.
TEST(MeansTest, AgreeWithTheReplayOnEveryTrace) {
  for (const testing::GoldenCase& golden : testing::GoldenCases()) {
    if (golden.strategy != "on_demand" || golden.pressed) continue;
    const observe::Trace trace = testing::LoadTrace(golden.trace);
    for (const char* const spec : {"on_demand:memory_fraction=1,means=true",
                                   "elastic:memory_fraction=1,slack=0,means=true"}) {
      const auto device = *OpenDevice("sim:64GiB");
      const auto allocator = MakeAllocator(*ParsePolicy(spec), device);
      ASSERT_TRUE(allocator.ok());
      observe::MemoryOptions options;
      std::optional<double> mean;
      options.on_event = [&](const observe::ReplayMoment& moment) {
        if (moment.event + 1 == trace.events.size()) {
          mean = (*allocator)->GetFragmentation().mean_pool_over_live;
        }
      };
      const auto figures =
          observe::MeasureMemory(trace, **allocator, device->simulated_clock(), options);
      ASSERT_EQ(mean.has_value(), figures.mean_pool_over_live.has_value()) << golden.trace;
      if (!mean.has_value()) continue;
      EXPECT_NEAR(*mean, *figures.mean_pool_over_live, 1e-6 * *mean) << golden.trace << spec;
    }
  }
}

TEST(MeansTest, AreUnsetUnlessAskedFor) {
  EXPECT_FALSE(Make("bfc")->GetFragmentation().mean_pool_over_live.has_value());
  EXPECT_FALSE(Make("bfc:means=1")->GetFragmentation().mean_pool_over_live.has_value());
}

TEST(OomDetailsTest, GoWithTheStatus) {
  const auto allocator = Make("bfc:memory_fraction=1");
  std::vector<void*> blocks;
  for (int i = 0; i < 15; ++i) blocks.push_back(*allocator->Allocate(4 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    EXPECT_TRUE(allocator->Deallocate(blocks[i]).ok());
  }
  AllocateOptions options;
  options.alignment = 512;
  const absl::Status status = allocator->Allocate(20 * kMiB, options).status();
  const absl::Status copy = status;
  const std::optional<OomDetails> details = GetOomDetails(copy);
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(details->cause, OomCause::kFragmentation);
  EXPECT_EQ(GetOomCause(copy), OomCause::kFragmentation);
  EXPECT_EQ(details->requested_bytes, 20 * kMiB);
  EXPECT_EQ(details->alignment, 512u);
  EXPECT_EQ(details->limit_source, LimitSource::kMemoryFraction);
  const Stats stats = allocator->GetStats();
  EXPECT_EQ(details->limit_bytes, stats.bytes_limit);
  EXPECT_EQ(details->pool_bytes, stats.pool_bytes);
  EXPECT_EQ(details->in_use_bytes, stats.bytes_in_use);
  EXPECT_EQ(details->free_bytes, stats.pool_bytes - stats.bytes_in_use);
  EXPECT_EQ(details->largest_free_bytes, stats.largest_free_block_bytes);
  EXPECT_EQ(details->pending_bytes, 0);
  EXPECT_EQ(details->device_total_bytes, 64 * kMiB);
  EXPECT_TRUE(details->device_free_bytes.has_value());
  EXPECT_FALSE(GetOomDetails(absl::ResourceExhaustedError("another")).has_value());
  EXPECT_FALSE(GetOomDetails(absl::OkStatus()).has_value());
  absl::Status strange = absl::ResourceExhaustedError("strange");
  strange.SetPayload(kOomDetailsPayload, absl::Cord("cause=x\n=\nfree_bytes=1e9\nno\nalignment=7"));
  EXPECT_EQ(GetOomDetails(strange)->alignment, 7u);
  EXPECT_EQ(GetOomCause(strange), OomCause::kNone);
  for (std::size_t i = 1; i < blocks.size(); i += 2) {
    EXPECT_TRUE(allocator->Deallocate(blocks[i]).ok());
  }
}

}  // namespace
}  // namespace hbm
