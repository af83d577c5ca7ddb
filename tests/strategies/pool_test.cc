// SPDX-License-Identifier: Apache-2.0
//
// What bfc and on_demand do with their source: growth, shortage, giving back.
#include "strategies/pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/best_fit.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "policy/pool_limit.h"

namespace hbm {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

// A runtime's own memory: addresses from a counter, as much as it was told.
class Arena : public MemorySource {
 public:
  explicit Arena(std::size_t total) : total_(total) {}

  std::string_view Name() const override { return "arena"; }
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override {
    return MemoryInfo{total_, total_ - held_ - others_};
  }
  absl::StatusOr<MemoryRange> AllocateRegion(std::size_t bytes) override {
    EXPECT_EQ(active_.fetch_add(1), 0) << "two calls at once";
    ++calls_;
    if (on_allocate) on_allocate();
    active_.fetch_sub(1);
    asked.push_back(bytes);
    if (!error.ok()) return error;
    if (bytes > total_ - held_ - others_) return absl::ResourceExhaustedError("arena is full");
    const std::uintptr_t address = next_ + misalign;
    next_ += bytes + 4096;
    held_ += bytes;
    regions_[address] = bytes;
    return MemoryRange{reinterpret_cast<void*>(address), bytes};  // NOLINT
  }
  absl::Status ReleaseRegion(MemoryRange region) override {
    if (!release_error.ok()) return release_error;
    const auto found = regions_.find(reinterpret_cast<std::uintptr_t>(region.address));
    EXPECT_TRUE(found != regions_.end() && found->second == region.bytes);
    held_ -= region.bytes;
    regions_.erase(found);
    return absl::OkStatus();
  }

  void TakeForOthers(std::size_t bytes) { others_ = bytes; }
  std::size_t held() const { return held_; }

  std::vector<std::size_t> asked;
  std::size_t misalign = 0;
  absl::Status error;
  absl::Status release_error;
  std::function<void()> on_allocate;

 private:
  const std::size_t total_;
  std::size_t held_ = 0;
  std::size_t others_ = 0;
  std::uintptr_t next_ = std::uintptr_t{1} << 32;
  std::map<std::uintptr_t, std::size_t> regions_;
  std::atomic<int> active_{0};
  int calls_ = 0;
};

class PoolTest : public ::testing::Test {
 protected:
  PoolTest()
      : previous_sink_(SetLogSink(
            [this](LogSeverity, std::string_view message) { log_.emplace_back(message); })) {}
  ~PoolTest() override { SetLogSink(std::move(previous_sink_)); }

  absl::StatusOr<std::unique_ptr<Allocator>> Make(const std::string& spec) {
    return MakeAllocator(*ParsePolicy(spec), arena_);
  }

  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>(100 * kMiB);
  std::vector<std::string> log_;

 private:
  LogSink previous_sink_;
};

TEST_F(PoolTest, BfcTakesItsPoolWhenItIsMade) {
  auto pool = Make("bfc:memory_fraction=0.5");
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(arena_->asked, std::vector<std::size_t>({50 * kMiB}));
  EXPECT_EQ((*pool)->GetStats().pool_bytes, static_cast<std::int64_t>(50 * kMiB));
}

TEST_F(PoolTest, OnDemandDoublesItsRegions) {
  auto pool = Make("on_demand:memory_fraction=1,growth=1MiB");
  ASSERT_TRUE(pool.ok());
  EXPECT_TRUE(arena_->asked.empty());
  for (int i = 0; i < 15; ++i) ASSERT_TRUE((*pool)->Allocate(kMiB).ok());
  EXPECT_EQ(arena_->asked, std::vector<std::size_t>({kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB}));
}

TEST_F(PoolTest, ARangeStartsSmallAndGrowsToItsCap) {
  auto pool = Make("bfc:memory_fraction=0.125-0.25,growth=8MiB");
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ((*pool)->GetStats().pool_bytes, static_cast<std::int64_t>(25 * kMiB / 2));
  int blocks = 0;
  while ((*pool)->TryAllocate(kMiB) != nullptr) ++blocks;
  EXPECT_GE(blocks, 23);  // two regions, each with a part of a block left
  EXPECT_EQ((*pool)->GetStats().pool_bytes, static_cast<std::int64_t>(25 * kMiB));
}

TEST_F(PoolTest, AShrunkPoolSaysSo) {
  arena_->TakeForOthers(50 * kMiB);
  auto pool = Make("bfc:memory_fraction=0.75");
  ASSERT_TRUE(pool.ok());
  const Stats stats = (*pool)->GetStats();
  EXPECT_LT(stats.pool_bytes, static_cast<std::int64_t>(50 * kMiB));
  EXPECT_GT(stats.pool_bytes, static_cast<std::int64_t>(44 * kMiB));
  EXPECT_EQ(stats.limit_source, LimitSource::kShortage);
  EXPECT_EQ(stats.bytes_limit, stats.pool_bytes);
  EXPECT_EQ(static_cast<std::int64_t>(*(*pool)->policy().memory_limit), stats.pool_bytes);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("75 MiB"), std::string::npos) << log_[0];
}

TEST_F(PoolTest, OrFailsIfThePolicySaysSo) {
  arena_->TakeForOthers(50 * kMiB);
  auto pool = Make("bfc:memory_fraction=0.75,on_shortage=fail");
  EXPECT_TRUE(absl::IsResourceExhausted(pool.status())) << pool.status();
  EXPECT_EQ(arena_->asked.size(), 1u);
  arena_->TakeForOthers(100 * kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(Make("bfc").status()));
}

TEST_F(PoolTest, AnErrorThatIsNoShortageIsPassedOn) {
  arena_->error = absl::InternalError("the device fell off the bus");
  const absl::Status made = Make("bfc").status();
  EXPECT_TRUE(absl::IsInternal(made)) << made;
  auto pool = Make("on_demand");
  ASSERT_TRUE(pool.ok());
  const absl::Status status = (*pool)->Allocate(100).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_EQ(GetOomCause(status), OomCause::kNone);
}

TEST_F(PoolTest, AMisalignedRegionIsRefusedAndGivenBack) {
  arena_->misalign = 192;
  auto pool = Make("on_demand");
  ASSERT_TRUE(pool.ok());
  EXPECT_TRUE(absl::IsInternal((*pool)->Allocate(100).status()));
  EXPECT_EQ(arena_->held(), 0u);
}

TEST_F(PoolTest, CausesAreToldApart) {
  auto pool = *Make("on_demand:memory_limit=10MiB,memory_fraction=1,growth=1MiB");
  EXPECT_EQ(GetOomCause(pool->Allocate(11 * kMiB).status()), OomCause::kLimit);
  std::vector<void*> blocks;
  while (void* const block = pool->TryAllocate(kMiB)) blocks.push_back(block);
  for (std::size_t i = 0; i < blocks.size(); i += 2) ASSERT_TRUE(pool->Deallocate(blocks[i]).ok());
  EXPECT_EQ(GetOomCause(pool->Allocate(4 * kMiB).status()), OomCause::kFragmentation);

  auto wide = *Make("on_demand:memory_fraction=1");
  arena_->TakeForOthers(88 * kMiB);
  EXPECT_EQ(GetOomCause(wide->Allocate(50 * kMiB).status()), OomCause::kOtherProcess);
}

TEST_F(PoolTest, GarbageCollectionMakesRoom) {
  for (const bool collects : {false, true}) {
    auto pool = *Make(std::string("on_demand:memory_fraction=0.5,garbage_collection=") +
                      (collects ? "true" : "false"));
    void* const first = *pool->Allocate(30 * kMiB);
    ASSERT_TRUE(pool->Deallocate(first).ok());
    // 30 MiB and more are held in one idle region, and this is larger.
    EXPECT_EQ(pool->Allocate(45 * kMiB).ok(), collects);
  }
}

TEST_F(PoolTest, WhatCannotBeGivenBackIsKept) {
  auto pool = *Make("on_demand");
  ASSERT_TRUE(pool->Deallocate(*pool->Allocate(kMiB)).ok());
  arena_->release_error = absl::InternalError("no");
  EXPECT_TRUE(absl::IsInternal(pool->Trim().status()));
  EXPECT_EQ(pool->GetStats().pool_bytes, static_cast<std::int64_t>(arena_->held()));
  arena_->release_error = absl::OkStatus();
  ASSERT_TRUE(pool->Trim().ok());
  EXPECT_EQ(pool->GetStats().pool_bytes, 0);
}

TEST_F(PoolTest, HitsGoOnWhileTheSourceIsCalled) {
  auto pool = *Make("on_demand:memory_fraction=1,growth=8MiB");
  ASSERT_TRUE(pool->Allocate(kMiB).ok());
  std::promise<void> entered;
  std::promise<void> may_go_on;
  arena_->on_allocate = [&] {
    entered.set_value();
    may_go_on.get_future().wait();
  };
  std::thread grower([&] { EXPECT_TRUE(pool->Allocate(30 * kMiB).ok()); });
  entered.get_future().wait();
  for (int i = 0; i < 1000; ++i) {
    const absl::StatusOr<void*> block = pool->Allocate(kMiB);  // a hit
    ASSERT_TRUE(block.ok());
    ASSERT_TRUE(pool->Deallocate(*block).ok());
  }
  EXPECT_GT(pool->GetStats().num_allocs, 1000);
  may_go_on.set_value();
  grower.join();
}

TEST_F(PoolTest, QuarantineHoldsFreedBlocksBack) {
  auto pool = *Make("bfc:memory_fraction=0.5,quarantine=4MiB");
  void* const block = *pool->Allocate(kMiB);
  ASSERT_TRUE(pool->Deallocate(block).ok());
  EXPECT_EQ(pool->GetStats().pending_bytes, static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(pool->GetStats().bytes_in_use, 0);
  for (int i = 0; i < 3; ++i) EXPECT_NE(*pool->Allocate(kMiB), block);
  // The address was not given out again, so the double free is still seen.
  EXPECT_TRUE(absl::IsInvalidArgument(pool->Deallocate(block)));
  EXPECT_TRUE(absl::IsNotFound(pool->Describe(block).status()));
  // Before a request fails, what is held back is used.
  EXPECT_TRUE(pool->Allocate(46 * kMiB).ok());
  EXPECT_EQ(*pool->Allocate(kMiB), block);
  EXPECT_EQ(pool->GetStats().pending_bytes, 0);
}

TEST_F(PoolTest, ManyAlignedRequestsDoNotSearchLong) {
  auto pool = *Make("bfc:memory_fraction=1");
  // A comb of free chunks of 64 KiB that are all misaligned for 64 KiB.
  std::vector<void*> blocks;
  while (void* const block = pool->TryAllocate(64 * kKiB + 256)) blocks.push_back(block);
  for (std::size_t i = 0; i < blocks.size(); i += 2) ASSERT_TRUE(pool->Deallocate(blocks[i]).ok());
  AllocateOptions options;
  options.alignment = 64 * kKiB;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) pool->TryAllocate(64 * kKiB, options);
  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(elapsed, std::chrono::milliseconds(200));
}

std::size_t ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  in >> total >> resident;
  return resident * 4096;
}

TEST(PoolCostTest, PreallocatingALargePoolTakesNoTimeAndNoMemory) {
  const auto device = *OpenDevice("sim:140GiB");
  double best_us = 1e9;
  for (int i = 0; i < 20; ++i) {
    [[maybe_unused]] const std::size_t before = ResidentBytes();
    const auto start = std::chrono::steady_clock::now();
    auto pool = MakeAllocator(*ParsePolicy("bfc:memory_fraction=0.75"), device);
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - start;
    ASSERT_TRUE(pool.ok());
    EXPECT_EQ((*pool)->GetStats().pool_bytes, std::int64_t{105} << 30);
    best_us = std::min(best_us, elapsed.count());
    std::mt19937_64 random(1);
    std::vector<void*> live;
    for (int event = 0; event < 100'000; ++event) {
      if (live.size() < 500 || random() % 2 == 0) {
        live.push_back((*pool)->TryAllocate(1 + random() % kMiB));
      } else {
        std::swap(live[random() % live.size()], live.back());
        ASSERT_TRUE((*pool)->Deallocate(live.back()).ok());
        live.pop_back();
      }
      if (live.size() > 1000) {
        ASSERT_TRUE((*pool)->Deallocate(live.back()).ok());
        live.pop_back();
      }
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(ResidentBytes() - std::min(before, ResidentBytes()), kMiB);
#endif
    for (void* block : live) ASSERT_TRUE((*pool)->Deallocate(block).ok());
  }
  RecordProperty("preallocation_us", std::to_string(best_us));
  std::printf("preallocating 105 GiB: %.1f us\n", best_us);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(best_us, 100.0);
#endif
}

TEST(PoolCostTest, BooksTakeAtMost96BytesAChunk) {
  for (const int keep_one_in : {1, 2, 4}) {
    strategies::StrategyContext context;
    context.policy.preallocate = true;
    context.limit = {std::size_t{8} << 40, std::size_t{8} << 40, LimitSource::kMemoryFraction};
    context.source = *(*OpenDevice("sim:8TiB"))->MakeSource(Policy{});
    strategies::Pool pool(context);
    ASSERT_TRUE(pool.Preallocate().ok());
    std::mt19937_64 random(5);
    std::vector<void*> blocks;
    for (int i = 0; i < 400'000; ++i) blocks.push_back(pool.TryAllocate(1 + random() % kMiB));
    std::size_t chunks = blocks.size() + 1;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i % static_cast<std::size_t>(keep_one_in) == 0) continue;
      ASSERT_TRUE(pool.Deallocate(blocks[i]).ok());
      blocks[i] = nullptr;
    }
    // At its fullest: records and tables do not shrink.
    std::printf("bytes a chunk: %.1f\n",
                static_cast<double>(pool.BookkeepingBytes()) / static_cast<double>(chunks));
    EXPECT_LE(pool.BookkeepingBytes(), 96 * chunks);
    for (void* block : blocks) ASSERT_TRUE(pool.Deallocate(block).ok());
  }
}

class ReportWalkTest : public ::testing::Test {
 protected:
  ReportWalkTest() : pool_(Context()) { EXPECT_TRUE(pool_.Preallocate().ok()); }
  static strategies::StrategyContext Context() {
    strategies::StrategyContext context;
    context.policy.preallocate = true;
    context.limit = {std::size_t{8} << 40, std::size_t{8} << 40, LimitSource::kMemoryFraction};
    context.source = *(*OpenDevice("sim:8TiB"))->MakeSource(Policy{});
    return context;
  }
  // Every second block stays.
  void Fill(int count) {
    std::vector<void*> gaps;
    for (int i = 0; i < count; ++i) {
      const std::size_t bytes = 1 + random_() % kMiB;
      blocks_[pool_.TryAllocate(bytes)] = bytes;
      gaps.push_back(pool_.TryAllocate(1 + random_() % kMiB));
    }
    for (void* const gap : gaps) ASSERT_TRUE(pool_.Deallocate(gap).ok());
  }

  strategies::Pool pool_;
  std::mt19937_64 random_{7};
  std::map<const void*, std::size_t> blocks_;
};

TEST_F(ReportWalkTest, ShowsWhatASnapshotShows) {
  Fill(5000);
  const Snapshot expected = pool_.TakeSnapshot();
  const Snapshot walked = pool_.TakeReportSnapshot();
  ASSERT_EQ(walked.regions.size(), expected.regions.size());
  for (std::size_t i = 0; i < walked.regions.size(); ++i) {
    const auto& got = walked.regions[i].chunks;
    const auto& want = expected.regions[i].chunks;
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t j = 0; j < got.size(); ++j) {
      EXPECT_EQ(got[j].address, want[j].address);
      EXPECT_EQ(got[j].bytes, want[j].bytes);
      EXPECT_EQ(got[j].requested_bytes, want[j].requested_bytes);
      EXPECT_EQ(got[j].state, want[j].state);
    }
  }
}

// Neighbours of what stays are split and merged all the time.
TEST_F(ReportWalkTest, FindsWhatStaysWhileOthersAllocateAndFree) {
  Fill(5000);
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (unsigned seed = 0; seed < 2; ++seed) {
    others.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      std::vector<void*> mine(2000);
      while (!stop) {
        void*& block = mine[random() % mine.size()];
        EXPECT_TRUE(pool_.Deallocate(block).ok());
        block = pool_.TryAllocate(1 + random() % (256 * kKiB));
      }
      for (void* const block : mine) EXPECT_TRUE(pool_.Deallocate(block).ok());
    });
  }
  for (int round = 0; round < 100; ++round) {
    const Snapshot walked = pool_.TakeReportSnapshot();
    std::size_t found = 0;
    for (const Snapshot::Region& region : walked.regions) {
      const char* at = static_cast<const char*>(region.range.address);
      const char* const end = at + region.range.bytes;
      for (const Snapshot::Chunk& chunk : region.chunks) {
        ASSERT_EQ(chunk.address, at);
        at += chunk.bytes;
        const auto block = blocks_.find(chunk.address);
        if (block != blocks_.end() && block->second == chunk.requested_bytes) ++found;
      }
      ASSERT_EQ(at, end);
    }
    ASSERT_EQ(found, blocks_.size());
  }
  stop = true;
  for (std::thread& other : others) other.join();
}

// Two blocks, at both ends of the others, are made anew in turn, with one number after
// the other: at no moment are their numbers further apart than one.
TEST_F(ReportWalkTest, LetsOthersInOnTheWay) {
  constexpr std::size_t kNumbers = 256;  // that round to one size
  const auto bytes = [](std::size_t size, std::size_t number) {
    return size - (kNumbers - 1) + number % kNumbers;
  };
  void* const low = pool_.TryAllocate(bytes(3 * kMiB, 0));
  Fill(20'000);
  void* const high = pool_.TryAllocate(bytes(5 * kMiB, 0));
  ASSERT_NE(pool_.TryAllocate(kMiB), nullptr);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    for (std::size_t number = 1; !stop; ++number) {
      EXPECT_TRUE(pool_.Deallocate(low).ok());
      ASSERT_EQ(pool_.TryAllocate(bytes(3 * kMiB, number)), low);
      EXPECT_TRUE(pool_.Deallocate(high).ok());
      ASSERT_EQ(pool_.TryAllocate(bytes(5 * kMiB, number)), high);
    }
  });
  const auto apart = [&](const Snapshot& snapshot) {
    std::size_t first = 0;
    std::size_t second = 0;
    for (const Snapshot::Chunk& chunk : snapshot.regions.at(0).chunks) {
      if (chunk.address == low) first = chunk.requested_bytes;
      if (chunk.address == high) second = chunk.requested_bytes;
    }
    if (first == 0 || second == 0) return std::size_t{0};  // free just now
    return (first + 2 * kMiB - second + kNumbers) % kNumbers;
  };
  // On a busy machine the two threads may not run at once: one time is enough.
  bool was_let_in = false;
  for (int round = 0; round < 1000 && !was_let_in; ++round) {
    ASSERT_LE(apart(pool_.TakeSnapshot()), 1u);
    was_let_in = apart(pool_.TakeReportSnapshot()) > 1;
  }
  EXPECT_TRUE(was_let_in);
  stop = true;
  other.join();
}

TEST(ReportWalkIdsTest, AMergedChunkIsNoLongerAtItsAddress) {
  core::BestFit fit(core::BestFit::Options{});
  ASSERT_TRUE(fit.AddRegion(kMiB, kMiB));
  core::BestFit::Request request;
  request.requested = request.rounded = 64 * kKiB;
  const core::ChunkId first = fit.Allocate(request);
  const core::ChunkId second = fit.Allocate(request);
  ASSERT_TRUE(fit.IsChunkAt(second, kMiB + 64 * kKiB));
  for (const core::ChunkId id : {first, second}) {
    ASSERT_EQ(fit.TakeLive(fit.chunk(id).address), id);
    fit.Free(id);
  }
  EXPECT_TRUE(fit.IsChunkAt(first, kMiB));
  EXPECT_FALSE(fit.IsChunkAt(second, kMiB + 64 * kKiB));
}

}  // namespace
}  // namespace hbm
