// SPDX-License-Identifier: Apache-2.0
//
// Whether freed memory reaches other streams only when that is safe, seen from the
// outside: a model driver knows what work is queued, done and waited for.
#if defined(HBMALLOC_HAVE_CUDA)

#include <algorithm>
#include <cstdint>
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

class StreamOrderTest : public ::testing::Test {
 protected:
  std::unique_ptr<Allocator> Make(const std::string& policy) {
    auto device = sources::OpenCudaDevice("cuda:0", fake_.table());
    EXPECT_TRUE(device.ok()) << device.status();
    auto allocator = MakeAllocator(*ParsePolicy(policy), *device);
    EXPECT_TRUE(allocator.ok()) << allocator.status();
    return *std::move(allocator);
  }
  static void* Take(Allocator& allocator, std::size_t bytes, StreamRef stream) {
    AllocateOptions options;
    options.stream = stream;
    return allocator.Allocate(bytes, options).value_or(nullptr);
  }

  FakeDriver fake_;
};

TEST_F(StreamOrderTest, OneStreamPaysNothing) {
  auto allocator = Make("bfc:memory_limit=64MiB");
  const StreamRef stream = fake_.CreateStream();
  ASSERT_TRUE(allocator->Deallocate(Take(*allocator, kMiB, stream)).ok());
  for (const StreamRef one : {stream, StreamRef()}) {
    auto fresh = Make("bfc:memory_limit=64MiB");
    ASSERT_TRUE(fresh->Deallocate(Take(*fresh, kMiB, one)).ok());
    const int before = fake_.total_calls();
    const int questions = fake_.calls("StreamGetId") + fake_.calls("StreamIsCapturing");
    for (int i = 0; i < 1000; ++i) {
      void* const block = Take(*fresh, 4096 + static_cast<std::size_t>(i), one);
      ASSERT_NE(block, nullptr);
      fake_.Launch(one);
      ASSERT_TRUE(fresh->Deallocate(block).ok());
    }
    // Whether a created stream is the one that it was is asked; nothing else is.
    const int asked = fake_.calls("StreamGetId") + fake_.calls("StreamIsCapturing") - questions;
    EXPECT_EQ(fake_.total_calls() - before, asked);
    EXPECT_EQ(asked, one == StreamRef() ? 0 : 2000);
    EXPECT_EQ(fresh->GetStats().pending_bytes, 0);
  }
}

TEST_F(StreamOrderTest, FreedBlockIsReusedAtOnceOnItsStreamOnly) {
  auto allocator = Make("bfc:memory_limit=64MiB");
  const StreamRef a = fake_.CreateStream();
  const StreamRef b = fake_.CreateStream();
  ASSERT_TRUE(allocator->Deallocate(Take(*allocator, kMiB, a)).ok());
  ASSERT_TRUE(allocator->Deallocate(Take(*allocator, kMiB, b)).ok());
  void* const block = Take(*allocator, 8 * kMiB, a);
  fake_.Launch(a);
  ASSERT_TRUE(allocator->Deallocate(block).ok());
  EXPECT_GE(allocator->GetStats().pending_bytes, static_cast<std::int64_t>(8 * kMiB));
  void* const other = Take(*allocator, 8 * kMiB, b);
  EXPECT_NE(other, block);
  void* const same = Take(*allocator, 8 * kMiB, a);
  EXPECT_EQ(same, block);
}

TEST_F(StreamOrderTest, WaitsByAnEventRatherThanFail) {
  auto allocator = Make("bfc:memory_limit=64MiB");
  const StreamRef a = fake_.CreateStream();
  const StreamRef b = fake_.CreateStream();
  void* const small = Take(*allocator, kMiB, b);
  void* const block = Take(*allocator, 60 * kMiB, a);
  ASSERT_NE(block, nullptr);
  const std::uint64_t work = fake_.Launch(a);
  ASSERT_TRUE(allocator->Deallocate(block).ok());
  const int device_waits = fake_.calls("CtxSynchronize");
  void* const taken = Take(*allocator, 60 * kMiB, b);
  ASSERT_EQ(taken, block);
  EXPECT_TRUE(fake_.IsOrdered(a, work, b));
  EXPECT_GE(allocator->GetStats().num_waits, 1);
  EXPECT_EQ(fake_.calls("CtxSynchronize"), device_waits);
  EXPECT_TRUE(allocator->Deallocate(taken).ok());
  EXPECT_TRUE(allocator->Deallocate(small).ok());
}

TEST_F(StreamOrderTest, RecordedUseHoldsTheBlockBack) {
  auto allocator = Make("bfc:memory_limit=64MiB");
  const StreamRef a = fake_.CreateStream();
  const StreamRef b = fake_.CreateStream();
  void* const block = Take(*allocator, 40 * kMiB, a);
  ASSERT_TRUE(allocator->RecordUse(block, b).ok());
  const std::uint64_t work = fake_.Launch(b);
  ASSERT_TRUE(allocator->Deallocate(block).ok());
  EXPECT_GE(allocator->GetStats().pending_bytes, static_cast<std::int64_t>(40 * kMiB));
  void* const taken = Take(*allocator, 40 * kMiB, a);
  ASSERT_NE(taken, nullptr);
  EXPECT_TRUE(fake_.IsOrdered(b, work, a));
}

TEST_F(StreamOrderTest, DestroyedStreamsMemoryComesBack) {
  auto allocator = Make("bfc:memory_limit=64MiB");
  const StreamRef a = fake_.CreateStream();
  const StreamRef b = fake_.CreateStream();
  void* const first = Take(*allocator, kMiB, b);
  void* const block = Take(*allocator, 50 * kMiB, a);
  void* const small = Take(*allocator, 4096, a);
  const std::uint64_t work = fake_.Launch(a);
  ASSERT_TRUE(allocator->Deallocate(small).ok());
  ASSERT_TRUE(allocator->Deallocate(block).ok());
  fake_.DestroyStream(a);
  EXPECT_EQ(Take(*allocator, 50 * kMiB, b), block);
  EXPECT_EQ(fake_.dead_streams_touched(), 0);
  EXPECT_TRUE(allocator->Deallocate(first).ok());
  static_cast<void>(work);
}

// The last frees of a stream have no event yet, and it is gone: no call may be given
// its handle, and what only they stand in the way of is had by waiting for the device.
TEST_F(StreamOrderTest, AStreamThatIsGoneIsNeverAskedAgain) {
  auto allocator = Make("bfc:memory_limit=8MiB");
  const StreamRef a = fake_.CreateStream();
  const StreamRef b = fake_.CreateStream();
  ASSERT_TRUE(allocator->Deallocate(Take(*allocator, kMiB, a)).ok());
  ASSERT_TRUE(allocator->Deallocate(Take(*allocator, kMiB, b)).ok());
  std::vector<void*> blocks;
  while (void* const block = Take(*allocator, 4096, a)) blocks.push_back(block);
  fake_.Launch(a);
  for (void* const block : blocks) ASSERT_TRUE(allocator->Deallocate(block).ok());
  ASSERT_TRUE(allocator->Deallocate(Take(*allocator, 4096, a)).ok());
  fake_.DestroyStream(a);
  EXPECT_NE(Take(*allocator, 8 * kMiB, b), nullptr);
  EXPECT_GE(fake_.calls("CtxSynchronize"), 1);
  allocator.reset();
  EXPECT_EQ(fake_.dead_streams_touched(), 0);
}

// A stream for each piece of work, as servers make them, and few of them seen again: all
// memory comes back, and none before the work on it is done.
TEST_F(StreamOrderTest, StreamsThatComeAndGoUseUpNothing) {
  for (const char* strategy : {"bfc", "on_demand", "elastic", "platform"}) {
    auto allocator = Make(std::string(strategy) + ":memory_limit=64MiB");
    std::map<void*, std::pair<std::uint64_t, std::uint64_t>> last;  // work on it: stream, number
    std::mt19937 random(3);
    const auto use = [&](StreamRef stream, const std::string& where) {
      void* const block = Take(*allocator, 8 * kMiB, stream);
      ASSERT_NE(block, nullptr) << where;
      if (const auto work = last.find(block); work != last.end()) {
        ASSERT_TRUE(fake_.IsDoneOrWaited(work->second.first, work->second.second, stream)) << where;
      }
      last[block] = {fake_.IdOf(stream), fake_.Launch(stream)};
      if (random() % 3 == 0) fake_.Finish(stream);
      ASSERT_TRUE(allocator->Deallocate(block).ok()) << where;
    };
    for (int round = 0; round < 200; ++round) {
      const std::string where = std::string(strategy) + " " + std::to_string(round);
      const StreamRef stream = fake_.CreateStream();
      use(stream, where);
      const StreamRef other = fake_.CreateStream();
      fake_.DestroyStream(stream);
      use(other, where);
      fake_.DestroyStream(other);
    }
    EXPECT_EQ(fake_.dead_streams_touched(), 0) << strategy;
  }
}

// A handle comes back for a new stream while work of the old one still runs.
TEST_F(StreamOrderTest, ARecycledHandleIsAnotherStream) {
  for (const bool others : {false, true}) {
    auto allocator = Make("bfc:memory_limit=64MiB");
    const StreamRef other = fake_.CreateStream();
    if (others) {
      ASSERT_TRUE(allocator->Deallocate(Take(*allocator, kMiB, other)).ok());
    }
    const StreamRef old = fake_.CreateStream();
    void* const block = Take(*allocator, 8 * kMiB, old);
    const std::uint64_t work = fake_.Launch(old);
    ASSERT_TRUE(allocator->Deallocate(block).ok());
    const std::uint64_t id = fake_.IdOf(old);
    fake_.DestroyStream(old);
    const StreamRef recycled = fake_.CreateStream();
    ASSERT_EQ(recycled, old);
    void* const taken = Take(*allocator, 60 * kMiB, recycled);
    ASSERT_NE(taken, nullptr) << others;  // all there is, so it holds the old block
    EXPECT_TRUE(fake_.IsDoneOrWaited(id, work, recycled)) << others;
    EXPECT_EQ(fake_.dead_streams_touched(), 0);
    EXPECT_TRUE(allocator->Deallocate(taken).ok());
    fake_.DestroyStream(recycled);
    fake_.DestroyStream(other);
  }
}

TEST_F(StreamOrderTest, CaptureIsNeverSpoilt) {
  auto allocator = Make("bfc:memory_limit=64MiB");
  const StreamRef a = fake_.CreateStream();
  const StreamRef b = fake_.CreateStream();
  void* const small = Take(*allocator, kMiB, b);
  void* const own = Take(*allocator, kMiB, b);
  void* const block = Take(*allocator, 50 * kMiB, a);
  fake_.Launch(a);
  ASSERT_TRUE(allocator->Deallocate(block).ok());
  ASSERT_TRUE(allocator->Deallocate(own).ok());
  fake_.SetCapturing(b, true);
  void* const hit = Take(*allocator, kMiB, b);
  EXPECT_NE(hit, nullptr);
  AllocError why;
  AllocateOptions options;
  options.stream = b;
  EXPECT_EQ(allocator->TryAllocate(50 * kMiB, options, &why), nullptr);
  EXPECT_EQ(why.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(allocator->Deallocate(hit).ok());
  EXPECT_EQ(fake_.spoilt_captures(), 0);
  fake_.SetCapturing(b, false);
  EXPECT_NE(Take(*allocator, 50 * kMiB, b), nullptr);
  EXPECT_TRUE(allocator->Deallocate(small).ok());
}

// A pair of platform's is two calls of the driver and what they need around them.
TEST_F(StreamOrderTest, PlatformCallsTheDriverNoMoreThanItMust) {
  auto allocator = Make("platform:memory_limit=64MiB");
  fake_.SetCurrent(fake_.ContextOfDevice(0));
  const StreamRef stream = fake_.CreateStream();
  ASSERT_TRUE(allocator->Deallocate(Take(*allocator, kMiB, stream)).ok());
  const int before = fake_.total_calls();
  const int events = fake_.calls("EventRecord");
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(allocator->Deallocate(Take(*allocator, kMiB, stream)).ok());
  }
  // Two scopes of three calls; allocate, free; is it captured.
  EXPECT_LE(fake_.total_calls() - before, 10 * 9);
  EXPECT_EQ(fake_.calls("EventRecord"), events);
  // The free of a block that work still uses waits for it: the driver's own does.
  void* const block = Take(*allocator, kMiB, stream);
  const std::uint64_t work = fake_.Launch(stream);
  ASSERT_TRUE(allocator->Deallocate(block).ok());
  EXPECT_TRUE(fake_.IsDone(stream, work));
  // With mapped memory, whose driver waits for nothing, the strategy does.
  auto mapped = Make("platform:memory_limit=64MiB,peers=1");
  void* const other = Take(*mapped, kMiB, stream);
  ASSERT_NE(other, nullptr);
  const std::uint64_t later = fake_.Launch(stream);
  ASSERT_TRUE(mapped->Deallocate(other).ok());
  EXPECT_TRUE(fake_.IsDone(stream, later));
}

// Random work on four streams. A block's memory must not reach a stream that is
// not ordered after the last work on it. Returns how often it did. The first `alone`
// steps are all on one stream.
int CountHazards(FakeDriver& fake, Allocator& allocator, int steps, int alone = 0,
                 unsigned seed = 7) {
  struct Block {
    std::uintptr_t address;
    std::size_t bytes;
    StreamRef stream;
    std::vector<std::pair<StreamRef, std::uint64_t>> work;
  };
  std::mt19937 random(seed);
  std::vector<StreamRef> streams = {StreamRef()};
  for (int i = 0; i < 3; ++i) streams.push_back(fake.CreateStream());
  std::vector<Block> live;
  std::vector<Block> freed;
  int hazards = 0;
  for (int step = 0; step < steps; ++step) {
    const StreamRef stream =
        streams[step < alone ? seed % streams.size() : random() % streams.size()];
    const auto what = static_cast<unsigned>(random() % 100);
    if (what < 48) {
      AllocateOptions options;
      options.stream = stream;
      const std::size_t bytes = (random() % 10 == 0 ? 6 : 1) * (random() % kMiB + 256);
      void* const block = allocator.TryAllocate(bytes, options);
      if (block == nullptr) continue;
      Block made{reinterpret_cast<std::uintptr_t>(block), bytes, stream, {}};
      std::vector<Block> kept;
      for (Block& old : freed) {
        const bool apart =
            old.address + old.bytes <= made.address || made.address + bytes <= old.address;
        if (!apart) {
          for (const auto& [user, position] : old.work) {
            if (!(user == stream) && !fake.IsOrdered(user, position, stream)) ++hazards;
          }
        }
        if (apart) kept.push_back(std::move(old));
      }
      freed.swap(kept);
      made.work.push_back({stream, fake.Launch(stream)});
      live.push_back(std::move(made));
    } else if (what < 90 && !live.empty()) {
      const std::size_t at = random() % live.size();
      Block block = std::move(live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      void* const pointer = reinterpret_cast<void*>(block.address);
      if (what < 54) {
        EXPECT_TRUE(allocator.RecordUse(pointer, stream).ok());
        block.work.push_back({stream, fake.Launch(stream)});
      }
      EXPECT_TRUE(allocator.Deallocate(pointer).ok());
      freed.push_back(std::move(block));
    } else {
      fake.Finish(stream);
    }
  }
  for (const Block& block : live) {
    EXPECT_TRUE(allocator.Deallocate(reinterpret_cast<void*>(block.address)).ok());
  }
  return hazards;
}

TEST_F(StreamOrderTest, RandomWorkOnFourStreamsHasNoHazard) {
  for (const char* policy : {"bfc:memory_limit=32MiB", "on_demand:memory_limit=32MiB",
                             "bfc:memory_limit=32MiB,quarantine=4MiB", "elastic:memory_limit=32MiB",
                             "elastic:memory_limit=32MiB,slack=0"}) {
    auto allocator = Make(policy);
    EXPECT_EQ(CountHazards(fake_, *allocator, 20000), 0) << policy;
    EXPECT_GT(allocator->GetStats().num_waits, 0);
    EXPECT_EQ(allocator->GetStats().bytes_in_use, 0);
  }
  EXPECT_EQ(fake_.Outstanding(), 0);
}

// What was freed while only one stream was known is not safe for the second.
TEST_F(StreamOrderTest, RandomWorkOfOneStreamAndThenFourHasNoHazard) {
  for (const char* policy :
       {"bfc:memory_limit=32MiB", "on_demand:memory_limit=32MiB", "elastic:memory_limit=32MiB",
        "elastic:memory_limit=32MiB,slack=0", "elastic:memory_limit=32MiB,quarantine=4MiB"}) {
    for (unsigned seed = 0; seed < 30; ++seed) {
      auto allocator = Make(policy);
      const int alone = static_cast<int>(20 * seed);
      EXPECT_EQ(CountHazards(fake_, *allocator, alone + 500, alone, seed), 0)
          << policy << " with seed " << seed;
      EXPECT_EQ(allocator->GetStats().bytes_in_use, 0);
    }
  }
  EXPECT_EQ(fake_.Outstanding(), 0);
}

TEST_F(StreamOrderTest, TheSameWorkHasHazardsWithoutTheRule) {
  auto allocator = Make("bfc:memory_limit=32MiB,stream_mode=single");
  EXPECT_GT(CountHazards(fake_, *allocator, 20000), 0);
}

}  // namespace
}  // namespace hbm::testing

#endif  // HBMALLOC_HAVE_CUDA
