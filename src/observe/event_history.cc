// SPDX-License-Identifier: Apache-2.0
#include "hbmalloc/event_history.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "core/mutex.h"

namespace hbm {
namespace {

std::uint32_t ThreadNumber() {
  static thread_local const auto number = static_cast<std::uint32_t>(syscall(SYS_gettid));
  return number;
}

EventHistory::Entry EntryOf(const Event& event) {
  EventHistory::Entry entry;
  entry.kind = event.kind;
  entry.cause = event.cause;
  entry.thread = ThreadNumber();
  entry.tag = event.tag;
  entry.time_nanoseconds = event.time_nanoseconds;
  entry.duration_nanoseconds = event.duration_nanoseconds;
  entry.address = reinterpret_cast<std::uintptr_t>(event.address);
  entry.bytes = event.bytes;
  entry.stream = event.stream;
  entry.driver_calls = event.driver_calls;
  entry.driver_nanoseconds = event.driver_nanoseconds;
  entry.requested = event.stats.requested_bytes;
  entry.in_use = event.stats.bytes_in_use;
  entry.pool = event.stats.pool_bytes;
  entry.largest_free = event.stats.largest_free_block_bytes;
  return entry;
}

}  // namespace

struct EventHistory::State {
  explicit State(std::size_t most) : capacity(most) {}
  const std::size_t capacity;
  core::Mutex mutex;
  std::deque<Entry> entries HBM_GUARDED_BY(mutex);
};

EventHistory::EventHistory(std::size_t capacity)
    : state_(std::make_shared<State>(std::max<std::size_t>(capacity, 1))) {}

EventCallback EventHistory::Callback() const {
  return [state = state_](const Event& event) {
    const Entry entry = EntryOf(event);
    core::MutexLock lock(state->mutex);
    if (state->entries.size() == state->capacity) state->entries.pop_front();
    state->entries.push_back(entry);
  };
}

std::vector<EventHistory::Entry> EventHistory::Entries() const {
  core::MutexLock lock(state_->mutex);
  return {state_->entries.begin(), state_->entries.end()};
}

}  // namespace hbm
