// SPDX-License-Identifier: Apache-2.0
//
// File: sim_timeline.h
//
// Time and work on a simulated device. Work that touches a freed block ends
// `lag` after the free, on a clock that moves only when told to: by a replay (to
// each event's time) and by waiting (to the time waited for).
//
//   SimClock clock;
//   SimTimeline timeline(&clock, absl::Milliseconds(1));
//   Timeline::Marker marker = *timeline.Record(stream);   // done 1 ms from now
//
// Work on one stream is in order: a stream that was made to wait for a marker
// ends its own later work that much later. With no lag every marker is done at
// once. Deterministic, and cheap enough for every free: no lock without lag.
#ifndef HBMALLOC_SOURCES_SIM_TIMELINE_H_
#define HBMALLOC_SOURCES_SIM_TIMELINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>

#include "absl/time/time.h"
#include "core/mutex.h"
#include "hbmalloc/device.h"
#include "hbmalloc/memory_source.h"

namespace hbm::sources {

class SimClock final : public SimulatedClock {
 public:
  absl::Duration Now() const override { return absl::Nanoseconds(NowNanoseconds()); }
  void AdvanceTo(absl::Duration now) override;
  std::uint64_t AddAlarm(std::function<void()> alarm) override;
  void RemoveAlarm(std::uint64_t id) override;

  std::int64_t NowNanoseconds() const { return now_.load(std::memory_order_acquire); }
  // As AdvanceTo, without the alarms: for those that wait while they hold locks.
  void PassTo(std::int64_t nanoseconds);

 private:
  struct Alarm {
    core::Mutex mutex;  // held while it is called
    std::function<void()> call HBM_GUARDED_BY(mutex);
  };
  void CallAlarms();

  std::atomic<std::int64_t> now_{0};
  std::atomic<int> num_alarms_{0};
  core::Mutex mutex_;
  std::uint64_t last_id_ HBM_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::shared_ptr<Alarm>> alarms_ HBM_GUARDED_BY(mutex_);
};

class SimTimeline final : public Timeline {
 public:
  // The clock must outlive this. Requires lag >= 0.
  SimTimeline(SimClock* clock, absl::Duration lag)
      : clock_(clock), lag_(absl::ToInt64Nanoseconds(lag)) {}

  // The handle's bits: small integers name streams.
  absl::StatusOr<std::uint64_t> StreamId(StreamRef stream) override;
  absl::StatusOr<Marker> Record(StreamRef stream) override;
  absl::StatusOr<bool> IsDone(Marker marker) override;
  // Does not sleep: moves the clock to the time the work is done, or by
  // `timeout`, and counts that as time waited.
  absl::Status WaitOnHost(Marker marker, absl::Duration timeout) override;
  absl::Status WaitOnStream(StreamRef stream, Marker marker) override;
  void Forget(Marker marker) override;
  // As WaitOnHost, for everything recorded so far.
  absl::Status WaitForDevice() override;

  // Times the host had to wait for work that was not done, and for how long on
  // the simulated clock. Waiting for what is done already is not counted.
  std::uint64_t host_waits() const { return host_waits_.load(std::memory_order_relaxed); }
  std::int64_t host_wait_nanoseconds() const {
    return host_wait_nanoseconds_.load(std::memory_order_relaxed);
  }
  // Recorded and not forgotten.
  std::int64_t outstanding_markers() const {
    return outstanding_markers_.load(std::memory_order_relaxed);
  }

 private:
  // A marker is its due time in nanoseconds plus one, so that 0 stays "nothing".
  static std::int64_t DueOf(Marker marker) { return static_cast<std::int64_t>(marker) - 1; }
  void WaitUntil(std::int64_t due);

  SimClock* const clock_;
  const std::int64_t lag_;
  std::atomic<std::uint64_t> host_waits_{0};
  std::atomic<std::int64_t> host_wait_nanoseconds_{0};
  std::atomic<std::int64_t> outstanding_markers_{0};
  std::atomic<std::int64_t> last_due_{0};
  core::Mutex mutex_;
  // When the work that a stream was made to wait for is done.
  std::unordered_map<std::uint64_t, std::int64_t> held_until_ HBM_GUARDED_BY(mutex_);
};

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_SIM_TIMELINE_H_
