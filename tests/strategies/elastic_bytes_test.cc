// SPDX-License-Identifier: Apache-2.0
//
// elastic on real memory: every live block is filled with a pattern of its own and
// checked whenever it is freed, while pages are stolen thousands of times. A block
// that moved, lost its memory or shares a byte with another is found at once.
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
#include "tests/support/faulty_source.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Block {
  void* address;
  std::size_t bytes;
  std::uint64_t pattern;
};

// The first and last words, and one in each 64 KiB: a stolen page shows.
template <typename Visit>
void VisitWords(const Block& block, Visit visit) {
  constexpr std::size_t kStep = 65536;
  auto* const bytes = static_cast<char*>(block.address);
  for (std::size_t at = 0; at + 8 <= block.bytes; at += kStep) visit(bytes + at, at);
  if (block.bytes % kStep >= 16) visit(bytes + block.bytes - 8, block.bytes - 8);
}

void Fill(const Block& block) {
  VisitWords(block, [&](char* word, std::size_t at) {
    const std::uint64_t value = block.pattern + at;
    std::memcpy(word, &value, sizeof(value));
  });
}

bool IsIntact(const Block& block) {
  bool intact = true;
  VisitWords(block, [&](const char* word, std::size_t at) {
    std::uint64_t value;
    std::memcpy(&value, word, sizeof(value));
    intact = intact && value == block.pattern + at;
  });
  return intact;
}

// Random blocks, up to `budget` bytes of them; counts the blocks that were damaged.
void Churn(Allocator* allocator, std::size_t budget, int steps, std::uint32_t seed, int* damaged) {
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
    const std::size_t unit = std::size_t{100000} << (step / 40 % 3 * 3);
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

TEST(ElasticBytesTest, NoByteIsLostWhilePagesMove) {
  Opened opened = Open("elastic:slack=0", 32 * kMiB);
  int damaged = 0;
  Churn(opened.allocator.get(), 28 * kMiB, 60000, 1, &damaged);
  EXPECT_EQ(damaged, 0);
  EXPECT_GT(opened.device->source()->Count(SourceCall::kUnmap), 2000);
  EXPECT_EQ(opened.allocator->GetStats().requested_bytes, 0);
  opened.allocator.reset();
  EXPECT_EQ(opened.device->source()->GetOutstanding(), Outstanding{});
}

TEST(ElasticBytesTest, NorWithEightThreads) {
  for (const char* policy : {"elastic:slack=0", "elastic"}) {
    Opened opened = Open(policy, 160 * kMiB);
    constexpr int kThreads = 8;
    int damaged[kThreads] = {};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        Churn(opened.allocator.get(), 17 * kMiB, 2000, static_cast<std::uint32_t>(i + 1),
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
