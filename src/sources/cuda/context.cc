// SPDX-License-Identifier: Apache-2.0
#include "sources/cuda/context.h"

#include "absl/strings/str_cat.h"
#include "sources/cuda/driver_status.h"

namespace hbm::sources::cuda {

PrimaryContext::~PrimaryContext() {
  // After the driver's shutdown this fails, and nothing is held any more.
  if (context_.load() != nullptr && !IsInChild()) driver_.DevicePrimaryCtxRelease(device_);
}

absl::StatusOr<CUcontext> PrimaryContext::Get() {
  CUcontext context = context_.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  core::MutexLock lock(mutex_);
  context = context_.load(std::memory_order_relaxed);
  if (context != nullptr) return context;
  const CUresult result = driver_.DevicePrimaryCtxRetain(&context, device_);
  if (result != CUDA_SUCCESS) {
    return ToStatus(driver_, result, "cuDevicePrimaryCtxRetain",
                    "the device (its context takes several hundred MiB)");
  }
  context_.store(context, std::memory_order_release);
  return context;
}

DriverScope::DriverScope(PrimaryContext* context, CaptureMode mode) : driver_(context->driver()) {
  if (context->IsInChild()) {
    // What the parent holds stays with it: there is nothing to give back here.
    shut_down_ = true;
    status_ = absl::FailedPreconditionError(
        "this process is the child of a fork of one that uses the GPU, and the driver does not "
        "work in it; start it afresh, or fork before anything uses the GPU");
    return;
  }
  const absl::StatusOr<CUcontext> wanted = context->Get();
  if (!wanted.ok()) {
    status_ = wanted.status();
    return;
  }
  CUresult result = driver_.CtxGetCurrent(&previous_);
  if (result == CUDA_SUCCESS && previous_ != *wanted) {
    result = driver_.CtxPushCurrent(*wanted);
    pushed_ = result == CUDA_SUCCESS;
  }
  if (result == CUDA_SUCCESS && mode == CaptureMode::kRelaxed) {
    result = driver_.ThreadExchangeStreamCaptureMode(&mode_);
    relaxed_ = result == CUDA_SUCCESS;
  }
  if (result != CUDA_SUCCESS) {
    shut_down_ = Classify(result) == ResultKind::kShutDown;
    status_ = ToStatus(driver_, result, "making the context current",
                       absl::StrCat("device ", context->device()));
  }
}

DriverScope::~DriverScope() {
  if (relaxed_ && mode_ != CU_STREAM_CAPTURE_MODE_RELAXED) {
    if (driver_.ThreadExchangeStreamCaptureMode(&mode_) != CUDA_SUCCESS) {
      driver_.ThreadExchangeStreamCaptureMode(&mode_);
    }
  }
  if (!pushed_) return;
  CUcontext popped = nullptr;
  // Once more, in case the failure was a passing one: the caller's context matters most.
  if (driver_.CtxPopCurrent(&popped) == CUDA_SUCCESS) return;
  if (driver_.CtxPopCurrent(&popped) != CUDA_SUCCESS) driver_.CtxSetCurrent(previous_);
}

}  // namespace hbm::sources::cuda
