// SPDX-License-Identifier: Apache-2.0
//
// Patterns made to fragment, through every strategy: how much more memory than what was
// live at once each one took. The bounds hold, and docs/fragmentation.md shows the
// figures.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/paths.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// An allocator as a pattern sees it. No request may fail: the device is ample.
class Heap {
 public:
  explicit Heap(const std::string& policy) {
    allocator_ = *MakeAllocator(*ParsePolicy(policy), *OpenDevice("sim:64GiB"));
  }
  void* Get(std::size_t bytes) {
    void* const block = allocator_->TryAllocate(bytes);
    EXPECT_NE(block, nullptr) << bytes;
    return block;
  }
  void Free(void* block) { EXPECT_TRUE(allocator_->Deallocate(block).ok()); }

  // bfc holds its pool from the start, so what counts is how high its blocks reach.
  double MemoryOverLive() const {
    const Stats stats = allocator_->GetStats();
    const std::int64_t taken = allocator_->policy().strategy == Strategy::kBfc
                                   ? stats.highest_used_bytes
                                   : stats.peak_pool_bytes;
    return static_cast<double>(taken) / static_cast<double>(stats.peak_requested_bytes);
  }

 private:
  std::unique_ptr<Allocator> allocator_;
};

// ---- Patterns ---------------------------------------------------------------------------

// The caches of 16 sequences, each made anew one token longer at every step.
void GrowByOneToken(Heap& heap) {
  constexpr std::size_t kToken = 40'960;
  std::vector<void*> caches(16, nullptr);
  for (std::size_t step = 1; step <= 300; ++step) {
    for (std::size_t i = 0; i < caches.size(); ++i) {
      void* const longer = heap.Get((step + 17 * i) * kToken);
      heap.Free(caches[i]);
      caches[i] = longer;
    }
  }
}

// Two sizes just over and just under half of what they share.
void AroundHalf(Heap& heap) {
  for (std::size_t share = 64 * kMiB; share <= 512 * kMiB; share += 64 * kMiB) {
    void* const over = heap.Get(share / 2 + 256);
    heap.Free(over);
    void* const under = heap.Get(share / 2 - 256);
    void* const again = heap.Get(share / 2 + 256);
    heap.Free(under);
    heap.Free(again);
  }
}

// A large block is freed, something small that stays is put into it, and it is wanted
// again.
void SmallSurvivor(Heap& heap) {
  for (int cycle = 0; cycle < 10; ++cycle) {
    void* const large = heap.Get(1024 * kMiB);
    heap.Free(large);
    heap.Get(10 * 1024);
  }
  heap.Free(heap.Get(1024 * kMiB));
}

// Something small stays in the middle of what was free, and all of it is wanted again.
void SurvivorInTheMiddle(Heap& heap) {
  for (int cycle = 0; cycle < 10; ++cycle) {
    void* const below = heap.Get(512 * kMiB);
    heap.Get(10 * 1024);
    void* const above = heap.Get(512 * kMiB);
    heap.Free(below);
    heap.Free(above);
    heap.Free(heap.Get(1024 * kMiB));
  }
}

// What is live grows to a little more than a power of two.
void JustOverAPowerOfTwo(Heap& heap) {
  std::vector<void*> blocks;
  for (int i = 0; i <= 1024; ++i) blocks.push_back(heap.Get(16 * kMiB));
  for (void* const block : blocks) heap.Free(block);
}

// Every other block is freed, then twice the size is asked for.
void Checkerboard(Heap& heap) {
  std::vector<void*> blocks(1024);
  for (std::size_t bytes = kMiB / 4; bytes <= 4 * kMiB; bytes *= 2) {
    for (void*& block : blocks) block = heap.Get(bytes);
    std::vector<void*> kept;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i % 2 == 0) {
        kept.push_back(blocks[i]);
      } else {
        heap.Free(blocks[i]);
      }
    }
    std::vector<void*> twice(blocks.size() / 4);
    for (void*& block : twice) block = heap.Get(2 * bytes);
    for (void* const block : kept) heap.Free(block);
    for (void* const block : twice) heap.Free(block);
  }
}

// Robson's: sizes double, and of each size only the blocks stay that lie over the
// offset, modulo that size, which pins the most memory.
void Robson(Heap& heap) {
  constexpr std::size_t kLive = 64 * kMiB;
  struct Block {
    void* data;
    std::size_t bytes;
  };
  std::vector<Block> live;
  std::size_t live_bytes = 0;
  std::uintptr_t offset = 0;
  for (std::size_t bytes = 256; bytes <= 16 * kMiB; bytes *= 2) {
    const auto covers = [&](const Block& block, std::uintptr_t at) {
      const auto start = reinterpret_cast<std::uintptr_t>(block.data);
      return (at - start) % bytes < block.bytes;
    };
    const auto pinned = [&](std::uintptr_t at) {
      return std::count_if(live.begin(), live.end(),
                           [&](const Block& block) { return covers(block, at); });
    };
    if (bytes > 256 && pinned(offset + bytes / 2) > pinned(offset)) offset += bytes / 2;
    std::vector<Block> kept;
    for (const Block& block : live) {
      if (covers(block, offset)) {
        kept.push_back(block);
      } else {
        heap.Free(block.data);
        live_bytes -= block.bytes;
      }
    }
    live = std::move(kept);
    for (; live_bytes + bytes <= kLive; live_bytes += bytes) {
      live.push_back({heap.Get(bytes), bytes});
    }
  }
}

// ---- Bounds -----------------------------------------------------------------------------

struct Pattern {
  std::string name;
  void (*run)(Heap&);
  // By strategy, in the order of kStrategies.
  std::vector<double> bounds;
};

const std::vector<std::string> kStrategies = {"bfc", "on_demand", "platform", "elastic",
                                              "elastic:slack=0"};
const std::vector<Pattern> kPatterns = {
    {"grow by one token", &GrowByOneToken, {1.7, 1.9, 1.1, 1.1, 1.1}},
    {"just over and under half", &AroundHalf, {1.05, 2.2, 1.05, 1.05, 1.05}},
    {"small survivor", &SmallSurvivor, {1.05, 2.05, 1.05, 1.05, 1.05}},
    {"survivor in the middle", &SurvivorInTheMiddle, {1.55, 2.05, 1.05, 1.05, 1.05}},
    {"just over a power of two", &JustOverAPowerOfTwo, {1.05, 2.05, 1.05, 1.05, 1.05}},
    {"checkerboard", &Checkerboard, {1.55, 2.05, 1.05, 1.35, 1.05}},
    {"Robson", &Robson, {9, 16.5, 8.5, 8, 8}},
};

std::string ReadPage() {
  std::ifstream file(testing::SourcePath("docs/fragmentation.md"));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(FragmentationTest, BoundsHoldAndThePageShowsTheFigures) {
  const std::string page = ReadPage();
  for (const Pattern& pattern : kPatterns) {
    std::string row = absl::StrCat("| ", pattern.name, " |");
    for (std::size_t i = 0; i < kStrategies.size(); ++i) {
      const std::string& policy = kStrategies[i];
      Heap heap(policy + (policy.find(':') == std::string::npos ? ":" : ",") + "memory_fraction=1");
      pattern.run(heap);
      const double figure = heap.MemoryOverLive();
      EXPECT_LE(figure, pattern.bounds[i]) << pattern.name << " by " << policy;
      absl::StrAppendFormat(&row, " %.2f |", figure);
    }
    EXPECT_THAT(page, ::testing::HasSubstr(row));
  }
}

}  // namespace
}  // namespace hbm
