// SPDX-License-Identifier: Apache-2.0
#include "sources/cuda/cuda_bytes.h"

#include <cstdint>

#include "sources/cuda/driver_status.h"

namespace hbm::sources::cuda {
namespace {

CUdeviceptr DeviceAddress(const void* address) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
}

}  // namespace

absl::StatusOr<CUstream> CudaBytes::Begin(StreamRef after) {
  const StreamRef stream = after.is_handle() ? after : StreamRef();
  const absl::StatusOr<bool> capturing = timeline_.IsCapturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (*capturing) {
    return absl::FailedPreconditionError(
        "debug: a CUDA graph is being captured on the stream, so its blocks are not checked");
  }
  if (!after.is_handle()) {
    if (absl::Status done = timeline_.WaitForDevice(); !done.ok()) return done;
  }
  return static_cast<CUstream>(stream.handle());
}

absl::Status CudaBytes::End(CUstream stream) {
  const CUresult result = driver_.StreamSynchronize(stream);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return ToStatus(driver_, result, "cuStreamSynchronize", "checking memory");
}

absl::Status CudaBytes::Fill(void* address, unsigned char value, std::size_t bytes,
                             StreamRef after) {
  const absl::StatusOr<CUstream> stream = Begin(after);
  if (!stream.ok()) return stream.status();
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  const CUresult result = driver_.MemsetD8Async(DeviceAddress(address), value, bytes, *stream);
  if (result != CUDA_SUCCESS) return ToStatus(driver_, result, "cuMemsetD8Async", "a pattern");
  return End(*stream);
}

absl::Status CudaBytes::Read(const void* address, void* to, std::size_t bytes, StreamRef after) {
  const absl::StatusOr<CUstream> stream = Begin(after);
  if (!stream.ok()) return stream.status();
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  const CUresult result =
      driver_.MemcpyAsync(DeviceAddress(to), DeviceAddress(address), bytes, *stream);
  if (result != CUDA_SUCCESS) return ToStatus(driver_, result, "cuMemcpyAsync", "a pattern");
  return End(*stream);
}

}  // namespace hbm::sources::cuda
