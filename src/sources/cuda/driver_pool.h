// SPDX-License-Identifier: Apache-2.0
//
// File: driver_pool.h
//
// A pool of the CUDA driver (cuMemPoolCreate), of the allocator's own: the device's
// default pool, which other libraries use, is left alone.
//
//   auto pool = DriverPool::Make(&context, placement, {/*limit=*/8 << 30, 0}, &meter);
#ifndef HBMALLOC_SOURCES_CUDA_DRIVER_POOL_H_
#define HBMALLOC_SOURCES_CUDA_DRIVER_POOL_H_

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "hbmalloc/stream_ordered_pool.h"
#include "sources/cuda/context.h"
#include "sources/cuda/cuda_virtual_memory.h"
#include "sources/driver_meter.h"

namespace hbm::sources::cuda {

class DriverPool final : public StreamOrderedPool {
 public:
  static absl::StatusOr<std::unique_ptr<StreamOrderedPool>> Make(
      PrimaryContext* context, const MemoryPlacement& placement,
      const StreamOrderedMemory::PoolOptions& options, DriverMeter* meter);
  ~DriverPool() override;

  absl::StatusOr<void*> Allocate(std::size_t bytes, StreamRef stream) override;
  absl::Status Free(void* address, StreamRef stream) override;
  absl::Status Synchronize(StreamRef stream) override;
  absl::Status TrimTo(std::size_t keep) override;
  absl::Status SetReleaseThreshold(std::size_t bytes) override;
  absl::StatusOr<Usage> GetUsage() const override;
  absl::Status ResetPeak() override;
  std::size_t Granularity() const override { return granularity_; }
  bool EnforcesLimit() const override { return enforces_limit_; }

 private:
  // FailedPrecondition where queueing on the stream would spoil a capture.
  absl::Status CheckQueue(StreamRef stream) const;
  DriverPool(PrimaryContext* context, CUmemoryPool pool, bool enforces_limit, DriverMeter* meter)
      : context_(*context),
        driver_(context->driver()),
        pool_(pool),
        enforces_limit_(enforces_limit),
        meter_(*meter) {}
  absl::Status Configure(const MemoryPlacement& placement, std::size_t release_threshold);
  CUstream HandleOf(StreamRef stream) const {
    return stream.is_handle() ? static_cast<CUstream>(stream.handle()) : own_;
  }
  // The driver does not tell its steps (32 MiB on an H200): one block does.
  void MeasureGranularity();
  absl::StatusOr<std::size_t> Read(CUmemPool_attribute attribute) const;

  PrimaryContext& context_;
  const Driver& driver_;
  const CUmemoryPool pool_;
  // For blocks of no stream. Nothing else is ever queued on it, and it waits for none.
  CUstream own_ = nullptr;
  std::size_t granularity_ = 1;
  const bool enforces_limit_;
  DriverMeter& meter_;
};

}  // namespace hbm::sources::cuda

#endif  // HBMALLOC_SOURCES_CUDA_DRIVER_POOL_H_
