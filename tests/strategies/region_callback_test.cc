// SPDX-License-Identifier: Apache-2.0
//
// What a region callback is told, over every strategy that maps its memory itself: an
// independent model of what is registered, vetoes, calls back into the allocator, and
// threads.
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/faulty_source.h"

namespace hbm::testing {
namespace {

using Kind = RegionChange::Kind;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A network card's registrations, as it would keep them from what it is told.
class Registrations {
 public:
  bool Hear(const RegionChange& change) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = reinterpret_cast<std::uintptr_t>(change.range.address);
    if (change.kind == Kind::kMapped) {
      if (!ranges_.emplace(begin, change.range.bytes).second) ++mistakes_;
      ++mapped_;
      return true;
    }
    const auto found = ranges_.find(begin);
    if (found == ranges_.end() || found->second != change.range.bytes) ++mistakes_;
    if (kept_ != 0 && unmapping_++ % kept_ == 0) return false;
    if (found != ranges_.end()) ranges_.erase(found);
    ++unmapped_;
    return true;
  }
  // Of `n` questions one is answered with no; 0: none is.
  void KeepOneOf(int n) {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_ = n;
  }
  bool Covers(const void* block, std::size_t bytes) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = reinterpret_cast<std::uintptr_t>(block);
    std::uintptr_t at = begin;
    while (at < begin + bytes) {
      auto range = ranges_.upper_bound(at);
      if (range == ranges_.begin()) return false;
      --range;
      if (range->first + range->second <= at) return false;
      at = range->first + range->second;
    }
    return true;
  }
  std::size_t bytes() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::size_t sum = 0;
    for (const auto& [address, bytes] : ranges_) sum += bytes;
    return sum;
  }
  int mistakes() const { return mistakes_; }
  int mapped() const { return mapped_; }
  int unmapped() const { return unmapped_; }
  RegionCallback callback() {
    return [this](const RegionChange& change) { return Hear(change); };
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> ranges_;
  int kept_ = 0;
  int unmapping_ = 0;
  std::atomic<int> mistakes_{0};
  std::atomic<int> mapped_{0};
  std::atomic<int> unmapped_{0};
};

struct Block {
  void* address;
  std::size_t bytes;
};

class RegionCallbackTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    previous_sink_ = SetLogSink([](LogSeverity, std::string_view) {});
    Policy policy = *ParsePolicy(GetParam());
    policy.memory_fraction = {1.0, {}};
    if (policy.preallocate == true) policy.memory_fraction = {0.5, 1.0};
    device_ = std::make_shared<FaultyDevice>(*OpenDevice("sim:256MiB"));
    allocator_ = *MakeAllocator(policy, device_);
  }
  void TearDown() override {
    allocator_.reset();
    SetLogSink(std::move(previous_sink_));
  }

  // Random blocks up to a budget; how often one lay outside of what was told.
  int Churn(const Registrations& told, std::size_t budget, int steps, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<Block> live;
    std::size_t live_bytes = 0;
    int outside = 0;
    const auto free_one = [&] {
      const std::size_t victim = random() % live.size();
      if (!told.Covers(live[victim].address, live[victim].bytes)) ++outside;
      // Where a driver fails once, platform's block stays live.
      if (!allocator_->Deallocate(live[victim].address).ok()) {
        EXPECT_TRUE(allocator_->Deallocate(live[victim].address).ok());
      }
      live_bytes -= live[victim].bytes;
      live[victim] = live.back();
      live.pop_back();
    };
    for (int step = 0; step < steps; ++step) {
      const std::size_t unit = std::size_t{100000} << (step / 40 % 3 * 3);
      const std::size_t bytes = unit / 2 + random() % unit;
      while (!live.empty() && (live_bytes + bytes > budget || random() % 3 == 0)) free_one();
      if (live_bytes + bytes > budget) continue;
      const auto block = allocator_->Allocate(bytes);
      if (!block.ok()) continue;
      if (!told.Covers(*block, bytes)) ++outside;
      live.push_back({*block, bytes});
      live_bytes += bytes;
    }
    while (!live.empty()) free_one();
    return outside;
  }

  std::shared_ptr<FaultyDevice> device_;
  std::unique_ptr<Allocator> allocator_;
  LogSink previous_sink_;
};

TEST_P(RegionCallbackTest, EveryRangeIsToldBeforeItIsUsedAndBeforeItGoes) {
  Registrations told;
  ASSERT_TRUE(allocator_->SetRegionCallback(told.callback()).ok());
  EXPECT_EQ(Churn(told, 200 * kMiB, 2000, 1), 0);
  ASSERT_TRUE(allocator_->Trim().ok());
  EXPECT_EQ(Churn(told, 200 * kMiB, 500, 2), 0);
  EXPECT_EQ(told.mistakes(), 0);
  EXPECT_GT(told.mapped(), 0);
  // The simulated device may pack blocks of platform into less than they say.
  if (GetParam() != "platform") {
    EXPECT_EQ(told.bytes(), static_cast<std::size_t>(allocator_->GetStats().pool_bytes));
  }
  allocator_.reset();
  EXPECT_EQ(told.bytes(), 0u) << "the end was not told of";
  EXPECT_EQ(told.mistakes(), 0);
}

TEST_P(RegionCallbackTest, WhatIsHeldAlreadyIsToldAtOnceAndANewCallbackReplacesTheOld) {
  void* const block = *allocator_->Allocate(8 * kMiB);
  Registrations first;
  Registrations second;
  ASSERT_TRUE(allocator_->SetRegionCallback(first.callback()).ok());
  EXPECT_TRUE(first.Covers(block, 8 * kMiB));
  ASSERT_TRUE(allocator_->SetRegionCallback(second.callback()).ok());
  EXPECT_TRUE(second.Covers(block, 8 * kMiB));
  const int heard = first.mapped();
  EXPECT_EQ(Churn(second, 200 * kMiB, 100, 3), 0);
  ASSERT_TRUE(allocator_->Deallocate(block).ok());
  ASSERT_TRUE(allocator_->Trim().ok());
  EXPECT_EQ(first.mapped(), heard);
  EXPECT_EQ(first.unmapped(), 0);
  ASSERT_TRUE(allocator_->SetRegionCallback(nullptr).ok());
  const int heard_by_second = second.mapped();
  EXPECT_TRUE(allocator_->Allocate(100 * kMiB).ok());
  EXPECT_EQ(second.mapped(), heard_by_second);
  EXPECT_EQ(second.mistakes(), 0);
}

TEST_P(RegionCallbackTest, AVetoKeepsTheMemoryUntilItIsLifted) {
  Registrations told;
  ASSERT_TRUE(allocator_->SetRegionCallback(told.callback()).ok());
  void* const block = *allocator_->Allocate(8 * kMiB);
  const std::int64_t pool = allocator_->GetStats().pool_bytes;
  told.KeepOneOf(1);
  ASSERT_TRUE(allocator_->Deallocate(block).ok());
  const TrimResult kept = *allocator_->Trim();
  EXPECT_EQ(kept.released, 0u);
  EXPECT_GE(kept.pinned, 8 * kMiB);
  EXPECT_EQ(allocator_->GetStats().pool_bytes, pool);
  EXPECT_TRUE(device_->source()->IsUsable({block, 8 * kMiB}));
  EXPECT_TRUE(told.Covers(block, 8 * kMiB));
  told.KeepOneOf(0);
  EXPECT_GE(allocator_->Trim()->released,
            GetParam() == "platform" ? 8 * kMiB : static_cast<std::size_t>(pool));
  EXPECT_FALSE(device_->source()->IsUsable({block, 8 * kMiB}));
  EXPECT_EQ(told.bytes(), 0u);
  EXPECT_EQ(told.mistakes(), 0);
}

TEST_P(RegionCallbackTest, ARequestLooksElsewhereWhenOneIsVetoed) {
  Registrations told;
  ASSERT_TRUE(allocator_->SetRegionCallback(told.callback()).ok());
  told.KeepOneOf(3);
  EXPECT_EQ(Churn(told, 150 * kMiB, 3000, 4), 0);
  EXPECT_EQ(told.mistakes(), 0);
  EXPECT_EQ(allocator_->GetStats().requested_bytes, 0);
  told.KeepOneOf(0);
  ASSERT_TRUE(allocator_->Trim().ok());
  EXPECT_EQ(told.bytes(), 0u);
  EXPECT_EQ(allocator_->GetStats().pool_bytes, 0);
}

TEST_P(RegionCallbackTest, TheCallbackMayCallTheAllocator) {
  Registrations told;
  int depth = 0;
  std::vector<void*> taken;
  Allocator* const allocator = allocator_.get();
  ASSERT_TRUE(allocator_
                  ->SetRegionCallback([&](const RegionChange& change) {
                    const bool answer = told.Hear(change);
                    // Not at the end, and not without end.
                    if (depth == 2 || allocator_ == nullptr) return answer;
                    ++depth;
                    EXPECT_TRUE(absl::IsFailedPrecondition(allocator->SetRegionCallback(nullptr)));
                    (void)allocator->GetStats();
                    (void)allocator->TakeSnapshot();
                    const auto block = allocator->Allocate(3 * kMiB);
                    if (block.ok()) taken.push_back(*block);
                    if (taken.size() > 4) {
                      void* const oldest = taken.front();
                      taken.erase(taken.begin());
                      EXPECT_TRUE(allocator->Deallocate(oldest).ok());
                    }
                    EXPECT_TRUE(allocator->Trim().ok());
                    --depth;
                    return answer;
                  })
                  .ok());
  EXPECT_EQ(Churn(told, 150 * kMiB, 400, 5), 0);
  EXPECT_EQ(told.mistakes(), 0);
  ASSERT_TRUE(allocator_->SetRegionCallback(nullptr).ok());
  for (void* block : taken) EXPECT_TRUE(allocator_->Deallocate(block).ok());
  EXPECT_EQ(allocator_->GetStats().requested_bytes, 0);
}

TEST_P(RegionCallbackTest, AFailingDriverLeavesTheRegistrationsRight) {
  Registrations told;
  ASSERT_TRUE(allocator_->SetRegionCallback(told.callback()).ok());
  for (int k = 1; k < 60; k += 3) {
    device_->source()->FailAny(k, absl::InternalError("injected"));
    EXPECT_EQ(Churn(told, 200 * kMiB, 100, static_cast<std::uint32_t>(k)), 0);
    (void)allocator_->Trim();
    device_->source()->StopFailing();
    ASSERT_TRUE(allocator_->Trim().ok());
    EXPECT_EQ(told.mistakes(), 0) << k;
    EXPECT_EQ(told.bytes(), 0u) << k;
  }
}

TEST_P(RegionCallbackTest, ThreadsAreToldApart) {
  Registrations told;
  ASSERT_TRUE(allocator_->SetRegionCallback(told.callback()).ok());
  told.KeepOneOf(7);
  std::atomic<int> outside{0};
  std::vector<std::thread> threads;
  for (std::uint32_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] { outside += Churn(told, 40 * kMiB, 600, seed); });
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(allocator_->Trim().ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(outside, 0);
  EXPECT_EQ(told.mistakes(), 0);
  told.KeepOneOf(0);
  ASSERT_TRUE(allocator_->Trim().ok());
  EXPECT_EQ(told.bytes(), 0u);
}

TEST_P(RegionCallbackTest, ReplacingItWhileMemoryMovesLosesNothing) {
  std::atomic<bool> stop{false};
  std::thread churn([&] {
    std::mt19937 random(1);
    while (!stop) {
      const auto block = allocator_->Allocate((1 + random() % 90) * kMiB);
      if (block.ok()) allocator_->Deallocate(*block).IgnoreError();
      EXPECT_TRUE(allocator_->Trim().ok());
    }
  });
  std::vector<std::unique_ptr<Registrations>> all;
  for (int i = 0; i < 50; ++i) {
    all.push_back(std::make_unique<Registrations>());
    ASSERT_TRUE(allocator_->SetRegionCallback(all.back()->callback()).ok());
  }
  stop = true;
  churn.join();
  for (const auto& told : all) EXPECT_EQ(told->mistakes(), 0);
  ASSERT_TRUE(allocator_->Trim().ok());
  EXPECT_EQ(all.back()->bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Here, RegionCallbackTest,
                         ::testing::Values("elastic", "elastic:slack=0", "elastic:preallocate=true",
                                           "elastic:idle_release=0", "elastic:stream_mode=ordered",
                                           "bfc", "bfc:thread_cache=true", "on_demand",
                                           "on_demand:garbage_collection=true", "platform"),
                         [](const auto& subject) {
                           std::string name = subject.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace hbm::testing
