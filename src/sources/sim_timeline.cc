// SPDX-License-Identifier: Apache-2.0
#include "sources/sim_timeline.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hbm::sources {
namespace {

void RaiseTo(std::atomic<std::int64_t>& value, std::int64_t least) {
  std::int64_t seen = value.load(std::memory_order_relaxed);
  while (seen < least && !value.compare_exchange_weak(seen, least, std::memory_order_acq_rel)) {
  }
}

absl::Status NotAStream() {
  return absl::InvalidArgumentError(
      "stream: OfAllocation() and Synchronized() are not streams; give StreamRef::FromHandle()");
}

}  // namespace

void SimClock::PassTo(std::int64_t nanoseconds) { RaiseTo(now_, nanoseconds); }

void SimClock::AdvanceTo(absl::Duration now) {
  PassTo(absl::ToInt64Nanoseconds(now));
  if (num_alarms_.load(std::memory_order_acquire) != 0) CallAlarms();
}

std::uint64_t SimClock::AddAlarm(std::function<void()> alarm) {
  auto added = std::make_shared<Alarm>();
  {
    core::MutexLock lock(added->mutex);
    added->call = std::move(alarm);
  }
  core::MutexLock lock(mutex_);
  alarms_.emplace(++last_id_, std::move(added));
  num_alarms_.fetch_add(1, std::memory_order_release);
  return last_id_;
}

void SimClock::RemoveAlarm(std::uint64_t id) {
  std::shared_ptr<Alarm> removed;
  {
    core::MutexLock lock(mutex_);
    const auto found = alarms_.find(id);
    if (found == alarms_.end()) return;
    removed = std::move(found->second);
    alarms_.erase(found);
    num_alarms_.fetch_sub(1, std::memory_order_release);
  }
  core::MutexLock lock(removed->mutex);
  removed->call = nullptr;
}

void SimClock::CallAlarms() {
  // What an alarm calls may move the clock itself.
  static thread_local bool is_inside = false;
  if (is_inside) return;
  std::vector<std::shared_ptr<Alarm>> alarms;
  {
    core::MutexLock lock(mutex_);
    for (const auto& [id, alarm] : alarms_) alarms.push_back(alarm);
  }
  is_inside = true;
  for (const std::shared_ptr<Alarm>& alarm : alarms) {
    core::MutexLock lock(alarm->mutex);
    if (alarm->call != nullptr) alarm->call();
  }
  is_inside = false;
}

absl::StatusOr<std::uint64_t> SimTimeline::StreamId(StreamRef stream) {
  if (!stream.is_handle()) return NotAStream();
  return std::uint64_t{stream.value()};
}

absl::StatusOr<Timeline::Marker> SimTimeline::Record(StreamRef stream) {
  if (!stream.is_handle()) return NotAStream();
  if (lag_ == 0) return Marker{0};  // nothing to wait for
  std::int64_t start = clock_->NowNanoseconds();
  {
    core::MutexLock lock(mutex_);
    const auto held = held_until_.find(stream.value());
    if (held != held_until_.end()) start = std::max(start, held->second);
  }
  const std::int64_t due = start + lag_;
  RaiseTo(last_due_, due);
  outstanding_markers_.fetch_add(1, std::memory_order_relaxed);
  return static_cast<Marker>(due) + 1;
}

absl::StatusOr<bool> SimTimeline::IsDone(Marker marker) {
  return DueOf(marker) <= clock_->NowNanoseconds();
}

void SimTimeline::WaitUntil(std::int64_t due) {
  const std::int64_t waited = due - clock_->NowNanoseconds();
  if (waited <= 0) return;
  host_waits_.fetch_add(1, std::memory_order_relaxed);
  host_wait_nanoseconds_.fetch_add(waited, std::memory_order_relaxed);
  clock_->PassTo(due);
}

absl::Status SimTimeline::WaitOnHost(Marker marker, absl::Duration timeout) {
  const std::int64_t now = clock_->NowNanoseconds();
  const std::int64_t due = DueOf(marker);
  if (due <= now) return absl::OkStatus();
  const absl::Duration left = absl::Nanoseconds(due - now);
  if (timeout >= left) {
    WaitUntil(due);
    return absl::OkStatus();
  }
  if (timeout > absl::ZeroDuration()) WaitUntil(now + absl::ToInt64Nanoseconds(timeout));
  return absl::DeadlineExceededError(absl::StrCat(
      "the work is done ", absl::FormatDuration(left), " from now on the simulated clock; waited ",
      absl::FormatDuration(std::max(timeout, absl::ZeroDuration()))));
}

absl::Status SimTimeline::WaitOnStream(StreamRef stream, Marker marker) {
  if (!stream.is_handle()) return NotAStream();
  if (DueOf(marker) <= clock_->NowNanoseconds()) return absl::OkStatus();
  core::MutexLock lock(mutex_);
  std::int64_t& held = held_until_[stream.value()];
  held = std::max(held, DueOf(marker));
  return absl::OkStatus();
}

void SimTimeline::Forget(Marker marker) {
  if (marker > 1) outstanding_markers_.fetch_sub(1, std::memory_order_relaxed);
}

absl::Status SimTimeline::WaitForDevice() {
  WaitUntil(last_due_.load(std::memory_order_acquire));
  return absl::OkStatus();
}

}  // namespace hbm::sources
