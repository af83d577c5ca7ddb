// SPDX-License-Identifier: Apache-2.0
//
// File: mutex.h
//
// The two locks of the library, with clang's thread-safety annotations.
//
// SpinLock guards books that are touched for tens of nanoseconds. As long as one
// thread alone takes it, that costs two plain stores: the lock leans to its first
// thread. The first other thread ends that for good, with one system call; from then
// on taking it is one atomic operation, still a third of what a std::mutex costs. A
// thread that finds it taken looks again a few times, and then naps for longer and longer, so that
// the holder goes on at full speed however many wait: total throughput does not collapse. Nothing
// that can block, call a driver or call back may run under it.
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
  using Held = std::atomic<std::uint32_t>;
  enum class Use { kMostlyOneThread, kManyThreads };

  explicit SpinLock(Use use = Use::kMostlyOneThread)
      : leans_to_(use == Use::kMostlyOneThread ? kFirstComer : kNobody) {}
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

  // Returns what Unlock must be given: MutexLock does it.
  //
  // The thread that the lock leans to says that it is in, and looks whether the lock
  // still leans to it; who takes that away looks, after a barrier in every thread
  // (so none is needed here), whether the thread is in. One of them sees the other.
  Held* Lock() HBM_ACQUIRE() {
    const std::uintptr_t self = ThisThread();
    if (__builtin_expect(leans_to_.load(std::memory_order_relaxed) == self, 1)) {
      in_.store(1, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      if (__builtin_expect(leans_to_.load(std::memory_order_relaxed) == self, 1)) return &in_;
      in_.store(0, std::memory_order_release);
    }
    if (__builtin_expect(taken_.exchange(1, std::memory_order_acquire) != 0, 0)) LockContended();
    if (__builtin_expect(leans_to_.load(std::memory_order_relaxed) != kNobody, 0)) Settle(self);
    return &taken_;
  }
  void Unlock(Held* held) HBM_RELEASE() { held->store(0, std::memory_order_release); }

 private:
  // Neither is the address of anything.
  static constexpr std::uintptr_t kNobody = 0;
  static constexpr std::uintptr_t kFirstComer = 1;

  static std::uintptr_t ThisThread() {
    static __thread char mark __attribute__((tls_model("initial-exec")));
    return reinterpret_cast<std::uintptr_t>(&mark);
  }
  void LockContended();              // mutex.cc
  void Settle(std::uintptr_t self);  // the first comer's, or another thread's till now

  std::atomic<std::uintptr_t> leans_to_;
  Held in_{0};     // the thread that it leans to is in; once that is over, never again
  Held taken_{0};  // another one is in
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

template <>
class HBM_SCOPED_CAPABILITY MutexLock<SpinLock> {
 public:
  explicit MutexLock(SpinLock& mutex) HBM_ACQUIRE(mutex) : mutex_(mutex), held_(mutex.Lock()) {}
  ~MutexLock() HBM_RELEASE() { mutex_.Unlock(held_); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  SpinLock& mutex_;
  SpinLock::Held* const held_;
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_MUTEX_H_
