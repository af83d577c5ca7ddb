// SPDX-License-Identifier: Apache-2.0
//
// Capture pools, for every strategy: what a captured graph uses stays in place,
// mapped and nobody else's until its pool is released; and no capture is spoilt.
#if defined(HBMALLOC_HAVE_CUDA)

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "sources/cuda/cuda_device.h"
#include "tests/support/fake_driver.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class CaptureTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    SetLogSink(nullptr);  // blocks that are live at the end are meant to be
    Make(GetParam() + ":memory_limit=64MiB");
  }
  void Make(const std::string& policy) {
    auto device = sources::OpenCudaDevice("cuda:0", fake_.table());
    ASSERT_TRUE(device.ok()) << device.status();
    auto made = MakeAllocator(*ParsePolicy(policy), *device);
    ASSERT_TRUE(made.ok()) << made.status();
    allocator_ = *std::move(made);
    stream_ = fake_.CreateStream();
    other_ = fake_.CreateStream();
  }
  void* Take(std::size_t bytes, StreamRef stream, AllocError* why = nullptr) {
    AllocateOptions options;
    options.stream = stream;
    return allocator_->TryAllocate(bytes, options, why);
  }
  void Free(void* block) { EXPECT_TRUE(allocator_->Deallocate(block).ok()); }
  CapturePool Begin(StreamRef stream, CapturePool pool = {}) {
    const absl::StatusOr<CapturePool> begun = allocator_->BeginCapturePool(stream, pool);
    EXPECT_TRUE(begun.ok()) << begun.status();
    fake_.SetCapturing(stream, true);
    return begun.value_or(CapturePool{});
  }
  void End(CapturePool pool, StreamRef stream) {
    fake_.SetCapturing(stream, false);
    EXPECT_TRUE(allocator_->EndCapturePool(pool).ok());
  }
  // Blocks of this size until there is no memory, all on `other_`.
  std::vector<void*> TakeAll(std::size_t bytes) {
    std::vector<void*> blocks;
    for (int i = 0; i < 1000; ++i) {
      void* const block = Take(bytes, other_);
      if (block == nullptr) break;
      blocks.push_back(block);
    }
    return blocks;
  }

  FakeDriver fake_;
  std::unique_ptr<Allocator> allocator_;
  StreamRef stream_;
  StreamRef other_;
};

bool Overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a);
  const auto second = reinterpret_cast<std::uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

TEST_P(CaptureTest, WhatACaptureUsedIsNobodyElsesUntilItIsReleased) {
  void* const before = Take(2 * kMiB, stream_);
  void* const used = Take(2 * kMiB, other_);
  const CapturePool pool = Begin(stream_);
  void* const inside = Take(4 * kMiB, stream_);
  void* const lives_on = Take(3 * kMiB, stream_);
  ASSERT_NE(inside, nullptr);
  ASSERT_NE(lives_on, nullptr);
  ASSERT_TRUE(allocator_->RecordUse(used, stream_).ok());
  Free(inside);
  Free(before);  // its last work is in the capture
  End(pool, stream_);
  Free(lives_on);
  Free(used);
  EXPECT_EQ(allocator_->GetStats().requested_bytes, 0);
  EXPECT_TRUE(allocator_->Trim().ok());
  const std::map<void*, std::size_t> kept = {
      {before, 2 * kMiB}, {used, 2 * kMiB}, {inside, 4 * kMiB}, {lives_on, 3 * kMiB}};
  const std::vector<void*> others = TakeAll(kMiB);
  EXPECT_GE(others.size(), 30U);
  for (void* const other : others) {
    for (const auto& [address, bytes] : kept) {
      ASSERT_FALSE(Overlap(other, kMiB, address, bytes));
    }
  }
  for (const auto& [address, bytes] : kept) {
    EXPECT_TRUE(fake_.IsBacked(address, bytes));
    EXPECT_FALSE(allocator_->Deallocate(address).ok());  // it was freed already
    EXPECT_FALSE(allocator_->Describe(address).ok());
  }
  ASSERT_TRUE(allocator_->ReleaseCapturePool(pool, StreamRef::Synchronized()).ok());
  EXPECT_GE(TakeAll(kMiB).size(), 8U);  // and can be had by all again
  EXPECT_EQ(fake_.spoilt_captures(), 0);
}

TEST_P(CaptureTest, ACaptureUsesItsFreedBlocksAgain) {
  const CapturePool pool = Begin(stream_);
  void* const first = Take(4 * kMiB, stream_);
  Free(first);
  EXPECT_EQ(Take(4 * kMiB, stream_), first);
  EXPECT_NE(Take(4 * kMiB, stream_), first);
  Free(first);
  End(pool, stream_);
  void* const outside = Take(4 * kMiB, stream_);
  EXPECT_NE(outside, first);
  ASSERT_EQ(Begin(stream_, pool).id, pool.id);  // a second graph, launched after the first
  EXPECT_EQ(Take(3 * kMiB, stream_), first);
  EXPECT_EQ(allocator_->Describe(first)->requested_bytes, 3 * kMiB);
  End(pool, stream_);
  const Stats stats = allocator_->GetStats();
  EXPECT_EQ(stats.num_allocs - stats.num_frees, 3);
  EXPECT_EQ(stats.requested_bytes, static_cast<std::int64_t>(11 * kMiB));
  EXPECT_TRUE(allocator_->ReleaseCapturePool(pool, stream_).ok());
}

TEST_P(CaptureTest, StreamsThatJoinTheCaptureBelongToThePool) {
  const CapturePool pool = Begin(stream_);
  fake_.JoinCapture(other_, stream_);
  void* const joined = Take(2 * kMiB, other_);
  ASSERT_NE(joined, nullptr);
  Free(joined);
  EXPECT_NE(Take(2 * kMiB, stream_), joined);  // nothing orders the two streams
  EXPECT_EQ(Take(2 * kMiB, other_), joined);
  Free(joined);
  fake_.SetCapturing(other_, false);
  End(pool, stream_);
  EXPECT_NE(Take(2 * kMiB, other_), joined);
  EXPECT_EQ(fake_.spoilt_captures(), 0);
}

TEST_P(CaptureTest, OtherStreamsGoOnDuringACapture) {
  const CapturePool pool = Begin(stream_);
  void* const block = Take(2 * kMiB, other_);
  ASSERT_NE(block, nullptr);
  fake_.Launch(other_);
  Free(block);
  End(pool, stream_);
  EXPECT_EQ(allocator_->GetStats().requested_bytes, 0);
  EXPECT_TRUE(allocator_->ReleaseCapturePool(pool, StreamRef::Synchronized()).ok());
  EXPECT_EQ(fake_.spoilt_captures(), 0);
}

// The legacy default stream cannot be touched while a stream that it is ordered with is
// captured: not even asked who it is. Nor can the captured stream, announced or not.
TEST_P(CaptureTest, TheDefaultStreamDoesNotSpoilIt) {
  for (const bool announced : {true, false}) {
    const StreamRef captured = fake_.CreateStream(0, /*blocking=*/true);
    std::vector<void*> blocks;
    for (int i = 0; i < 6; ++i) {
      blocks.push_back(Take(kMiB, i % 2 == 0 ? StreamRef() : captured));
      fake_.Launch(captured);
    }
    CapturePool pool;
    if (announced) {
      pool = Begin(captured);
    } else {
      fake_.SetCapturing(captured, true);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const StreamRef stream = i % 2 == 0 ? StreamRef() : captured;
      AllocError why;
      for (const std::size_t bytes : {2 * kMiB, 48 * kMiB}) {
        void* const block = Take(bytes, stream, &why);
        if (block == nullptr) {
          EXPECT_TRUE(why.code == absl::StatusCode::kFailedPrecondition ||
                      why.code == absl::StatusCode::kResourceExhausted);
        } else {
          allocator_->Deallocate(block).IgnoreError();
        }
      }
      allocator_->Deallocate(blocks[i]).IgnoreError();
      allocator_->RecordUse(blocks[i], stream).IgnoreError();
      allocator_->Trim().IgnoreError();
    }
    EXPECT_EQ(fake_.spoilt_captures(), 0) << announced;
    if (announced) {
      End(pool, captured);
      EXPECT_TRUE(allocator_->ReleaseCapturePool(pool, StreamRef::Synchronized()).ok());
    } else {
      fake_.SetCapturing(captured, false);
    }
    allocator_.reset();
    Make(GetParam() + ":memory_limit=64MiB");
  }
}

// A launch of the graph is ordered after nothing that was freed before.
TEST_P(CaptureTest, ACaptureIsGivenNoMemoryThatWorkStillTouches) {
  if (GetParam() == "cuda_async") GTEST_SKIP() << "the driver's pool keeps the order itself";
  for (int i = 0; i < 8; ++i) {
    void* const block = Take(2 * kMiB, i % 2 == 0 ? stream_ : other_);
    ASSERT_NE(block, nullptr);
    Free(block);
  }
  void* const busy = Take(8 * kMiB, stream_);
  const std::uint64_t work = fake_.Launch(stream_);
  Free(busy);
  const CapturePool pool = Begin(stream_);
  std::vector<void*> taken;
  AllocError why;
  for (int i = 0; i < 100; ++i) {
    void* const block = Take(2 * kMiB, stream_, &why);
    if (block == nullptr) break;
    if (!fake_.IsOrdered(stream_, work, other_)) {
      ASSERT_FALSE(Overlap(block, 2 * kMiB, busy, 8 * kMiB));
    }
  }
  EXPECT_TRUE(why.code == absl::StatusCode::kFailedPrecondition ||
              why.code == absl::StatusCode::kResourceExhausted);
  End(pool, stream_);
  EXPECT_EQ(fake_.spoilt_captures(), 0);
}

TEST_P(CaptureTest, TrimAndShortageDoNotSpoilACapture) {
  std::vector<void*> blocks;
  for (int i = 0; i < 12; ++i) {
    blocks.push_back(Take(4 * kMiB, i % 2 == 0 ? stream_ : other_));
    fake_.Launch(stream_);
  }
  for (std::size_t i = 0; i < blocks.size(); i += 3) {
    if (blocks[i] != nullptr) Free(blocks[i]);
  }
  const CapturePool pool = Begin(stream_);
  for (int i = 0; i < 40; ++i) {
    Take(3 * kMiB, stream_);
    Take(3 * kMiB, other_);
    if (i % 5 == 0) allocator_->Trim().IgnoreError();
  }
  EXPECT_EQ(fake_.spoilt_captures(), 0);
  End(pool, stream_);
}

TEST_P(CaptureTest, ReleaseIsOrderedAfterTheLastLaunch) {
  const CapturePool pool = Begin(stream_);
  void* const block = Take(40 * kMiB, stream_);
  ASSERT_NE(block, nullptr);
  Free(block);
  End(pool, stream_);
  const std::uint64_t launch = fake_.Launch(other_);  // of the graph
  ASSERT_TRUE(allocator_->ReleaseCapturePool(pool, other_).ok());
  const StreamRef third = fake_.CreateStream();
  void* const next = Take(40 * kMiB, third);
  if (next != nullptr && GetParam() != "cuda_async") {
    EXPECT_TRUE(fake_.IsOrdered(other_, launch, third));
  }
}

TEST_P(CaptureTest, LiveBlocksAreTheirOwnersAfterTheRelease) {
  const CapturePool pool = Begin(stream_);
  void* const block = Take(kMiB, stream_);
  End(pool, stream_);
  ASSERT_TRUE(allocator_->ReleaseCapturePool(pool, stream_).ok());
  EXPECT_TRUE(allocator_->Describe(block).ok());
  Free(block);
  EXPECT_FALSE(allocator_->Deallocate(block).ok());
  const Stats stats = allocator_->GetStats();
  EXPECT_EQ(stats.requested_bytes, 0);
  EXPECT_EQ(stats.bytes_in_use, 0);
  EXPECT_EQ(stats.num_allocs, stats.num_frees);
}

TEST_P(CaptureTest, ABlockOfTwoPoolsIsKeptUntilBothAreReleased) {
  void* const block = Take(kMiB, stream_);
  const CapturePool first = Begin(stream_);
  ASSERT_TRUE(allocator_->RecordUse(block, stream_).ok());
  End(first, stream_);
  const CapturePool second = Begin(other_);
  ASSERT_TRUE(allocator_->RecordUse(block, other_).ok());
  End(second, other_);
  Free(block);
  ASSERT_TRUE(allocator_->ReleaseCapturePool(first, StreamRef::Synchronized()).ok());
  EXPECT_GE(allocator_->GetStats().pending_bytes, static_cast<std::int64_t>(kMiB));
  EXPECT_FALSE(allocator_->Deallocate(block).ok());
  ASSERT_TRUE(allocator_->ReleaseCapturePool(second, StreamRef::Synchronized()).ok());
  EXPECT_EQ(allocator_->GetStats().bytes_in_use, 0);
}

TEST_P(CaptureTest, WrongUseIsRefused) {
  EXPECT_FALSE(allocator_->BeginCapturePool(StreamRef::Synchronized()).ok());
  EXPECT_FALSE(allocator_->BeginCapturePool(StreamRef::OfAllocation()).ok());
  EXPECT_FALSE(allocator_->BeginCapturePool(stream_, CapturePool{77}).ok());
  EXPECT_FALSE(allocator_->EndCapturePool(CapturePool{77}).ok());
  EXPECT_FALSE(allocator_->ReleaseCapturePool(CapturePool{}, stream_).ok());
  const CapturePool pool = Begin(stream_);
  EXPECT_FALSE(allocator_->BeginCapturePool(stream_, pool).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(allocator_->ReleaseCapturePool(pool, other_)));
  End(pool, stream_);
  EXPECT_FALSE(allocator_->EndCapturePool(pool).ok());
  EXPECT_FALSE(allocator_->ReleaseCapturePool(pool, StreamRef::OfAllocation()).ok());
  fake_.SetCapturing(other_, true);
  EXPECT_TRUE(absl::IsFailedPrecondition(allocator_->ReleaseCapturePool(pool, other_)));
  fake_.SetCapturing(other_, false);
  EXPECT_TRUE(allocator_->ReleaseCapturePool(pool, other_).ok());
  EXPECT_FALSE(allocator_->ReleaseCapturePool(pool, other_).ok());
}

// Many captures, many blocks, random order: nothing that a graph uses is handed out
// elsewhere, and at the end nothing is missing.
TEST_P(CaptureTest, RandomCapturesLoseNothing) {
  struct Graph {
    CapturePool pool;
    std::map<void*, std::size_t> uses;
  };
  std::mt19937 random(3);
  std::vector<Graph> graphs;
  std::map<void*, std::size_t> live;
  for (int step = 0; step < 60; ++step) {
    const bool capture = step % 3 == 0;
    Graph graph;
    if (capture) graph.pool = Begin(stream_);
    for (int i = 0; i < 12; ++i) {
      const std::size_t bytes = random() % kMiB + 1;
      void* const block = Take(bytes, stream_);
      if (block == nullptr) continue;
      for (const Graph& other : graphs) {
        for (const auto& [address, used] : other.uses) {
          ASSERT_FALSE(Overlap(block, bytes, address, used));
        }
      }
      ASSERT_EQ(live.count(block), 0U);
      live[block] = bytes;
      if (capture) graph.uses[block] = std::max(graph.uses[block], bytes);
      if (random() % 4 != 0) {
        Free(block);
        live.erase(block);
      }
    }
    if (capture) {
      End(graph.pool, stream_);
      graphs.push_back(graph);
    }
    while (live.size() > 10) {
      Free(live.begin()->first);
      live.erase(live.begin());
    }
    if (graphs.size() > 3) {
      ASSERT_TRUE(
          allocator_->ReleaseCapturePool(graphs.front().pool, StreamRef::Synchronized()).ok());
      graphs.erase(graphs.begin());
    }
    const Stats stats = allocator_->GetStats();
    ASSERT_EQ(stats.num_allocs - stats.num_frees, static_cast<std::int64_t>(live.size()));
  }
  for (const auto& [address, bytes] : live) Free(address);
  for (const Graph& graph : graphs) {
    EXPECT_TRUE(allocator_->ReleaseCapturePool(graph.pool, StreamRef::Synchronized()).ok());
  }
  const Stats stats = allocator_->GetStats();
  EXPECT_EQ(stats.requested_bytes, 0);
  EXPECT_EQ(stats.bytes_in_use, 0);
  EXPECT_EQ(stats.num_allocs, stats.num_frees);
  EXPECT_EQ(fake_.spoilt_captures(), 0);
}

INSTANTIATE_TEST_SUITE_P(Strategies, CaptureTest,
                         ::testing::Values("bfc", "on_demand", "platform", "cuda_async", "elastic"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace hbm::testing

#endif  // HBMALLOC_HAVE_CUDA
