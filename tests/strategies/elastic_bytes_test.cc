// SPDX-License-Identifier: Apache-2.0
//
// elastic on real memory: every live block is filled with a pattern of its own and
// checked whenever it is freed, while pages are stolen thousands of times. A block
// that moved, lost its memory or shares a byte with another is found at once.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "observe/trace_reader.h"
#include "tests/support/faulty_source.h"
#include "tests/support/paths.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Block {
  void* address;
  std::size_t bytes;
  std::uint64_t pattern;
};

// Every byte: words of the pattern, and the last bytes of one more.
void Fill(const Block& block) {
  auto* const bytes = static_cast<char*>(block.address);
  const std::size_t words = block.bytes / 8;
  auto* const out = reinterpret_cast<std::uint64_t*>(bytes);
  for (std::size_t i = 0; i < words; ++i) out[i] = block.pattern + i;
  const std::uint64_t last = block.pattern + words;
  std::memcpy(bytes + words * 8, &last, block.bytes % 8);
}

bool IsIntact(const Block& block) {
  const auto* const bytes = static_cast<const char*>(block.address);
  const std::size_t words = block.bytes / 8;
  const auto* const in = reinterpret_cast<const std::uint64_t*>(bytes);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < words; ++i) wrong |= in[i] ^ (block.pattern + i);
  const std::uint64_t last = block.pattern + words;
  return wrong == 0 && std::memcmp(bytes + words * 8, &last, block.bytes % 8) == 0;
}

// Random blocks, up to `budget` bytes of them; counts the blocks that were damaged.
void Churn(Allocator* allocator, std::size_t budget, int steps, std::uint32_t seed, int* damaged,
           std::size_t smallest = 100000, int growth = 3) {
  std::mt19937 random(seed);
  std::vector<Block> live;
  std::size_t live_bytes = 0;
  const auto free_one = [&] {
    const std::size_t victim = random() % live.size();
    const Block block = live[victim];
    if (!IsIntact(block)) ++*damaged;
    if (!allocator->Deallocate(block.address).ok()) ++*damaged;
    live_bytes -= block.bytes;
    live[victim] = live.back();
    live.pop_back();
  };
  for (int step = 0; step < steps; ++step) {
    // Small, middling and large by turns: what one phase scattered the next wants whole.
    const std::size_t unit = (smallest << (step / 40 % 3 * growth));
    const std::size_t bytes = unit / 2 + random() % unit + 8;
    while (!live.empty() && (live_bytes + bytes > budget || random() % 3 == 0)) free_one();
    if (live_bytes + bytes > budget) continue;
    const auto block = allocator->Allocate(bytes);
    if (!block.ok()) continue;
    live.push_back(
        {*block, bytes, std::uint64_t{seed} << 40 | static_cast<std::uint64_t>(step) << 8});
    live_bytes += bytes;
    Fill(live.back());
  }
  while (!live.empty()) free_one();
}

struct Opened {
  std::shared_ptr<FaultyDevice> device;
  std::unique_ptr<Allocator> allocator;
};

Opened Open(std::string_view policy_text, std::size_t bytes) {
  Opened opened;
  opened.device = std::make_shared<FaultyDevice>(*OpenDevice(absl::StrCat("host:", bytes)));
  Policy policy = *ParsePolicy(policy_text);
  policy.memory_fraction = {1.0, {}};
  opened.allocator = *MakeAllocator(policy, opened.device);
  return opened;
}

// A recorded trace, each request a `scale`-th of its size; counts damaged blocks.
void ReplayTrace(Allocator* allocator, const observe::Trace& trace, std::size_t scale,
                 std::uint64_t pattern, int* damaged, int* failures) {
  std::vector<Block> blocks(trace.block_count);
  const auto free_block = [&](Block& block) {
    if (block.address == nullptr) return;
    if (!IsIntact(block)) ++*damaged;
    if (!allocator->Deallocate(block.address).ok()) ++*damaged;
    block.address = nullptr;
  };
  for (const observe::TraceEvent& event : trace.events) {
    Block& block = blocks[event.block];
    if (event.kind != observe::TraceEvent::Kind::kAllocate) {
      free_block(block);
      continue;
    }
    const std::size_t bytes = std::max<std::size_t>(event.bytes / scale, 1);
    const auto made = allocator->Allocate(bytes);
    if (!made.ok()) ++*failures;
    block = {made.value_or(nullptr), bytes, pattern + std::uint64_t{event.block} * 1000003};
    if (block.address != nullptr) Fill(block);
  }
  for (Block& block : blocks) free_block(block);
}

struct Replayed {
  int damaged = 0;
  int failures = 0;
  int moved = 0;  // handles unmapped
};

// The trace on each of `threads` threads, at slack 0 on hardly more memory than they need.
Replayed ReplayOnThreads(const std::string& name, std::size_t scale, int threads) {
  const observe::Trace trace =
      *observe::ReadTraceFile(SourcePath("bench/traces/" + name + ".csv.gz"));
  const std::size_t live = observe::ComputeLiveBytes(trace).peak / scale;
  Opened opened = Open("elastic:slack=0",
                       static_cast<std::size_t>(threads) * live / 20 * 21 / kMiB * kMiB + 8 * kMiB);
  std::vector<Replayed> each(static_cast<std::size_t>(threads));
  std::vector<std::thread> running;
  for (std::size_t i = 0; i < each.size(); ++i) {
    running.emplace_back([&, i] {
      ReplayTrace(opened.allocator.get(), trace, scale, i << 48, &each[i].damaged,
                  &each[i].failures);
    });
  }
  for (std::thread& thread : running) thread.join();
  Replayed all;
  for (const Replayed& one : each) {
    all.damaged += one.damaged;
    all.failures += one.failures;
  }
  all.moved = opened.device->source()->Count(SourceCall::kUnmap);
  EXPECT_EQ(opened.allocator->GetStats().requested_bytes, 0);
  opened.allocator.reset();
  EXPECT_EQ(opened.device->source()->GetOutstanding(), Outstanding{});
  return all;
}

TEST(ElasticBytesTest, RecordedTracesLoseNoByte) {
  const Replayed replayed = ReplayOnThreads("mlp_train_multistream", 16, 1);
  EXPECT_EQ(replayed.damaged, 0);
  EXPECT_EQ(replayed.failures, 0);
}

TEST(ElasticBytesTest, NorOnEightThreads) {
  const Replayed replayed = ReplayOnThreads("random_small", 8, 8);
  EXPECT_EQ(replayed.damaged, 0);
  EXPECT_GT(replayed.moved, 10);
}

TEST(ElasticBytesSlowTest, NorAtTheirFullSize) {
  for (const char* name : {"unet_train_varsize", "llama_decode_growing_kv"}) {
    const Replayed replayed = ReplayOnThreads(name, 1, 1);
    EXPECT_EQ(replayed.damaged, 0) << name;
    EXPECT_EQ(replayed.failures, 0) << name;
    EXPECT_GT(replayed.moved, 100) << name;
  }
}

// Blocks of several pages, so that nearly every request needs others' pages.
TEST(ElasticBytesSlowTest, NorWithThousandsOfMovesOnEightThreads) {
  Opened opened = Open("elastic:slack=0", 80 * kMiB);
  constexpr int kThreads = 8;
  int damaged[kThreads] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Churn(opened.allocator.get(), 28 * kMiB, 7000, static_cast<std::uint32_t>(i + 1), &damaged[i],
            3 * kMiB / 2, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int count : damaged) EXPECT_EQ(count, 0);
  EXPECT_GT(opened.device->source()->Count(SourceCall::kUnmap), 1000);
}

TEST(ElasticBytesTest, NoByteIsLostWhilePagesMove) {
  Opened opened = Open("elastic:slack=0", 64 * kMiB);
  int damaged = 0;
  Churn(opened.allocator.get(), 56 * kMiB, 5000, 1, &damaged, 3 * kMiB / 2, 1);
  EXPECT_EQ(damaged, 0);
  EXPECT_GT(opened.device->source()->Count(SourceCall::kUnmap), 1000);
  EXPECT_EQ(opened.allocator->GetStats().requested_bytes, 0);
  opened.allocator.reset();
  EXPECT_EQ(opened.device->source()->GetOutstanding(), Outstanding{});
}

TEST(ElasticBytesTest, NorWithEightThreadsTrimsAndChangingLimits) {
  for (const char* policy : {"elastic:slack=0", "elastic"}) {
    Opened opened = Open(policy, 160 * kMiB);
    constexpr int kThreads = 8;
    int damaged[kThreads] = {};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        Churn(opened.allocator.get(), 17 * kMiB, 600, static_cast<std::uint32_t>(i + 1),
              &damaged[i]);
      });
    }
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(opened.allocator->Trim().ok());
      EXPECT_TRUE(opened.allocator->SetMemoryLimit((i % 2 == 0 ? 150 : 160) * kMiB).ok());
      (void)opened.allocator->TakeSnapshot();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    for (std::thread& thread : threads) thread.join();
    for (int count : damaged) EXPECT_EQ(count, 0);
    EXPECT_GT(opened.device->source()->Count(SourceCall::kUnmap), 50);
    ASSERT_TRUE(opened.allocator->Trim().ok());
    EXPECT_EQ(opened.allocator->GetStats().pool_bytes, 0);
    opened.allocator.reset();
    EXPECT_EQ(opened.device->source()->GetOutstanding(), Outstanding{});
  }
}

}  // namespace
}  // namespace hbm::testing
