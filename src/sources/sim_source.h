// SPDX-License-Identifier: Apache-2.0
//
// File: sim_source.h
//
// Memory of a simulated device, for one allocator.
//
//   auto source = SimSource::Make(state, MemoryKind::kDevice);
//   absl::StatusOr<MemoryRange> region = (*source)->AllocateRegion(100 << 20);
//
// Addresses. The first region starts at a base that is a multiple of 2 MiB and
// not 0; the next one starts 2 MiB after the end of the last. A region is the
// asked size rounded up to 2 MiB. Released regions give their capacity back, but
// their addresses are not used again.
//
// Blocks of the platform strategy. A driver hands out memory in granules of 2 MiB;
// requests below 1 MiB share granules (rounded up to 512 bytes, best fit), larger
// ones get granules of their own. A granule counts as held while any block in it
// lives.
//
// Costs are those of cost_model.h. Calls that fail are counted but cost nothing:
// what a driver charges for them was not measured.
#ifndef HBMALLOC_SOURCES_SIM_SOURCE_H_
#define HBMALLOC_SOURCES_SIM_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/memory_source.h"
#include "hbmalloc/policy.h"
#include "sources/block_packer.h"
#include "sources/cost_model.h"
#include "sources/driver_meter.h"
#include "sources/mapping_table.h"
#include "sources/sim_device.h"

namespace hbm::sources {

inline constexpr std::size_t kSimGranuleBytes = std::size_t{2} << 20;

class SimSource final : public MemorySource {
 public:
  // ResourceExhausted: the context does not fit, or too many sources live.
  // InvalidArgument: a kind of memory that is not simulated.
  static absl::StatusOr<std::shared_ptr<MemorySource>> Make(std::shared_ptr<SimState> state,
                                                            MemoryKind kind);
  ~SimSource() override;

  std::string_view Name() const override { return "sim"; }
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override;
  std::size_t Granularity() const override { return kSimGranuleBytes; }
  absl::StatusOr<MemoryRange> AllocateRegion(std::size_t bytes) override;
  absl::Status ReleaseRegion(MemoryRange region) override;
  absl::StatusOr<MemoryRange> AllocateBlock(std::size_t bytes, std::size_t alignment) override;
  absl::Status ReleaseBlock(MemoryRange block) override;
  std::size_t HeldBytes() const override { return held_.load(std::memory_order_relaxed); }
  // Null for unified memory, which a driver does not map by handles.
  VirtualMemory* virtual_memory() override;
  Timeline* timeline() override { return &state_->timeline; }
  DriverUse GetDriverUse() const override { return meter_.Total(); }

 private:
  class Mapper;

  SimSource(std::shared_ptr<SimState> state, MemoryKind kind, int slice);

  // Takes `bytes`, a multiple of the granule, of the capacity.
  absl::Status Take(std::size_t bytes);
  void Return(std::size_t bytes);
  // Addresses that were never given out before.
  absl::StatusOr<std::uintptr_t> TakeAddresses(std::size_t bytes);
  absl::StatusOr<MemoryRange> TakeRange(std::size_t bytes);

  const std::shared_ptr<SimState> state_;
  const int slice_;
  Capacity& capacity_;
  std::uintptr_t next_address_;
  const std::uintptr_t end_address_;
  std::atomic<std::size_t> held_{0};
  DriverMeter meter_;
  std::unordered_map<void*, std::size_t> regions_;
  std::unordered_map<void*, std::size_t> blocks_;
  BlockPacker packer_{kSimGranuleBytes};
  std::unique_ptr<Mapper> mapper_;
};

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_SIM_SOURCE_H_
