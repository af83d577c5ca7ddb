// SPDX-License-Identifier: Apache-2.0
#include "core/mutex.h"

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

// Pauses between two looks at the lock double up to this many; then the thread
// blocks. On a processor whose pause takes 40 ns the whole wait is under 100 us.
constexpr int kMaxPauses = 1024;

}  // namespace

void Mutex::LockContended() {
  for (int pauses = 4; pauses <= kMaxPauses; pauses *= 2) {
    for (int i = 0; i < pauses; ++i) Pause();
    if (mutex_.try_lock()) return;
  }
  mutex_.lock();
}

}  // namespace hbm::core
