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

#include <cstdint>
#include <string>
#include <string_view>

namespace hbm {

// Which rule set the limit in force: the smallest of them wins.
enum class LimitSource { kMemoryFraction, kMemoryLimit, kReserve, kSetMemoryLimit, kShortage };
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
  std::int64_t num_failures = 0;      // requests that ended in an error
  std::int64_t num_regions = 0;       // contiguous runs held from the source
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
// is 0. O(1) to read.
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
};

}  // namespace hbm

#endif  // HBMALLOC_STATS_H_
