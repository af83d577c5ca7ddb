// SPDX-License-Identifier: Apache-2.0
//
// File: capture.h
//
// What the base class of the strategies keeps about capture pools: the books, and
// the lock that guards them. Held for lookups only, never around a strategy or a driver.
//
//   core::MutexLock lock(captures_->mutex);
//   captures_->pools.Find(address);
#ifndef HBMALLOC_STRATEGIES_CAPTURE_H_
#define HBMALLOC_STRATEGIES_CAPTURE_H_

#include <atomic>

#include "core/mutex.h"
#include "hbmalloc/allocator.h"
#include "strategies/capture_pools.h"

namespace hbm {

struct Allocator::Captures {
  std::atomic<bool> any{false};  // there are pools
  core::Mutex mutex;
  strategies::CapturePools pools HBM_GUARDED_BY(mutex);
};

}  // namespace hbm

#endif  // HBMALLOC_STRATEGIES_CAPTURE_H_
