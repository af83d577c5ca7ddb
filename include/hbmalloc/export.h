// SPDX-License-Identifier: Apache-2.0
//
// File: export.h
//
// An allocator's state in the formats of other tools. Everything is text or bytes in
// memory; writing files is the caller's.
//
//   hbm::AllocatorState state = hbm::CaptureState(*allocator, "cuda:0");
//   WriteFile("state.json", hbm::ToJson(state));             // docs/snapshot.schema.json
//   WriteFile("state.pickle", hbm::ToPyTorchPickle({state}));  // PyTorch's memory viewer
//   Respond("text/plain; version=0.0.4", hbm::ToPrometheus({hbm::CaptureFigures(*allocator,
//   "cuda:0")}));
#ifndef HBMALLOC_EXPORT_H_
#define HBMALLOC_EXPORT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hbmalloc/allocator.h"
#include "hbmalloc/event_history.h"
#include "hbmalloc/stats.h"

namespace hbm {

// What an allocator said of itself at one moment.
struct AllocatorState {
  std::string device;  // as the caller names it
  std::string policy;  // the effective one, as text
  std::int64_t unix_nanoseconds = 0;
  Stats stats;
  Figures figures;
  Snapshot snapshot;
  std::vector<EventHistory::Entry> events;  // none unless the caller adds them
};

// Walks every chunk: for people and tools. The parts are read one after another;
// they agree with each other if nobody allocates meanwhile.
AllocatorState CaptureState(const Allocator& allocator, std::string_view device);
// The same without the snapshot, for scraping: the time of GetFigures.
AllocatorState CaptureFigures(const Allocator& allocator, std::string_view device);

// One JSON object, as docs/snapshot.schema.json describes it. Sizes are bytes,
// addresses are hexadecimal strings.
std::string ToJson(const AllocatorState& state);

// A pickle as torch.cuda.memory._dump_snapshot writes it, for PyTorch's memory
// viewer and torch.cuda._memory_viz: regions become segments, chunks blocks, events
// the device's trace, tags the names of frames. Of plain data only. Protocol 2 to 4;
// another one becomes the nearest.
std::string ToPyTorchPickle(const std::vector<AllocatorState>& devices, int protocol = 2);

// Prometheus' text format, version 0.0.4: figures with units, one HELP and TYPE line
// each, a sample per device. The snapshot and events are not used.
std::string ToPrometheus(const std::vector<AllocatorState>& devices);

// Trace events as JSON, for Perfetto and chrome://tracing: counters of bytes in use,
// the pool and fragmentation, a slice for what the driver was called for, a mark for
// each failure.
struct DeviceEvents {
  std::string device;
  std::vector<EventHistory::Entry> events;
};
std::string ToChromeTrace(const std::vector<DeviceEvents>& devices);

}  // namespace hbm

#endif  // HBMALLOC_EXPORT_H_
