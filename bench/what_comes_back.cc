// SPDX-License-Identifier: Apache-2.0
//
// What a program gets back from its allocator when it pauses between two steps.
// Plays each trace on a simulated H200 up to the quietest moment (fewest live
// bytes) of its middle half, and prints, as one Markdown table, what is live there,
// what each strategy holds, and what it still holds after Trim.
//
//   what_comes_back "bfc;on_demand;platform" bench/traces/gpt2_train_varlen.csv.gz ...
//
// In each cell: GiB held before Trim -> after.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "hbmalloc/hbmalloc.h"
#include "observe/trace.h"
#include "observe/trace_reader.h"

namespace {

using hbm::observe::Trace;
using hbm::observe::TraceEvent;

double GiB(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

struct Moment {
  std::size_t event = 0;
  std::uint64_t live = 0;
};

// The event of the middle half after which the fewest bytes live.
Moment QuietestOfMiddleHalf(const Trace& trace) {
  const std::size_t events = trace.events.size();
  Moment quietest{0, UINT64_MAX};
  std::uint64_t live = 0;
  for (std::size_t i = 0; i < events - events / 4; ++i) {
    const TraceEvent& event = trace.events[i];
    live = event.kind == TraceEvent::Kind::kAllocate ? live + event.bytes : live - event.bytes;
    if (i >= events / 4 && live < quietest.live) quietest = {i, live};
  }
  return quietest;
}

void PlayUntil(const Trace& trace, std::size_t last, hbm::Allocator& allocator,
               hbm::SimulatedClock* clock) {
  std::vector<void*> blocks(trace.block_count);
  for (std::size_t i = 0; i <= last; ++i) {
    const TraceEvent& event = trace.events[i];
    if (clock != nullptr) clock->AdvanceTo(absl::Microseconds(event.time_us));
    if (event.kind == TraceEvent::Kind::kAllocate) {
      blocks[event.block] = allocator.TryAllocate(event.bytes);
    } else {
      allocator.Deallocate(blocks[event.block]).IgnoreError();
    }
  }
}

// "16.00 -> 4.20", or what went wrong.
std::string HeldAroundTrim(const Trace& trace, std::size_t last, const std::string& spec) {
  const auto policy = hbm::ParsePolicy(spec);
  if (!policy.ok()) return policy.status().ToString();
  const auto device = hbm::OpenDevice("sim:h200");
  if (!device.ok()) return device.status().ToString();
  const auto allocator = hbm::MakeAllocator(*policy, *device);
  if (!allocator.ok()) return allocator.status().ToString();
  PlayUntil(trace, last, **allocator, (*device)->simulated_clock());
  const auto before = static_cast<std::uint64_t>((*allocator)->GetStats().pool_bytes);
  const auto trimmed = (*allocator)->Trim();
  if (!trimmed.ok()) return trimmed.status().ToString();
  const auto after = static_cast<std::uint64_t>((*allocator)->GetStats().pool_bytes);
  return absl::StrFormat("%.2f -> %.2f", GiB(before), GiB(after));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: what_comes_back \"STRATEGY[;STRATEGY...]\" TRACE...\n");
    return 1;
  }
  hbm::SetLogSink(nullptr);  // allocators end with live blocks here, on purpose
  const std::vector<std::string> specs = absl::StrSplit(argv[1], ';');
  std::printf("| trace | live |");
  for (const std::string& spec : specs) std::printf(" %s |", spec.c_str());
  std::printf("\n|---|---|");
  for (std::size_t i = 0; i < specs.size(); ++i) std::printf("---|");
  std::printf("\n");
  for (int i = 2; i < argc; ++i) {
    const absl::StatusOr<Trace> trace = hbm::observe::ReadTraceFile(argv[i]);
    if (!trace.ok()) {
      std::fprintf(stderr, "%s\n", trace.status().ToString().c_str());
      return 2;
    }
    const Moment quiet = QuietestOfMiddleHalf(*trace);
    std::printf("| %s | %.2f |", trace->name.c_str(), GiB(quiet.live));
    for (const std::string& spec : specs) {
      std::printf(" %s |", HeldAroundTrim(*trace, quiet.event, spec).c_str());
    }
    std::printf("\n");
  }
}
