// SPDX-License-Identifier: Apache-2.0
//
// File: c_handle.h
//
// What an hbm_allocator is. Its memory is kept after it is destroyed, so that a call
// with a destroyed one is refused and not a crash.
#ifndef HBMALLOC_INTEROP_C_HANDLE_H_
#define HBMALLOC_INTEROP_C_HANDLE_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/c_api.h"

struct hbm_allocator {
  std::atomic<hbm::Allocator*> allocator{nullptr};  // null once destroyed
  std::string device;
  std::string policy;
};

namespace hbm::interop {

// A handle of an allocator, never freed.
hbm_allocator* NewHandle(std::unique_ptr<Allocator> allocator, std::string device);

// The living allocator of a handle.
inline Allocator* Find(const hbm_allocator* handle) {
  return handle == nullptr ? nullptr : handle->allocator.load(std::memory_order_acquire);
}
absl::Status NoAllocator(const hbm_allocator* handle);

inline StreamRef AllocationStream(hbm_stream stream) {
  return stream == HBM_STREAM_SYNCHRONIZED ? StreamRef::Synchronized()
                                           : StreamRef::FromHandle(stream);
}
inline StreamRef FreeStream(hbm_stream stream) {
  return stream == nullptr ? StreamRef::OfAllocation() : AllocationStream(stream);
}
inline hbm_stream CStream(StreamRef stream) {
  return stream.is_handle() ? stream.handle() : HBM_STREAM_SYNCHRONIZED;
}

// Guard for what needs an allocator.
template <typename Body>
auto WithAllocator(const hbm_allocator* handle, Body&& body) {
  return [handle, &body]() -> absl::Status {
    Allocator* const allocator = Find(handle);
    return allocator == nullptr ? NoAllocator(handle) : body(*allocator);
  };
}

}  // namespace hbm::interop

#endif  // HBMALLOC_INTEROP_C_HANDLE_H_
