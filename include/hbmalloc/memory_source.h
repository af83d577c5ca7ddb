// SPDX-License-Identifier: Apache-2.0
//
// File: memory_source.h
//
// A MemorySource is how raw memory is had from a device (XLA says
// sub-allocator): strategies carve the regions it returns. The library brings
// sources for simulated devices, host memory and CUDA; a runtime that has its
// own memory implements MemorySource and gives it to MakeAllocator:
//
//   class Arena : public hbm::MemorySource { ... };
//   auto allocator = hbm::MakeAllocator(policy, std::make_shared<Arena>());
//
// Only Name, GetMemoryInfo, AllocateRegion and ReleaseRegion must be written.
// Sources are called by one allocator, from any of its callers' threads, never
// from two at once unless the comment says otherwise, and never under the lock
// that other threads' hits need.
#ifndef HBMALLOC_MEMORY_SOURCE_H_
#define HBMALLOC_MEMORY_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "hbmalloc/stream.h"

namespace hbm {

// A contiguous run of addresses. `bytes` is a size in bytes.
struct MemoryRange {
  void* address = nullptr;
  std::size_t bytes = 0;
};

// What a device holds, in bytes. `free` is what the driver says is free now, for
// everybody on the device; it may change between two calls.
struct MemoryInfo {
  std::size_t total = 0;
  std::size_t free = 0;
};

// How often a source called its driver, and for how long in nanoseconds: wall
// time on real devices, the cost model's charge on simulated ones.
struct DriverUse {
  std::uint64_t calls = 0;
  std::uint64_t nanoseconds = 0;
};

// Tells when the work queued on a stream is done. This is the only proof that
// freed memory may be reused elsewhere, unmapped or returned: a driver gives
// none. Thread-safe.
class Timeline {
 public:
  // A point in a stream's work. Zero is "nothing to wait for".
  using Marker = std::uint64_t;

  virtual ~Timeline() = default;

  // The driver's id of a stream: equal exactly for the same living stream. In a capture
  // a stream has another id, with kCaptured set, and may be asked for it all the same.
  // Requires stream.is_handle().
  static constexpr std::uint64_t kCaptured = std::uint64_t{1} << 63;
  virtual absl::StatusOr<std::uint64_t> StreamId(StreamRef stream) = 0;

  // Marks all work queued on `stream` so far. Every marker is given to Forget.
  virtual absl::StatusOr<Marker> Record(StreamRef stream) = 0;

  // Whether the marked work is done. Does not block.
  virtual absl::StatusOr<bool> IsDone(Marker marker) = 0;

  // Whether all work queued on `stream` so far is known to be done: cheaper than a
  // marker where that is likely. Does not block. FailedPrecondition in a capture.
  virtual absl::StatusOr<bool> IsIdle(StreamRef /*stream*/) { return false; }

  // Blocks the calling thread until the marked work is done, at most `timeout`;
  // DeadlineExceeded if it is not done by then.
  virtual absl::Status WaitOnHost(Marker marker, absl::Duration timeout) = 0;

  // Makes work queued on `stream` from now on wait for the marked work, without
  // blocking the caller.
  virtual absl::Status WaitOnStream(StreamRef stream, Marker marker) = 0;

  // Returns the marker's resources. The marker must not be used again.
  virtual void Forget(Marker marker) = 0;

  // Blocks until all work on the device is done: the last resort.
  virtual absl::Status WaitForDevice() = 0;

  // Whether the stream's work is being captured for later (a CUDA graph) instead of
  // queued. Then Record and WaitOnStream on it are FailedPrecondition, and nothing
  // that would spoil the capture is called.
  virtual absl::StatusOr<bool> IsCapturing(StreamRef /*stream*/) { return false; }

  // Tells apart the captures that are going on: streams that one capture spans have
  // the same id. 0: the stream is not being captured.
  virtual absl::StatusOr<std::uint64_t> CaptureId(StreamRef /*stream*/) { return 0; }

  // A capture of this stream's work is about to begin, or has ended. Until then
  // WaitForDevice is FailedPrecondition whenever the stream is being captured: it would
  // spoil the capture.
  virtual void BeginCapture(StreamRef /*stream*/) {}
  virtual void EndCapture(StreamRef /*stream*/) {}
};

// Address ranges and physical memory apart from each other, as CUDA's virtual
// memory management does it. What `elastic` stands on. Every size and address is
// a multiple of Granularity().
class VirtualMemory {
 public:
  // Physical memory, named by the source. Zero is none.
  using Handle = std::uint64_t;

  virtual ~VirtualMemory() = default;

  // The smallest unit of physical memory and of mapping, in bytes; a power of two.
  virtual std::size_t Granularity() const = 0;

  // Reserves addresses, with no memory behind them. ResourceExhausted when the
  // address space has no room.
  virtual absl::StatusOr<MemoryRange> Reserve(std::size_t bytes) = 0;
  virtual absl::Status FreeReservation(MemoryRange range) = 0;

  // Makes physical memory. ResourceExhausted when the device has none left.
  virtual absl::StatusOr<Handle> Create(std::size_t bytes) = 0;
  // Gives physical memory back to the device. Requires that it is not mapped.
  virtual absl::Status Release(Handle handle) = 0;

  // Maps a whole handle at `address`, inside a reservation. The range cannot be
  // used before SetAccess. Map does not change the handle's owner.
  virtual absl::Status Map(void* address, Handle handle) = 0;
  // Lets the device (and the source's peers) read and write mapped addresses.
  virtual absl::Status SetAccess(MemoryRange range) = 0;
  // Unmaps whole handles. Does NOT wait for work that still uses the range: the
  // caller must know that none does. Contents are lost.
  virtual absl::Status Unmap(MemoryRange range) = 0;
};

class StreamOrderedMemory;

class MemorySource {
 public:
  virtual ~MemorySource() = default;

  // For messages: "sim", "host", "cudaMalloc on cuda:0".
  virtual std::string_view Name() const = 0;

  // Total and free bytes of what is behind the source.
  virtual absl::StatusOr<MemoryInfo> GetMemoryInfo() = 0;

  // Regions come in multiples of this many bytes; a power of two, at least 256.
  virtual std::size_t Granularity() const { return 256; }

  // Gets one contiguous region of at least `bytes` bytes, aligned to at least
  // 256 bytes. The range returned says how large it became; all of it is used.
  // ResourceExhausted when there is not enough memory: the caller may try again
  // with less. Any other error ends the attempt.
  virtual absl::StatusOr<MemoryRange> AllocateRegion(std::size_t bytes) = 0;

  // Gives back a region exactly as AllocateRegion returned it. No work that
  // touches it is in flight. An error means the region is still held.
  virtual absl::Status ReleaseRegion(MemoryRange region) = 0;

  // The same for single requests of the `platform` strategy, which a device may
  // pack more tightly than regions. The default is AllocateRegion.
  virtual absl::StatusOr<MemoryRange> AllocateBlock(std::size_t bytes, std::size_t /*alignment*/) {
    return AllocateRegion(bytes);
  }
  virtual absl::Status ReleaseBlock(MemoryRange block) { return ReleaseRegion(block); }
  // Whether ReleaseBlock itself waits until no work on the device uses the block any
  // more. Otherwise its caller does.
  virtual bool ReleaseBlockWaits() const { return false; }

  // Lets another device of the process read and write the source's memory directly, what
  // it holds and what it will hold. InvalidArgument: no such device, or one that cannot.
  // Unimplemented: not with this memory; then only from the start, if at all.
  virtual absl::Status AddPeer(int /*ordinal*/) {
    return absl::UnimplementedError("this memory source knows no peers");
  }

  // Bytes this source holds from its device now, or 0 if it does not count them
  // (then the strategy adds up the ranges it was given).
  virtual std::size_t HeldBytes() const { return 0; }

  // Null if the source cannot map physical memory (then `elastic` is refused).
  virtual VirtualMemory* virtual_memory() { return nullptr; }

  // Null if the driver behind the source has no pool of its own (then `cuda_async` is
  // refused): see stream_ordered_pool.h.
  virtual StreamOrderedMemory* stream_ordered_memory() { return nullptr; }

  // Null if work on this memory is always done when a block is freed, as on the
  // host (then every stream is as good as another).
  virtual Timeline* timeline() { return nullptr; }

  // Whether the CPU may read and write the memory.
  virtual bool IsHostAccessible() const { return false; }

  // Thread-safe.
  virtual DriverUse GetDriverUse() const { return {}; }
};

}  // namespace hbm

#endif  // HBMALLOC_MEMORY_SOURCE_H_
