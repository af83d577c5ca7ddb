// SPDX-License-Identifier: Apache-2.0
//
// File: flags.h
//
// The command line of hbm-replay as one value.
//
//   absl::StatusOr<Flags> flags = ParseFlags({"--repeat=9", "trace.csv.gz"});
#ifndef HBMALLOC_TOOLS_REPLAY_FLAGS_H_
#define HBMALLOC_TOOLS_REPLAY_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hbm::replay {

enum class Format { kTable, kJson, kCsv };

struct Flags {
  std::vector<std::string> strategies;  // empty: all
  std::string device = "sim";
  std::optional<std::uint64_t> capacity;  // bytes
  int repeat = 5;
  bool find_capacity = false;
  std::string placements;  // empty: none
  std::string html;        // empty: none
  bool allow_failures = false;
  Format format = Format::kTable;
  std::string out;  // empty: standard output
  bool help = false;
  bool version = false;
  std::vector<std::string> traces;
};

// InvalidArgument names the flag, the value and what is allowed. Nothing is opened.
absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& arguments);

// What --help prints: flags, figures with their definitions, exit codes.
std::string_view HelpText();

}  // namespace hbm::replay

#endif  // HBMALLOC_TOOLS_REPLAY_FLAGS_H_
