// SPDX-License-Identifier: Apache-2.0
#include "core/thread_barrier.h"

#include <time.h>

#if defined(__linux__)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define HBM_NO_THREAD_BARRIERS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HBM_NO_THREAD_BARRIERS 1
#endif
#endif

namespace hbm::core {
namespace {

#if defined(__linux__) && !defined(HBM_NO_THREAD_BARRIERS)
bool AskForBarriers() {
  return syscall(__NR_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}
bool TryBarrier() { return syscall(__NR_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0; }
#else
bool AskForBarriers() { return false; }
bool TryBarrier() { return false; }
#endif

}  // namespace

bool CanDoThreadBarriers() {
  static const bool can = AskForBarriers() && TryBarrier();
  return can;
}

void ThreadBarrier() {
  if (TryBarrier() || (AskForBarriers() && TryBarrier())) return;
  // It was possible before and is forbidden now, as in a sandbox that closed. A long
  // time does as well: no processor keeps a store to itself for a millisecond.
  const timespec long_time{0, 1'000'000};
  nanosleep(&long_time, nullptr);
}

}  // namespace hbm::core
