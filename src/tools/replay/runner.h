// SPDX-License-Identifier: Apache-2.0
//
// File: runner.h
//
// One trace through one strategy: the unit of hbm-replay's work.
#ifndef HBMALLOC_TOOLS_REPLAY_RUNNER_H_
#define HBMALLOC_TOOLS_REPLAY_RUNNER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "hbmalloc/policy.h"
#include "observe/replay.h"
#include "observe/trace.h"
#include "tools/replay/flags.h"
#include "tools/replay/timeline.h"

namespace hbm::replay {

// A strategy to replay with.
struct Contender {
  std::string label;  // as the user wrote it
  Policy policy;
};

// Everything that is reported of one trace and one strategy.
struct Result {
  std::string trace;
  std::string file;
  std::string strategy;
  std::string policy;
  std::string device;
  std::size_t events = 0;
  std::size_t streams = 0;
  bool streams_merged = false;  // several, replayed as one
  std::int64_t duration_us = 0;
  std::uint64_t recorded_failures = 0;
  std::uint64_t unknown_frees = 0;
  int passes = 0;
  observe::MemoryFigures memory;
  observe::SpeedFigures speed;
  bool searched = false;
  std::optional<std::uint64_t> needs_bytes;
};

// The device's spec with the capacity put in. InvalidArgument: the device has no
// capacity that could be set.
absl::StatusOr<std::string> DeviceSpecOf(const Flags& flags);

// The strategies to replay with: those that were named, each of which must work
// on the device, or all that do. `notes` says which were left out and why.
absl::StatusOr<std::vector<Contender>> ChooseContenders(const Flags& flags,
                                                        const std::string& device_spec,
                                                        std::vector<std::string>* notes);

// `timeline`, if any, gets the memory over time.
absl::StatusOr<Result> Run(const observe::Trace& trace, const Contender& contender,
                           const std::string& device_spec, const Flags& flags,
                           std::optional<Timeline>* timeline);

}  // namespace hbm::replay

#endif  // HBMALLOC_TOOLS_REPLAY_RUNNER_H_
