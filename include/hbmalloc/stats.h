// SPDX-License-Identifier: Apache-2.0
//
// File: stats.h
//
// What an allocator counts. Field names shared with XLA's AllocatorStats mean
// what they mean there; all sizes are bytes, all times nanoseconds.
//
//   hbm::Stats stats = allocator->GetStats();
//   std::cout << stats.bytes_in_use << " of " << stats.pool_bytes << " in use\n";
#ifndef HBMALLOC_STATS_H_
#define HBMALLOC_STATS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hbm {

// Which rule set the limit in force: the smallest of them wins.
enum class LimitSource {
  kMemoryFraction,
  kMemoryLimit,
  kReserve,
  kSetMemoryLimit,
  kShortage,
  kShare
};
std::string_view ToString(LimitSource source);

struct Stats {
  // XLA's fields. "In use" counts whole chunks: rounding and padding included.
  std::int64_t num_allocs = 0;    // successful allocations (zero bytes not counted)
  std::int64_t bytes_in_use = 0;  // sizes of the chunks that hold live blocks
  std::int64_t peak_bytes_in_use = 0;
  std::int64_t largest_alloc_size = 0;   // largest chunk ever handed out
  std::int64_t bytes_limit = 0;          // most the allocator may hold from the device
  std::int64_t bytes_reserved = 0;       // always 0, as in XLA's BFC; see pool_bytes
  std::int64_t peak_bytes_reserved = 0;  // always 0
  std::int64_t largest_free_block_bytes = 0;
  std::int64_t pool_bytes = 0;            // held from the device now
  std::int64_t peak_pool_bytes = 0;       // not reset by ResetPeakStats in XLA; here it is
  std::int64_t peak_allocated_bytes = 0;  // = peak_bytes_in_use (nothing is ever reserved)

  // Beyond XLA.
  std::int64_t requested_bytes = 0;  // live bytes: asked for and not freed
  std::int64_t peak_requested_bytes = 0;
  std::int64_t num_frees = 0;
  std::int64_t num_failures = 0;  // requests that ended in an error
  std::int64_t num_regions = 0;   // contiguous runs held from the source
  // How far up the regions blocks ever reached: for each region held now, the end
  // of its highest block (rounded up to 256 bytes) since the last ResetPeakStats,
  // from the region's start, added up. bfc and on_demand; 0 for the others, whose
  // blocks share no packed range.
  std::int64_t highest_used_bytes = 0;
  std::int64_t pending_bytes = 0;     // freed, held back until a stream's work is done
  std::int64_t num_waits = 0;         // times a caller or a stream was made to wait
  std::int64_t wait_nanoseconds = 0;  // time callers were blocked waiting for memory or for streams
  std::int64_t driver_calls = 0;
  std::int64_t driver_nanoseconds = 0;
  LimitSource limit_source = LimitSource::kMemoryFraction;  // what set bytes_limit
};

// One "name: value" line per field, in the order above.
std::string ToString(const Stats& stats);

// Each figure by its own name; ratios are pure numbers, 0 where the denominator
// is 0. O(regions) to read, and no chunk is looked at.
struct Fragmentation {
  std::int64_t free_bytes = 0;          // pool - in use
  std::int64_t largest_free_bytes = 0;  // largest free chunk
  // 1 - largest free / total free: classic external fragmentation, what XLA's
  // BFC prints. 0 when nothing is free.
  double external = 0;
  // 1 - requested / in use: what rounding and whole chunks waste.
  double rounding_waste = 0;
  // in use / pool, now.
  double utilization = 0;
  // peak in use / peak pool; the two peaks may be at different times.
  double peak_utilization = 0;
  // highest used / peak requested: how much longer the packed range is than what
  // was live at once. Dynamic storage allocation calls the two makespan and load;
  // over 1 is what placement lost. 0 where highest_used_bytes is.
  double height_over_load = 0;
  // Integral of pool bytes over time / that of requested bytes, since the allocator
  // was made. Kept only with the policy's means=true; unset otherwise, and while
  // nothing was live for any time. Peaks say nothing of what is held between them.
  std::optional<double> mean_pool_over_live;
};

// Chunks of similar size: from min_bytes to below twice that. XLA's bins, which end
// at 256 MiB, without their end.
struct SizeBin {
  std::int64_t min_bytes = 0;
  std::int64_t live_chunks = 0;  // that hold live blocks
  std::int64_t live_bytes = 0;   // their sizes, rounding included
  std::int64_t free_chunks = 0;  // also those that only some streams may reuse yet
  std::int64_t free_bytes = 0;
};
inline constexpr std::size_t kSizeBins = 40;  // the first starts at 256 bytes

// One region of bfc or on_demand; bytes. The ratios are defined as in
// Fragmentation, with the region in place of the pool.
struct RegionFigures {
  std::uintptr_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t in_use_bytes = 0;
  std::int64_t free_bytes = 0;  // bytes - in use
  // Exact as long as fewer than 4,096 free chunks of other regions are larger, else
  // no less than the truth.
  std::int64_t largest_free_bytes = 0;
  std::int64_t highest_used_bytes = 0;  // end of the highest block, from the start
  double external = 0;
  double utilization = 0;
};

// Everything by device, by region and by bin. Chunks are counted as they come and
// go, so reading takes time in the number of bins and regions.
struct Figures {
  Fragmentation device;
  // In order of address. Empty for platform and cuda_async, whose regions are
  // blocks, and for elastic, whose pages move.
  std::vector<RegionFigures> regions;
  // kSizeBins bins, smallest first. Live chunks of every strategy but a thread_cache
  // (its cached blocks count as live); free chunks of bfc, on_demand and elastic.
  // Blocks that are held back (pending_bytes) are in none.
  std::vector<SizeBin> bins;
};

}  // namespace hbm

#endif  // HBMALLOC_STATS_H_
