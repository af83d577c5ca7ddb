// SPDX-License-Identifier: Apache-2.0
//
// File: stats_fields.h
//
// The numbers of Stats as a table: printing and exporting them all go through it.
//
//   VisitStats(stats, [](const StatsField& field, std::int64_t value) { ... });
#ifndef HBMALLOC_OBSERVE_STATS_FIELDS_H_
#define HBMALLOC_OBSERVE_STATS_FIELDS_H_

#include <cstdint>

#include "hbmalloc/stats.h"

namespace hbm::observe {

struct StatsField {
  enum class Unit { kBytes, kCount, kNanoseconds };

  const char* name;
  std::int64_t Stats::*member;
  Unit unit;
  bool is_total;     // only grows, but for ResetPeakStats
  const char* help;  // one line
};

// In the order of Stats' members.
inline constexpr StatsField kStatsFields[] = {
    {"num_allocs", &Stats::num_allocs, StatsField::Unit::kCount, true, "Successful allocations."},
    {"bytes_in_use", &Stats::bytes_in_use, StatsField::Unit::kBytes, false,
     "Sizes of the chunks that hold live blocks, rounding included."},
    {"peak_bytes_in_use", &Stats::peak_bytes_in_use, StatsField::Unit::kBytes, false,
     "Highest bytes in use."},
    {"largest_alloc_size", &Stats::largest_alloc_size, StatsField::Unit::kBytes, false,
     "Largest chunk handed out."},
    {"bytes_limit", &Stats::bytes_limit, StatsField::Unit::kBytes, false,
     "Most the allocator may hold from the device."},
    {"bytes_reserved", &Stats::bytes_reserved, StatsField::Unit::kBytes, false,
     "Always 0, as in XLA; see pool_bytes."},
    {"peak_bytes_reserved", &Stats::peak_bytes_reserved, StatsField::Unit::kBytes, false,
     "Always 0, as in XLA."},
    {"largest_free_block_bytes", &Stats::largest_free_block_bytes, StatsField::Unit::kBytes, false,
     "Largest free chunk."},
    {"pool_bytes", &Stats::pool_bytes, StatsField::Unit::kBytes, false,
     "Bytes held from the device."},
    {"peak_pool_bytes", &Stats::peak_pool_bytes, StatsField::Unit::kBytes, false,
     "Most bytes held from the device."},
    {"peak_allocated_bytes", &Stats::peak_allocated_bytes, StatsField::Unit::kBytes, false,
     "The same as peak bytes in use."},
    {"requested_bytes", &Stats::requested_bytes, StatsField::Unit::kBytes, false,
     "Live bytes: asked for and not freed."},
    {"peak_requested_bytes", &Stats::peak_requested_bytes, StatsField::Unit::kBytes, false,
     "Highest live bytes."},
    {"num_frees", &Stats::num_frees, StatsField::Unit::kCount, true, "Frees."},
    {"num_failures", &Stats::num_failures, StatsField::Unit::kCount, true,
     "Requests that ended in an error."},
    {"num_regions", &Stats::num_regions, StatsField::Unit::kCount, false,
     "Contiguous runs held from the source."},
    {"highest_used_bytes", &Stats::highest_used_bytes, StatsField::Unit::kBytes, false,
     "How far up the regions blocks reached, added up."},
    {"pending_bytes", &Stats::pending_bytes, StatsField::Unit::kBytes, false,
     "Freed, but held back until the work of a stream is done."},
    {"num_waits", &Stats::num_waits, StatsField::Unit::kCount, true,
     "Times a caller or a stream was made to wait."},
    {"wait_nanoseconds", &Stats::wait_nanoseconds, StatsField::Unit::kNanoseconds, true,
     "Time callers were blocked waiting for memory or for streams."},
    {"driver_calls", &Stats::driver_calls, StatsField::Unit::kCount, true, "Calls to the driver."},
    {"driver_nanoseconds", &Stats::driver_nanoseconds, StatsField::Unit::kNanoseconds, true,
     "Time spent in the driver."},
};

template <typename Visit>
void VisitStats(const Stats& stats, Visit visit) {
  for (const StatsField& field : kStatsFields) visit(field, stats.*field.member);
}

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_STATS_FIELDS_H_
