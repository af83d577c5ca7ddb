// SPDX-License-Identifier: Apache-2.0
//
// File: driver_status.h
//
// What a driver's result means to an allocator. Three things must never be taken
// for one another: memory ran out (ask again, with less), the driver has shut down
// (nothing is held any more), and a kernel crashed (nothing works any more).
//
//   absl::Status status = ToStatus(driver, result, "cuMemAlloc", "2 MiB");
//   absl::Status freed = ReleaseStatus(driver, result, "cuMemFree", "...");
#ifndef HBMALLOC_SOURCES_CUDA_DRIVER_STATUS_H_
#define HBMALLOC_SOURCES_CUDA_DRIVER_STATUS_H_

#include <cuda.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "sources/cuda/driver.h"

namespace hbm::sources::cuda {

enum class ResultKind {
  kOk,
  kOutOfMemory,
  kShutDown,      // the driver, or the device's context, is gone: process exit, or a reset
  kCapture,       // forbidden, or without meaning, while a CUDA graph is captured
  kUnavailable,   // not initialised (a forked child too), no device, busy elsewhere
  kNotSupported,  // by this device, driver or system
  kBadHandle,     // a stream that does not live, or is another device's
  kSticky,        // an earlier kernel crashed: every later call fails the same way
  kOther,
};

ResultKind Classify(CUresult result);

// "CUDA_ERROR_OUT_OF_MEMORY (2)".
std::string ResultName(const Driver& driver, CUresult result);

// ResourceExhausted for out of memory, Unavailable for a driver that is gone or not
// initialised, FailedPrecondition in capture, Unimplemented for what is not
// supported, InvalidArgument for a bad handle; Internal for the rest, with a word
// of its own for sticky errors. `detail` says what the call was about.
absl::Status ToStatus(const Driver& driver, CUresult result, std::string_view call,
                      std::string_view detail);

// The same for calls that give something back: after shutdown there is nothing left
// to give back, so that is success.
absl::Status ReleaseStatus(const Driver& driver, CUresult result, std::string_view call,
                           std::string_view detail);

}  // namespace hbm::sources::cuda

#endif  // HBMALLOC_SOURCES_CUDA_DRIVER_STATUS_H_
