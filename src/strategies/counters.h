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
#include <array>
#include <cstdint>

#include "core/bits.h"
#include "core/compiler.h"
#include "hbmalloc/stats.h"

namespace hbm::strategies {

struct BlockCounters {
  std::int64_t frees = 0;
  std::int64_t failures = 0;
  std::int64_t in_use = 0;
  std::int64_t peak_in_use = 0;
  std::int64_t largest = 0;
  std::int64_t requested = 0;
  std::int64_t peak_requested = 0;
  std::int64_t live_at_reset = 0;

  // By the power of two at or below the chunk's size; they add up to the blocks that
  // are live, and to `in_use`.
  struct Bin {
    std::int64_t live = 0;
    std::int64_t bytes = 0;
  };
  std::array<Bin, 64> bins{};

  std::int64_t live() const {
    std::int64_t sum = 0;
    for (const Bin& bin : bins) sum += bin.live;
    return sum;
  }

  void Allocated(std::uint64_t chunk_bytes, std::uint64_t requested_bytes) {
    const auto chunk = static_cast<std::int64_t>(chunk_bytes);
    Bin& bin = BinOf(chunk_bytes);
    ++bin.live;
    bin.bytes += chunk;
    in_use += chunk;
    requested += static_cast<std::int64_t>(requested_bytes);
    // Peaks are rare, and a branch that is not taken costs less than a store.
    if (HBM_UNLIKELY(in_use > peak_in_use)) peak_in_use = in_use;
    if (HBM_UNLIKELY(requested > peak_requested)) peak_requested = requested;
    if (HBM_UNLIKELY(chunk > largest)) largest = chunk;
  }
  void Freed(std::uint64_t chunk_bytes, std::uint64_t requested_bytes) {
    const auto chunk = static_cast<std::int64_t>(chunk_bytes);
    ++frees;
    Bin& bin = BinOf(chunk_bytes);
    --bin.live;
    bin.bytes -= chunk;
    in_use -= chunk;
    requested -= static_cast<std::int64_t>(requested_bytes);
  }
  void ResetPeaks() {
    frees = failures = largest = 0;
    live_at_reset = live();
    peak_in_use = in_use;
    peak_requested = requested;
  }
  void AddTo(Stats& stats) const {
    stats.num_allocs = live() - live_at_reset + frees;
    stats.num_frees = frees;
    stats.num_failures = failures;
    stats.bytes_in_use = in_use;
    stats.peak_bytes_in_use = stats.peak_allocated_bytes = peak_in_use;
    stats.largest_alloc_size = largest;
    stats.requested_bytes = requested;
    stats.peak_requested_bytes = peak_requested;
  }
  // What is live, for figures by size; see Figures::bins.
  void AddTo(Figures& figures) const {
    figures.bins.resize(kSizeBins);
    for (std::size_t i = 0; i < kSizeBins; ++i) {
      figures.bins[i].min_bytes = std::int64_t{256} << i;
    }
    for (std::size_t i = 0; i < bins.size(); ++i) {
      SizeBin& bin = figures.bins[std::clamp<std::size_t>(i, 8, kSizeBins + 7) - 8];
      bin.live_chunks += bins[i].live;
      bin.live_bytes += bins[i].bytes;
    }
  }

 private:
  // Requires a size over 0.
  Bin& BinOf(std::uint64_t bytes) { return bins[core::FloatBits<0>(bytes)]; }
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_COUNTERS_H_
