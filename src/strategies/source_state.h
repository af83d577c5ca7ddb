// SPDX-License-Identifier: Apache-2.0
//
// File: source_state.h
//
// What a strategy makes of its source's state and words.
//
//   if (live != 0 && !DriverIsGone(*source_)) observe::LogWarning(...);
//   if (!range.ok()) return SourceError(range.status());
#ifndef HBMALLOC_STRATEGIES_SOURCE_STATE_H_
#define HBMALLOC_STRATEGIES_SOURCE_STATE_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "hbmalloc/memory_source.h"
#include "observe/log.h"

namespace hbm::strategies {

// Whether the driver below has shut down, as it does before the last static objects of
// a process die. There is nothing to warn of then: nothing is held.
inline bool DriverIsGone(MemorySource& source) {
  Timeline* const timeline = source.timeline();
  return timeline != nullptr && absl::IsUnavailable(timeline->StreamId(StreamRef()).status());
}

// A source that calls its arguments invalid has a fault of its own: the strategy chose
// them, not the caller.
inline absl::Status SourceError(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::InternalError(status.message());
}

// For the log. After the driver's shutdown nobody is left to read it, and what a capture
// forbids is in the error itself.
inline void LogSourceError(absl::string_view what, const absl::Status& status) {
  if (absl::IsUnavailable(status) || absl::IsFailedPrecondition(status)) return;
  observe::LogWarning(absl::StrCat(what, ": ", status.ToString()));
}

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_SOURCE_STATE_H_
