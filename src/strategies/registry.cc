// SPDX-License-Identifier: Apache-2.0
#include "strategies/registry.h"

#include "strategies/cuda_async.h"
#include "strategies/elastic.h"
#include "strategies/platform.h"
#include "strategies/pool.h"

namespace hbm::strategies {

StrategyFactory FindStrategy(Strategy strategy) {
  switch (strategy) {
    case Strategy::kBfc:
    case Strategy::kOnDemand:
      return &MakePool;
    case Strategy::kPlatform:
      return &MakePlatform;
    case Strategy::kElastic:
      return &MakeElastic;
    case Strategy::kCudaAsync:
      return &MakeCudaAsync;
  }
  return nullptr;
}

}  // namespace hbm::strategies
