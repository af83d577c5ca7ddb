// SPDX-License-Identifier: Apache-2.0
#include "strategies/registry.h"

namespace hbm::strategies {

StrategyFactory FindStrategy(Strategy /*strategy*/) { return nullptr; }

}  // namespace hbm::strategies
