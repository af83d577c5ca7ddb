// SPDX-License-Identifier: Apache-2.0
//
// File: registry.h
//
// The strategies the library has, by kind. A new one is a file pair beside this
// and one line in registry.cc.
#ifndef HBMALLOC_STRATEGIES_REGISTRY_H_
#define HBMALLOC_STRATEGIES_REGISTRY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "hbmalloc/allocator.h"
#include "policy/pool_limit.h"

namespace hbm::strategies {

// What a strategy is made from. `policy` is valid and has its strategy,
// preallocate and stream_mode set; `limit` is what it may hold.
struct StrategyContext {
  Policy policy;
  policy::PoolLimit limit;
  std::shared_ptr<Device> device;  // null over a runtime's own source
  std::shared_ptr<MemorySource> source;
};

using StrategyFactory = absl::StatusOr<std::unique_ptr<Allocator>> (*)(StrategyContext context);

// Null if the library has no such strategy.
StrategyFactory FindStrategy(Strategy strategy);

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_REGISTRY_H_
