// SPDX-License-Identifier: Apache-2.0
//
// File: outputs.h
//
// Which files a run writes, decided before the first replay, so that none is
// written twice and no trace is overwritten.
//
//   absl::StatusOr<Outputs> outputs = PlanOutputs(flags, trace_names, labels);
//   WriteText(outputs->placements[trace][strategy], text);
#ifndef HBMALLOC_TOOLS_REPLAY_OUTPUTS_H_
#define HBMALLOC_TOOLS_REPLAY_OUTPUTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/replay/flags.h"

namespace hbm::replay {

struct Outputs {
  // By trace and strategy; empty without --placements. Where two would be the same
  // the later one has a number before its ending.
  std::vector<std::vector<std::string>> placements;
  std::vector<std::string> notes;  // which ones were numbered
};

// InvalidArgument: one file for several placements, or two outputs in one file.
// FailedPrecondition: an output is one of the traces.
absl::StatusOr<Outputs> PlanOutputs(const Flags& flags, const std::vector<std::string>& traces,
                                    const std::vector<std::string>& strategies);

// To a file; to standard output if the name is empty or "-".
absl::Status WriteText(const std::string& file, const std::string& text);

}  // namespace hbm::replay

#endif  // HBMALLOC_TOOLS_REPLAY_OUTPUTS_H_
