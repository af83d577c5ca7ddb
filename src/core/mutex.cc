// SPDX-License-Identifier: Apache-2.0
#include "core/mutex.h"

#include <time.h>

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

}  // namespace

void SpinLock::LockContended() {
  int pauses = kFirstPauses;
  long nap = kFirstNapNanoseconds;
  do {
    if (pauses <= kMostPauses) {
      for (int i = 0; i < pauses; ++i) Pause();
      pauses *= 2;
    } else {
      const timespec duration{0, nap};
      nanosleep(&duration, nullptr);
      if (nap < kLongestNapNanoseconds) nap *= 2;
    }
  } while (state_.load(std::memory_order_relaxed) != 0 ||
           state_.exchange(1, std::memory_order_acquire) != 0);
}

}  // namespace hbm::core
