// SPDX-License-Identifier: Apache-2.0
//
// File: report.h
//
// Results as text, for people (table) and for programs (JSON, CSV).
#ifndef HBMALLOC_TOOLS_REPLAY_REPORT_H_
#define HBMALLOC_TOOLS_REPLAY_REPORT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/replay/flags.h"
#include "tools/replay/runner.h"

namespace hbm::replay {

std::string Render(const std::vector<Result>& results, Format format);

// "id,offset" and one line per allocation of the trace.
std::string RenderPlacements(const std::vector<std::int64_t>& offsets);

}  // namespace hbm::replay

#endif  // HBMALLOC_TOOLS_REPLAY_REPORT_H_
