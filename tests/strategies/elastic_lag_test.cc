// SPDX-License-Identifier: Apache-2.0
//
// Pages and work in flight: a page leaves a free range only when all work that was
// queued before the free is done. Every Unmap is watched, and the addresses it
// takes are compared with what was freed too lately.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/faulty_source.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class ElasticLagTest : public ::testing::Test {
 protected:
  void Open(const std::string& policy_text, const std::string& device_text) {
    device_ = std::make_shared<FaultyDevice>(*OpenDevice(device_text));
    Policy policy = *ParsePolicy(policy_text);
    policy.memory_fraction = {1.0, {}};
    allocator_ = *MakeAllocator(policy, device_);
    device_->source()->Observe([this](const CallRecord& call) {
      // Waiting for the whole device proves that everything freed so far is done.
      if (call.call == SourceCall::kWaitForDevice) freed_.clear();
      if (call.call != SourceCall::kUnmap) return;
      ++unmaps_;
      const auto begin = reinterpret_cast<std::uintptr_t>(call.range.address);
      for (const Freed& freed : freed_) {
        if (freed.done > clock().Now() && freed.begin < begin + call.range.bytes &&
            begin < freed.end) {
          ++taken_early_;
        }
      }
    });
  }
  void TearDown() override {
    if (device_ != nullptr) device_->source()->Observe(nullptr);
  }

  SimulatedClock& clock() { return *device_->simulated_clock(); }
  void Pass(absl::Duration time) { clock().AdvanceTo(clock().Now() + time); }
  static AllocateOptions On(std::uintptr_t stream) {
    AllocateOptions options;
    options.stream = StreamRef::FromHandle(reinterpret_cast<void*>(stream));
    return options;
  }
  void Free(void* block, std::size_t bytes, absl::Duration lag) {
    const auto begin = reinterpret_cast<std::uintptr_t>(block);
    freed_.push_back({begin, begin + bytes, clock().Now() + lag});
    ASSERT_TRUE(allocator_->Deallocate(block).ok());
  }

  struct Freed {
    std::uintptr_t begin;
    std::uintptr_t end;
    absl::Duration done;
  };
  std::shared_ptr<FaultyDevice> device_;
  std::unique_ptr<Allocator> allocator_;
  std::vector<Freed> freed_;
  int unmaps_ = 0;
  int taken_early_ = 0;
};

// The block is reused on its stream at once, but its pages stay.
TEST_F(ElasticLagTest, APageStaysUntilTheKernelThatUsesItIsDone) {
  Open("elastic:slack=0", "sim:64MiB,lag=10ms");
  void* const a = *allocator_->Allocate(16 * kMiB, On(3));
  void* const wall = *allocator_->Allocate(16 * kMiB, On(3));
  void* const b = *allocator_->Allocate(16 * kMiB, On(3));
  Free(a, 16 * kMiB, absl::Milliseconds(10));
  Free(b, 16 * kMiB, absl::Milliseconds(10));
  // 32 MiB in one piece would need the pages of both: not now, and never by force.
  AllocError why;
  EXPECT_EQ(allocator_->TryAllocate(40 * kMiB, On(3), &why), nullptr);
  EXPECT_EQ(why.cause, OomCause::kPending);
  EXPECT_EQ(unmaps_, 0);
  Pass(absl::Milliseconds(9));
  EXPECT_EQ(allocator_->TryAllocate(40 * kMiB, On(3)), nullptr);
  EXPECT_EQ(unmaps_, 0);
  void* const again = allocator_->TryAllocate(16 * kMiB, On(3));
  EXPECT_TRUE(again == a || again == b);
  ASSERT_TRUE(allocator_->Deallocate(again, StreamRef::Synchronized()).ok());
  Pass(absl::Milliseconds(1));
  EXPECT_NE(allocator_->TryAllocate(40 * kMiB, On(3)), nullptr);
  EXPECT_GT(unmaps_, 0);
  EXPECT_EQ(taken_early_, 0);
  EXPECT_TRUE(allocator_->Deallocate(wall).ok());
}

// Allocate waits for it as the last resort, and says so.
TEST_F(ElasticLagTest, WaitingIsTheLastResortAndCounted) {
  for (const bool roomy : {true, false}) {
    TearDown();
    allocator_.reset();
    freed_.clear();
    Open("elastic:slack=0", roomy ? "sim:128MiB,lag=10ms" : "sim:64MiB,lag=10ms");
    void* const a = *allocator_->Allocate(24 * kMiB, On(1));
    ASSERT_TRUE(allocator_->Allocate(8 * kMiB, On(1)).ok());
    void* const b = *allocator_->Allocate(24 * kMiB, On(1));
    Free(a, 24 * kMiB, absl::Milliseconds(10));
    Free(b, 24 * kMiB, absl::Milliseconds(10));
    ASSERT_TRUE(allocator_->Allocate(40 * kMiB, On(1)).ok());
    // Below the limit new memory is made before anything is waited for.
    const Stats stats = allocator_->GetStats();
    EXPECT_EQ(stats.num_waits, roomy ? 0 : 1);
    EXPECT_EQ(stats.wait_nanoseconds, roomy ? 0 : 10'000'000);
    EXPECT_EQ(clock().Now(), absl::Milliseconds(roomy ? 0 : 10));
    EXPECT_EQ(taken_early_, 0);
  }
}

// With reuse_wait a request waits before it takes more than the slack, and no longer.
TEST_F(ElasticLagTest, AReuseWaitHoldsThePoolDown) {
  struct Case {
    const char* policy;
    bool try_only;
    int waited_ms;
    bool pool_grows;
  };
  for (const Case& c : {Case{"elastic:slack=0,reuse_wait=50ms", false, 10, false},
                        Case{"elastic:slack=0,reuse_wait=2ms", false, 2, true},
                        Case{"elastic:slack=0,reuse_wait=50ms", true, 0, true},
                        Case{"elastic:slack=0", false, 0, true}}) {
    SCOPED_TRACE(c.policy);
    TearDown();
    allocator_.reset();
    freed_.clear();
    Open(c.policy, "sim:1GiB,lag=10ms");
    void* const a = *allocator_->Allocate(24 * kMiB, On(1));
    ASSERT_TRUE(allocator_->Allocate(8 * kMiB, On(1)).ok());
    void* const b = *allocator_->Allocate(24 * kMiB, On(1));
    Free(a, 24 * kMiB, absl::Milliseconds(10));
    Free(b, 24 * kMiB, absl::Milliseconds(10));
    EXPECT_NE(c.try_only ? allocator_->TryAllocate(40 * kMiB, On(1))
                         : *allocator_->Allocate(40 * kMiB, On(1)),
              nullptr);
    const Stats stats = allocator_->GetStats();
    EXPECT_EQ(clock().Now(), absl::Milliseconds(c.waited_ms));
    EXPECT_EQ(stats.wait_nanoseconds, c.waited_ms * 1'000'000);
    EXPECT_EQ(stats.num_waits > 0, c.waited_ms > 0);
    EXPECT_EQ(stats.peak_pool_bytes > static_cast<std::int64_t>(56 * kMiB), c.pool_grows);
    EXPECT_EQ(taken_early_, 0);
  }
}

TEST_F(ElasticLagTest, NothingIsTakenEarlyUnderChurnOnSeveralStreams) {
  for (const char* policy :
       {"elastic:slack=0", "elastic:slack=0,stream_mode=ordered", "elastic",
        "elastic:slack=0,idle_release=0", "elastic:reuse_wait=1s,stream_mode=ordered"}) {
    SCOPED_TRACE(policy);
    TearDown();
    allocator_.reset();
    freed_.clear();
    Open(policy, "sim:96MiB,lag=1ms");
    std::mt19937 random(1);
    std::vector<std::pair<void*, std::size_t>> live;
    for (int i = 0; i < 4000; ++i) {
      Pass(absl::Microseconds(random() % 50));
      if (!live.empty() && random() % 100 < 48) {
        const std::size_t victim = random() % live.size();
        Free(live[victim].first, live[victim].second, absl::Milliseconds(1));
        live[victim] = live.back();
        live.pop_back();
      } else {
        const std::size_t bytes = std::size_t{64 << 10} << (random() % 9);
        const auto block = allocator_->Allocate(bytes, On(random() % 3));
        if (block.ok()) live.emplace_back(*block, bytes);
      }
      if (freed_.size() > 400) freed_.erase(freed_.begin(), freed_.begin() + 200);
    }
    EXPECT_EQ(taken_early_, 0);
    EXPECT_GT(unmaps_, 100);
    unmaps_ = 0;
  }
}

// Work in flight on the stream that asks keeps no free chunks apart, also where another
// stream asks now and then.
TEST_F(ElasticLagTest, TheMainStreamIsServedAsIfItWereAlone) {
  const auto churn = [this](const char* policy, bool with_side_stream) {
    TearDown();
    allocator_.reset();
    freed_.clear();
    Open(policy, "sim:4GiB,lag=2ms");
    std::mt19937 random(2);
    std::vector<std::pair<void*, std::size_t>> live;
    for (int i = 0; i < 4000; ++i) {
      Pass(absl::Microseconds(random() % 50));
      if (with_side_stream && i % 50 == 0) {
        Free(*allocator_->Allocate(kMiB, On(9)), kMiB, absl::Milliseconds(2));
      }
      if (!live.empty() && random() % 100 < 49) {
        const std::size_t victim = random() % live.size();
        Free(live[victim].first, live[victim].second, absl::Milliseconds(2));
        live[victim] = live.back();
        live.pop_back();
      } else {
        const std::size_t bytes = (std::size_t{256 << 10} << (random() % 6)) + random() % kMiB;
        live.emplace_back(*allocator_->Allocate(bytes, On(5)), bytes);
      }
    }
    EXPECT_EQ(taken_early_, 0);
    EXPECT_EQ(allocator_->GetStats().num_waits, 0);
    return allocator_->GetStats();
  };
  const Stats single = churn("elastic:stream_mode=single", false);
  const Stats ordered = churn("elastic:stream_mode=ordered", false);
  const Stats side = churn("elastic:stream_mode=ordered", true);
  EXPECT_EQ(ordered.driver_calls, single.driver_calls);
  EXPECT_EQ(ordered.peak_pool_bytes, single.peak_pool_bytes);
  EXPECT_LE(side.driver_calls, single.driver_calls * 3 / 2);
  EXPECT_LE(side.peak_pool_bytes, single.peak_pool_bytes * 3 / 2);
}

TEST_F(ElasticLagTest, TrimSaysWhatIsPending) {
  Open("elastic", "sim:96MiB,lag=5ms");
  void* const big = *allocator_->Allocate(32 * kMiB);
  void* const small = *allocator_->Allocate(4 * kMiB);
  Free(big, 32 * kMiB, absl::Milliseconds(5));
  auto trimmed = allocator_->Trim();
  ASSERT_TRUE(trimmed.ok());
  EXPECT_EQ(trimmed->released, 0u);
  EXPECT_GE(trimmed->pending, 30 * kMiB);
  TrimOptions options;
  options.max_wait = absl::Milliseconds(20);
  trimmed = allocator_->Trim(options);
  ASSERT_TRUE(trimmed.ok());
  EXPECT_GE(trimmed->released, 30 * kMiB);
  EXPECT_EQ(trimmed->pending, 0u);
  EXPECT_EQ(taken_early_, 0);
  EXPECT_TRUE(allocator_->Deallocate(small).ok());
}

// A block that another stream uses too is held back for that stream as well.
TEST_F(ElasticLagTest, RecordedUsesHoldTheBlockBack) {
  Open("elastic:stream_mode=ordered", "sim:96MiB,lag=5ms");
  void* const block = *allocator_->Allocate(8 * kMiB, On(1));
  ASSERT_TRUE(allocator_->RecordUse(block, StreamRef::FromHandle(reinterpret_cast<void*>(2))).ok());
  Free(block, 8 * kMiB, absl::Milliseconds(5));
  EXPECT_EQ(allocator_->GetStats().pending_bytes, static_cast<std::int64_t>(8 * kMiB));
  EXPECT_NE(*allocator_->Allocate(8 * kMiB, On(1)), block);
  Pass(absl::Milliseconds(5));
  EXPECT_EQ(*allocator_->Allocate(8 * kMiB, On(2)), block);
}

}  // namespace
}  // namespace hbm::testing
