// SPDX-License-Identifier: Apache-2.0
//
// File: oom_details.h
//
// What an out-of-memory status carries for programs.
//
//   absl::Status status = absl::ResourceExhaustedError(BuildOomReport(input));
//   SetOomDetails(DetailsOf(input), &status);
#ifndef HBMALLOC_OBSERVE_OOM_DETAILS_H_
#define HBMALLOC_OBSERVE_OOM_DETAILS_H_

#include "absl/status/status.h"
#include "hbmalloc/out_of_memory.h"
#include "observe/oom_report.h"

namespace hbm::observe {

OomDetails DetailsOf(const OomReportInput& input);
void SetOomDetails(const OomDetails& details, absl::Status* status);

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_OOM_DETAILS_H_
