// SPDX-License-Identifier: Apache-2.0
//
// File: replay.h
//
// Plays a trace through an allocator, in two ways that are kept apart: one
// measures memory and reads statistics after every event, the other measures time
// and does nothing but allocate and free.
//
//   auto device = OpenDevice("sim:80GiB");
//   auto allocator = MakeAllocator(policy, *device);
//   MemoryFigures memory = MeasureMemory(trace, **allocator, (*device)->simulated_clock());
//
//   auto other = MakeAllocator(policy, *OpenDevice("sim:80GiB"));
//   SpeedOptions options;
//   options.passes = 5;
//   SpeedFigures speed = MeasureSpeed(trace, **other, options);
//
// Blocks that the trace leaves live are freed at the end of each pass. A request
// that fails is counted, and its free is passed over. No call waits for memory.
#ifndef HBMALLOC_OBSERVE_REPLAY_H_
#define HBMALLOC_OBSERVE_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/device.h"
#include "observe/trace.h"

namespace hbm::observe {

// What an allocator held and did in one pass. Sizes are bytes.
struct MemoryFigures {
  std::uint64_t failures = 0;       // requests that found no memory, or another error
  std::string first_failure;        // where and why: "event 17 (1.5 GiB): ..."
  std::uint64_t refused_frees = 0;  // frees of live blocks that gave an error: a bug

  std::uint64_t peak_live_bytes = 0;  // failed requests included
  std::uint64_t peak_bytes_in_use = 0;
  std::uint64_t peak_pool_bytes = 0;
  // Integrals over the trace's time, one over the other; unset if nothing lives
  // for any time.
  std::optional<double> mean_pool_over_live;

  // By the allocator's own count, first while it was made and then in the pass.
  std::uint64_t setup_driver_calls = 0;
  std::uint64_t setup_driver_nanoseconds = 0;
  std::uint64_t driver_calls = 0;
  std::uint64_t driver_nanoseconds = 0;
  std::uint64_t waits = 0;
  std::uint64_t wait_nanoseconds = 0;

  // At the moment when live bytes first reach their peak: 1 - largest free chunk /
  // free bytes (0 when nothing is free), and 1 - requested / in use. The first is
  // unset where there are no free chunks to speak of (platform, cuda_async).
  std::optional<double> external_fragmentation;
  double rounding_waste = 0;
  // Peak bytes in use over peak pool bytes.
  std::optional<double> utilization_at_peak;
  // Highest end of a block, counted from the first region's start, over peak live
  // bytes. Unset where blocks share no address range (platform, cuda_async).
  std::optional<double> height_over_load;

  // By block id, if asked for: bytes above the first region's start; -1 where the
  // request failed (or asked for nothing).
  std::vector<std::int64_t> offsets;
};

// The state after one event, for those who draw it.
struct ReplayMoment {
  std::size_t event = 0;
  std::int64_t time_us = 0;
  std::uint64_t live_bytes = 0;
  Stats stats;
};

// kRecorded gives each stream of the trace a small number of its own, which
// simulated and host devices understand; kOne plays everything on the default
// stream, as a GPU on which no such streams were made needs it.
enum class ReplayStreams { kRecorded, kOne };

struct MemoryOptions {
  ReplayStreams streams = ReplayStreams::kRecorded;
  bool offsets = false;
  bool stop_at_first_failure = false;
  std::function<void(const ReplayMoment&)> on_event;  // may be null
};

// One pass over a fresh allocator. `clock`, if any, follows the trace's time.
MemoryFigures MeasureMemory(const Trace& trace, Allocator& allocator, SimulatedClock* clock,
                            const MemoryOptions& options = {});

// Nanoseconds per event, allocate or free.
struct SpeedFigures {
  double first_ns_per_event = 0;            // the pass over the fresh allocator
  std::optional<double> warm_ns_per_event;  // median of the later passes
};

struct SpeedOptions {
  ReplayStreams streams = ReplayStreams::kRecorded;
  int passes = 1;
  // Given only if the allocator's behaviour depends on it (a lag, an
  // idle_release): moving it is part of what is measured then.
  SimulatedClock* clock = nullptr;
};

// Passes over one fresh allocator.
SpeedFigures MeasureSpeed(const Trace& trace, Allocator& allocator, const SpeedOptions& options);

// The smallest simulated device, on the 2 MiB grid, in which every request of
// the trace succeeds; verified to do, and verified that one step less does not.
// `simulate` gives the spec of a simulated device of so many bytes. The policy's
// memory_fraction should be 1. ResourceExhausted if no device up to 64 times the
// live peak (or 1 TiB, if that is more) is enough.
absl::StatusOr<std::uint64_t> FindNeededCapacity(
    const Trace& trace, const Policy& policy,
    const std::function<std::string(std::uint64_t)>& simulate);

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_REPLAY_H_
