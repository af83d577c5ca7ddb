// SPDX-License-Identifier: Apache-2.0
//
// File: trace.h
//
// A recorded sequence of requests as plain data: what trace_reader.h makes of a
// file and replay.h plays through an allocator.
//
//   std::vector<void*> blocks(trace.block_count);
//   for (const TraceEvent& event : trace.events) {
//     if (event.kind == TraceEvent::Kind::kAllocate) blocks[event.block] = ...;
//   }
#ifndef HBMALLOC_OBSERVE_TRACE_H_
#define HBMALLOC_OBSERVE_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hbm::observe {

// One request. Blocks have dense ids, so that a replay needs an array and no map:
// it is measured by what the allocator does, not by its own book-keeping.
struct TraceEvent {
  enum class Kind : std::uint8_t { kAllocate, kFree };

  std::uint64_t bytes = 0;   // asked for; of a free: the block's
  std::int64_t time_us = 0;  // microseconds since the first event; never falls
  std::uint32_t block = 0;   // the block-th allocate event, counted from 0
  std::uint16_t stream = 0;  // index into Trace::streams
  Kind kind = Kind::kAllocate;
  std::uint8_t log2_alignment = 0;  // 0: not recorded
};

// Live bytes of a trace: everything that was asked for and not yet freed,
// whether or not an allocator could serve it.
struct LiveBytes {
  std::uint64_t peak = 0;
  std::size_t peak_event = 0;    // the first event after which the peak is reached
  double byte_microseconds = 0;  // integral over the trace's time
};

struct Trace {
  std::string name;  // the file's name without folders and known extensions
  std::string file;  // as it was given
  std::vector<TraceEvent> events;
  std::uint32_t block_count = 0;
  // The recorded streams, in order of appearance: their numbers or handles.
  std::vector<std::uint64_t> streams;
  // Recorded tags: by block an index into `tags`, of which the first is that of blocks
  // without one. Both are empty if no block has a tag.
  std::vector<std::string> tags;
  std::vector<std::uint16_t> block_tags;

  // What was read and is not among the events.
  std::uint64_t allocate_failures = 0;             // requests that failed when recorded
  std::uint64_t unknown_frees = 0;                 // frees of pointers that were not live
  std::vector<std::string> unknown_free_examples;  // the first few: "line 7: 0x1000"
  std::uint64_t times_out_of_order = 0;            // events moved up to the time before them
  std::vector<std::string> notes;                  // what else a reader of figures should know

  std::int64_t DurationMicroseconds() const { return events.empty() ? 0 : events.back().time_us; }
};

// Walks the events once.
LiveBytes ComputeLiveBytes(const Trace& trace);

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_TRACE_H_
