// SPDX-License-Identifier: Apache-2.0
//
// File: probe.h
//
// What a device has, found out in a process of its own: asking a GPU makes a context,
// which would stay with the process that becomes the command.
//
//   absl::StatusOr<Probe> probe = ProbeDevice("cuda:0");
#ifndef HBMALLOC_TOOLS_RUN_PROBE_H_
#define HBMALLOC_TOOLS_RUN_PROBE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace hbm::run {

struct Probe {
  std::string uuid;
  std::uint64_t total = 0;
  std::uint64_t free = 0;
  bool is_cuda = false;
};

absl::StatusOr<Probe> ProbeDevice(const std::string& spec);

}  // namespace hbm::run

#endif  // HBMALLOC_TOOLS_RUN_PROBE_H_
