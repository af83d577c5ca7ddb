// SPDX-License-Identifier: Apache-2.0
#include "sources/cuda/driver_pool.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policy/text.h"
#include "sources/cuda/driver_status.h"

namespace hbm::sources::cuda {
namespace {

// The legacy default stream is null or this.
constexpr std::uintptr_t kLegacyHandle = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<StreamOrderedPool>> DriverPool::Make(
    PrimaryContext* context, const MemoryPlacement& placement,
    const StreamOrderedMemory::PoolOptions& options, DriverMeter* meter) {
  const Driver& driver = context->driver();
  const DriverScope scope(context);
  if (!scope.status().ok()) return scope.status();
  int supported = 0;
  CUresult result = driver.DeviceGetAttribute(
      &supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, placement.device);
  if (result != CUDA_SUCCESS) return ToStatus(driver, result, "cuDeviceGetAttribute", "pools");
  if (supported == 0) {
    return absl::UnimplementedError(
        "strategy: cuda_async needs a device with memory pools; bfc, on_demand and elastic do not");
  }
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = placement.device;
  if (placement.exportable) properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.maxSize = options.limit;
  CUmemoryPool pool = nullptr;
  result = driver.MemPoolCreate(&pool, &properties);
  if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED) {
    // Drivers before 12.3 know no such limit; the strategy keeps its own books.
    properties.maxSize = 0;
    result = driver.MemPoolCreate(&pool, &properties);
  }
  if (result != CUDA_SUCCESS) return ToStatus(driver, result, "cuMemPoolCreate", "a pool");
  std::unique_ptr<DriverPool> made(new DriverPool(context, pool, properties.maxSize != 0, meter));
  if (absl::Status set = made->Configure(placement, options.release_threshold); !set.ok()) {
    return set;
  }
  made->MeasureGranularity();
  return std::unique_ptr<StreamOrderedPool>(std::move(made));
}

absl::Status DriverPool::Configure(const MemoryPlacement& placement,
                                   std::size_t release_threshold) {
  cuuint64_t threshold = release_threshold;
  CUresult result =
      driver_.MemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
  if (result == CUDA_SUCCESS && !placement.peers.empty()) {
    std::vector<CUmemAccessDesc> access = placement.Access();
    access.erase(access.begin());  // the device's own access cannot be changed
    result = driver_.MemPoolSetAccess(pool_, access.data(), access.size());
  }
  if (result == CUDA_SUCCESS) result = driver_.StreamCreate(&own_, CU_STREAM_NON_BLOCKING);
  return ToStatus(driver_, result, "setting up", "a pool");
}

void DriverPool::MeasureGranularity() {
  const absl::StatusOr<void*> block = Allocate(1, StreamRef::Synchronized());
  if (!block.ok()) return;  // a device that is full: the strategy finds that out
  const absl::StatusOr<std::size_t> reserved = Read(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  if (reserved.ok() && *reserved != 0) granularity_ = *reserved;
  // Once more, in case the first failure was a passing one.
  if (!Free(*block, StreamRef::Synchronized()).ok()) {
    Free(*block, StreamRef::Synchronized()).IgnoreError();
  }
  Synchronize(StreamRef::Synchronized()).IgnoreError();
  TrimTo(0).IgnoreError();
  ResetPeak().IgnoreError();
}

DriverPool::~DriverPool() {
  const DriverScope scope(&context_);
  // Once more, in case the first failure was a passing one.
  if (own_ != nullptr && driver_.StreamDestroy(own_) != CUDA_SUCCESS) driver_.StreamDestroy(own_);
  if (driver_.MemPoolDestroy(pool_) != CUDA_SUCCESS) driver_.MemPoolDestroy(pool_);
}

// While a stream is captured that the legacy default stream is ordered with, to queue
// anything there is refused and spoils the capture; to ask is allowed.
absl::Status DriverPool::CheckQueue(StreamRef stream) const {
  if (!stream.is_handle() || stream.value() > kLegacyHandle) return absl::OkStatus();
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  return ToStatus(driver_, driver_.StreamIsCapturing(HandleOf(stream), &capture),
                  "cuStreamIsCapturing", "the default stream");
}

// Relaxed: in a capture of the strict modes the driver refuses both calls on any stream,
// and the capture is lost.
absl::StatusOr<void*> DriverPool::Allocate(std::size_t bytes, StreamRef stream) {
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  if (absl::Status free = CheckQueue(stream); !free.ok()) return free;
  CUdeviceptr address = 0;
  CUresult result;
  {
    const DriverMeter::Timer timer(meter_);
    result = driver_.MemAllocFromPoolAsync(&address, bytes, pool_, HandleOf(stream));
  }
  if (result != CUDA_SUCCESS) {
    return ToStatus(driver_, result, "cuMemAllocFromPoolAsync", policy::FormatBytes(bytes));
  }
  if (!stream.is_handle()) {
    // What earlier work may still touch is given in the order of our own stream.
    if (absl::Status done = Synchronize(stream); !done.ok()) {
      driver_.MemFreeAsync(address, own_);
      return done;
    }
  }
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

absl::Status DriverPool::Free(void* address, StreamRef stream) {
  const DriverScope scope(&context_);
  if (!scope.release_status().ok()) return scope.status();
  if (absl::Status free = CheckQueue(stream); absl::IsFailedPrecondition(free)) return free;
  const DriverMeter::Timer timer(meter_);
  const CUresult result =
      driver_.MemFreeAsync(reinterpret_cast<CUdeviceptr>(address), HandleOf(stream));
  return ReleaseStatus(driver_, result, "cuMemFreeAsync", absl::StrFormat("%p", address));
}

absl::Status DriverPool::Synchronize(StreamRef stream) {
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = driver_.StreamIsCapturing(HandleOf(stream), &capture);
  if (result == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return absl::FailedPreconditionError("the stream is being captured and cannot be waited for");
  }
  const DriverMeter::Timer timer(meter_);
  if (result == CUDA_SUCCESS) result = driver_.StreamSynchronize(HandleOf(stream));
  return ReleaseStatus(driver_, result, "cuStreamSynchronize", "a stream");
}

absl::Status DriverPool::TrimTo(std::size_t keep) {
  const DriverScope scope(&context_);
  if (!scope.release_status().ok()) return scope.status();
  const DriverMeter::Timer timer(meter_);
  return ReleaseStatus(driver_, driver_.MemPoolTrimTo(pool_, keep), "cuMemPoolTrimTo",
                       policy::FormatBytes(keep));
}

absl::Status DriverPool::SetReleaseThreshold(std::size_t bytes) {
  const DriverScope scope(&context_);
  if (!scope.release_status().ok()) return scope.status();
  cuuint64_t threshold = bytes;
  return ReleaseStatus(
      driver_, driver_.MemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
      "cuMemPoolSetAttribute", "a pool");
}

absl::StatusOr<std::size_t> DriverPool::Read(CUmemPool_attribute attribute) const {
  const DriverScope scope(&context_);  // even to read spoils a capture, but in relaxed mode
  if (!scope.status().ok()) return scope.status();
  cuuint64_t value = 0;
  const CUresult result = driver_.MemPoolGetAttribute(pool_, attribute, &value);
  if (result != CUDA_SUCCESS) return ToStatus(driver_, result, "cuMemPoolGetAttribute", "a pool");
  return static_cast<std::size_t>(value);
}

absl::StatusOr<StreamOrderedPool::Usage> DriverPool::GetUsage() const {
  const absl::StatusOr<std::size_t> reserved = Read(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  if (!reserved.ok()) return reserved.status();
  const absl::StatusOr<std::size_t> peak = Read(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
  if (!peak.ok()) return peak.status();
  const absl::StatusOr<std::size_t> used = Read(CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  if (!used.ok()) return used.status();
  return Usage{*reserved, *peak, *used};
}

absl::Status DriverPool::ResetPeak() {
  const DriverScope scope(&context_);
  if (!scope.release_status().ok()) return scope.status();
  cuuint64_t zero = 0;
  return ReleaseStatus(driver_,
                       driver_.MemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero),
                       "cuMemPoolSetAttribute", "a pool");
}

}  // namespace hbm::sources::cuda
