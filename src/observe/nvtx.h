// SPDX-License-Identifier: Apache-2.0
//
// File: nvtx.h
//
// Ranges for a profiler, in the NVTX domain "hbmalloc". A profiler says by the
// environment which library takes them, and only then is anything loaded; without
// the CUDA toolkit's header these do nothing.
//
//   if (ProfilerIsAttached()) { BeginRange("allocate"); ...; EndRange(); }
#ifndef HBMALLOC_OBSERVE_NVTX_H_
#define HBMALLOC_OBSERVE_NVTX_H_

namespace hbm::observe {

// Whether the environment names a library that takes NVTX calls.
bool ProfilerIsAttached();
// Ranges of a thread nest. `name` lives as long as the process.
void BeginRange(const char* name);
void EndRange();

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_NVTX_H_
