// SPDX-License-Identifier: Apache-2.0
//
// File: host_source.h
//
// Real memory through mmap, for one allocator.
//
//   HostSource source(capacity);
//   absl::StatusOr<MemoryRange> region = source.AllocateRegion(100 << 20);
//   std::memset(region->address, 1, region->bytes);
//
// Its virtual memory behaves as a GPU's does where a program can tell: reserved
// addresses fault, so do mapped ones before SetAccess and unmapped ones after, and
// unmapping loses the contents. Handles are accounting: mapping makes no page
// move, it lets the range have pages.
#ifndef HBMALLOC_SOURCES_HOST_SOURCE_H_
#define HBMALLOC_SOURCES_HOST_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/memory_source.h"
#include "sources/capacity.h"
#include "sources/driver_meter.h"
#include "sources/mapping_table.h"

namespace hbm::sources {

// Regions and handles come in multiples of this, aligned to it, as on a GPU.
inline constexpr std::size_t kHostGranuleBytes = std::size_t{2} << 20;

class HostSource final : public MemorySource {
 public:
  explicit HostSource(std::shared_ptr<Capacity> capacity);
  // Unmaps whatever was not given back.
  ~HostSource() override;

  std::string_view Name() const override { return "host"; }
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override;
  std::size_t Granularity() const override { return kHostGranuleBytes; }
  absl::StatusOr<MemoryRange> AllocateRegion(std::size_t bytes) override;
  absl::Status ReleaseRegion(MemoryRange region) override;
  // Blocks come in multiples of the machine's page.
  absl::StatusOr<MemoryRange> AllocateBlock(std::size_t bytes, std::size_t alignment) override;
  absl::Status ReleaseBlock(MemoryRange block) override { return ReleaseRegion(block); }
  std::size_t HeldBytes() const override { return held_.load(std::memory_order_relaxed); }
  VirtualMemory* virtual_memory() override;
  bool IsHostAccessible() const override { return true; }
  // Wall time of the system calls.
  DriverUse GetDriverUse() const override { return meter_.Total(); }

 private:
  class Mapper;

  absl::Status Take(std::size_t bytes);
  void Return(std::size_t bytes);
  absl::StatusOr<MemoryRange> TakeRange(std::size_t bytes, std::size_t unit, std::size_t alignment);

  const std::shared_ptr<Capacity> capacity_;
  std::atomic<std::size_t> held_{0};
  DriverMeter meter_;
  std::unordered_map<void*, std::size_t> ranges_;
  std::unique_ptr<Mapper> mapper_;
};

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_HOST_SOURCE_H_
