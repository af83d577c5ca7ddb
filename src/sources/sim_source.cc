// SPDX-License-Identifier: Apache-2.0
#include "sources/sim_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policy/text.h"

namespace hbm::sources {
namespace {

constexpr std::size_t kGranule = kSimGranuleBytes;
constexpr std::size_t kBlockUnit = 512;
// The largest block that shares a granule, once rounded up.
constexpr std::size_t kMaxShared = (std::size_t{1} << 20) - kBlockUnit;

// The address space in slices of 32 PiB, one for each source; slice 0 stays
// empty, so that no address is null. Released addresses are never used again,
// and no run of a program comes near the end of a slice.
constexpr int kSliceBits = 55;
constexpr int kSlices = 256;

constexpr std::size_t RoundUp(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

void* Pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

std::uintptr_t AddressOf(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

absl::StatusOr<int> TakeSlice(SimState& state) {
  core::MutexLock lock(state.mutex);
  for (int slice = 1; slice < kSlices; ++slice) {
    std::uint64_t& word = state.slices_in_use[slice / 64];
    const std::uint64_t bit = std::uint64_t{1} << (slice % 64);
    if ((word & bit) != 0) continue;
    word |= bit;
    return slice;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      state.name, ": a simulated device serves at most ", kSlices - 1, " allocators at once"));
}

absl::Status UnknownRange(std::string_view what, MemoryRange range) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "releasing %p, %d bytes: not a %s as this source gave it, or released already", range.address,
      range.bytes, absl::string_view(what.data(), what.size())));
}

// Removes a range from the books it is in; false if it is not there so.
bool Forget(std::unordered_map<void*, std::size_t>& ranges, MemoryRange range) {
  const auto found = ranges.find(range.address);
  if (found == ranges.end() || found->second != range.bytes) return false;
  ranges.erase(found);
  return true;
}

}  // namespace

// Virtual memory over the same capacity, addresses and meter.
class SimSource::Mapper final : public VirtualMemory {
 public:
  explicit Mapper(SimSource* source) : source_(*source) {}

  std::size_t Granularity() const override { return kGranule; }

  absl::StatusOr<MemoryRange> Reserve(std::size_t bytes) override {
    if (absl::Status size = table_.CheckSize(bytes); !size.ok()) return Failed(size);
    const absl::StatusOr<std::uintptr_t> start = source_.TakeAddresses(bytes);
    if (!start.ok()) return Failed(start.status());
    Charge(DriverCall::kAddressReserve, bytes);
    const MemoryRange range{Pointer(*start), bytes};
    table_.AddReservation(range);
    return range;
  }

  absl::Status FreeReservation(MemoryRange range) override {
    if (absl::Status removed = table_.RemoveReservation(range); !removed.ok()) {
      return Failed(removed);
    }
    Charge(DriverCall::kAddressFree, range.bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<Handle> Create(std::size_t bytes) override {
    if (absl::Status size = table_.CheckSize(bytes); !size.ok()) return Failed(size);
    if (absl::Status taken = source_.Take(bytes); !taken.ok()) return Failed(taken);
    Charge(DriverCall::kMemCreate, bytes);
    return table_.AddHandle(bytes);
  }

  absl::Status Release(Handle handle) override {
    const absl::StatusOr<std::size_t> bytes = table_.RemoveHandle(handle);
    if (!bytes.ok()) return Failed(bytes.status());
    source_.Return(*bytes);
    Charge(DriverCall::kMemRelease, *bytes);
    return absl::OkStatus();
  }

  absl::Status Map(void* address, Handle handle) override {
    const absl::StatusOr<std::size_t> bytes = table_.Map(address, handle);
    if (!bytes.ok()) return Failed(bytes.status());
    Charge(DriverCall::kMemMap, *bytes);
    return absl::OkStatus();
  }

  absl::Status SetAccess(MemoryRange range) override {
    return ChargeEach(DriverCall::kMemSetAccess, range);
  }

  absl::Status Unmap(MemoryRange range) override {
    absl::Status charged = ChargeEach(DriverCall::kMemUnmap, range);
    if (charged.ok()) table_.Unmap(range);
    return charged;
  }

 private:
  void Charge(DriverCall call, std::size_t bytes) {
    source_.meter_.Add(CostNanoseconds(call, bytes));
  }
  // One call whose cost is that of every handle in the range.
  absl::Status ChargeEach(DriverCall call, MemoryRange range) {
    const absl::StatusOr<std::vector<std::size_t>> handles = table_.HandlesIn(range);
    if (!handles.ok()) return Failed(handles.status());
    std::int64_t nanoseconds = 0;
    for (std::size_t bytes : *handles) nanoseconds += CostNanoseconds(call, bytes);
    source_.meter_.Add(nanoseconds);
    return absl::OkStatus();
  }
  absl::Status Failed(absl::Status status) {
    source_.meter_.Add(0);
    return status;
  }

  SimSource& source_;
  MappingTable table_{kGranule};
};

SimSource::SimSource(std::shared_ptr<SimState> state, MemoryKind kind, int slice)
    : state_(std::move(state)),
      slice_(slice),
      capacity_(kind == MemoryKind::kUnified ? state_->unified_capacity : state_->capacity),
      next_address_(static_cast<std::uintptr_t>(slice) << kSliceBits),
      end_address_(static_cast<std::uintptr_t>(slice + 1) << kSliceBits),
      mapper_(kind == MemoryKind::kDevice ? std::make_unique<Mapper>(this) : nullptr) {}

absl::StatusOr<std::shared_ptr<MemorySource>> SimSource::Make(std::shared_ptr<SimState> state,
                                                              MemoryKind kind) {
  if (kind == MemoryKind::kPinnedHost) {
    return absl::InvalidArgumentError(
        "memory_kind: pinned_host is not simulated; a sim device has device and unified");
  }
  const std::size_t context = state->options.context_bytes;
  if (!state->capacity.TryTake(context)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(state->name, ": no room for another context of ", policy::FormatBytes(context),
                     "; ", policy::FormatBytes(state->capacity.available()), " are free"));
  }
  const absl::StatusOr<int> slice = TakeSlice(*state);
  if (!slice.ok()) {
    state->capacity.Return(context);
    return slice.status();
  }
  return std::shared_ptr<MemorySource>(new SimSource(std::move(state), kind, *slice));
}

SimSource::~SimSource() {
  capacity_.Return(HeldBytes());
  state_->capacity.Return(state_->options.context_bytes);
  core::MutexLock lock(state_->mutex);
  state_->slices_in_use[slice_ / 64] &= ~(std::uint64_t{1} << (slice_ % 64));
}

VirtualMemory* SimSource::virtual_memory() { return mapper_.get(); }

absl::StatusOr<MemoryInfo> SimSource::GetMemoryInfo() {
  return MemoryInfo{state_->options.total_bytes, state_->capacity.available()};
}

absl::Status SimSource::Take(std::size_t bytes) {
  if (!capacity_.TryTake(bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(state_->name, ": ", policy::FormatBytes(bytes), " asked for, ",
                     policy::FormatBytes(capacity_.available()), " are free"));
  }
  held_.fetch_add(bytes, std::memory_order_relaxed);
  return absl::OkStatus();
}

void SimSource::Return(std::size_t bytes) {
  capacity_.Return(bytes);
  held_.fetch_sub(bytes, std::memory_order_relaxed);
}

absl::StatusOr<std::uintptr_t> SimSource::TakeAddresses(std::size_t bytes) {
  // Runs end 2 MiB before the next one begins, so that none can be merged.
  const std::size_t room = end_address_ - next_address_;
  if (room < kGranule || bytes > room - kGranule) {
    return absl::ResourceExhaustedError(
        absl::StrCat(state_->name, ": no addresses left for ", policy::FormatBytes(bytes)));
  }
  return std::exchange(next_address_, next_address_ + bytes + kGranule);
}

absl::StatusOr<MemoryRange> SimSource::TakeRange(std::size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a region of 0 bytes was asked for");
  if (bytes > capacity_.total()) {  // rounding up could overflow
    return absl::ResourceExhaustedError(
        absl::StrCat(state_->name, ": ", bytes, " bytes asked for, more than there are"));
  }
  bytes = RoundUp(bytes, kGranule);
  if (absl::Status taken = Take(bytes); !taken.ok()) return taken;
  const absl::StatusOr<std::uintptr_t> start = TakeAddresses(bytes);
  if (!start.ok()) {
    Return(bytes);
    return start.status();
  }
  return MemoryRange{Pointer(*start), bytes};
}

absl::StatusOr<MemoryRange> SimSource::AllocateRegion(std::size_t bytes) {
  absl::StatusOr<MemoryRange> region = TakeRange(bytes);
  meter_.Add(region.ok() ? CostNanoseconds(DriverCall::kMalloc, region->bytes) : 0);
  if (region.ok()) regions_[region->address] = region->bytes;
  return region;
}

absl::Status SimSource::ReleaseRegion(MemoryRange region) {
  if (!Forget(regions_, region)) {
    meter_.Add(0);
    return UnknownRange("region", region);
  }
  Return(region.bytes);
  meter_.Add(CostNanoseconds(DriverCall::kFree, region.bytes));
  return absl::OkStatus();
}

absl::StatusOr<MemoryRange> SimSource::AllocateBlock(std::size_t bytes, std::size_t alignment) {
  absl::StatusOr<MemoryRange> block;
  if (alignment > kGranule) {
    block = absl::InvalidArgumentError(
        absl::StrCat("alignment: ", alignment, " is over the most a driver gives, ", kGranule));
  } else if (bytes == 0 || bytes > kMaxShared) {
    block = TakeRange(bytes);
  } else {
    bytes = RoundUp(bytes, kBlockUnit);
    alignment = std::max(alignment, kBlockUnit);
    std::uintptr_t address = packer_.Place(bytes, alignment);
    if (address == 0) {
      const absl::StatusOr<MemoryRange> granule = TakeRange(kGranule);
      if (!granule.ok()) {
        meter_.Add(0);
        return granule.status();
      }
      packer_.AddGranule(AddressOf(granule->address));
      address = packer_.Place(bytes, alignment);
    }
    block = MemoryRange{Pointer(address), bytes};
  }
  meter_.Add(block.ok() ? CostNanoseconds(DriverCall::kMalloc, block->bytes) : 0);
  if (block.ok()) blocks_[block->address] = block->bytes;
  return block;
}

absl::Status SimSource::ReleaseBlock(MemoryRange block) {
  if (!Forget(blocks_, block)) {
    meter_.Add(0);
    return UnknownRange("block", block);
  }
  if (block.bytes > kMaxShared) {
    Return(block.bytes);
  } else if (packer_.Remove(AddressOf(block.address), block.bytes) != 0) {
    Return(kGranule);
  }
  meter_.Add(CostNanoseconds(DriverCall::kFree, block.bytes));
  return absl::OkStatus();
}

}  // namespace hbm::sources
