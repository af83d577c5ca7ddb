// SPDX-License-Identifier: Apache-2.0
//
// File: device_memory_allocator.h
//
// The shape of XLA's DeviceMemoryAllocator, for code that is ported from XLA: allocation
// by device ordinal and memory space, a retry flag, and a handle that owns.
//
//   hbm::DeviceMemoryAllocator memory;
//   memory.AddMemorySpace(0, &device_set).IgnoreError();
//   absl::StatusOr<hbm::OwningDeviceMemory> block = memory.Allocate(/*device_ordinal=*/0, bytes);
//   Launch(**block);                               // freed when it goes out of scope
#ifndef HBMALLOC_DEVICE_MEMORY_ALLOCATOR_H_
#define HBMALLOC_DEVICE_MEMORY_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/allocator_set.h"

namespace hbm {

class DeviceMemoryAllocator;

// Null by default, and for zero bytes. Frees through its allocator, which must outlive
// it. Movable.
class OwningDeviceMemory {
 public:
  OwningDeviceMemory() = default;
  ~OwningDeviceMemory();
  OwningDeviceMemory(OwningDeviceMemory&& other) noexcept { Swap(other); }
  OwningDeviceMemory& operator=(OwningDeviceMemory&& other) noexcept {
    OwningDeviceMemory(std::move(other)).Swap(*this);
    return *this;
  }

  void* operator*() const { return data_; }
  void* opaque() const { return data_; }
  std::uint64_t size() const { return bytes_; }
  bool is_null() const { return data_ == nullptr; }
  int device_ordinal() const { return ordinal_; }
  std::int64_t memory_space() const { return memory_space_; }
  DeviceMemoryAllocator* allocator() const { return allocator_; }

  // Frees now, and says what went wrong.
  absl::Status Free();
  // Gives the block up to the caller, who frees it.
  void* Release() { return std::exchange(data_, nullptr); }

 private:
  friend class DeviceMemoryAllocator;
  void Swap(OwningDeviceMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(ordinal_, other.ordinal_);
    std::swap(memory_space_, other.memory_space_);
    std::swap(allocator_, other.allocator_);
  }

  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  int ordinal_ = -1;
  std::int64_t memory_space_ = 0;
  DeviceMemoryAllocator* allocator_ = nullptr;
};

// Adding memory spaces comes first and is not thread-safe; all else is.
class DeviceMemoryAllocator {
 public:
  DeviceMemoryAllocator() = default;
  DeviceMemoryAllocator(const DeviceMemoryAllocator&) = delete;
  DeviceMemoryAllocator& operator=(const DeviceMemoryAllocator&) = delete;

  // Space 0 is the default one. The set must outlive this. InvalidArgument: null, or a
  // space that is there already.
  absl::Status AddMemorySpace(std::int64_t memory_space, const AllocatorSet* devices) {
    if (devices == nullptr || !spaces_.emplace(memory_space, Space{devices, {}}).second) {
      return absl::InvalidArgumentError("a memory space is added once, and with allocators");
    }
    return absl::OkStatus();
  }

  // The stream that a device's blocks are allocated and freed in the order of: XLA's
  // compute stream. The legacy default one unless it is set.
  absl::Status SetStream(int device_ordinal, StreamRef stream) {
    for (auto& [number, space] : spaces_) space.streams[device_ordinal] = stream;
    return absl::OkStatus();
  }
  StreamRef GetStream(int device_ordinal) const {
    return spaces_.empty() ? StreamRef() : spaces_.begin()->second.StreamOf(device_ordinal);
  }

  // retry_on_failure: whether the policy's max_wait applies; without it a request never
  // waits for memory. InvalidArgument: no such space or ordinal.
  absl::StatusOr<OwningDeviceMemory> Allocate(int device_ordinal, std::uint64_t size,
                                              bool retry_on_failure = true,
                                              std::int64_t memory_space = 0) {
    const auto space = spaces_.find(memory_space);
    if (space == spaces_.end()) return absl::InvalidArgumentError("no such memory space");
    AllocateOptions options;
    options.stream = space->second.StreamOf(device_ordinal);
    if (!retry_on_failure) options.max_wait = absl::ZeroDuration();
    absl::StatusOr<void*> block =
        space->second.devices->Allocate(device_ordinal, static_cast<std::size_t>(size), options);
    if (!block.ok()) return block.status();
    OwningDeviceMemory owner;
    owner.data_ = *block;
    owner.bytes_ = *block == nullptr ? 0 : size;
    owner.ordinal_ = device_ordinal;
    owner.memory_space_ = memory_space;
    owner.allocator_ = this;
    return owner;
  }

  // Of a block that was released from its owner. Null is OK.
  absl::Status Deallocate(int device_ordinal, void* block, std::int64_t memory_space = 0) {
    if (block == nullptr) return absl::OkStatus();
    const auto space = spaces_.find(memory_space);
    if (space == spaces_.end()) return absl::InvalidArgumentError("no such memory space");
    return space->second.devices->Deallocate(device_ordinal, block,
                                             space->second.StreamOf(device_ordinal));
  }

  // The host may free as soon as it has queued the work that uses a block.
  bool AllowsAsynchronousDeallocation() const { return true; }

 private:
  struct Space {
    const AllocatorSet* devices;
    std::map<int, StreamRef> streams;
    StreamRef StreamOf(int ordinal) const {
      const auto found = streams.find(ordinal);
      return found == streams.end() ? StreamRef() : found->second;
    }
  };
  std::map<std::int64_t, Space> spaces_;
};

inline absl::Status OwningDeviceMemory::Free() {
  if (data_ == nullptr) return absl::OkStatus();
  return allocator_->Deallocate(ordinal_, std::exchange(data_, nullptr), memory_space_);
}
inline OwningDeviceMemory::~OwningDeviceMemory() { Free().IgnoreError(); }

}  // namespace hbm

#endif  // HBMALLOC_DEVICE_MEMORY_ALLOCATOR_H_
