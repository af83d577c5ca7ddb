// SPDX-License-Identifier: Apache-2.0
//
// File: context.h
//
// A device's primary context, and the scope in which the driver is called.
//
//   PrimaryContext context(driver, device);
//   DriverScope scope(&context);
//   if (!scope.status().ok()) return scope.status();
//   driver.MemAlloc(&address, bytes);        // on that device
//
// Leaving the scope leaves the caller's thread as it was: its current context and
// its stream capture mode.
#ifndef HBMALLOC_SOURCES_CUDA_CONTEXT_H_
#define HBMALLOC_SOURCES_CUDA_CONTEXT_H_

#include <cuda.h>

#include <atomic>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/forked.h"
#include "core/mutex.h"
#include "sources/cuda/driver.h"

namespace hbm::sources::cuda {

// The context that the CUDA runtime uses too. It is taken when it is first needed,
// because making it costs hundreds of MiB of device memory, and kept until the
// object dies. Thread-safe.
class PrimaryContext {
 public:
  PrimaryContext(const Driver& driver, CUdevice device) : driver_(driver), device_(device) {}
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  absl::StatusOr<CUcontext> Get();
  // Whether this is the child of a fork of the process that made the object: a driver
  // does not work there.
  bool IsInChild() const { return made_in_ != core::ForkGeneration(); }
  const Driver& driver() const { return driver_; }
  CUdevice device() const { return device_; }

 private:
  const Driver& driver_;
  const CUdevice device_;
  const std::uint32_t made_in_ = core::ForkGeneration();
  std::atomic<CUcontext> context_{nullptr};
  core::Mutex mutex_;  // for taking it only
};

// Makes the context current for as long as it lives, and sets the thread's capture
// mode to relaxed: calls that would otherwise spoil a graph capture of this thread
// or another one (allocating, querying an event) are allowed then, because they
// neither enter the graph nor depend on it.
class DriverScope {
 public:
  enum class CaptureMode {
    kRelaxed,
    kAsItIs,  // for calls that every mode allows: two calls of the driver less
  };
  explicit DriverScope(PrimaryContext* context, CaptureMode mode = CaptureMode::kRelaxed);
  ~DriverScope();
  DriverScope(const DriverScope&) = delete;
  DriverScope& operator=(const DriverScope&) = delete;

  const absl::Status& status() const { return status_; }
  // For calls that give something back: after shutdown they go on, and find that
  // there is nothing left to give back.
  const absl::Status& release_status() const {
    static const absl::Status* const kNothingHeld = new absl::Status;
    return shut_down_ ? *kNothingHeld : status_;
  }

 private:
  const Driver& driver_;
  absl::Status status_;
  CUcontext previous_ = nullptr;
  bool shut_down_ = false;
  bool pushed_ = false;
  bool relaxed_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace hbm::sources::cuda

#endif  // HBMALLOC_SOURCES_CUDA_CONTEXT_H_
