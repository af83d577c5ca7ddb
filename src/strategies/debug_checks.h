// SPDX-License-Identifier: Apache-2.0
//
// File: debug_checks.h
//
// The checks of the policy's field `debug`, around an allocator of any strategy. Where
// none is asked for there is no such object, and nothing is paid.
//
//   StatusOr<unique_ptr<Allocator>> checked = MakeDebugChecked(move(inner), source, policy);
//
// A guarded block lies inside one of the inner allocator's:
//
//   | red zone: alignment bytes, the last 256 filled | the caller's bytes | red zone, 256 or more |
//
// The lock is held for looking at the books, and by CheckMemory for reading red zones,
// so that no block goes away while they are read. It is not held while the inner
// allocator is called.
#ifndef HBMALLOC_STRATEGIES_DEBUG_CHECKS_H_
#define HBMALLOC_STRATEGIES_DEBUG_CHECKS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/memory_source.h"

namespace hbm::strategies {

// `policy` is the effective one, whose quarantine the inner allocator was not given if
// TakesQuarantine(policy). InvalidArgument: guard or poison where there are no bytes.
absl::StatusOr<std::unique_ptr<Allocator>> MakeDebugChecked(std::unique_ptr<Allocator> inner,
                                                            std::shared_ptr<MemorySource> source,
                                                            const Policy& policy);

// Whether the bytes of memory from this source can be checked as the policy asks.
absl::Status CheckDebuggable(const Policy& policy, MemorySource* source);

// Whether freed blocks are held back here, to see whether somebody writes to them.
inline bool TakesQuarantine(const Policy& policy) {
  return policy.debug.poison && policy.quarantine != 0;
}

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_DEBUG_CHECKS_H_
