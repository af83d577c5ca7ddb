// SPDX-License-Identifier: Apache-2.0
//
// File: mutex.h
//
// The one lock of the library: std::mutex with clang's thread-safety annotations.
// It spins a little before it blocks, with growing pauses, because what it
// guards takes tens of nanoseconds: a waiter that stays off the holder's cache
// line lets the holder finish many operations at full speed.
//
//   core::Mutex mutex_;
//   int count_ HBM_GUARDED_BY(mutex_);
//   { core::MutexLock lock(mutex_); ++count_; }
#ifndef HBMALLOC_CORE_MUTEX_H_
#define HBMALLOC_CORE_MUTEX_H_

#include <mutex>

#if defined(__clang__)
#define HBM_TSA(x) __attribute__((x))
#else
#define HBM_TSA(x)
#endif
#define HBM_CAPABILITY(name) HBM_TSA(capability(name))
#define HBM_SCOPED_CAPABILITY HBM_TSA(scoped_lockable)
#define HBM_GUARDED_BY(mutex) HBM_TSA(guarded_by(mutex))
#define HBM_PT_GUARDED_BY(mutex) HBM_TSA(pt_guarded_by(mutex))
#define HBM_REQUIRES(...) HBM_TSA(requires_capability(__VA_ARGS__))
#define HBM_EXCLUDES(...) HBM_TSA(locks_excluded(__VA_ARGS__))
#define HBM_ACQUIRE(...) HBM_TSA(acquire_capability(__VA_ARGS__))
#define HBM_RELEASE(...) HBM_TSA(release_capability(__VA_ARGS__))
#define HBM_TRY_ACQUIRE(...) HBM_TSA(try_acquire_capability(__VA_ARGS__))
#define HBM_NO_THREAD_SAFETY_ANALYSIS HBM_TSA(no_thread_safety_analysis)

namespace hbm::core {

class HBM_CAPABILITY("mutex") Mutex {
 public:
  void Lock() HBM_ACQUIRE() {
    if (!mutex_.try_lock()) LockContended();
  }
  void Unlock() HBM_RELEASE() { mutex_.unlock(); }
  bool TryLock() HBM_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

  // For std::condition_variable_any.
  void lock() HBM_ACQUIRE() { Lock(); }
  void unlock() HBM_RELEASE() { Unlock(); }

 private:
  void LockContended();  // mutex.cc

  std::mutex mutex_;
};

class HBM_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HBM_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() HBM_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_MUTEX_H_
