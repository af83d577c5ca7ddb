// SPDX-License-Identifier: Apache-2.0
//
// File: region_watch.h
//
// Who is told when an allocator's memory comes and goes. A strategy asks and tells
// while what changes is in nobody's books, and without its locks:
//
//   RegionWatch::Change change = watch_.Begin();      // under the strategy's lock
//   if (change.is_on()) {
//     ... unlock ...
//     if (!change.MayLeave(range)) { ... it stays ... }
//   }
//
// A callback is only replaced while no change is under way, so that each one sees a
// range come before it sees it go.
#ifndef HBMALLOC_STRATEGIES_REGION_WATCH_H_
#define HBMALLOC_STRATEGIES_REGION_WATCH_H_

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "hbmalloc/region_change.h"

namespace hbm::strategies {

class RegionWatch {
 public:
  using Callback = std::shared_ptr<const RegionCallback>;

  // One change of memory, from before its first question until it is in the books.
  class Change {
   public:
    Change() = default;
    Change(Change&& other) noexcept { *this = std::move(other); }
    Change& operator=(Change&& other) noexcept {
      std::swap(watch_, other.watch_);
      std::swap(callback_, other.callback_);
      return *this;
    }
    ~Change() {
      if (watch_ != nullptr) watch_->End();
    }

    bool is_on() const { return callback_ != nullptr; }
    // The next two call the callback: not under a lock.
    bool MayLeave(MemoryRange range) const;
    void Mapped(MemoryRange range) const;

   private:
    friend class RegionWatch;
    RegionWatch* watch_ = nullptr;
    Callback callback_;
  };

  // Under the lock that the strategy holds in Replace.
  Change Begin() HBM_EXCLUDES(mutex_);

  // Replaces the callback and tells the new one of `list()`, what is held now. `lock`
  // is the strategy's, under which changes begin.
  template <typename Lockable, typename List>
  absl::Status Replace(Callback callback, Lockable& lock, List list) HBM_EXCLUDES(mutex_) {
    if (absl::Status allowed = CheckNotInside(); !allowed.ok()) return allowed;
    for (;;) {
      WaitForChanges(absl::InfiniteDuration());
      core::MutexLock held(lock);
      // Another may have begun before the lock was taken.
      if (TryReplace(callback, list)) break;
    }
    if (callback != nullptr) TellAll(*callback);
    return absl::OkStatus();
  }

  // Waits until the changes that are under way have ended; false if there were none,
  // the time was up, or this is inside one of them.
  bool WaitForChanges(absl::Duration timeout) HBM_EXCLUDES(mutex_);

 private:
  void End() HBM_EXCLUDES(mutex_);
  bool Call(const RegionCallback& callback, RegionChange::Kind kind, MemoryRange range) const;
  absl::Status CheckNotInside() const;
  template <typename List>
  bool TryReplace(const Callback& callback, List list) HBM_EXCLUDES(mutex_) {
    core::MutexLock lock(mutex_);
    if (under_way_ != 0) return false;
    callback_ = callback;
    if (callback == nullptr) return true;
    untold_ = list();
    ++under_way_;
    return true;
  }
  void TellAll(const RegionCallback& callback) HBM_EXCLUDES(mutex_);
  bool IsUntold(MemoryRange range) const HBM_EXCLUDES(mutex_);

  mutable core::Mutex mutex_;
  std::condition_variable_any ended_;
  Callback callback_ HBM_GUARDED_BY(mutex_);
  int under_way_ HBM_GUARDED_BY(mutex_) = 0;
  // What a new callback has not been told of yet: it stays until then.
  std::vector<MemoryRange> untold_ HBM_GUARDED_BY(mutex_);
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_REGION_WATCH_H_
