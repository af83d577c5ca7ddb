// SPDX-License-Identifier: Apache-2.0
//
// File: thread_cache.h
//
// Blocks up to 1 MiB kept per thread, in front of a pool: most requests and frees
// then touch nothing that other threads touch. Any thread may free any block.
//
//   std::unique_ptr<Allocator> cached = MakeThreadCached(std::move(pool), source);
//
// Each thread has, for each size class, up to two magazines: chains of free blocks.
// Full and empty magazines are exchanged with a depot as a whole; those of a thread
// that ends go there too. What the depot has no room for goes back to the pool, and
// so does everything when a request would fail and on Trim.
//
// Requests are rounded up to the class, at most an eighth more, so placements are
// not XLA's. Statistics are exact whenever no call is in progress, but for peaks:
// those are what was seen when statistics were read and now and then when a magazine
// was filled: with n threads at every n-th, as it takes a look at each of them.
#ifndef HBMALLOC_STRATEGIES_THREAD_CACHE_H_
#define HBMALLOC_STRATEGIES_THREAD_CACHE_H_

#include <memory>

#include "hbmalloc/allocator.h"

namespace hbm::strategies {

class Pool;

// Requires a pool without stream order and quarantine.
std::unique_ptr<Allocator> MakeThreadCached(std::unique_ptr<Pool> pool,
                                            std::shared_ptr<MemorySource> source);

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_THREAD_CACHE_H_
