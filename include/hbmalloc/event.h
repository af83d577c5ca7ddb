// SPDX-License-Identifier: Apache-2.0
//
// File: event.h
//
// What an allocator tells those who watch it.
//
//   allocator->SetEventCallback([&](const hbm::Event& event) {
//     if (event.driver_calls != 0) Note(event.kind, event.driver_nanoseconds);
//   });
//
// For traces of a running program the policy's trace field costs far less.
#ifndef HBMALLOC_EVENT_H_
#define HBMALLOC_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "hbmalloc/out_of_memory.h"
#include "hbmalloc/stats.h"
#include "hbmalloc/stream.h"
#include "hbmalloc/tag.h"

namespace hbm {

struct Event {
  enum class Kind { kAllocate, kAllocateFailure, kFree, kTrim, kSetMemoryLimit };

  Kind kind = Kind::kAllocate;
  // When it ended, and how long it took; the steady clock's time, or a simulated
  // device's.
  std::int64_t time_nanoseconds = 0;
  std::int64_t duration_nanoseconds = 0;
  // Of a trim or a limit: no address, and the bytes released or allowed.
  void* address = nullptr;
  std::size_t bytes = 0;      // asked for
  std::size_t alignment = 0;  // asked for
  StreamRef stream;           // of a free: that it is ordered after
  TagId tag;
  OomCause cause = OomCause::kNone;  // of a failure
  // What the driver was called for meanwhile, by this allocator (by other threads
  // too).
  std::int64_t driver_calls = 0;
  std::int64_t driver_nanoseconds = 0;
  Stats stats;  // just after
};
// "allocate", "allocate failure", "free", "trim", "set_memory_limit"
std::string_view ToString(Event::Kind kind);

// Called after each event, on the thread that caused it, possibly by several at
// once; not under a lock. It may call the allocator: what happens inside is not
// reported to it. Must not throw.
using EventCallback = std::function<void(const Event&)>;

}  // namespace hbm

#endif  // HBMALLOC_EVENT_H_
