// SPDX-License-Identifier: Apache-2.0
//
// File: report_walk.h
//
// A snapshot for the report of a failed request. TakeSnapshot shows one moment and holds
// its lock for as long as the pool has chunks; a report must not keep other threads'
// hits waiting that long, and need not be of one moment.
#ifndef HBMALLOC_STRATEGIES_REPORT_WALK_H_
#define HBMALLOC_STRATEGIES_REPORT_WALK_H_

#include "hbmalloc/allocator.h"

namespace hbm::strategies {

// Implemented by allocators that can walk their chunks without holding a lock for long.
class ReportWalk {
 public:
  // As TakeSnapshot, but what other threads do meanwhile may be seen in one place and
  // not in another. Chunks are in order of address, do not overlap, and are at least
  // those that were there all the time.
  virtual Snapshot TakeReportSnapshot() const = 0;

 protected:
  ~ReportWalk() = default;
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_REPORT_WALK_H_
