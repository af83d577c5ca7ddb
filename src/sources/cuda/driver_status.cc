// SPDX-License-Identifier: Apache-2.0
#include "sources/cuda/driver_status.h"

#include "absl/strings/str_cat.h"

namespace hbm::sources::cuda {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::StatusCode CodeOf(ResultKind kind) {
  switch (kind) {
    case ResultKind::kOk:
      return absl::StatusCode::kOk;
    case ResultKind::kOutOfMemory:
      return absl::StatusCode::kResourceExhausted;
    case ResultKind::kShutDown:
    case ResultKind::kUnavailable:
      return absl::StatusCode::kUnavailable;
    case ResultKind::kCapture:
      return absl::StatusCode::kFailedPrecondition;
    case ResultKind::kNotSupported:
      return absl::StatusCode::kUnimplemented;
    case ResultKind::kBadHandle:
      return absl::StatusCode::kInvalidArgument;
    case ResultKind::kSticky:
    case ResultKind::kOther:
      return absl::StatusCode::kInternal;
  }
  return absl::StatusCode::kInternal;
}

std::string_view Advice(ResultKind kind) {
  switch (kind) {
    case ResultKind::kShutDown:
      return "; the driver or the device's context has shut down";
    case ResultKind::kCapture:
      return "; a CUDA graph is being captured, do this before or after the capture";
    case ResultKind::kUnavailable:
      return "; the driver is not usable in this process (a process forked after the driver was "
             "initialised cannot use it)";
    case ResultKind::kBadHandle:
      return "; the stream is not a living stream of this device's primary context";
    case ResultKind::kSticky:
      return "; an earlier kernel or copy crashed, and the device answers every call so until the "
             "process ends: look for the crash, not for memory";
    case ResultKind::kOk:
    case ResultKind::kOutOfMemory:
    case ResultKind::kNotSupported:
    case ResultKind::kOther:
      break;
  }
  return "";
}

}  // namespace

ResultKind Classify(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return ResultKind::kOk;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return ResultKind::kOutOfMemory;
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return ResultKind::kShutDown;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_MERGE:
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
    case CUDA_ERROR_CAPTURED_EVENT:
      return ResultKind::kCapture;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_STUB_LIBRARY:
      return ResultKind::kUnavailable;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
      return ResultKind::kNotSupported;
    case CUDA_ERROR_INVALID_HANDLE:
      return ResultKind::kBadHandle;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
      return ResultKind::kSticky;
    default:
      return ResultKind::kOther;
  }
}

std::string ResultName(const Driver& driver, CUresult result) {
  const char* name = nullptr;
  if (driver.GetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "CUDA error";
  return absl::StrCat(name, " (", static_cast<int>(result), ")");
}

absl::Status ToStatus(const Driver& driver, CUresult result, std::string_view call,
                      std::string_view detail) {
  const ResultKind kind = Classify(result);
  if (kind == ResultKind::kOk) return absl::OkStatus();
  return absl::Status(CodeOf(kind), absl::StrCat(View(call), " of ", View(detail), ": ",
                                                 ResultName(driver, result), View(Advice(kind))));
}

absl::Status ReleaseStatus(const Driver& driver, CUresult result, std::string_view call,
                           std::string_view detail) {
  if (Classify(result) == ResultKind::kShutDown) return absl::OkStatus();
  return ToStatus(driver, result, call, detail);
}

}  // namespace hbm::sources::cuda
