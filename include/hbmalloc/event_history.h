// SPDX-License-Identifier: Apache-2.0
//
// File: event_history.h
//
// The latest events of one allocator, for exports (export.h) and for looking back.
//
//   hbm::EventHistory history(100'000);
//   allocator->SetEventCallback(history.Callback());
//   ...
//   std::string timeline = hbm::ToChromeTrace({{"cuda:0", history.Entries()}});
#ifndef HBMALLOC_EVENT_HISTORY_H_
#define HBMALLOC_EVENT_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "hbmalloc/event.h"

namespace hbm {

class EventHistory {
 public:
  // What is kept of an event: as in Event, with the statistics that pictures need.
  struct Entry {
    Event::Kind kind = Event::Kind::kAllocate;
    OomCause cause = OomCause::kNone;
    std::uint32_t thread = 0;  // the system's number
    TagId tag;
    std::int64_t time_nanoseconds = 0;
    std::int64_t duration_nanoseconds = 0;
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    StreamRef stream;
    std::int64_t driver_calls = 0;
    std::int64_t driver_nanoseconds = 0;
    // Just after, in bytes.
    std::int64_t requested = 0;
    std::int64_t in_use = 0;
    std::int64_t pool = 0;
    std::int64_t largest_free = 0;
  };

  // Keeps at most this many entries, about 120 bytes each; then the oldest go.
  explicit EventHistory(std::size_t capacity);

  // Notes every event. It may outlive this object. Thread-safe.
  EventCallback Callback() const;

  // What is kept, oldest first. Thread-safe.
  std::vector<Entry> Entries() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace hbm

#endif  // HBMALLOC_EVENT_HISTORY_H_
