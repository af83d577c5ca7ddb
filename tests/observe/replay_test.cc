// SPDX-License-Identifier: Apache-2.0
#include "observe/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "observe/trace_reader.h"

namespace hbm::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uintptr_t kBase = 0x10000;

// Gives out ever higher addresses, holds twice what is live from its region, and
// fails every request of a given size.
class FakeAllocator final : public Allocator {
 public:
  explicit FakeAllocator(Strategy strategy = Strategy::kBfc) : Allocator(MakePolicy(strategy)) {}

  std::size_t failing_bytes = 0;
  bool has_region = true;
  int allocations = 0;
  std::vector<std::uintptr_t> alloc_streams;
  std::vector<std::uintptr_t> free_streams;
  std::vector<std::size_t> alignments;
  SimulatedClock* clock = nullptr;
  std::vector<absl::Duration> times;
  std::size_t live_blocks() const { return live_.size(); }

 private:
  static Policy MakePolicy(Strategy strategy) {
    Policy policy;
    policy.strategy = strategy;
    return policy;
  }

  void* DoAllocate(const Request& request, AllocError* why) noexcept override {
    if (clock != nullptr) times.push_back(clock->Now());
    ++allocations;
    ++stats_.driver_calls;
    stats_.driver_nanoseconds += 1000;
    alloc_streams.push_back(request.stream.value());
    alignments.push_back(request.alignment);
    if (request.bytes == failing_bytes) {
      *why = {absl::StatusCode::kResourceExhausted, OomCause::kFragmentation};
      return nullptr;
    }
    const std::uintptr_t address = next_;
    next_ += 0x1000;
    live_[address] = request.bytes;
    Add(static_cast<std::int64_t>(request.bytes));
    return reinterpret_cast<void*>(address);
  }

  absl::Status DoDeallocate(void* ptr, StreamRef after) override {
    const auto found = live_.find(reinterpret_cast<std::uintptr_t>(ptr));
    if (found == live_.end()) return absl::CancelledError();
    free_streams.push_back(after.value());
    Add(-static_cast<std::int64_t>(found->second));
    live_.erase(found);
    return absl::OkStatus();
  }

  void Add(std::int64_t bytes) {
    stats_.requested_bytes += bytes;
    stats_.bytes_in_use += 2 * bytes;
    stats_.pool_bytes += 2 * bytes;
    stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, stats_.bytes_in_use);
    stats_.peak_pool_bytes = std::max(stats_.peak_pool_bytes, stats_.pool_bytes);
  }

  absl::Status DoRecordUse(void*, StreamRef) override { return absl::OkStatus(); }
  absl::StatusOr<BlockInfo> DoDescribe(const void* ptr) const override {
    BlockInfo info;
    info.address = const_cast<void*>(ptr);
    info.region = {reinterpret_cast<void*>(kBase - 0x100), 1 << 20};
    return info;
  }
  Stats DoGetStats() const override { return stats_; }
  void DoGetFigures(Figures* /*figures*/) const override {}
  void DoResetPeakStats() override {}
  Snapshot DoTakeSnapshot() const override {
    Snapshot snapshot;
    if (has_region) {
      snapshot.regions.resize(1);
      snapshot.regions[0].range = {reinterpret_cast<void*>(kBase), 1 << 20};
    }
    return snapshot;
  }
  absl::StatusOr<TrimResult> DoTrim(const TrimOptions&) override { return TrimResult{}; }
  absl::Status DoSetMemoryLimit(std::size_t) override { return absl::OkStatus(); }

  Stats stats_;
  std::uintptr_t next_ = kBase;
  std::map<std::uintptr_t, std::size_t> live_;
};

class FakeClock final : public SimulatedClock {
 public:
  absl::Duration Now() const override { return now_; }
  void AdvanceTo(absl::Duration now) override { now_ = std::max(now_, now); }

 private:
  absl::Duration now_ = absl::Seconds(5);
};

Trace Read(const std::string& rows) {
  absl::StatusOr<Trace> trace =
      ReadTrace("Time,Action,Pointer,Size,Stream,Alignment\n" + rows, "t.csv");
  EXPECT_TRUE(trace.ok()) << trace.status();
  return *std::move(trace);
}

Trace SmallTrace() {
  return Read(
      "0,allocate,0x1,100,7,\n"
      "10,allocate,0x2,50,8,4096\n"
      "12,free,0x1,100,7,\n"
      "20,allocate,0x3,25,0,\n"
      "21,free,0x3,25,8,\n");
}

TEST(MeasureMemoryTest, PeaksMeansAndOffsets) {
  FakeAllocator allocator;
  MemoryOptions options;
  options.offsets = true;
  const MemoryFigures figures = MeasureMemory(SmallTrace(), allocator, nullptr, options);
  EXPECT_EQ(figures.failures, 0u);
  EXPECT_EQ(figures.refused_frees, 0u);
  EXPECT_EQ(figures.peak_live_bytes, 150u);
  EXPECT_EQ(figures.peak_bytes_in_use, 300u);
  EXPECT_EQ(figures.peak_pool_bytes, 300u);
  EXPECT_DOUBLE_EQ(figures.mean_pool_over_live.value(), 2.0);
  EXPECT_DOUBLE_EQ(figures.utilization_at_peak.value(), 1.0);
  EXPECT_DOUBLE_EQ(figures.rounding_waste, 0.5);
  EXPECT_DOUBLE_EQ(figures.external_fragmentation.value(), 0.0);
  EXPECT_DOUBLE_EQ(figures.height_over_load.value(), (0x2000 + 25) / 150.0);
  EXPECT_EQ(figures.driver_calls, 3u);
  EXPECT_EQ(figures.driver_nanoseconds, 3000u);
  EXPECT_THAT(figures.offsets, ElementsAre(0, 0x1000, 0x2000));
  EXPECT_EQ(allocator.live_blocks(), 0u);
}

TEST(MeasureMemoryTest, StreamsAndAlignmentsReachTheAllocator) {
  FakeAllocator allocator;
  MeasureMemory(SmallTrace(), allocator, nullptr);
  ASSERT_EQ(allocator.alloc_streams.size(), 3u);
  EXPECT_EQ(allocator.alloc_streams[0], 0u);  // the first stream is the default one
  EXPECT_NE(allocator.alloc_streams[1], allocator.alloc_streams[0]);
  EXPECT_NE(allocator.alloc_streams[2], allocator.alloc_streams[0]);
  EXPECT_NE(allocator.alloc_streams[2], allocator.alloc_streams[1]);
  EXPECT_EQ(allocator.free_streams[0], allocator.alloc_streams[0]);
  EXPECT_EQ(allocator.free_streams[1], allocator.alloc_streams[1]);
  EXPECT_THAT(allocator.alignments, ElementsAre(256u, 4096u, 256u));

  FakeAllocator one_stream;
  MemoryOptions options;
  options.streams = ReplayStreams::kOne;
  MeasureMemory(SmallTrace(), one_stream, nullptr, options);
  EXPECT_THAT(one_stream.alloc_streams, ElementsAre(0u, 0u, 0u));
}

TEST(MeasureMemoryTest, FailedRequestsCountAsLiveAndAreNotFreed) {
  FakeAllocator allocator;
  allocator.failing_bytes = 100;
  MemoryOptions options;
  options.offsets = true;
  const MemoryFigures figures = MeasureMemory(SmallTrace(), allocator, nullptr, options);
  EXPECT_EQ(figures.failures, 1u);
  EXPECT_THAT(figures.first_failure, HasSubstr("event 0, 100 bytes: out of memory"));
  EXPECT_THAT(figures.first_failure, HasSubstr("fragmentation"));
  EXPECT_EQ(figures.refused_frees, 0u);
  EXPECT_EQ(figures.peak_live_bytes, 150u);
  EXPECT_EQ(figures.peak_pool_bytes, 150u);
  EXPECT_THAT(figures.offsets, ElementsAre(-1, 0, 0x1000));
}

TEST(MeasureMemoryTest, ZeroSizesAreNoFailures) {
  FakeAllocator allocator;
  const MemoryFigures figures =
      MeasureMemory(Read("0,allocate,0x1,0,0,\n1,free,0x1,0,0,\n"), allocator, nullptr);
  EXPECT_EQ(figures.failures, 0u);
  EXPECT_EQ(figures.refused_frees, 0u);
  EXPECT_FALSE(figures.mean_pool_over_live.has_value());
  EXPECT_FALSE(figures.height_over_load.has_value());
}

TEST(MeasureMemoryTest, StopsAtTheFirstFailureIfAsked) {
  FakeAllocator allocator;
  allocator.failing_bytes = 50;
  MemoryOptions options;
  options.stop_at_first_failure = true;
  EXPECT_EQ(MeasureMemory(SmallTrace(), allocator, nullptr, options).failures, 1u);
  EXPECT_EQ(allocator.allocations, 2);
  EXPECT_EQ(allocator.live_blocks(), 0u);
}

TEST(MeasureMemoryTest, OffsetsCountFromTheFirstBlocksRegionIfNoneStoodBefore) {
  FakeAllocator allocator;
  allocator.has_region = false;
  MemoryOptions options;
  options.offsets = true;
  EXPECT_THAT(MeasureMemory(SmallTrace(), allocator, nullptr, options).offsets,
              ElementsAre(0x100, 0x1100, 0x2100));
}

TEST(MeasureMemoryTest, HeightMeansNothingWhereBlocksShareNoRange) {
  FakeAllocator allocator(Strategy::kPlatform);
  EXPECT_FALSE(MeasureMemory(SmallTrace(), allocator, nullptr).height_over_load.has_value());
}

TEST(MeasureMemoryTest, TheClockFollowsTheTrace) {
  FakeClock clock;
  FakeAllocator allocator;
  allocator.clock = &clock;
  MeasureMemory(SmallTrace(), allocator, &clock);
  EXPECT_THAT(allocator.times,
              ElementsAre(absl::Seconds(5), absl::Seconds(5) + absl::Microseconds(10),
                          absl::Seconds(5) + absl::Microseconds(20)));
  EXPECT_EQ(clock.Now(), absl::Seconds(5) + absl::Microseconds(21));
}

TEST(MeasureMemoryTest, MomentsShowTheStateAfterEachEvent) {
  FakeAllocator allocator;
  std::vector<std::uint64_t> live;
  std::vector<std::int64_t> pool;
  MemoryOptions options;
  options.on_event = [&](const ReplayMoment& moment) {
    EXPECT_EQ(moment.event, live.size());
    live.push_back(moment.live_bytes);
    pool.push_back(moment.stats.pool_bytes);
  };
  MeasureMemory(SmallTrace(), allocator, nullptr, options);
  EXPECT_THAT(live, ElementsAre(100u, 150u, 50u, 75u, 50u));
  EXPECT_THAT(pool, ElementsAre(200, 300, 100, 150, 100));
}

TEST(MeasureSpeedTest, PassesAreWholeAndLeaveNothingBehind) {
  FakeClock clock;
  FakeAllocator allocator;
  allocator.clock = &clock;
  SpeedOptions options;
  options.passes = 4;
  options.clock = &clock;
  const SpeedFigures figures = MeasureSpeed(SmallTrace(), allocator, options);
  EXPECT_GT(figures.first_ns_per_event, 0);
  EXPECT_GT(figures.warm_ns_per_event.value(), 0);
  EXPECT_EQ(allocator.allocations, 4 * 3);
  EXPECT_EQ(allocator.live_blocks(), 0u);
  // Time goes on from pass to pass.
  EXPECT_EQ(clock.Now(), absl::Seconds(5) + 4 * absl::Microseconds(21));
}

TEST(MeasureSpeedTest, OnePassIsNeverWarm) {
  FakeAllocator allocator;
  const SpeedFigures figures = MeasureSpeed(SmallTrace(), allocator, {});
  EXPECT_FALSE(figures.warm_ns_per_event.has_value());
  EXPECT_EQ(allocator.allocations, 3);
}

TEST(MeasureSpeedTest, FailedRequestsAreNotFreed) {
  FakeAllocator allocator;
  allocator.failing_bytes = 100;
  SpeedOptions options;
  options.passes = 3;
  MeasureSpeed(SmallTrace(), allocator, options);
  EXPECT_EQ(allocator.free_streams.size(), 3u * 2);
}

}  // namespace
}  // namespace hbm::observe
