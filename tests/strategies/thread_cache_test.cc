// SPDX-License-Identifier: Apache-2.0
//
// What a thread cache promises: it loses nothing, catches what the strategies catch,
// and gives back what it keeps.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hbmalloc/allocator.h"

namespace hbm {
namespace {

std::unique_ptr<Allocator> Make(const std::string& policy, const std::string& device) {
  auto opened = OpenDevice(device);
  auto parsed = ParsePolicy(policy);
  EXPECT_TRUE(opened.ok() && parsed.ok());
  auto made = MakeAllocator(*parsed, *opened);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

TEST(ThreadCacheTest, AFreedBlockComesBackToItsThread) {
  auto allocator = Make("bfc:thread_cache=true", "sim:1GiB");
  void* const first = *allocator->Allocate(5000);
  ASSERT_TRUE(allocator->Deallocate(first).ok());
  EXPECT_EQ(*allocator->Allocate(5100), first);
  EXPECT_EQ(allocator->Describe(first)->requested_bytes, 5100U);
}

TEST(ThreadCacheTest, CachedBlocksAreNotLive) {
  auto allocator = Make("bfc:thread_cache=true", "sim:1GiB");
  void* const block = *allocator->Allocate(5000);
  ASSERT_TRUE(allocator->Deallocate(block).ok());
  EXPECT_TRUE(absl::IsNotFound(allocator->Describe(block).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(allocator->Deallocate(block)));
  EXPECT_TRUE(absl::IsInvalidArgument(allocator->RecordUse(block, StreamRef::FromHandle(nullptr))));
  const Stats stats = allocator->GetStats();
  EXPECT_EQ(stats.bytes_in_use, 0);
  EXPECT_EQ(stats.requested_bytes, 0);
  for (const Snapshot::Region& region : allocator->TakeSnapshot().regions) {
    for (const Snapshot::Chunk& chunk : region.chunks) EXPECT_EQ(chunk.state, ChunkState::kFree);
  }
}

TEST(ThreadCacheTest, ARequestIsNotFailedByWhatIsCached) {
  auto allocator = Make("bfc:thread_cache=true,memory_fraction=1", "sim:64MiB");
  std::vector<void*> blocks;
  while (void* block = allocator->TryAllocate(std::size_t{1} << 20)) blocks.push_back(block);
  ASSERT_GT(blocks.size(), 60U);
  for (void* block : blocks) ASSERT_TRUE(allocator->Deallocate(block).ok());
  EXPECT_TRUE(allocator->Allocate(std::size_t{64} << 20).ok());
}

TEST(ThreadCacheTest, TrimGivesEverythingBack) {
  auto allocator = Make("on_demand:thread_cache=true", "sim:1GiB");
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(*allocator->Allocate(100000));
  for (void* block : blocks) ASSERT_TRUE(allocator->Deallocate(block).ok());
  ASSERT_TRUE(allocator->Trim().ok());
  EXPECT_EQ(allocator->GetStats().pool_bytes, 0);
}

TEST(ThreadCacheTest, AThreadThatEndsGivesBackItsBlocks) {
  auto allocator = Make("on_demand:thread_cache=true", "sim:1GiB");
  std::thread([&] {
    std::vector<void*> blocks;
    for (int i = 0; i < 20; ++i) blocks.push_back(*allocator->Allocate(100000));
    for (void* block : blocks) ASSERT_TRUE(allocator->Deallocate(block).ok());
  }).join();
  // Its two full magazines may have spilt; the rest is free for others.
  EXPECT_EQ(allocator->GetStats().bytes_in_use, 0);
  EXPECT_TRUE(allocator->Allocate(std::size_t{700} << 20).ok());
}

TEST(ThreadCacheTest, AThreadMayOutliveTheAllocator) {
  std::atomic<int> step{0};
  auto allocator = Make("bfc:thread_cache=true", "sim:1GiB");
  std::thread thread([&] {
    ASSERT_TRUE(allocator->Deallocate(*allocator->Allocate(1000)).ok());
    step = 1;
    while (step != 2) std::this_thread::yield();
  });
  while (step != 1) std::this_thread::yield();
  allocator.reset();
  step = 2;
  thread.join();
  EXPECT_TRUE(Make("bfc:thread_cache=true", "sim:1GiB")->Allocate(1000).ok());
}

// One of two frees of the same block wins, whatever the interleaving.
TEST(ThreadCacheTest, RacingDoubleFreesAreCaught) {
  auto allocator = Make("bfc:thread_cache=true", "sim:1GiB");
  for (int round = 0; round < 2000; ++round) {
    void* const block = *allocator->Allocate(3000);
    std::atomic<int> won{0};
    std::atomic<int> ready{0};
    const auto free_it = [&] {
      ++ready;
      while (ready != 2) std::this_thread::yield();
      if (allocator->Deallocate(block).ok()) ++won;
    };
    std::thread other(free_it);
    free_it();
    other.join();
    ASSERT_EQ(won, 1);
  }
}

TEST(ThreadCacheTest, BlocksFreedByOtherThreadsKeepTheirBytes) {
  auto allocator = Make("bfc:thread_cache=true", "host:256MiB");
  constexpr int kThreads = 8;
  struct Queue {
    std::mutex mutex;
    std::deque<std::pair<unsigned char*, std::size_t>> blocks;
  };
  std::vector<Queue> queues(kThreads);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      const auto check_and_free = [&](std::pair<unsigned char*, std::size_t> block) {
        const unsigned char mark = block.first[0];
        for (std::size_t i = 0; i < block.second; ++i) wrong += block.first[i] != mark;
        if (!allocator->Deallocate(block.first).ok()) ++wrong;
      };
      for (int i = 0; i < 3000; ++i) {
        const std::size_t bytes = 1 + random() % 20000;
        auto* const block = static_cast<unsigned char*>(allocator->TryAllocate(bytes));
        if (block == nullptr) {
          ++wrong;
          continue;
        }
        std::memset(block, static_cast<int>(random() & 255), bytes);
        Queue& next = queues[static_cast<std::size_t>(random() % kThreads)];
        std::pair<unsigned char*, std::size_t> old{nullptr, 0};
        {
          std::lock_guard<std::mutex> lock(next.mutex);
          next.blocks.emplace_back(block, bytes);
          if (next.blocks.size() > 20) {
            old = next.blocks.front();
            next.blocks.pop_front();
          }
        }
        if (old.first != nullptr) check_and_free(old);
        if (i % 500 == 250 && !allocator->Trim().ok()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::int64_t live = 0;
  for (Queue& queue : queues) {
    for (auto& block : queue.blocks) live += static_cast<std::int64_t>(block.second);
  }
  EXPECT_EQ(allocator->GetStats().requested_bytes, live);
  for (Queue& queue : queues) {
    for (auto& block : queue.blocks) EXPECT_TRUE(allocator->Deallocate(block.first).ok());
  }
  EXPECT_EQ(wrong, 0);
  const Stats stats = allocator->GetStats();
  EXPECT_EQ(stats.num_allocs, kThreads * 3000);
  EXPECT_EQ(stats.num_frees, kThreads * 3000);
  EXPECT_EQ(stats.requested_bytes, 0);
  EXPECT_EQ(stats.bytes_in_use, 0);
}

TEST(ThreadCacheTest, WhatCannotGoTogetherSwitchesItOffAndSaysSo) {
  for (const char* spec :
       {"bfc:thread_cache=true,stream_mode=ordered", "bfc:thread_cache=true,quarantine=1MiB"}) {
    auto device = OpenDevice("sim:1GiB");
    auto policy = ParsePolicy(spec);
    ASSERT_TRUE(device.ok() && policy.ok());
    EXPECT_FALSE((*MakeAllocator(*policy, *device))->policy().thread_cache) << spec;
  }
}

}  // namespace
}  // namespace hbm
