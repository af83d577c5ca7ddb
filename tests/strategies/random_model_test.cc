// SPDX-License-Identifier: Apache-2.0
//
// bfc and on_demand against a model of linear lists, for more than a million
// operations: every address, every failure, every figure.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/naive_best_fit.h"

namespace hbm {
namespace {

using ::hbm::testing::NaiveBestFit;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

struct Workload {
  std::string name;
  bool preallocate;
  std::int64_t limit;
  std::int64_t capacity;
  std::int64_t max_bytes;
  std::size_t live;  // about so many
};

std::int64_t AddressOf(const void* ptr) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(ptr));
}

class RandomModelTest : public ::testing::TestWithParam<Workload> {
 protected:
  RandomModelTest() : model_(GetParam().preallocate, GetParam().limit, GetParam().capacity) {
    const Workload& load = GetParam();
    const auto device =
        OpenDevice(absl::StrCat("sim:", load.limit, ",used=", load.limit - load.capacity));
    Policy policy;
    policy.preallocate = load.preallocate;
    policy.memory_fraction = {1.0, {}};
    auto allocator = MakeAllocator(policy, *device);
    EXPECT_TRUE(allocator.ok()) << allocator.status();
    allocator_ = *std::move(allocator);
    previous_sink_ = SetLogSink(nullptr);
  }
  ~RandomModelTest() override { SetLogSink(std::move(previous_sink_)); }

  // Sizes of all magnitudes, and often ones used before.
  std::int64_t Size() {
    if (random_() % 4 == 0 && !live_.empty()) return live_[random_() % live_.size()].bytes;
    const double magnitude = std::uniform_real_distribution<double>(
        0.0, std::log2(static_cast<double>(GetParam().max_bytes)))(random_);
    return static_cast<std::int64_t>(std::exp2(magnitude));
  }

  void Allocate() {
    const std::int64_t bytes = Size();
    void* const block = allocator_->TryAllocate(static_cast<std::size_t>(bytes));
    const std::int64_t expected = model_.Allocate(bytes);
    if (expected < 0) {
      ++failures_;
      ASSERT_EQ(block, nullptr);
      return;
    }
    ASSERT_NE(block, nullptr);
    // Addresses of the model start at 0.
    if (base_ == 0) base_ = AddressOf(block) - expected;
    ASSERT_EQ(AddressOf(block) - base_, expected);
    live_.push_back({block, expected, bytes});
  }

  void Free() {
    std::swap(live_[random_() % live_.size()], live_.back());
    ASSERT_TRUE(allocator_->Deallocate(live_.back().block).ok());
    model_.Free(live_.back().model);
    live_.pop_back();
  }

  void CheckFigures() {
    const Stats stats = allocator_->GetStats();
    ASSERT_EQ(stats.bytes_in_use, model_.bytes_in_use());
    ASSERT_EQ(stats.peak_bytes_in_use, model_.peak_bytes_in_use());
    ASSERT_EQ(stats.pool_bytes, model_.pool_bytes());
    ASSERT_EQ(stats.largest_free_block_bytes, model_.largest_free());
    ASSERT_EQ(stats.num_failures, failures_);
  }

  void Run(int steps) {
    const std::size_t target = GetParam().live;
    for (int step = 0; step < steps && !HasFatalFailure(); ++step) {
      // Waves: the number of live blocks swings between a half and one and a half.
      const std::size_t wanted = target / 2 + (static_cast<std::size_t>(step) / 997 % 2) * target;
      const bool grow = live_.size() < wanted ? random_() % 8 != 0 : random_() % 8 == 0;
      if (live_.empty() || grow) {
        Allocate();
      } else {
        Free();
      }
      if (step % 64 == 0) CheckFigures();
    }
  }

  struct Live {
    void* block;
    std::int64_t model;
    std::int64_t bytes;
  };
  NaiveBestFit model_;
  std::unique_ptr<Allocator> allocator_;
  std::mt19937_64 random_{42};
  std::vector<Live> live_;
  std::int64_t base_ = 0;
  std::int64_t failures_ = 0;
  LogSink previous_sink_;
};

TEST_P(RandomModelTest, AgreesOnEveryStep) {
  constexpr int kSteps = 180'000;  // times seven workloads
  Run(kSteps);
  CheckFigures();
  // And down to nothing.
  while (!live_.empty() && !HasFatalFailure()) Free();
  CheckFigures();
}

INSTANTIATE_TEST_SUITE_P(
    All, RandomModelTest,
    ::testing::Values(Workload{"bfc_roomy", true, 4096 * kMiB, 4096 * kMiB, 4 * kMiB, 150},
                      Workload{"bfc_small", true, 64 * kMiB, 64 * kMiB, 4096, 300},
                      Workload{"bfc_tight", true, 64 * kMiB, 64 * kMiB, 4 * kMiB, 200},
                      Workload{"bfc_large", true, 8192 * kMiB, 8192 * kMiB, 2048 * kMiB, 40},
                      Workload{"bfc_pressed", true, 256 * kMiB, 200 * kMiB, 8 * kMiB, 100},
                      Workload{"on_demand_roomy", false, 4096 * kMiB, 4096 * kMiB, 4 * kMiB, 150},
                      Workload{"on_demand_pressed", false, 256 * kMiB, 201 * kMiB, 8 * kMiB, 100}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace hbm
