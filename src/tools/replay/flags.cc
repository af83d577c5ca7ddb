// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/flags.h"

#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "policy/text.h"

namespace hbm::replay {
namespace {

constexpr int kMaxRepeat = 1000000;

// How one flag is read: `takes_value` flags are --name=VALUE or --name VALUE.
struct FlagRule {
  std::string_view name;
  bool takes_value;
  absl::Status (*set)(Flags& flags, const std::string& value);
};

absl::Status Bad(std::string_view flag, std::string_view value, std::string_view allowed) {
  const auto view = [](std::string_view text) {
    return absl::string_view(text.data(), text.size());
  };
  return absl::InvalidArgumentError(
      absl::StrCat("--", view(flag), "=", view(value), ": ", view(allowed)));
}

absl::Status SetStrategy(Flags& flags, const std::string& value) {
  for (absl::string_view spec : absl::StrSplit(value, ';')) {
    spec = absl::StripAsciiWhitespace(spec);
    if (spec.empty()) {
      return Bad("strategy", value, "an empty strategy; give SPEC[;SPEC...] or all");
    }
    flags.strategies.emplace_back(spec);
  }
  return absl::OkStatus();
}

absl::Status SetCapacity(Flags& flags, const std::string& value) {
  const absl::StatusOr<std::size_t> bytes = policy::ParseBytes(value);
  if (!bytes.ok()) return Bad("capacity", value, std::string(bytes.status().message()));
  flags.capacity = *bytes;
  return absl::OkStatus();
}

absl::Status SetRepeat(Flags& flags, const std::string& value) {
  if (!absl::SimpleAtoi(value, &flags.repeat) || flags.repeat < 1 || flags.repeat > kMaxRepeat) {
    return Bad("repeat", value, "must be a whole number of passes from 1 to 1000000");
  }
  return absl::OkStatus();
}

absl::Status SetFormat(Flags& flags, const std::string& value) {
  if (value == "table") {
    flags.format = Format::kTable;
  } else if (value == "json") {
    flags.format = Format::kJson;
  } else if (value == "csv") {
    flags.format = Format::kCsv;
  } else {
    return Bad("format", value, "must be table, json or csv");
  }
  return absl::OkStatus();
}

// Plain text flags: the value must not be empty.
template <std::string Flags::*kField>
absl::Status SetText(Flags& flags, const std::string& value) {
  if (value.empty()) return absl::InvalidArgumentError("it needs a value");
  flags.*kField = value;
  return absl::OkStatus();
}

template <bool Flags::*kField>
absl::Status SetTrue(Flags& flags, const std::string& /*value*/) {
  flags.*kField = true;
  return absl::OkStatus();
}

constexpr std::array<FlagRule, 12> kRules = {{
    {"strategy", true, SetStrategy},
    {"device", true, SetText<&Flags::device>},
    {"capacity", true, SetCapacity},
    {"repeat", true, SetRepeat},
    {"find-capacity", false, SetTrue<&Flags::find_capacity>},
    {"placements", true, SetText<&Flags::placements>},
    {"html", true, SetText<&Flags::html>},
    {"allow-failures", false, SetTrue<&Flags::allow_failures>},
    {"format", true, SetFormat},
    {"out", true, SetText<&Flags::out>},
    {"help", false, SetTrue<&Flags::help>},
    {"version", false, SetTrue<&Flags::version>},
}};

const FlagRule* FindRule(std::string_view name) {
  for (const FlagRule& rule : kRules) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

// `all` stands alone: together with names it would say two things.
absl::Status CheckStrategies(Flags& flags) {
  for (const std::string& spec : flags.strategies) {
    if (spec != "all") continue;
    if (flags.strategies.size() > 1) {
      return absl::InvalidArgumentError("--strategy: all cannot be combined with other strategies");
    }
    flags.strategies.clear();
    break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& arguments) {
  Flags flags;
  bool only_traces = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (only_traces || argument.size() < 2 || argument[0] != '-') {
      flags.traces.push_back(argument);
      continue;
    }
    if (argument == "--") {
      only_traces = true;
      continue;
    }
    std::string name = argument == "-h" ? "help" : argument;
    std::optional<std::string> value;
    if (name.substr(0, 2) == "--") name.erase(0, 2);
    if (const std::size_t equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const FlagRule* const rule = FindRule(name);
    if (rule == nullptr || (argument[1] != '-' && argument != "-h")) {
      return absl::InvalidArgumentError(absl::StrCat(argument, ": no such flag; see --help"));
    }
    if (!rule->takes_value && value.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(argument, ": the flag takes no value"));
    }
    if (rule->takes_value && !value.has_value()) {
      if (++i == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat(argument, ": it needs a value"));
      }
      value = arguments[i];
    }
    if (absl::Status status = rule->set(flags, value.value_or("")); !status.ok()) {
      const std::string message(status.message());
      return message.substr(0, 2) == "--"
                 ? status
                 : absl::InvalidArgumentError(absl::StrCat("--", name, ": ", message));
    }
  }
  if (absl::Status status = CheckStrategies(flags); !status.ok()) return status;
  if (flags.traces.empty() && !flags.help && !flags.version) {
    return absl::InvalidArgumentError("no trace was given; usage: hbm-replay [flags] TRACE...");
  }
  return flags;
}

std::string_view HelpText() {
  return R"(usage: hbm-replay [flags] TRACE...

Replays recorded allocation traces through allocation strategies, and reports
how much memory each of them held and how fast it was. No GPU is needed.

A trace is a log in RMM's format (Thread,Time,Action,Pointer,Size,Stream; Time in
whole microseconds or HH:MM:SS.ffffff) or a PyTorch memory snapshot
(torch.cuda.memory._dump_snapshot), plain or gzip.

flags
  --strategy=SPEC[;SPEC...]  bfc, on_demand, platform, cuda_async or elastic, each
                             with fields of the policy if wanted:
                             "bfc:memory_fraction=0.5;elastic:slack=0".
                             all (the default): every strategy that the device can
                             serve, with the policy's defaults
  --device=SPEC              sim (the default: a simulated H200), sim:80GiB,
                             sim:12GiB,used=1GiB,lag=1ms, host, host:8GiB, cuda:0
  --capacity=SIZE            the device's total memory, for sim and host; the
                             policy's fraction is a share of it
  --repeat=N                 passes that are timed (default 5): the first is cold,
                             the later ones are warm
  --find-capacity            search the smallest device in which every request
                             succeeds (simulated devices only)
  --placements=FILE          write where each block was placed, as id,offset. With
                             more than one trace or strategy, FILE must contain
                             {trace} or {strategy}, which are filled in
  --html=FILE                also write a page with pictures: memory and fragmentation
                             over time, a map of the blocks, sizes, and the strategies
                             side by side. One file that needs no network
  --allow-failures           failed requests are reported but are no error
  --format=table|json|csv    default table
  --out=FILE                 write the report there (default: standard output)
  --help, --version

how it is measured
  Memory and speed are measured apart, each on a fresh device and allocator. The
  memory pass reads statistics after every event. The timed passes do nothing but
  allocate and free, one thread, blocks in a flat array. Waiting for memory is off
  (max_wait=0), but for reuse_wait in the memory pass. Blocks that a trace leaves
  live are freed between passes, outside the timed part. The clock of a simulated device follows the trace's times; in
  timed passes only if the strategy depends on it (lag=, idle_release=).

figures (JSON and CSV names; bytes, and microseconds where a name ends in _us)
  trace, file, strategy, policy, device
                        policy is the effective one, device the canonical spec
  events                allocations and frees replayed
  failures              requests that found no memory; their frees are passed over
  peak_live_bytes       most bytes asked for and not yet freed, failed requests
                        included
  peak_bytes_in_use     most bytes in chunks that hold live blocks
  peak_pool_bytes       most bytes held from the device
  pool_over_live        peak_pool_bytes / peak_live_bytes
  mean_pool_over_live   integral of pool bytes over the trace's time / that of live
                        bytes
  first_ns_per_event    time per event of the first, cold pass
  warm_ns_per_event     median over the later passes; null with --repeat=1
  driver_calls, driver_us
                        calls to the driver in the memory pass and their time: by
                        the cost model on simulated devices, measured on others.
                        Neither construction nor teardown is in them
  setup_driver_calls, setup_driver_us
                        the same while the allocator was made
  waits, wait_us        times and time that callers were blocked
  external_fragmentation
                        1 - largest free chunk / free bytes, at the moment when live
                        bytes first reach their peak; 0 when nothing is free; null
                        for platform and cuda_async, which keep no free chunks
  rounding_waste        1 - requested / in use, at that moment
  utilization_at_peak   peak_bytes_in_use / peak_pool_bytes
  height_over_load      highest end of a block above the first region's start /
                        peak_live_bytes; null for platform and cuda_async
  trace_duration_us     from the first event to the last
  streams               different streams in the trace
  recorded_failures     "allocate failure" rows, which are not replayed
  unknown_frees         frees of pointers that were not live, passed over
  passes                timed passes
  needs_bytes           with --find-capacity: the smallest simulated device, in steps
                        of 2 MiB and with memory_fraction=1, in which every request
                        succeeds; one step less was tried and fails. null if none
                        does
  needs_over_live       needs_bytes / peak_live_bytes

exit codes
  0  every request succeeded (or --allow-failures)
  1  usage: a flag, policy, strategy or device that cannot be used, or an output
     file that cannot be written
  2  bad input: a trace that cannot be read, or that an output would overwrite
  3  requests failed; how many is said on standard error
)";
}

}  // namespace hbm::replay
