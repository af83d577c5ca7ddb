// SPDX-License-Identifier: Apache-2.0
//
// 32 threads do everything at once: cross-thread frees, Trim, statistics, snapshots,
// limits that move, callbacks that call back in; and allocators that end right after
// their last free.
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr int kThreads = 32;

class StressTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { previous_sink_ = SetLogSink(nullptr); }
  void TearDown() override { SetLogSink(std::move(previous_sink_)); }

  struct Block {
    unsigned char* data;
    std::size_t bytes;
    unsigned char value;
  };

  // Blocks that any thread may free.
  class Exchange {
   public:
    void Put(Block block) {
      std::lock_guard<std::mutex> lock(mutex_);
      blocks_.push_back(block);
    }
    bool Take(Block* block) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (blocks_.empty()) return false;
      *block = blocks_.back();
      blocks_.pop_back();
      return true;
    }

   private:
    std::mutex mutex_;
    std::vector<Block> blocks_;
  };

  void FreeChecked(const Block& block) {
    // Nobody else wrote there.
    EXPECT_TRUE(block.data[0] == block.value && block.data[block.bytes - 1] == block.value &&
                block.data[block.bytes / 2] == block.value);
    EXPECT_TRUE(allocator_->Deallocate(block.data).ok());
    ++freed_;
  }

  void Odd(std::mt19937_64& random) {
    switch (random() % 8) {
      case 0:
        allocator_->Trim().status().IgnoreError();
        break;
      case 1:
        EXPECT_TRUE(allocator_->SetMemoryLimit((16 + random() % 48) * kMiB).ok());
        break;
      case 2:
        allocator_->TakeSnapshot();
        break;
      case 3:
        allocator_->GetFigures();
        break;
      case 4:
        allocator_->ResetPeakStats();
        break;
      case 5:
        allocator_->Describe(&random).status().IgnoreError();
        EXPECT_FALSE(allocator_->Deallocate(&random).ok());
        break;
      default:
        EXPECT_GE(allocator_->GetStats().requested_bytes, 0);
    }
  }

  void Work(std::uint64_t seed, absl::Time end) {
    std::mt19937_64 random(seed);
    std::vector<Block> own;
    while (absl::Now() < end) {
      for (int i = 0; i < 20; ++i) {
        const std::size_t bytes = 1 + random() % (random() % 16 == 0 ? kMiB : 4096);
        AllocateOptions options;
        if (random() % 64 == 0) options.max_wait = absl::Milliseconds(2);
        void* const data = random() % 4 == 0
                               ? allocator_->Allocate(bytes, options).value_or(nullptr)
                               : allocator_->TryAllocate(bytes);
        if (data != nullptr) {
          ++allocated_;
          const Block block{static_cast<unsigned char*>(data), bytes,
                            static_cast<unsigned char>(random())};
          std::memset(data, block.value, bytes);
          if (random() % 2 == 0) {
            own.push_back(block);
          } else {
            exchange_.Put(block);
          }
        }
        Block other;
        if (random() % 2 == 0 && exchange_.Take(&other)) FreeChecked(other);
        if (own.size() > 20) {
          FreeChecked(own.front());
          own.erase(own.begin());
        }
      }
      Odd(random);
    }
    for (const Block& block : own) FreeChecked(block);
  }

  void Run(absl::Duration duration) {
    allocator_ = *MakeAllocator(*ParsePolicy(GetParam()), *OpenDevice("host:64MiB"));
    // Everything that it may do from inside.
    allocator_->SetLowMemoryCallback([this](const LowMemory& low) {
      allocator_->GetStats();
      void* const inner = allocator_->Allocate(100).value_or(nullptr);
      allocator_->Deallocate(inner).IgnoreError();
      Block block;
      const bool any = exchange_.Take(&block);
      if (any) FreeChecked(block);
      allocator_->Trim().status().IgnoreError();
      called_back_ += inner != nullptr;
      return any && low.attempt < 3;
    });
    std::vector<std::thread> threads;
    const absl::Time end = absl::Now() + duration;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([this, t, end] { Work(static_cast<std::uint64_t>(t), end); });
    }
    for (std::thread& thread : threads) thread.join();
    Block block;
    while (exchange_.Take(&block)) FreeChecked(block);
    allocator_->SetLowMemoryCallback(nullptr);
    const Stats stats = allocator_->GetStats();
    EXPECT_EQ(stats.bytes_in_use, 0);
    EXPECT_EQ(stats.requested_bytes, 0);
    EXPECT_EQ(allocated_, freed_);
    EXPECT_GT(allocated_, kThreads);
    TrimOptions all;
    all.max_wait = absl::Seconds(10);
    EXPECT_TRUE(allocator_->Trim(all).ok());
    EXPECT_EQ(allocator_->GetStats().pool_bytes, 0);
    allocator_.reset();
  }

  std::unique_ptr<Allocator> allocator_;
  Exchange exchange_;
  std::atomic<std::int64_t> allocated_{0};
  std::atomic<std::int64_t> freed_{0};
  std::atomic<std::int64_t> called_back_{0};
  LogSink previous_sink_;
};

TEST_P(StressTest, EverythingAtOnce) { Run(absl::Milliseconds(700)); }
TEST_P(StressTest, EverythingAtOnceSlow) { Run(absl::Seconds(60)); }

TEST_P(StressTest, TheAllocatorEndsRightAfterTheLastFree) {
  const auto device = *OpenDevice("host:64MiB");
  for (int round = 0; round < 30; ++round) {
    auto allocator = *MakeAllocator(*ParsePolicy(GetParam()), device);
    std::vector<void*> blocks;
    for (int t = 0; t < kThreads; ++t) blocks.push_back(*allocator->Allocate(10'000));
    std::atomic<int> left{kThreads};
    std::vector<std::thread> threads;
    for (void* const block : blocks) {
      threads.emplace_back([&, block] {
        EXPECT_TRUE(allocator->Deallocate(block).ok());
        --left;
      });
    }
    // The last free has returned; its thread has perhaps not.
    while (left != 0) std::this_thread::yield();
    allocator.reset();
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(device->GetMemoryInfo()->free, 64 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(All, StressTest,
                         ::testing::Values("bfc", "on_demand:garbage_collection=true", "platform",
                                           "elastic", "elastic:idle_release=0",
                                           "on_demand:thread_cache=true",
                                           "on_demand:debug=guard+leaks"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace hbm
