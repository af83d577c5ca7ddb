// SPDX-License-Identifier: Apache-2.0
//
// File: state.h
//
// The files by which processes share devices, for hbm-top: what they say, and
// clearing away what the dead left.
#ifndef HBMALLOC_SHARING_STATE_H_
#define HBMALLOC_SHARING_STATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "hbmalloc/sharing.h"

namespace hbm::sharing {

struct CleanUp {
  int slots = 0;                     // of dead processes, free now
  std::vector<std::string> removed;  // files that nobody uses
};

// Frees the slots of the dead, removes files without living processes, and what was
// set aside or half made more than a day ago. Safe while others come and go.
absl::StatusOr<CleanUp> RemoveDead();

}  // namespace hbm::sharing

#endif  // HBMALLOC_SHARING_STATE_H_
