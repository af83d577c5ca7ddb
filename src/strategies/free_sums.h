// SPDX-License-Identifier: Apache-2.0
//
// File: free_sums.h
//
// From the sums that the books keep of their free chunks to the figures by bin.
//
//   core::FreeIndex::Sums sums{};
//   fit.AddFreeSums(&sums);
//   AddFreeSums(sums, figures);
#ifndef HBMALLOC_STRATEGIES_FREE_SUMS_H_
#define HBMALLOC_STRATEGIES_FREE_SUMS_H_

#include "core/best_fit.h"
#include "core/free_index.h"
#include "hbmalloc/stats.h"

namespace hbm::strategies {

// The bins are there already.
inline void AddFreeSums(const core::FreeIndex::Sums& sums, Figures* figures) {
  static_assert(std::tuple_size_v<core::FreeIndex::Sums> == kSizeBins,
                "both start at one unit and end where sizes do");
  for (std::size_t i = 0; i < sums.size(); ++i) {
    SizeBin& bin = figures->bins[i];
    bin.free_chunks += static_cast<std::int64_t>(sums[i].count);
    bin.free_bytes += static_cast<std::int64_t>(sums[i].units * core::kChunkUnit);
  }
}

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_FREE_SUMS_H_
