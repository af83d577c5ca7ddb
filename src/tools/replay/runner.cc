// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/runner.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/device.h"
#include "hbmalloc/log.h"

namespace hbm::replay {
namespace {

// KIND[:SIZE][,OPTION...] taken apart. OpenDevice checks it; this only exchanges
// the size.
struct SpecParts {
  std::string kind;
  std::vector<std::string> options;
};

SpecParts TakeApart(const std::string& spec) {
  SpecParts parts;
  std::vector<std::string> fields = absl::StrSplit(spec, ',');
  parts.kind = fields[0].substr(0, fields[0].find(':'));
  parts.options.assign(fields.begin() + 1, fields.end());
  return parts;
}

std::string Assemble(const SpecParts& parts, std::uint64_t bytes, bool keep_used) {
  std::string spec = absl::StrCat(parts.kind, ":", bytes);
  for (const std::string& option : parts.options) {
    if (!keep_used && absl::StripLeadingAsciiWhitespace(option).substr(0, 5) == "used=") continue;
    absl::StrAppend(&spec, ",", option);
  }
  return spec;
}

// The library's warnings are for the pass that is reported, not for the ones
// that only repeat it.
class Quiet {
 public:
  Quiet() : previous_(SetLogSink(nullptr)) {}
  ~Quiet() { SetLogSink(std::move(previous_)); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  LogSink previous_;
};

struct Fresh {
  std::shared_ptr<Device> device;
  std::unique_ptr<Allocator> allocator;
};

absl::StatusOr<Fresh> MakeFresh(const Policy& policy, const std::string& device_spec) {
  Fresh fresh;
  absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(device_spec);
  if (!device.ok()) return device.status();
  fresh.device = *std::move(device);
  absl::StatusOr<std::unique_ptr<Allocator>> allocator = MakeAllocator(policy, fresh.device);
  if (!allocator.ok()) return allocator.status();
  fresh.allocator = *std::move(allocator);
  return fresh;
}

absl::Status Labelled(const std::string& label, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(label, ": ", status.message()));
}

std::vector<std::string> AllStrategies() {
  std::vector<std::string> names;
  for (const Strategy strategy : {Strategy::kBfc, Strategy::kOnDemand, Strategy::kPlatform,
                                  Strategy::kCudaAsync, Strategy::kElastic}) {
    names.emplace_back(ToString(strategy));
  }
  return names;
}

bool DependsOnClock(const Device& device, const Policy& policy) {
  return std::string(device.Name()).find("lag=") != std::string::npos ||
         policy.idle_release != absl::InfiniteDuration();
}

// A GPU has only the streams that were made on it, and a replay makes none.
observe::ReplayStreams StreamsFor(const Device& device) {
  return device.IsCuda() ? observe::ReplayStreams::kOne : observe::ReplayStreams::kRecorded;
}

// Platform and cuda_async have no free chunks to speak of.
bool HasFreeChunks(const Policy& policy) {
  const Strategy strategy = policy.strategy.value_or(Strategy::kBfc);
  return strategy != Strategy::kPlatform && strategy != Strategy::kCudaAsync;
}

absl::Status MeasureMemory(const observe::Trace& trace, const Contender& contender,
                           const std::string& device_spec, bool offsets, Result* result,
                           std::optional<Timeline>* timeline) {
  const absl::StatusOr<Fresh> fresh = MakeFresh(contender.policy, device_spec);
  if (!fresh.ok()) return Labelled(contender.label, fresh.status());
  result->device = std::string(fresh->device->Name());
  result->policy = ToString(fresh->allocator->policy());
  observe::MemoryOptions options;
  options.streams = StreamsFor(*fresh->device);
  options.offsets = offsets;
  if (timeline != nullptr) {
    timeline->emplace(trace.events.size(), HasFreeChunks(fresh->allocator->policy()));
    options.on_event = [timeline](const observe::ReplayMoment& moment) {
      (*timeline)->Add(moment);
    };
  }
  result->streams_merged =
      trace.streams.size() > 1 && options.streams == observe::ReplayStreams::kOne;
  result->memory =
      observe::MeasureMemory(trace, *fresh->allocator, fresh->device->simulated_clock(), options);
  return absl::OkStatus();
}

absl::Status MeasureSpeed(const observe::Trace& trace, const Contender& contender,
                          const std::string& device_spec, int passes, Result* result) {
  const Quiet quiet;
  const absl::StatusOr<Fresh> fresh = MakeFresh(contender.policy, device_spec);
  if (!fresh.ok()) return Labelled(contender.label, fresh.status());
  observe::SpeedOptions options;
  options.streams = StreamsFor(*fresh->device);
  options.passes = passes;
  if (DependsOnClock(*fresh->device, fresh->allocator->policy())) {
    options.clock = fresh->device->simulated_clock();
  }
  result->passes = passes;
  result->speed = observe::MeasureSpeed(trace, *fresh->allocator, options);
  return absl::OkStatus();
}

absl::Status FindNeeds(const observe::Trace& trace, const Contender& contender,
                       const std::string& device_spec, Result* result) {
  const Quiet quiet;
  const SpecParts parts = TakeApart(device_spec);
  Policy policy = contender.policy;
  policy.memory_fraction = MemoryFraction{1.0, std::nullopt};
  const absl::StatusOr<std::uint64_t> needs = observe::FindNeededCapacity(
      trace, policy, [&parts](std::uint64_t bytes) { return Assemble(parts, bytes, false); });
  result->searched = true;
  if (needs.ok()) {
    result->needs_bytes = *needs;
  } else if (!absl::IsResourceExhausted(needs.status())) {
    return Labelled(contender.label, needs.status());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> DeviceSpecOf(const Flags& flags) {
  const SpecParts parts = TakeApart(flags.device);
  if (flags.find_capacity && parts.kind != "sim") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--find-capacity: needs a simulated device, not ", flags.device, "; use --device=sim"));
  }
  if (!flags.capacity.has_value()) return flags.device;
  if (parts.kind != "sim" && parts.kind != "host") {
    return absl::InvalidArgumentError(
        absl::StrCat("--capacity: ", flags.device,
                     " has a capacity of its own; use the policy's memory_limit instead"));
  }
  return Assemble(parts, *flags.capacity, true);
}

absl::StatusOr<std::vector<Contender>> ChooseContenders(const Flags& flags,
                                                        const std::string& device_spec,
                                                        std::vector<std::string>* notes) {
  // The device is tried first, so that its errors are its own.
  absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(device_spec);
  if (!device.ok()) return device.status();
  const bool all = flags.strategies.empty();
  std::vector<Contender> contenders;
  for (const std::string& label : all ? AllStrategies() : flags.strategies) {
    absl::StatusOr<Policy> policy = ParsePolicy(label);
    if (!policy.ok()) return Labelled("--strategy=" + label, policy.status());
    policy->max_wait = absl::ZeroDuration();
    const Quiet quiet;
    const absl::StatusOr<Fresh> fresh = MakeFresh(*policy, device_spec);
    if (fresh.ok()) {
      contenders.push_back({label, *std::move(policy)});
    } else if (all) {
      notes->push_back(absl::StrCat("left out: ", label, ": ", fresh.status().message()));
    } else {
      return Labelled("--strategy=" + label, fresh.status());
    }
  }
  if (contenders.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        device_spec, ": no strategy works on this device: ", absl::StrJoin(*notes, "; ")));
  }
  return contenders;
}

absl::StatusOr<Result> Run(const observe::Trace& trace, const Contender& contender,
                           const std::string& device_spec, const Flags& flags,
                           std::optional<Timeline>* timeline) {
  Result result;
  result.trace = trace.name;
  result.file = trace.file;
  result.strategy = contender.label;
  result.events = trace.events.size();
  result.streams = trace.streams.size();
  result.duration_us = trace.DurationMicroseconds();
  result.recorded_failures = trace.allocate_failures;
  result.unknown_frees = trace.unknown_frees;
  const bool offsets = !flags.placements.empty() || !flags.html.empty();
  absl::Status status = MeasureMemory(trace, contender, device_spec, offsets, &result, timeline);
  if (status.ok()) status = MeasureSpeed(trace, contender, device_spec, flags.repeat, &result);
  if (status.ok() && flags.find_capacity) {
    status = FindNeeds(trace, contender, device_spec, &result);
  }
  if (!status.ok()) return status;
  return result;
}

}  // namespace hbm::replay
