// SPDX-License-Identifier: Apache-2.0
//
// File: table.h
//
// Results for people: a heading for each trace, a row for each strategy, units,
// and a star at the best value of each column.
#ifndef HBMALLOC_TOOLS_REPLAY_TABLE_H_
#define HBMALLOC_TOOLS_REPLAY_TABLE_H_

#include <string>
#include <vector>

#include "tools/replay/runner.h"

namespace hbm::replay {

// Results of one trace stand together.
std::string RenderTable(const std::vector<Result>& results);

}  // namespace hbm::replay

#endif  // HBMALLOC_TOOLS_REPLAY_TABLE_H_
