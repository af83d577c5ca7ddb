// SPDX-License-Identifier: Apache-2.0
//
// File: region_change.h
//
// What an allocator tells of the memory it holds: which ranges of addresses have
// memory behind them now, and which are about to lose it. For libraries that
// register memory (NCCL, RDMA) and must take it back before it goes.
//
//   allocator->SetRegionCallback([&](const hbm::RegionChange& change) {
//     if (change.kind == hbm::RegionChange::Kind::kMapped) return nic.Register(change.range);
//     return nic.TryDeregister(change.range);   // false: in use, the memory stays
//   });
#ifndef HBMALLOC_REGION_CHANGE_H_
#define HBMALLOC_REGION_CHANGE_H_

#include <functional>

#include "hbmalloc/memory_source.h"

namespace hbm {

struct RegionChange {
  enum class Kind {
    kMapped,     // the range may be used; told before any block of it is given out
    kUnmapping,  // its memory is about to go; nothing of it is in use
  };
  Kind kind = Kind::kMapped;
  // A region of bfc or on_demand, a block of platform, a handle of elastic. A range
  // that is told as kUnmapping was told as kMapped before, with the same bounds.
  MemoryRange range;
};

// Called for each change, on the thread whose request causes it, or on one of the
// allocator's own. Answering kUnmapping with false keeps the memory where it is: the
// request looks elsewhere, and the next one may ask again. Other answers are not
// looked at. After a kUnmapping that was agreed to, a kMapped of the same range says
// that it stayed after all.
//
// Not under a lock: it may call the allocator, and be called from inside again; it
// must not wait for another thread's requests. Several threads may be told at once,
// never of the same range. When an allocator is destroyed, it is told of what is
// left; then a veto has no effect and the allocator must not be called. Must not throw.
using RegionCallback = std::function<bool(const RegionChange&)>;

}  // namespace hbm

#endif  // HBMALLOC_REGION_CHANGE_H_
