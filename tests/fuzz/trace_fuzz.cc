// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a trace: they are read or refused, and what is read can be relied
// on by a replay.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "observe/trace_reader.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckConsistent(const hbm::observe::Trace& trace) {
  std::vector<bool> live(trace.block_count, false);
  std::uint32_t next = 0;
  std::int64_t time_us = 0;
  for (const hbm::observe::TraceEvent& event : trace.events) {
    Require(event.time_us >= time_us);
    time_us = event.time_us;
    Require(event.stream < trace.streams.size());
    if (event.kind == hbm::observe::TraceEvent::Kind::kAllocate) {
      Require(event.block == next++ && next <= trace.block_count);
      live[event.block] = true;
    } else {
      Require(event.block < next && live[event.block]);
      live[event.block] = false;
    }
  }
  Require(next == trace.block_count);
  hbm::observe::ComputeLiveBytes(trace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const absl::StatusOr<hbm::observe::Trace> trace =
      hbm::observe::ReadTrace({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (trace.ok()) CheckConsistent(*trace);
  return 0;
}
