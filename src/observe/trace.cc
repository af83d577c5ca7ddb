// SPDX-License-Identifier: Apache-2.0
#include "observe/trace.h"

namespace hbm::observe {

LiveBytes ComputeLiveBytes(const Trace& trace) {
  LiveBytes result;
  std::uint64_t live = 0;
  std::int64_t time_us = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    result.byte_microseconds +=
        static_cast<double>(live) * static_cast<double>(event.time_us - time_us);
    time_us = event.time_us;
    if (event.kind == TraceEvent::Kind::kFree) {
      live -= event.bytes;
      continue;
    }
    live += event.bytes;
    if (live > result.peak) {
      result.peak = live;
      result.peak_event = i;
    }
  }
  return result;
}

}  // namespace hbm::observe
