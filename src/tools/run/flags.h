// SPDX-License-Identifier: Apache-2.0
//
// File: flags.h
//
// What hbm-run was asked to do.
#ifndef HBMALLOC_TOOLS_RUN_FLAGS_H_
#define HBMALLOC_TOOLS_RUN_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace hbm::run {

struct Flags {
  double share = 0.25;
  std::string device = "cuda:0";  // the first visible one
  absl::Duration wait = absl::Seconds(60);
  bool verbose = false;
  bool help = false;
  bool version = false;
  std::vector<std::string> command;
};

extern const char kHelp[];

// InvalidArgument: names the flag, and what is allowed.
absl::StatusOr<Flags> ReadFlags(int argc, char** argv);

}  // namespace hbm::run

#endif  // HBMALLOC_TOOLS_RUN_FLAGS_H_
