// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/outputs.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace hbm::replay {
namespace {

bool IsStandardOutput(const std::string& file) { return file.empty() || file == "-"; }

// The same file, under whatever names. Devices such as /dev/null hold nothing that
// could be lost.
bool SameFile(const std::string& one, const std::string& other) {
  std::error_code error;
  if (std::filesystem::exists(one, error) && !std::filesystem::is_regular_file(one, error)) {
    return false;
  }
  if (std::filesystem::equivalent(one, other, error)) return true;
  const auto full = [&error](const std::string& file) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(file, error), error);
  };
  return full(one) == full(other);
}

absl::Status CheckPlacementsFlag(const Flags& flags, std::size_t traces, std::size_t strategies) {
  const auto lacks = [&flags](const char* name) {
    return flags.placements.find(name) == std::string::npos;
  };
  if ((traces > 1 && lacks("{trace}")) || (strategies > 1 && lacks("{strategy}"))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--placements=", flags.placements, ": one file cannot hold ", traces, " traces x ",
        strategies, " strategies; put {trace} and {strategy} into its name, or name one of each"));
  }
  return absl::OkStatus();
}

// FILE.csv, then FILE-2.csv, FILE-3.csv.
std::string Numbered(const std::string& file, int number) {
  const std::filesystem::path path(file);
  std::filesystem::path name = path.stem();
  name += absl::StrCat("-", number);
  name += path.extension();
  return (path.parent_path() / name).string();
}

class Planner {
 public:
  explicit Planner(const Flags& flags) : flags_(flags) {}

  // An output with a name of its own choosing may not be changed.
  absl::Status Claim(const std::string& flag, const std::string& file) {
    if (IsStandardOutput(file)) return absl::OkStatus();
    if (absl::Status status = CheckTraces(flag, file); !status.ok()) return status;
    if (Taken(file)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", flag, "=", file, ": another output goes there; give each its own file"));
    }
    files_.push_back(file);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ClaimPlacements(const std::string& trace, const std::string& strategy,
                                              std::vector<std::string>* notes) {
    const std::string wanted =
        absl::StrReplaceAll(flags_.placements, {{"{trace}", trace}, {"{strategy}", strategy}});
    std::string file = wanted;
    for (int number = 2; !IsStandardOutput(file) && Taken(file); ++number) {
      file = Numbered(wanted, number);
    }
    if (file != wanted) notes->push_back(absl::StrCat(wanted, " is taken: ", file, " instead"));
    absl::Status status = Claim("placements", file);
    if (!status.ok()) return status;
    return file;
  }

 private:
  absl::Status CheckTraces(const std::string& flag, const std::string& file) const {
    for (const std::string& trace : flags_.traces) {
      if (!SameFile(file, trace)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("--", flag, "=", file, ": that is the trace ", trace,
                       ", which would be overwritten; name another file"));
    }
    return absl::OkStatus();
  }
  bool Taken(const std::string& file) const {
    return std::any_of(files_.begin(), files_.end(),
                       [&file](const std::string& other) { return SameFile(file, other); });
  }

  const Flags& flags_;
  std::vector<std::string> files_;
};

}  // namespace

absl::StatusOr<Outputs> PlanOutputs(const Flags& flags, const std::vector<std::string>& traces,
                                    const std::vector<std::string>& strategies) {
  Outputs outputs;
  Planner planner(flags);
  absl::Status status = planner.Claim("out", flags.out);
  if (status.ok()) status = planner.Claim("html", flags.html);
  if (!status.ok()) return status;
  if (flags.placements.empty()) return outputs;
  status = CheckPlacementsFlag(flags, traces.size(), strategies.size());
  if (!status.ok()) return status;
  for (const std::string& trace : traces) {
    std::vector<std::string>& files = outputs.placements.emplace_back();
    for (const std::string& strategy : strategies) {
      absl::StatusOr<std::string> file = planner.ClaimPlacements(trace, strategy, &outputs.notes);
      if (!file.ok()) return file.status();
      files.push_back(*std::move(file));
    }
  }
  return outputs;
}

absl::Status WriteText(const std::string& file, const std::string& text) {
  const bool to_stdout = IsStandardOutput(file);
  std::FILE* const out = to_stdout ? stdout : std::fopen(file.c_str(), "wb");
  if (out == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat(file, ": cannot be written"));
  }
  bool good = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  good = std::fflush(out) == 0 && good;
  const int error = errno;
  if (!to_stdout) good = std::fclose(out) == 0 && good;
  if (good) return absl::OkStatus();
  return absl::ErrnoToStatus(
      error, absl::StrCat(to_stdout ? "standard output" : file, ": cannot be written"));
}

}  // namespace hbm::replay
