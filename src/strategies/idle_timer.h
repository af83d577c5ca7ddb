// SPDX-License-Identifier: Apache-2.0
//
// File: idle_timer.h
//
// Calls a function when something may have been idle for long enough, without any call
// of the allocator: from a thread of its own, or on a simulated device whenever its
// clock is moved.
//
//   IdleTimer timer(clock, [this] { return ReleaseDue(); });   // time until more is due
//
// The function runs under no lock, never twice at once. Destroying the timer waits for
// it to return.
#ifndef HBMALLOC_STRATEGIES_IDLE_TIMER_H_
#define HBMALLOC_STRATEGIES_IDLE_TIMER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "core/mutex.h"
#include "hbmalloc/device.h"

namespace hbm::strategies {

class IdleTimer {
 public:
  // `clock` is null where time is real, and must outlive the timer.
  IdleTimer(SimulatedClock* clock, std::function<absl::Duration()> expire);
  ~IdleTimer();
  IdleTimer(const IdleTimer&) = delete;
  IdleTimer& operator=(const IdleTimer&) = delete;

 private:
  struct Thread {
    core::Mutex mutex;
    std::condition_variable_any stopped;
    bool stop HBM_GUARDED_BY(mutex) = false;
    std::thread thread;
  };
  static void Run(Thread* state, const std::function<absl::Duration()>& expire);

  SimulatedClock* const clock_;
  std::uint64_t alarm_ = 0;
  std::unique_ptr<Thread> thread_;
  const std::int64_t process_;  // a child of fork has no such thread
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_IDLE_TIMER_H_
