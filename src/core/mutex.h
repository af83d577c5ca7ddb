// SPDX-License-Identifier: Apache-2.0
//
// File: mutex.h
//
// The two locks of the library, with clang's thread-safety annotations.
//
// SpinLock guards books that are touched for tens of nanoseconds. Taking it is
// one atomic operation and letting go is one plain store, a third of what a
// std::mutex costs. A thread that finds it taken stays off the holder's cache line
// for longer and longer, and then naps, so that the holder goes on at full speed
// however many wait: total throughput does not collapse. Nothing that can
// block, call a driver or call back may run under it.
//
// Mutex is std::mutex, for what takes longer.
//
//   core::SpinLock lock_;
//   int count_ HBM_GUARDED_BY(lock_);
//   { core::MutexLock lock(lock_); ++count_; }
#ifndef HBMALLOC_CORE_MUTEX_H_
#define HBMALLOC_CORE_MUTEX_H_

#include <atomic>
#include <cstdint>
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
// For a lambda that runs under the locks of the function it is written in: clang
// looks at its body alone.
#define HBM_NO_THREAD_SAFETY_ANALYSIS HBM_TSA(no_thread_safety_analysis)

namespace hbm::core {

class HBM_CAPABILITY("mutex") SpinLock {
 public:
  void Lock() HBM_ACQUIRE() {
    if (__builtin_expect(state_.exchange(1, std::memory_order_acquire) != 0, 0)) LockContended();
  }
  void Unlock() HBM_RELEASE() { state_.store(0, std::memory_order_release); }

 private:
  void LockContended();  // mutex.cc

  std::atomic<std::uint32_t> state_{0};
};

class HBM_CAPABILITY("mutex") Mutex {
 public:
  void Lock() HBM_ACQUIRE() { mutex_.lock(); }
  void Unlock() HBM_RELEASE() { mutex_.unlock(); }

  // For std::condition_variable_any.
  void lock() HBM_ACQUIRE() { Lock(); }
  void unlock() HBM_RELEASE() { Unlock(); }

 private:
  std::mutex mutex_;
};

// Holds either of them for as long as it lives.
template <typename Lockable>
class HBM_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Lockable& mutex) HBM_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() HBM_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Lockable& mutex_;
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_MUTEX_H_
