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

// A waiter looks again a few times, each after so many pauses of 10 to 50 ns. A look
// takes the cache line from the holder, and with the lock all the books move to
// another processor: many waiters that look often would leave time for little else.
constexpr int kPauses = 64;
constexpr int kLooks = 4;
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
    if (looks < 1000) {
      Pause();
    } else {
      Nap(kFirstNapNanoseconds);
    }
  }
}

void SpinLock::LockContended() {
  int looks = 0;
  long nap = kFirstNapNanoseconds;
  do {
    if (looks < kLooks) {
      for (int i = 0; i < kPauses; ++i) Pause();
      ++looks;
    } else {
      Nap(nap);
      if (nap < kLongestNapNanoseconds) nap *= 2;
    }
  } while (taken_.load(std::memory_order_relaxed) != 0 ||
           taken_.exchange(1, std::memory_order_acquire) != 0);
}

}  // namespace hbm::core
