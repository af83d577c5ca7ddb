// SPDX-License-Identifier: Apache-2.0
//
// File: stream_ordered_pool.h
//
// A driver's own pool, whose allocations and frees take their turn in a stream's
// work. What the strategy cuda_async stands on. CUDA devices have one; a runtime that
// has its own offers it by MemorySource::stream_ordered_memory:
//
//   hbm::StreamOrderedMemory* memory = source->stream_ordered_memory();   // null: none
//   absl::StatusOr<std::unique_ptr<hbm::StreamOrderedPool>> pool = memory->MakePool(options);
#ifndef HBMALLOC_STREAM_ORDERED_POOL_H_
#define HBMALLOC_STREAM_ORDERED_POOL_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/memory_source.h"
#include "hbmalloc/stream.h"

namespace hbm {

// Thread-safe. Sizes are bytes.
class StreamOrderedPool {
 public:
  struct Usage {
    std::size_t reserved = 0;  // held from the device
    std::size_t peak_reserved = 0;
    std::size_t used = 0;  // by allocations
  };

  // Everything allocated was freed. Waits for nothing.
  virtual ~StreamOrderedPool() = default;

  // A block that work queued on `stream` from now on may use. With Synchronized(),
  // one that no work touches any more: blocks until that is so. ResourceExhausted when
  // the device, or the pool's limit, has no room.
  virtual absl::StatusOr<void*> Allocate(std::size_t bytes, StreamRef stream) = 0;
  // Takes effect after the work queued so far on `stream`; with Synchronized(), at
  // once.
  virtual absl::Status Free(void* address, StreamRef stream) = 0;
  // Blocks until the work queued so far on `stream` is done. FailedPrecondition while
  // the stream is being captured.
  virtual absl::Status Synchronize(StreamRef stream) = 0;
  // Gives back what is free and over `keep` bytes; what a stream still has to free
  // stays.
  virtual absl::Status TrimTo(std::size_t keep) = 0;
  // How much free memory stays when streams are waited for, in place of what the
  // options said.
  virtual absl::Status SetReleaseThreshold(std::size_t bytes) = 0;
  virtual absl::StatusOr<Usage> GetUsage() const = 0;
  virtual absl::Status ResetPeak() = 0;
  // The steps in which `reserved` grows and shrinks.
  virtual std::size_t Granularity() const { return 1; }
  // Whether the driver itself keeps `reserved` at or under the limit.
  virtual bool EnforcesLimit() const = 0;
};

class StreamOrderedMemory {
 public:
  struct PoolOptions {
    std::size_t limit = 0;
    std::size_t release_threshold = 0;  // free memory above it goes back at synchronisation
  };
  virtual ~StreamOrderedMemory() = default;
  // Unimplemented: the device has no such pools.
  virtual absl::StatusOr<std::unique_ptr<StreamOrderedPool>> MakePool(
      const PoolOptions& options) = 0;
};

}  // namespace hbm

#endif  // HBMALLOC_STREAM_ORDERED_POOL_H_
