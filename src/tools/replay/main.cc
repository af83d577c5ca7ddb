// SPDX-License-Identifier: Apache-2.0
//
// hbm-replay: recorded traces through allocation strategies. `--help` and
// docs/hbm-replay.md say what it measures and how.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "hbmalloc/version.h"
#include "observe/trace_reader.h"
#include "tools/replay/flags.h"
#include "tools/replay/report.h"
#include "tools/replay/runner.h"

namespace hbm::replay {
namespace {

enum ExitCode { kOk = 0, kUsage = 1, kBadInput = 2, kRequestsFailed = 3 };

void Say(std::string_view message) {
  std::fprintf(stderr, "hbm-replay: %.*s\n", static_cast<int>(message.size()), message.data());
}

// One line that is written over, and only where somebody looks.
class Progress {
 public:
  explicit Progress(std::size_t steps) : steps_(steps), visible_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Step(const std::string& what) {
    ++step_;
    if (!visible_) return;
    std::fprintf(stderr, "\r\033[K[%zu/%zu] %s", step_, steps_, what.c_str());
    std::fflush(stderr);
  }
  void Clear() {
    if (visible_) std::fputs("\r\033[K", stderr);
  }

 private:
  const std::size_t steps_;
  const bool visible_;
  std::size_t step_ = 0;
};

absl::Status WriteText(const std::string& file, const std::string& text) {
  const bool to_stdout = file.empty() || file == "-";
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

// Reads every trace before the first replay, so that a mistake in the last one
// does not cost the others' time. All bad ones are named.
bool ReadTraces(const Flags& flags, std::vector<observe::Trace>* traces) {
  bool good = true;
  for (const std::string& file : flags.traces) {
    absl::StatusOr<observe::Trace> trace = observe::ReadTraceFile(file);
    if (!trace.ok()) {
      Say(std::string(trace.status().message()));
      good = false;
      continue;
    }
    if (trace->unknown_frees != 0) {
      const auto shown = static_cast<std::uint64_t>(trace->unknown_free_examples.size());
      Say(absl::StrCat(file, ": ", trace->unknown_frees,
                       " frees of pointers that are not live are passed over (",
                       absl::StrJoin(trace->unknown_free_examples, ", "),
                       trace->unknown_frees > shown ? ", ...)" : ")"));
    }
    for (const std::string& note : trace->notes) Say(absl::StrCat(file, ": ", note));
    traces->push_back(*std::move(trace));
  }
  return good;
}

absl::Status CheckPlacementsFlag(const Flags& flags, std::size_t traces, std::size_t contenders) {
  const auto lacks = [&flags](const char* name) {
    return flags.placements.find(name) == std::string::npos;
  };
  if (flags.placements.empty()) return absl::OkStatus();
  if ((traces > 1 && lacks("{trace}")) || (contenders > 1 && lacks("{strategy}"))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--placements=", flags.placements, ": one file cannot hold ", traces, " traces x ",
        contenders, " strategies; put {trace} and {strategy} into its name, or name one of each"));
  }
  return absl::OkStatus();
}

absl::Status WritePlacements(const Flags& flags, const Result& result) {
  if (flags.placements.empty()) return absl::OkStatus();
  const std::string file = absl::StrReplaceAll(
      flags.placements, {{"{trace}", result.trace}, {"{strategy}", result.strategy}});
  return WriteText(file, RenderPlacements(result.memory.offsets));
}

// Says what failed; true if that makes the whole run a failure.
bool ReportFailures(const std::vector<Result>& results, bool allow_failures) {
  std::uint64_t failures = 0;
  std::uint64_t refused = 0;
  for (const Result& result : results) {
    failures += result.memory.failures;
    refused += result.memory.refused_frees;
    if (result.memory.failures != 0) {
      Say(absl::StrCat(result.trace, " with ", result.strategy, " on ", result.device, ": ",
                       result.memory.failures,
                       " requests failed (first: ", result.memory.first_failure, ")"));
    }
  }
  if (refused != 0) Say(absl::StrCat(refused, " frees were refused: the allocator is at fault"));
  if (failures != 0 && !allow_failures) {
    Say(absl::StrCat(failures,
                     " requests failed; a larger device, another strategy, or "
                     "--allow-failures if that is expected"));
  }
  return refused != 0 || (failures != 0 && !allow_failures);
}

int Fail(ExitCode code, const absl::Status& status) {
  Say(std::string(status.message()));
  return code;
}

int Replay(const Flags& flags) {
  const absl::StatusOr<std::string> device_spec = DeviceSpecOf(flags);
  if (!device_spec.ok()) return Fail(kUsage, device_spec.status());
  std::vector<std::string> notes;
  const absl::StatusOr<std::vector<Contender>> contenders =
      ChooseContenders(flags, *device_spec, &notes);
  if (!contenders.ok()) return Fail(kUsage, contenders.status());
  for (const std::string& note : notes) Say(note);
  absl::Status status = CheckPlacementsFlag(flags, flags.traces.size(), contenders->size());
  if (!status.ok()) return Fail(kUsage, status);
  std::vector<observe::Trace> traces;
  if (!ReadTraces(flags, &traces)) return kBadInput;

  std::vector<Result> results;
  Progress progress(traces.size() * contenders->size());
  for (const observe::Trace& trace : traces) {
    for (const Contender& contender : *contenders) {
      progress.Step(absl::StrCat(trace.name, ": ", contender.label));
      absl::StatusOr<Result> result = Run(trace, contender, *device_spec, flags);
      if (!result.ok()) return Fail(kUsage, result.status());
      if (result->streams_merged && &contender == &contenders->front()) {
        Say(absl::StrCat(trace.name, ": ", trace.streams.size(),
                         " streams are replayed on the default one: a GPU has no others here"));
      }
      if (status = WritePlacements(flags, *result); !status.ok()) return Fail(kUsage, status);
      result->memory.offsets.clear();
      results.push_back(*std::move(result));
    }
  }
  progress.Clear();
  if (status = WriteText(flags.out, Render(results, flags.format)); !status.ok()) {
    return Fail(kUsage, status);
  }
  return ReportFailures(results, flags.allow_failures) ? kRequestsFailed : kOk;
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<Flags> flags = ParseFlags(arguments);
  if (!flags.ok()) return Fail(kUsage, flags.status());
  if (flags->help || flags->version) {
    const std::string text =
        flags->help ? std::string(HelpText()) : absl::StrCat("hbm-replay ", HBMALLOC_VERSION, "\n");
    const absl::Status status = WriteText("", text);
    return status.ok() ? kOk : Fail(kUsage, status);
  }
  return Replay(*flags);
}

}  // namespace
}  // namespace hbm::replay

int main(int argc, char** argv) {
  return hbm::replay::Main(std::vector<std::string>(argv + 1, argv + (argc > 0 ? argc : 1)));
}
