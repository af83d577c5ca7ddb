// SPDX-License-Identifier: Apache-2.0
//
// File: cuda_source.h
//
// Memory of a GPU, for one allocator: of the device (cudaMalloc, or virtual memory
// where peers or other processes shall reach it), unified, or pinned on the host.
//
//   auto source = CudaSource::Make(gpu, policy);
//   absl::StatusOr<MemoryRange> region = (*source)->AllocateRegion(1 << 30);
#ifndef HBMALLOC_SOURCES_CUDA_CUDA_SOURCE_H_
#define HBMALLOC_SOURCES_CUDA_CUDA_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "hbmalloc/memory_source.h"
#include "hbmalloc/policy.h"
#include "hbmalloc/stream_ordered_pool.h"
#include "sources/cuda/context.h"
#include "sources/cuda/cuda_bytes.h"
#include "sources/cuda/cuda_timeline.h"
#include "sources/cuda/cuda_virtual_memory.h"
#include "sources/driver_meter.h"
#include "sources/memory_bytes.h"

namespace hbm::sources::cuda {

// What the sources of one physical GPU share.
struct Gpu {
  Gpu(const Driver& table, CUdevice handle, std::string device_name, std::string device_uuid)
      : driver(table),
        device(handle),
        name(std::move(device_name)),
        uuid(std::move(device_uuid)),
        context(table, handle),
        timeline(&context) {}

  // Total and free bytes: the one place where they are read.
  absl::StatusOr<MemoryInfo> GetMemoryInfo();

  const Driver& driver;
  const CUdevice device;
  const std::string name;  // "cuda:0"
  const std::string uuid;
  PrimaryContext context;  // dies after what needs it
  CudaTimeline timeline;
};

class CudaSource final : public MemorySource, public StreamOrderedMemory, public MemoryBytes {
 public:
  // InvalidArgument: a peer that does not exist or cannot access the device.
  static absl::StatusOr<std::shared_ptr<MemorySource>> Make(std::shared_ptr<Gpu> gpu,
                                                            const Policy& policy);
  ~CudaSource() override;

  std::string_view Name() const override { return name_; }
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override;
  std::size_t Granularity() const override { return granularity_; }
  absl::StatusOr<MemoryRange> AllocateRegion(std::size_t bytes) override;
  absl::Status ReleaseRegion(MemoryRange region) override;
  // As the driver packs them: small blocks share its granules.
  absl::StatusOr<MemoryRange> AllocateBlock(std::size_t bytes, std::size_t alignment) override;
  absl::Status ReleaseBlock(MemoryRange block) override;
  // cuMemFree of what cuMemAlloc gave is one of the driver's implicit synchronisations,
  // on every stream. To unmap is none.
  bool ReleaseBlockWaits() const override {
    return kind_ == MemoryKind::kDevice && !mapped_regions_;
  }
  absl::Status AddPeer(int ordinal) override;
  std::size_t HeldBytes() const override {
    return held_.load(std::memory_order_relaxed) + memory_.HeldBytes();
  }
  VirtualMemory* virtual_memory() override {
    return kind_ == MemoryKind::kDevice ? &memory_ : nullptr;
  }
  StreamOrderedMemory* stream_ordered_memory() override { return this; }
  Timeline* timeline() override { return &gpu_->timeline; }
  bool IsHostAccessible() const override { return kind_ != MemoryKind::kDevice; }
  DriverUse GetDriverUse() const override { return meter_.Total(); }

  absl::StatusOr<std::unique_ptr<StreamOrderedPool>> MakePool(const PoolOptions& options) override;

  absl::Status Fill(void* address, unsigned char value, std::size_t bytes,
                    StreamRef after) override {
    return bytes_.Fill(address, value, bytes, after);
  }
  absl::Status Read(const void* address, void* to, std::size_t bytes, StreamRef after) override {
    return bytes_.Read(address, to, bytes, after);
  }

 private:
  struct Held {
    std::uintptr_t base = 0;  // what the driver gave
    std::size_t bytes = 0;    // asked of the driver
  };

  CudaSource(std::shared_ptr<Gpu> gpu, const Policy& policy, MemoryPlacement placement,
             std::size_t granularity);
  absl::StatusOr<std::uintptr_t> Take(std::size_t bytes);
  absl::Status GiveBack(const Held& held);

  const std::shared_ptr<Gpu> gpu_;
  const Driver& driver_;
  const MemoryKind kind_;
  const MemoryPlacement placement_;
  std::atomic<bool> mapped_regions_;  // by virtual memory: for peers and other processes
  const std::size_t granularity_;
  const std::string name_;
  DriverMeter meter_;
  CudaVirtualMemory memory_;
  CudaBytes bytes_{&gpu_->context, &gpu_->timeline};
  absl::flat_hash_map<std::uintptr_t, Held> ranges_;
  std::atomic<std::size_t> held_{0};
};

}  // namespace hbm::sources::cuda

#endif  // HBMALLOC_SOURCES_CUDA_CUDA_SOURCE_H_
