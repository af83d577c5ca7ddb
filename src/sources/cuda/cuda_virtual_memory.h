// SPDX-License-Identifier: Apache-2.0
//
// File: cuda_virtual_memory.h
//
// A GPU's virtual memory: addresses and physical memory apart from each other.
//
//   CudaVirtualMemory memory(&context, MemoryPlacement{device, peers, exportable}, granule,
//   &meter); absl::StatusOr<MemoryRange> range = memory.AllocateMapped(64 << 20);
//
// It keeps the books of what it holds, and the destructor gives all of it back,
// whatever failed on the way. Not thread-safe: a source is called by one thread at
// a time.
#ifndef HBMALLOC_SOURCES_CUDA_CUDA_VIRTUAL_MEMORY_H_
#define HBMALLOC_SOURCES_CUDA_CUDA_VIRTUAL_MEMORY_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "hbmalloc/memory_source.h"
#include "sources/cuda/context.h"
#include "sources/driver_meter.h"

namespace hbm::sources::cuda {

// Where physical memory lies and who may touch it.
struct MemoryPlacement {
  CUdevice device = 0;
  std::vector<CUdevice> peers;  // may access it directly
  bool exportable = false;      // to other processes; costs a file descriptor a handle

  CUmemAllocationProp Properties() const;
  // Read and write for the device and its peers, for one call.
  std::vector<CUmemAccessDesc> Access() const;
};

class CudaVirtualMemory final : public VirtualMemory {
 public:
  CudaVirtualMemory(PrimaryContext* context, MemoryPlacement placement, std::size_t granularity,
                    DriverMeter* meter);
  ~CudaVirtualMemory() override;

  std::size_t Granularity() const override { return granularity_; }
  absl::StatusOr<MemoryRange> Reserve(std::size_t bytes) override;
  absl::Status FreeReservation(MemoryRange range) override;
  absl::StatusOr<Handle> Create(std::size_t bytes) override;
  absl::Status Release(Handle handle) override;
  absl::Status Map(void* address, Handle handle) override;
  absl::Status SetAccess(MemoryRange range) override;
  absl::Status Unmap(MemoryRange range) override;

  // What is mapped, and what will be, is the peer's too. What fails is undone.
  absl::Status AddPeer(CUdevice peer);

  // One range with one handle behind all of it. What fails on the way is undone.
  absl::StatusOr<MemoryRange> AllocateMapped(std::size_t bytes);
  // Undoes it. An error means that the range, or what is left of it, is still held;
  // calling again goes on from there.
  absl::Status FreeMapped(MemoryRange range);

  // Bytes of physical memory.
  std::size_t HeldBytes() const { return held_.load(std::memory_order_relaxed); }

 private:
  struct Physical {
    std::size_t bytes = 0;
    std::uintptr_t mapped_at = 0;  // 0: nowhere
  };

  absl::Status CheckSize(std::size_t bytes) const;
  // Whether whole handles cover the range without a hole.
  absl::Status CheckMapped(MemoryRange range) const;

  PrimaryContext& context_;
  const Driver& driver_;
  const std::size_t granularity_;
  const CUmemAllocationProp properties_;
  std::vector<CUmemAccessDesc> access_;
  DriverMeter& meter_;
  std::map<std::uintptr_t, std::size_t> reservations_;
  std::map<std::uintptr_t, Handle> mappings_;
  std::unordered_map<Handle, Physical> physical_;
  std::atomic<std::size_t> held_{0};
};

}  // namespace hbm::sources::cuda

#endif  // HBMALLOC_SOURCES_CUDA_CUDA_VIRTUAL_MEMORY_H_
