// SPDX-License-Identifier: Apache-2.0
//
// Thrust's containers and temporary storage in an allocator's memory.
//
//   thrust::device_vector<float, HbmThrustAllocator<float>> values(n, {allocator, stream});
//   thrust::sort(thrust::cuda::par(HbmThrustAllocator<char>(allocator)).on(stream), ...);
//
// Blocks belong to the stream given: work on another one must be ordered with it.
#ifndef HBMALLOC_TESTS_EXAMPLES_THRUST_ALLOCATOR_H_
#define HBMALLOC_TESTS_EXAMPLES_THRUST_ALLOCATOR_H_

#include <thrust/device_malloc_allocator.h>
#include <thrust/device_ptr.h>

#include <cstddef>
#include <new>

#include "hbmalloc/allocator.h"
#include "hbmalloc/stream.h"

template <typename T>
class HbmThrustAllocator : public thrust::device_malloc_allocator<T> {
 public:
  using value_type = T;
  using pointer = thrust::device_ptr<T>;
  template <typename U>
  struct rebind {
    using other = HbmThrustAllocator<U>;
  };

  explicit HbmThrustAllocator(hbm::Allocator* allocator, hbm::StreamRef stream = {})
      : allocator_(allocator), stream_(stream) {}
  template <typename U>
  HbmThrustAllocator(const HbmThrustAllocator<U>& other)
      : allocator_(other.allocator()), stream_(other.stream()) {}

  pointer allocate(std::size_t count) {
    hbm::AllocateOptions options;
    options.stream = stream_;
    absl::StatusOr<void*> block = allocator_->Allocate(count * sizeof(T), options);
    if (!block.ok()) throw std::bad_alloc();
    return pointer(static_cast<T*>(*block));
  }
  void deallocate(pointer block, std::size_t /*count*/) {
    allocator_->Deallocate(block.get(), stream_).IgnoreError();
  }

  hbm::Allocator* allocator() const { return allocator_; }
  hbm::StreamRef stream() const { return stream_; }
  friend bool operator==(const HbmThrustAllocator& a, const HbmThrustAllocator& b) {
    return a.allocator_ == b.allocator_ && a.stream_ == b.stream_;
  }
  friend bool operator!=(const HbmThrustAllocator& a, const HbmThrustAllocator& b) {
    return !(a == b);
  }

 private:
  hbm::Allocator* allocator_;
  hbm::StreamRef stream_;
};

#endif  // HBMALLOC_TESTS_EXAMPLES_THRUST_ALLOCATOR_H_
