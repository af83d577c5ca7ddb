// SPDX-License-Identifier: Apache-2.0
//
// File: thread_barrier.h
//
// A memory barrier in every thread of the process, asked for by one of them: those
// that do something often need none of their own.
//
//   flag_.store(1);  ThreadBarrier();  if (busy_.load()) ...   // the rare side
//   busy_.store(1, relaxed);  if (flag_.load(relaxed)) ...     // the frequent side
#ifndef HBMALLOC_CORE_THREAD_BARRIER_H_
#define HBMALLOC_CORE_THREAD_BARRIER_H_

namespace hbm::core {

// Whether the system can. ThreadSanitizer knows nothing of such barriers and would see
// races: under it the answer is no.
bool CanDoThreadBarriers();

// Requires CanDoThreadBarriers. Takes microseconds.
void ThreadBarrier();

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_THREAD_BARRIER_H_
