// SPDX-License-Identifier: Apache-2.0
//
// File: oom_report.h
//
// The text of an out-of-memory error: what was asked for, why it failed, what
// holds the memory, and what to change. A pure function of what is known at the
// failure, so that it can be read, tested and fuzzed without a GPU. It is made
// outside every lock.
//
//   absl::Status status = absl::ResourceExhaustedError(observe::BuildOomReport(input));
#ifndef HBMALLOC_OBSERVE_OOM_REPORT_H_
#define HBMALLOC_OBSERVE_OOM_REPORT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "hbmalloc/allocator.h"

namespace hbm::observe {

// Everything the report is made from. Sizes are bytes.
struct OomReportInput {
  // One thing that was tried before giving up.
  struct Attempt {
    std::string what;
    absl::Duration took;
  };

  std::size_t bytes = 0;
  std::size_t alignment = kMinAlignment;
  StreamRef stream;
  TagId tag;
  OomCause cause = OomCause::kNone;
  std::vector<Attempt> attempts;

  Policy policy;  // the effective one
  Stats stats;
  Snapshot snapshot;
  std::optional<MemoryInfo> device;  // unset if the device could not be asked
};

// Never more than this many lines, however large the pool.
inline constexpr int kMaxOomReportLines = 60;

// The first line says what happened, so that a log that keeps one line keeps the
// essence. Ends without a newline.
std::string BuildOomReport(const OomReportInput& input);

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_OOM_REPORT_H_
