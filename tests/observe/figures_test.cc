// SPDX-License-Identifier: Apache-2.0
//
// The figures of bfc and on_demand, on every recorded trace, against what an
// independent computation makes of where the blocks lie: from placements and the
// trace's sizes alone, by the definitions in stats.h.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/golden.h"

namespace hbm {
namespace {

using observe::Trace;
using observe::TraceEvent;

constexpr std::int64_t kUnit = 256;
constexpr std::int64_t kMaxWaste = std::int64_t{128} << 20;

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// What lies where, learned only from where blocks were put. A block's chunk is the
// gap it was put into, cut by the rule of XLA's best fit.
class Layout {
 public:
  void AddRegion(std::int64_t begin, std::int64_t bytes) {
    regions_[begin] = {begin, begin + bytes};
    highest_.emplace(begin, begin);
  }
  bool HasRegion(std::int64_t begin) const { return regions_.count(begin) != 0; }
  const std::map<std::int64_t, Range>& regions() const { return regions_; }

  void Put(std::int64_t at, std::int64_t bytes) {
    const std::int64_t need = (bytes + kUnit - 1) / kUnit * kUnit;
    const Range& region = std::prev(regions_.upper_bound(at))->second;
    const auto next = chunks_.upper_bound(at);
    const std::int64_t gap_end =
        next == chunks_.end() ? region.end : std::min(region.end, next->first);
    const std::int64_t gap = gap_end - at;
    const bool is_cut = gap >= 2 * need || gap - need >= kMaxWaste;
    chunks_[at] = {is_cut ? at + need : gap_end, bytes};
    requested_ += bytes;
    in_use_ += chunks_[at].end - at;
    peak_requested_ = std::max(peak_requested_, requested_);
    peak_in_use_ = std::max(peak_in_use_, in_use_);
    std::int64_t& highest = highest_[region.begin];
    highest = std::max(highest, at + need);
  }
  void Take(std::int64_t at) {
    const auto found = chunks_.find(at);
    in_use_ -= found->second.end - at;
    requested_ -= found->second.requested;
    chunks_.erase(found);
  }

  struct Expected {
    std::int64_t bytes = 0, in_use = 0, free = 0, largest = 0, highest = 0;
    std::array<SizeBin, kSizeBins> bins{};
  };
  Expected Of(const Range& region) const {
    Expected out;
    out.bytes = region.end - region.begin;
    out.highest = highest_.at(region.begin) - region.begin;
    std::int64_t at = region.begin;
    const auto gap_until = [&](std::int64_t end) {
      if (end == at) return;
      SizeBin& bin = out.bins[BinOf(end - at)];
      ++bin.free_chunks;
      bin.free_bytes += end - at;
      out.free += end - at;
      out.largest = std::max(out.largest, end - at);
    };
    for (auto chunk = chunks_.lower_bound(region.begin);
         chunk != chunks_.end() && chunk->first < region.end; ++chunk) {
      gap_until(chunk->first);
      const std::int64_t size = chunk->second.end - chunk->first;
      SizeBin& bin = out.bins[BinOf(size)];
      ++bin.live_chunks;
      bin.live_bytes += size;
      out.in_use += size;
      at = chunk->second.end;
    }
    gap_until(region.end);
    return out;
  }
  std::int64_t requested() const { return requested_; }
  std::int64_t in_use() const { return in_use_; }
  std::int64_t peak_requested() const { return peak_requested_; }
  std::int64_t peak_in_use() const { return peak_in_use_; }

 private:
  struct Block {
    std::int64_t end;
    std::int64_t requested;
  };
  static std::size_t BinOf(std::int64_t bytes) {
    std::size_t bin = 0;
    while ((std::int64_t{512} << bin) <= bytes) ++bin;
    return bin;
  }
  std::map<std::int64_t, Range> regions_;
  std::map<std::int64_t, std::int64_t> highest_;
  std::map<std::int64_t, Block> chunks_;
  std::int64_t requested_ = 0, in_use_ = 0, peak_requested_ = 0, peak_in_use_ = 0;
};

double Ratio(std::int64_t a, std::int64_t b) {
  return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
}
double External(std::int64_t free, std::int64_t largest) {
  return free == 0 ? 0.0 : 1.0 - Ratio(largest, free);
}

void ExpectSame(const Layout& layout, const Allocator& allocator, std::int64_t peak_pool) {
  const Figures figures = allocator.GetFigures();
  ASSERT_EQ(figures.regions.size(), layout.regions().size());
  ASSERT_EQ(figures.bins.size(), kSizeBins);
  Layout::Expected all;
  std::size_t at = 0;
  for (const auto& [begin, range] : layout.regions()) {
    const Layout::Expected expected = layout.Of(range);
    const RegionFigures& region = figures.regions[at++];
    EXPECT_EQ(region.address, static_cast<std::uintptr_t>(begin));
    EXPECT_EQ(region.bytes, expected.bytes);
    EXPECT_EQ(region.in_use_bytes, expected.in_use);
    EXPECT_EQ(region.free_bytes, expected.free);
    EXPECT_EQ(region.largest_free_bytes, expected.largest);
    EXPECT_EQ(region.highest_used_bytes, expected.highest);
    EXPECT_DOUBLE_EQ(region.external, External(expected.free, expected.largest));
    EXPECT_DOUBLE_EQ(region.utilization, Ratio(expected.in_use, expected.bytes));
    all.bytes += expected.bytes;
    all.free += expected.free;
    all.highest += expected.highest;
    all.largest = std::max(all.largest, expected.largest);
    for (std::size_t i = 0; i < kSizeBins; ++i) {
      all.bins[i].live_chunks += expected.bins[i].live_chunks;
      all.bins[i].live_bytes += expected.bins[i].live_bytes;
      all.bins[i].free_chunks += expected.bins[i].free_chunks;
      all.bins[i].free_bytes += expected.bins[i].free_bytes;
    }
  }
  for (std::size_t i = 0; i < kSizeBins; ++i) {
    EXPECT_EQ(figures.bins[i].min_bytes, std::int64_t{256} << i);
    EXPECT_EQ(figures.bins[i].live_chunks, all.bins[i].live_chunks) << i;
    EXPECT_EQ(figures.bins[i].live_bytes, all.bins[i].live_bytes) << i;
    EXPECT_EQ(figures.bins[i].free_chunks, all.bins[i].free_chunks) << i;
    EXPECT_EQ(figures.bins[i].free_bytes, all.bins[i].free_bytes) << i;
  }
  const Fragmentation& device = figures.device;
  EXPECT_EQ(device.free_bytes, all.free);
  EXPECT_EQ(device.largest_free_bytes, all.largest);
  EXPECT_DOUBLE_EQ(device.external, External(all.free, all.largest));
  EXPECT_DOUBLE_EQ(device.rounding_waste,
                   layout.in_use() == 0 ? 0.0 : 1.0 - Ratio(layout.requested(), layout.in_use()));
  EXPECT_DOUBLE_EQ(device.utilization, Ratio(layout.in_use(), all.bytes));
  EXPECT_DOUBLE_EQ(device.peak_utilization, Ratio(layout.peak_in_use(), peak_pool));
  EXPECT_DOUBLE_EQ(device.height_over_load, Ratio(all.highest, layout.peak_requested()));
}

class FiguresTest : public ::testing::TestWithParam<testing::GoldenCase> {};

TEST_P(FiguresTest, AgreeWithWherePlacementsAre) {
  const testing::GoldenCase& golden = GetParam();
  const Trace trace = testing::LoadTrace(golden.trace);
  const auto device =
      OpenDevice(absl::StrCat("sim:", golden.limit, ",used=", golden.limit - golden.capacity));
  ASSERT_TRUE(device.ok()) << device.status();
  Policy policy;
  policy.strategy = golden.strategy == "bfc" ? Strategy::kBfc : Strategy::kOnDemand;
  policy.memory_fraction = {1.0, {}};
  const auto made = MakeAllocator(policy, *device);
  ASSERT_TRUE(made.ok()) << made.status();
  Allocator& allocator = **made;

  Layout layout;
  std::vector<void*> blocks(trace.block_count);
  const std::size_t stride = trace.events.size() / 40 + 1;
  const auto address = [&](std::uint32_t id) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(blocks[id]));
  };
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    if (event.kind == TraceEvent::Kind::kFree) {
      if (blocks[event.block] == nullptr) continue;
      layout.Take(address(event.block));
      ASSERT_TRUE(allocator.Deallocate(blocks[event.block]).ok());
    } else {
      blocks[event.block] = allocator.TryAllocate(event.bytes);
      const std::int64_t pool = allocator.GetStats().pool_bytes;
      std::int64_t known = 0;
      for (const auto& [begin, range] : layout.regions()) known += range.end - range.begin;
      if (pool != known) {
        for (const Snapshot::Region& region : allocator.TakeSnapshot().regions) {
          const auto begin =
              static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(region.range.address));
          if (!layout.HasRegion(begin)) {
            layout.AddRegion(begin, static_cast<std::int64_t>(region.range.bytes));
          }
        }
      }
      if (blocks[event.block] == nullptr) continue;
      layout.Put(address(event.block), static_cast<std::int64_t>(event.bytes));
    }
    if (i % stride == 0) ExpectSame(layout, allocator, allocator.GetStats().peak_pool_bytes);
    if (HasFailure()) FAIL() << "after event " << i;
  }
  ExpectSame(layout, allocator, allocator.GetStats().peak_pool_bytes);
}

INSTANTIATE_TEST_SUITE_P(Traces, FiguresTest, ::testing::ValuesIn(testing::GoldenCases()),
                         [](const auto& golden) { return golden.param.Name(); });

TEST(FiguresByStrategyTest, HeightStartsAgainAtTheHighestBlockInUse) {
  const auto allocator =
      MakeAllocator(*ParsePolicy("bfc:memory_fraction=1"), *OpenDevice("sim:1GiB"));
  ASSERT_TRUE(allocator.ok());
  void* const low = *(*allocator)->Allocate(1 << 20);
  void* const high = *(*allocator)->Allocate(3 << 20);
  ASSERT_TRUE((*allocator)->Deallocate(high).ok());
  EXPECT_EQ((*allocator)->GetStats().highest_used_bytes, 4 << 20);
  EXPECT_DOUBLE_EQ((*allocator)->GetFragmentation().height_over_load, 1.0);
  (*allocator)->ResetPeakStats();
  EXPECT_EQ((*allocator)->GetStats().highest_used_bytes, 1 << 20);
  ASSERT_TRUE((*allocator)->Deallocate(low).ok());
}

// Other strategies have bins of what is live, and free ones where there are chunks.
TEST(FiguresByStrategyTest, EveryStrategyCountsItsBins) {
  for (const char* const spec : {"bfc", "on_demand", "platform", "elastic"}) {
    const auto allocator = MakeAllocator(*ParsePolicy(spec), *OpenDevice("sim:8GiB"));
    ASSERT_TRUE(allocator.ok()) << allocator.status();
    std::vector<void*> blocks;
    for (std::size_t bytes = 256; bytes <= 64 << 20; bytes *= 2) {
      for (int i = 0; i < 3; ++i) blocks.push_back(*(*allocator)->Allocate(bytes));
    }
    for (std::size_t i = 0; i < blocks.size(); i += 3) {
      ASSERT_TRUE((*allocator)->Deallocate(blocks[i]).ok());
    }
    const Stats stats = (*allocator)->GetStats();
    const Figures figures = (*allocator)->GetFigures();
    std::int64_t live = 0, live_bytes = 0, free_bytes = 0;
    for (const SizeBin& bin : figures.bins) {
      live += bin.live_chunks;
      live_bytes += bin.live_bytes;
      free_bytes += bin.free_bytes;
    }
    EXPECT_EQ(live, static_cast<std::int64_t>(blocks.size() / 3 * 2)) << spec;
    EXPECT_EQ(live_bytes, stats.bytes_in_use) << spec;
    if (std::string_view(spec) != "platform") {
      EXPECT_EQ(free_bytes, stats.pool_bytes - stats.bytes_in_use) << spec;
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i % 3 == 0) continue;
      ASSERT_TRUE((*allocator)->Deallocate(blocks[i]).ok());
    }
  }
}

}  // namespace
}  // namespace hbm
