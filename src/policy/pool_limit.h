// SPDX-License-Identifier: Apache-2.0
//
// File: pool_limit.h
//
// How many bytes a policy lets an allocator hold of a given device, and which of
// its fields decided.
#ifndef HBMALLOC_POLICY_POOL_LIMIT_H_
#define HBMALLOC_POLICY_POOL_LIMIT_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "hbmalloc/memory_source.h"
#include "hbmalloc/policy.h"
#include "hbmalloc/stats.h"

namespace hbm::policy {

struct PoolLimit {
  std::size_t bytes = 0;        // most that may be held, a multiple of the granularity
  std::size_t start_bytes = 0;  // what preallocation takes: <= bytes
  LimitSource source = LimitSource::kMemoryFraction;
};

// The smallest of fraction x memory, memory_limit and total - reserve, floored to
// the source's granularity. InvalidArgument if nothing is left, naming the field
// that took it away.
absl::StatusOr<PoolLimit> ComputePoolLimit(const Policy& policy, const MemoryInfo& memory,
                                           std::size_t granularity);

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_POOL_LIMIT_H_
