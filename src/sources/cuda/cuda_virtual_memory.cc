// SPDX-License-Identifier: Apache-2.0
#include "sources/cuda/cuda_virtual_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policy/text.h"
#include "sources/cuda/driver_status.h"

namespace hbm::sources::cuda {
namespace {

std::uintptr_t AddressOf(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
void* PointerTo(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

CUmemAllocationProp MemoryPlacement::Properties() const {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  if (exportable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

std::vector<CUmemAccessDesc> MemoryPlacement::Access() const {
  std::vector<CUmemAccessDesc> access;
  const auto allow = [&access](CUdevice who) {
    CUmemAccessDesc& entry = access.emplace_back();
    entry.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    entry.location.id = who;
    entry.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  };
  allow(device);
  for (CUdevice peer : peers) allow(peer);
  return access;
}

CudaVirtualMemory::CudaVirtualMemory(PrimaryContext* context, MemoryPlacement placement,
                                     std::size_t granularity, DriverMeter* meter)
    : context_(*context),
      driver_(context->driver()),
      granularity_(granularity),
      properties_(placement.Properties()),
      access_(placement.Access()),
      meter_(*meter) {}

CudaVirtualMemory::~CudaVirtualMemory() {
  // Once more for each, in case the first failure was a passing one.
  const auto twice = [](auto call) {
    if (!call().ok()) call().IgnoreError();
  };
  while (!mappings_.empty()) {
    const auto [address, handle] = *mappings_.begin();
    const MemoryRange range{PointerTo(address), physical_[handle].bytes};
    twice([&] { return Unmap(range); });
    mappings_.erase(address);
    physical_[handle].mapped_at = 0;
  }
  while (!physical_.empty()) {
    const Handle handle = physical_.begin()->first;
    twice([&] { return physical_.count(handle) != 0 ? Release(handle) : absl::OkStatus(); });
    physical_.erase(handle);
  }
  while (!reservations_.empty()) {
    const auto [address, bytes] = *reservations_.begin();
    const MemoryRange range{PointerTo(address), bytes};
    twice([&] { return FreeReservation(range); });
    reservations_.erase(AddressOf(range.address));
  }
}

absl::Status CudaVirtualMemory::CheckSize(std::size_t bytes) const {
  if (bytes != 0 && bytes % granularity_ == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("size ", bytes, " is not a multiple of the granularity, ", granularity_));
}

absl::Status CudaVirtualMemory::CheckMapped(MemoryRange range) const {
  const std::uintptr_t end = AddressOf(range.address) + range.bytes;
  std::uintptr_t at = AddressOf(range.address);
  for (auto it = mappings_.find(at); it != mappings_.end() && it->first == at && at < end; ++it) {
    at += physical_.at(it->second).bytes;
  }
  if (at == end && range.bytes != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%p, %d bytes: whole mapped handles must cover it", range.address, range.bytes));
}

absl::StatusOr<MemoryRange> CudaVirtualMemory::Reserve(std::size_t bytes) {
  if (absl::Status size = CheckSize(bytes); !size.ok()) return size;
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  CUdeviceptr address = 0;
  const DriverMeter::Timer timer(meter_);
  const CUresult result = driver_.MemAddressReserve(&address, bytes, granularity_, 0, 0);
  if (result != CUDA_SUCCESS) {
    return ToStatus(driver_, result, "cuMemAddressReserve", policy::FormatBytes(bytes));
  }
  reservations_[address] = bytes;
  return MemoryRange{PointerTo(address), bytes};
}

absl::Status CudaVirtualMemory::FreeReservation(MemoryRange range) {
  const auto found = reservations_.find(AddressOf(range.address));
  if (found == reservations_.end() || found->second != range.bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%p, %d bytes: no such reservation", range.address, range.bytes));
  }
  const auto mapped = mappings_.lower_bound(found->first);
  if (mapped != mappings_.end() && mapped->first < found->first + range.bytes) {
    return absl::FailedPreconditionError("the reservation still has memory mapped in it");
  }
  const DriverScope scope(&context_);
  if (!scope.release_status().ok()) return scope.status();
  const DriverMeter::Timer timer(meter_);
  absl::Status freed = ReleaseStatus(driver_, driver_.MemAddressFree(found->first, range.bytes),
                                     "cuMemAddressFree", policy::FormatBytes(range.bytes));
  if (freed.ok()) reservations_.erase(found);
  return freed;
}

absl::StatusOr<VirtualMemory::Handle> CudaVirtualMemory::Create(std::size_t bytes) {
  if (absl::Status size = CheckSize(bytes); !size.ok()) return size;
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  CUmemGenericAllocationHandle handle = 0;
  const DriverMeter::Timer timer(meter_);
  const CUresult result = driver_.MemCreate(&handle, bytes, &properties_, 0);
  if (result != CUDA_SUCCESS) {
    return ToStatus(driver_, result, "cuMemCreate", policy::FormatBytes(bytes));
  }
  physical_[handle] = Physical{bytes, 0};
  held_.fetch_add(bytes, std::memory_order_relaxed);
  return Handle{handle};
}

absl::Status CudaVirtualMemory::Release(Handle handle) {
  const auto found = physical_.find(handle);
  if (found == physical_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no physical memory has the handle ", handle));
  }
  if (found->second.mapped_at != 0) {
    return absl::FailedPreconditionError(absl::StrCat("handle ", handle, " is still mapped"));
  }
  const DriverScope scope(&context_);
  if (!scope.release_status().ok()) return scope.status();
  const DriverMeter::Timer timer(meter_);
  absl::Status released = ReleaseStatus(driver_, driver_.MemRelease(handle), "cuMemRelease",
                                        policy::FormatBytes(found->second.bytes));
  if (released.ok()) {
    held_.fetch_sub(found->second.bytes, std::memory_order_relaxed);
    physical_.erase(found);
  }
  return released;
}

absl::Status CudaVirtualMemory::Map(void* address, Handle handle) {
  const std::uintptr_t start = AddressOf(address);
  const auto found = physical_.find(handle);
  if (found == physical_.end() || found->second.mapped_at != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle ", handle, " is unknown, or mapped already"));
  }
  const std::size_t bytes = found->second.bytes;
  auto reservation = reservations_.upper_bound(start);
  if (reservation == reservations_.begin() || start % granularity_ != 0 ||
      start + bytes > std::prev(reservation)->first + std::prev(reservation)->second) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%p, %d bytes: not inside a reservation", address, bytes));
  }
  const auto next = mappings_.lower_bound(start);
  const bool over_next = next != mappings_.end() && next->first < start + bytes;
  const bool over_last = next != mappings_.begin() &&
                         std::prev(next)->first + physical_[std::prev(next)->second].bytes > start;
  if (over_next || over_last) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%p, %d bytes: memory is mapped there already", address, bytes));
  }
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  const DriverMeter::Timer timer(meter_);
  const CUresult result = driver_.MemMap(start, bytes, 0, handle, 0);
  if (result != CUDA_SUCCESS) {
    return ToStatus(driver_, result, "cuMemMap", policy::FormatBytes(bytes));
  }
  mappings_[start] = handle;
  found->second.mapped_at = start;
  return absl::OkStatus();
}

absl::Status CudaVirtualMemory::SetAccess(MemoryRange range) {
  if (absl::Status mapped = CheckMapped(range); !mapped.ok()) return mapped;
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  const DriverMeter::Timer timer(meter_);
  return ToStatus(
      driver_,
      driver_.MemSetAccess(AddressOf(range.address), range.bytes, access_.data(), access_.size()),
      "cuMemSetAccess", policy::FormatBytes(range.bytes));
}

absl::Status CudaVirtualMemory::AddPeer(CUdevice peer) {
  const auto is_known = [&](const CUmemAccessDesc& known) { return known.location.id == peer; };
  if (std::any_of(access_.begin(), access_.end(), is_known)) return absl::OkStatus();
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  std::vector<CUmemAccessDesc> access = access_;
  access.push_back(access_.front());
  access.back().location.id = peer;
  const auto set = [&](std::uintptr_t address, Handle handle) {
    const DriverMeter::Timer timer(meter_);
    return driver_.MemSetAccess(address, physical_[handle].bytes, access.data(), access.size());
  };
  for (auto it = mappings_.begin(); it != mappings_.end(); ++it) {
    const CUresult result = set(it->first, it->second);
    if (result == CUDA_SUCCESS) continue;
    access.back().flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    while (it != mappings_.begin()) {
      --it;
      set(it->first, it->second);
    }
    return ToStatus(driver_, result, "cuMemSetAccess", "a peer");
  }
  access_ = std::move(access);
  return absl::OkStatus();
}

absl::Status CudaVirtualMemory::Unmap(MemoryRange range) {
  if (absl::Status mapped = CheckMapped(range); !mapped.ok()) return mapped;
  const DriverScope scope(&context_);
  if (!scope.release_status().ok()) return scope.status();
  const DriverMeter::Timer timer(meter_);
  const std::uintptr_t start = AddressOf(range.address);
  absl::Status unmapped = ReleaseStatus(driver_, driver_.MemUnmap(start, range.bytes), "cuMemUnmap",
                                        policy::FormatBytes(range.bytes));
  if (!unmapped.ok()) return unmapped;
  for (auto it = mappings_.find(start); it != mappings_.end() && it->first < start + range.bytes;) {
    physical_[it->second].mapped_at = 0;
    it = mappings_.erase(it);
  }
  return unmapped;
}

absl::StatusOr<MemoryRange> CudaVirtualMemory::AllocateMapped(std::size_t bytes) {
  const absl::StatusOr<MemoryRange> range = Reserve(bytes);
  if (!range.ok()) return range.status();
  const absl::StatusOr<Handle> handle = Create(bytes);
  absl::Status done = handle.status();
  if (done.ok()) done = Map(range->address, *handle);
  if (done.ok()) done = SetAccess(*range);
  if (done.ok()) return *range;
  // What cannot be undone now stays in the books for the destructor.
  FreeMapped(*range).IgnoreError();
  if (handle.ok() && physical_.count(*handle) != 0 && physical_[*handle].mapped_at == 0) {
    Release(*handle).IgnoreError();
  }
  return done;
}

absl::Status CudaVirtualMemory::FreeMapped(MemoryRange range) {
  const auto found = mappings_.find(AddressOf(range.address));
  if (found != mappings_.end()) {
    const Handle handle = found->second;
    if (absl::Status unmapped = Unmap(range); !unmapped.ok()) return unmapped;
    // From here on the range is free for its owner; a handle or addresses that the
    // driver does not take back stay in the books for the destructor.
    Release(handle).IgnoreError();
  }
  FreeReservation(range).IgnoreError();
  return absl::OkStatus();
}

}  // namespace hbm::sources::cuda
