// SPDX-License-Identifier: Apache-2.0
#include "strategies/idle_timer.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/signals.h"

namespace hbm::strategies {
namespace {

// The thread sleeps at least and at most this long: a program that frees all the time
// does not keep it awake, and one that frees nothing hardly wakes it.
constexpr absl::Duration kShortestSleep = absl::Milliseconds(5);
constexpr absl::Duration kLongestSleep = absl::Seconds(1);

}  // namespace

IdleTimer::IdleTimer(SimulatedClock* clock, std::function<absl::Duration()> expire)
    : clock_(clock), process_(getpid()) {
  if (clock_ != nullptr) {
    alarm_ = clock_->AddAlarm([expire = std::move(expire)] { expire(); });
    return;
  }
  thread_ = std::make_unique<Thread>();
  const core::SignalsBlocked blocked;
  thread_->thread = std::thread(&IdleTimer::Run, thread_.get(), std::move(expire));
}

IdleTimer::~IdleTimer() {
  if (clock_ != nullptr) {
    clock_->RemoveAlarm(alarm_);
    return;
  }
  if (process_ != getpid()) {
    // Neither the thread nor what it waits on can be ended properly here.
    thread_->thread.detach();
    (void)thread_.release();
    return;
  }
  {
    core::MutexLock lock(thread_->mutex);
    thread_->stop = true;
  }
  thread_->stopped.notify_all();
  thread_->thread.join();
}

void IdleTimer::Run(Thread* state, const std::function<absl::Duration()>& expire) {
  for (;;) {
    const absl::Duration sleep = std::clamp(expire(), kShortestSleep, kLongestSleep);
    core::MutexLock lock(state->mutex);
    if (!state->stop) state->stopped.wait_for(state->mutex, absl::ToChronoNanoseconds(sleep));
    if (state->stop) return;
  }
}

}  // namespace hbm::strategies
