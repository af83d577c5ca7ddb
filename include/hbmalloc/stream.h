// SPDX-License-Identifier: Apache-2.0
//
// File: stream.h
//
// StreamRef names the point in a device's work queue that an allocation, a free
// or a use is ordered after. It is a plain value of pointer size: it owns
// nothing and creates nothing.
//
//   hbm::AllocateOptions options;
//   options.stream = hbm::StreamRef::FromHandle(my_cuda_stream);
//   absl::StatusOr<void*> block = allocator->Allocate(1 << 20, options);
//   ...launch kernels on my_cuda_stream...
//   allocator->Deallocate(*block).IgnoreError();  // ordered on the block's own stream
#ifndef HBMALLOC_STREAM_H_
#define HBMALLOC_STREAM_H_

#include <cstdint>

namespace hbm {

// A stream, or one of two stand-ins for "no particular stream". Cheap to copy,
// thread-compatible, never fails.
//
// Streams are told apart by the driver's stream id, not by the handle's bits: a
// handle that was destroyed and handed out again for a new stream is a new
// stream, also while work of the old one still runs. A handle given here must be
// valid during the call it is given to. It need not stay valid afterwards, with two
// exceptions, which name the stream once more: the free of a block with OfAllocation
// (what was allocated on a stream that is gone is freed with Synchronized or on
// another stream), and the free of a block that RecordUse said is used there.
class StreamRef {
 public:
  // The legacy default stream (CUDA's stream 0), the same as a null cudaStream_t.
  constexpr StreamRef() = default;

  // A given stream: a cudaStream_t or CUstream, the legacy (null or 0x1) and
  // per-thread (0x2) default streams included. On a simulated device any small
  // integer cast to a pointer names a stream.
  static StreamRef FromHandle(void* stream) {
    return StreamRef(reinterpret_cast<std::uintptr_t>(stream));
  }

  // The stream that the block was allocated on. Only for frees: as the stream of
  // an allocation it is InvalidArgument.
  static constexpr StreamRef OfAllocation() { return StreamRef(kOfAllocation); }

  // When freeing: the caller vouches that no work that touches the block is in
  // flight, so it may be reused anywhere at once. When allocating: the block is
  // handed out only from memory on which no work is in flight.
  static constexpr StreamRef Synchronized() { return StreamRef(kSynchronized); }

  constexpr bool is_of_allocation() const { return value_ == kOfAllocation; }
  constexpr bool is_synchronized() const { return value_ == kSynchronized; }
  constexpr bool is_handle() const { return value_ < kSynchronized; }

  // The handle given to FromHandle, as a driver wants it. Requires is_handle().
  void* handle() const { return reinterpret_cast<void*>(value_); }
  constexpr std::uintptr_t value() const { return value_; }

  friend constexpr bool operator==(StreamRef a, StreamRef b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(StreamRef a, StreamRef b) { return a.value_ != b.value_; }

 private:
  // No driver hands out an address in the last bytes of the address space.
  static constexpr std::uintptr_t kOfAllocation = ~std::uintptr_t{0};
  static constexpr std::uintptr_t kSynchronized = ~std::uintptr_t{0} - 1;

  explicit constexpr StreamRef(std::uintptr_t value) : value_(value) {}

  std::uintptr_t value_ = 0;
};

}  // namespace hbm

#endif  // HBMALLOC_STREAM_H_
