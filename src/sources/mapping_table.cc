// SPDX-License-Identifier: Apache-2.0
#include "sources/mapping_table.h"

#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"

namespace hbm::sources {
namespace {

std::uintptr_t AddressOf(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

std::string Hex(std::uintptr_t address) { return absl::StrCat("0x", absl::Hex(address)); }

std::string Text(std::uintptr_t start, std::size_t bytes) {
  return absl::StrCat("[", Hex(start), ", +", bytes, " bytes)");
}

}  // namespace

absl::Status MappingTable::CheckSize(std::size_t bytes) const {
  if (bytes != 0 && bytes % granularity_ == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      bytes, " bytes: sizes of virtual memory are multiples of ", granularity_, ", over 0"));
}

void MappingTable::AddReservation(MemoryRange range) {
  reservations_[AddressOf(range.address)] = range.bytes;
}

absl::Status MappingTable::RemoveReservation(MemoryRange range) {
  const std::uintptr_t start = AddressOf(range.address);
  const auto found = reservations_.find(start);
  if (found == reservations_.end() || found->second != range.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("freeing ", Text(start, range.bytes),
                     ": not a reservation as it was made, or freed already"));
  }
  const auto mapping = mappings_.lower_bound(start);
  if (mapping != mappings_.end() && mapping->first - start < range.bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("freeing the reservation ", Text(start, range.bytes), ": ",
                     Text(mapping->first, mapping->second.bytes), " in it is still mapped"));
  }
  reservations_.erase(found);
  return absl::OkStatus();
}

MappingTable::Handle MappingTable::AddHandle(std::size_t bytes) {
  handle_bytes_[++last_handle_] = bytes;
  return last_handle_;
}

absl::StatusOr<std::size_t> MappingTable::RemoveHandle(Handle handle) {
  const auto found = handle_bytes_.find(handle);
  if (found == handle_bytes_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("releasing handle ", handle,
                                                   handle != 0 && handle <= last_handle_
                                                       ? ": it is released already"
                                                       : ": there never was such a handle"));
  }
  if (const auto mapped = mapped_at_.find(handle); mapped != mapped_at_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("releasing handle ", handle,
                                                      ": it is still mapped at ",
                                                      Hex(mapped->second), "; unmap it first"));
  }
  const std::size_t bytes = found->second;
  handle_bytes_.erase(found);
  return bytes;
}

absl::Status MappingTable::CheckInsideReservation(std::uintptr_t start, std::size_t bytes) const {
  const auto after = reservations_.upper_bound(start);
  if (after != reservations_.begin()) {
    const auto& [base, size] = *std::prev(after);
    const std::uintptr_t offset = start - base;
    if (offset < size && bytes <= size - offset) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("mapping at ", Text(start, bytes), ": not wholly inside a reservation"));
}

absl::Status MappingTable::CheckUnmapped(std::uintptr_t start, std::size_t bytes) const {
  const auto after = mappings_.upper_bound(start);
  auto clash = mappings_.end();
  if (after != mappings_.end() && after->first - start < bytes) clash = after;
  if (after != mappings_.begin()) {
    const auto before = std::prev(after);
    if (start - before->first < before->second.bytes) clash = before;
  }
  if (clash == mappings_.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("mapping at ", Text(start, bytes), ": handle ",
                                                    clash->second.handle, " is mapped at ",
                                                    Text(clash->first, clash->second.bytes)));
}

absl::StatusOr<std::size_t> MappingTable::Map(void* address, Handle handle) {
  const std::uintptr_t start = AddressOf(address);
  if (start % granularity_ != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mapping at ", Hex(start), ": the address is not a multiple of ", granularity_));
  }
  const auto found = handle_bytes_.find(handle);
  if (found == handle_bytes_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("mapping handle ", handle, " at ", Hex(start),
                                                   ": no such handle, or released already"));
  }
  if (const auto mapped = mapped_at_.find(handle); mapped != mapped_at_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("mapping handle ", handle, " at ", Hex(start),
                                                      ": it is mapped at ", Hex(mapped->second),
                                                      " already"));
  }
  const std::size_t bytes = found->second;
  if (absl::Status inside = CheckInsideReservation(start, bytes); !inside.ok()) return inside;
  if (absl::Status unmapped = CheckUnmapped(start, bytes); !unmapped.ok()) return unmapped;
  mappings_[start] = Mapping{bytes, handle};
  mapped_at_[handle] = start;
  return bytes;
}

absl::StatusOr<std::vector<std::size_t>> MappingTable::HandlesIn(MemoryRange range) const {
  const std::uintptr_t start = AddressOf(range.address);
  if (absl::Status size = CheckSize(range.bytes); !size.ok()) return size;
  if (start % granularity_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Text(start, range.bytes), ": starts off the granularity ", granularity_));
  }
  std::vector<std::size_t> sizes;
  std::size_t covered = 0;
  for (auto mapping = mappings_.find(start); covered < range.bytes; ++mapping) {
    if (mapping == mappings_.end() || mapping->first != start + covered) {
      return absl::InvalidArgumentError(
          absl::StrCat(Text(start, range.bytes), ": no handle is mapped from ",
                       Hex(start + covered), " on (it is unmapped, or inside a handle)"));
    }
    if (mapping->second.bytes > range.bytes - covered) {
      return absl::InvalidArgumentError(absl::StrCat(
          Text(start, range.bytes), ": its end cuts handle ", mapping->second.handle, " mapped at ",
          Text(mapping->first, mapping->second.bytes), "; handles go whole"));
    }
    sizes.push_back(mapping->second.bytes);
    covered += mapping->second.bytes;
  }
  return sizes;
}

void MappingTable::Unmap(MemoryRange range) {
  const std::uintptr_t start = AddressOf(range.address);
  const auto first = mappings_.lower_bound(start);
  auto last = first;
  for (; last != mappings_.end() && last->first - start < range.bytes; ++last) {
    mapped_at_.erase(last->second.handle);
  }
  mappings_.erase(first, last);
}

}  // namespace hbm::sources
