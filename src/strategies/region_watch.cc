// SPDX-License-Identifier: Apache-2.0
#include "strategies/region_watch.h"

#include <algorithm>
#include <chrono>

namespace hbm::strategies {
namespace {

// The watches whose callbacks this thread is inside of, innermost first.
struct Frame {
  const RegionWatch* watch;
  const Frame* outer;
};
thread_local const Frame* innermost = nullptr;

bool IsInside(const RegionWatch* watch) {
  for (const Frame* frame = innermost; frame != nullptr; frame = frame->outer) {
    if (frame->watch == watch) return true;
  }
  return false;
}

}  // namespace

bool RegionWatch::Change::MayLeave(MemoryRange range) const {
  if (callback_ == nullptr) return true;
  if (watch_->IsUntold(range)) return false;
  return watch_->Call(*callback_, RegionChange::Kind::kUnmapping, range);
}

void RegionWatch::Change::Mapped(MemoryRange range) const {
  if (callback_ != nullptr) watch_->Call(*callback_, RegionChange::Kind::kMapped, range);
}

RegionWatch::Change RegionWatch::Begin() {
  Change change;
  core::MutexLock lock(mutex_);
  if (callback_ == nullptr) return change;
  change.watch_ = this;
  change.callback_ = callback_;
  ++under_way_;
  return change;
}

void RegionWatch::End() {
  core::MutexLock lock(mutex_);
  --under_way_;
  ended_.notify_all();
}

bool RegionWatch::Call(const RegionCallback& callback, RegionChange::Kind kind,
                       MemoryRange range) const {
  const Frame frame{this, innermost};
  innermost = &frame;
  const bool answer = callback({kind, range});
  innermost = frame.outer;
  return answer;
}

absl::Status RegionWatch::CheckNotInside() const {
  if (!IsInside(this)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "SetRegionCallback: called from inside the region callback, which cannot be replaced while "
      "it runs; call it when it has returned");
}

bool RegionWatch::WaitForChanges(absl::Duration timeout) {
  if (IsInside(this)) return false;
  const auto deadline = std::chrono::steady_clock::now() +
                        absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24)));
  core::MutexLock lock(mutex_);
  if (under_way_ == 0) return false;
  while (under_way_ != 0) {
    if (ended_.wait_until(mutex_, deadline) == std::cv_status::timeout) return under_way_ == 0;
  }
  return true;
}

void RegionWatch::TellAll(const RegionCallback& callback) {
  for (;;) {
    MemoryRange range;
    {
      core::MutexLock lock(mutex_);
      if (untold_.empty()) break;
      range = untold_.back();
    }
    Call(callback, RegionChange::Kind::kMapped, range);
    core::MutexLock lock(mutex_);
    untold_.pop_back();
  }
  End();
}

bool RegionWatch::IsUntold(MemoryRange range) const {
  core::MutexLock lock(mutex_);
  return std::any_of(untold_.begin(), untold_.end(),
                     [&](const MemoryRange& untold) { return untold.address == range.address; });
}

}  // namespace hbm::strategies
