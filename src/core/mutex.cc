// SPDX-License-Identifier: Apache-2.0
#include "core/mutex.h"

#include <time.h>

#include "core/thread_barrier.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace hbm::core {
namespace {

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A waiter pauses this often before it first looks again, and twice as often each
// time; a pause is 10 to 50 ns. A look that comes too early takes the cache line
// from the holder, one that comes too late costs only the waiter.
constexpr int kFirstPauses = 32;
constexpr int kMostPauses = 1024;
// Then it naps, each time twice as long. A holder that lost its processor is not
// burnt against, and a long wait under many threads is bounded by a nap.
constexpr long kFirstNapNanoseconds = 50'000;
constexpr long kLongestNapNanoseconds = 800'000;

void Nap(long nanoseconds) {
  const timespec duration{0, nanoseconds};
  nanosleep(&duration, nullptr);
}

}  // namespace

// Runs in the lock's holder, who does not lean on it.
void SpinLock::Settle(std::uintptr_t self) {
  if (leans_to_.load(std::memory_order_relaxed) == kFirstComer) {
    leans_to_.store(CanDoThreadBarriers() ? self : kNobody, std::memory_order_relaxed);
    return;
  }
  leans_to_.store(kNobody, std::memory_order_relaxed);
  ThreadBarrier();
  for (int looks = 0; in_.load(std::memory_order_acquire) != 0; ++looks) {
    if (looks < kMostPauses) {
      Pause();
    } else {
      Nap(kFirstNapNanoseconds);
    }
  }
}

void SpinLock::LockContended() {
  int pauses = kFirstPauses;
  long nap = kFirstNapNanoseconds;
  do {
    if (pauses <= kMostPauses) {
      for (int i = 0; i < pauses; ++i) Pause();
      pauses *= 2;
    } else {
      Nap(nap);
      if (nap < kLongestNapNanoseconds) nap *= 2;
    }
  } while (taken_.load(std::memory_order_relaxed) != 0 ||
           taken_.exchange(1, std::memory_order_acquire) != 0);
}

}  // namespace hbm::core
