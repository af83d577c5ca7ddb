// SPDX-License-Identifier: Apache-2.0
//
// hbm-replay: recorded traces through allocation strategies. `--help` and
// docs/hbm-replay.md say what it measures and how.
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "hbmalloc/version.h"
#include "observe/trace_reader.h"
#include "tools/replay/flags.h"
#include "tools/replay/outputs.h"
#include "tools/replay/page.h"
#include "tools/replay/report.h"
#include "tools/replay/runner.h"
#include "tools/replay/timeline.h"

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

// The replays themselves, and what is written on the way.
class Session {
 public:
  Session(const Flags& flags, std::string device_spec, std::vector<Contender> contenders,
          std::vector<observe::Trace> traces, Outputs outputs)
      : flags_(flags),
        device_spec_(std::move(device_spec)),
        contenders_(std::move(contenders)),
        traces_(std::move(traces)),
        outputs_(std::move(outputs)),
        progress_(traces_.size() * contenders_.size()) {}

  absl::Status ReplayAll() {
    for (std::size_t t = 0; t < traces_.size(); ++t) {
      if (HasPage()) page_.AddTrace(traces_[t]);
      for (std::size_t c = 0; c < contenders_.size(); ++c) {
        if (absl::Status status = ReplayOne(t, c); !status.ok()) return status;
      }
    }
    progress_.Clear();
    if (absl::Status status = WriteText(flags_.out, Render(results_, flags_.format));
        !status.ok()) {
      return status;
    }
    return HasPage() ? WriteText(flags_.html, page_.Render()) : absl::OkStatus();
  }

  const std::vector<Result>& results() const { return results_; }

 private:
  bool HasPage() const { return !flags_.html.empty(); }

  absl::Status ReplayOne(std::size_t t, std::size_t c) {
    const observe::Trace& trace = traces_[t];
    progress_.Step(absl::StrCat(trace.name, ": ", contenders_[c].label));
    std::optional<Timeline> timeline;
    absl::StatusOr<Result> result =
        Run(trace, contenders_[c], device_spec_, flags_, HasPage() ? &timeline : nullptr);
    if (!result.ok()) return result.status();
    if (result->streams_merged && c == 0) {
      progress_.Clear();
      Say(absl::StrCat(trace.name, ": ", trace.streams.size(),
                       " streams are replayed on the default one: a GPU has no others here"));
    }
    if (HasPage()) page_.AddResult(*result, *timeline);
    if (!outputs_.placements.empty()) {
      const absl::Status status =
          WriteText(outputs_.placements[t][c], RenderPlacements(result->memory.offsets));
      if (!status.ok()) return status;
    }
    result->memory.offsets.clear();
    results_.push_back(*std::move(result));
    return absl::OkStatus();
  }

  const Flags& flags_;
  const std::string device_spec_;
  const std::vector<Contender> contenders_;
  const std::vector<observe::Trace> traces_;
  const Outputs outputs_;
  Progress progress_;
  Page page_;
  std::vector<Result> results_;
};

int Replay(const Flags& flags) {
  absl::StatusOr<std::string> device_spec = DeviceSpecOf(flags);
  if (!device_spec.ok()) return Fail(kUsage, device_spec.status());
  std::vector<std::string> notes;
  absl::StatusOr<std::vector<Contender>> contenders = ChooseContenders(flags, *device_spec, &notes);
  if (!contenders.ok()) return Fail(kUsage, contenders.status());
  for (const std::string& note : notes) Say(note);

  std::vector<observe::Trace> traces;
  if (!ReadTraces(flags, &traces)) return kBadInput;
  std::vector<std::string> names;
  names.reserve(traces.size());
  for (const observe::Trace& trace : traces) names.push_back(trace.name);
  std::vector<std::string> labels;
  labels.reserve(contenders->size());
  for (const Contender& contender : *contenders) labels.push_back(contender.label);
  absl::StatusOr<Outputs> outputs = PlanOutputs(flags, names, labels);
  if (!outputs.ok()) {
    return Fail(absl::IsFailedPrecondition(outputs.status()) ? kBadInput : kUsage,
                outputs.status());
  }
  for (const std::string& note : outputs->notes) Say(note);

  Session session(flags, *std::move(device_spec), *std::move(contenders), std::move(traces),
                  *std::move(outputs));
  if (absl::Status status = session.ReplayAll(); !status.ok()) return Fail(kUsage, status);
  return ReportFailures(session.results(), flags.allow_failures) ? kRequestsFailed : kOk;
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
