// SPDX-License-Identifier: Apache-2.0
//
// File: counters.h
//
// The counts that every strategy keeps of its blocks. The owner locks.
//
//   BlockCounters counters;
//   counters.Allocated(/*chunk=*/1024, /*requested=*/1000);
//   counters.Freed(1024, 1000);
#ifndef HBMALLOC_STRATEGIES_COUNTERS_H_
#define HBMALLOC_STRATEGIES_COUNTERS_H_

#include <algorithm>
#include <cstdint>

#include "hbmalloc/stats.h"

namespace hbm::strategies {

struct BlockCounters {
  std::int64_t allocs = 0;
  std::int64_t frees = 0;
  std::int64_t failures = 0;
  std::int64_t in_use = 0;
  std::int64_t peak_in_use = 0;
  std::int64_t largest = 0;
  std::int64_t requested = 0;
  std::int64_t peak_requested = 0;

  void Allocated(std::uint64_t chunk_bytes, std::uint64_t requested_bytes) {
    const auto chunk = static_cast<std::int64_t>(chunk_bytes);
    ++allocs;
    in_use += chunk;
    requested += static_cast<std::int64_t>(requested_bytes);
    peak_in_use = std::max(peak_in_use, in_use);
    peak_requested = std::max(peak_requested, requested);
    largest = std::max(largest, chunk);
  }
  void Freed(std::uint64_t chunk_bytes, std::uint64_t requested_bytes) {
    ++frees;
    in_use -= static_cast<std::int64_t>(chunk_bytes);
    requested -= static_cast<std::int64_t>(requested_bytes);
  }
  void ResetPeaks() {
    allocs = frees = failures = largest = 0;
    peak_in_use = in_use;
    peak_requested = requested;
  }
  void AddTo(Stats& stats) const {
    stats.num_allocs = allocs;
    stats.num_frees = frees;
    stats.num_failures = failures;
    stats.bytes_in_use = in_use;
    stats.peak_bytes_in_use = stats.peak_allocated_bytes = peak_in_use;
    stats.largest_alloc_size = largest;
    stats.requested_bytes = requested;
    stats.peak_requested_bytes = peak_requested;
  }
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_COUNTERS_H_
