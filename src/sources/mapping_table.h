// SPDX-License-Identifier: Apache-2.0
//
// File: mapping_table.h
//
// The books of a source's virtual memory: which addresses are reserved, which
// handles exist, which is mapped where. It is also the referee: whatever breaks
// the contract of VirtualMemory is refused with an error that says what is in the
// way, so that a wrong strategy fails in a test and not on a customer's GPU.
//
//   MappingTable table(2 << 20);
//   table.AddReservation(range);
//   Handle handle = table.AddHandle(2 << 20);
//   absl::StatusOr<std::size_t> bytes = table.Map(address, handle);
//
// Not thread-safe: a source is called by one thread at a time.
#ifndef HBMALLOC_SOURCES_MAPPING_TABLE_H_
#define HBMALLOC_SOURCES_MAPPING_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/memory_source.h"

namespace hbm::sources {

class MappingTable {
 public:
  using Handle = VirtualMemory::Handle;

  explicit MappingTable(std::size_t granularity) : granularity_(granularity) {}

  // InvalidArgument unless `bytes` is a multiple of the granularity, over 0.
  absl::Status CheckSize(std::size_t bytes) const;

  void AddReservation(MemoryRange range);
  // InvalidArgument: not a reservation as it was made. FailedPrecondition:
  // something is mapped in it.
  absl::Status RemoveReservation(MemoryRange range);

  // Handles count up from 1 and are never used again.
  Handle AddHandle(std::size_t bytes);
  // The bytes of the handle that was removed. InvalidArgument: no such handle, or
  // released already. FailedPrecondition: it is mapped.
  absl::StatusOr<std::size_t> RemoveHandle(Handle handle);

  // The bytes that were mapped. InvalidArgument: off the granularity, no such
  // handle, or not wholly inside one reservation. FailedPrecondition: over a
  // mapped range, or the handle is mapped elsewhere.
  absl::StatusOr<std::size_t> Map(void* address, Handle handle);

  // The sizes of the handles that cover `range` without a hole, in address order.
  // InvalidArgument: part of it is not mapped, or an end cuts a handle.
  absl::StatusOr<std::vector<std::size_t>> HandlesIn(MemoryRange range) const;

  // Forgets the mappings in a range that HandlesIn accepts.
  void Unmap(MemoryRange range);

  std::size_t num_reservations() const { return reservations_.size(); }
  const std::unordered_map<Handle, std::size_t>& handle_bytes() const { return handle_bytes_; }
  // Start and size of each reservation.
  const std::map<std::uintptr_t, std::size_t>& reservations() const { return reservations_; }

 private:
  struct Mapping {
    std::size_t bytes;
    Handle handle;
  };

  absl::Status CheckInsideReservation(std::uintptr_t start, std::size_t bytes) const;
  absl::Status CheckUnmapped(std::uintptr_t start, std::size_t bytes) const;

  const std::size_t granularity_;
  Handle last_handle_ = 0;
  std::map<std::uintptr_t, std::size_t> reservations_;
  std::map<std::uintptr_t, Mapping> mappings_;
  std::unordered_map<Handle, std::size_t> handle_bytes_;
  std::unordered_map<Handle, std::uintptr_t> mapped_at_;
};

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_MAPPING_TABLE_H_
