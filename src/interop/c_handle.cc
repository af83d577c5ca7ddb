// SPDX-License-Identifier: Apache-2.0
#include "interop/c_handle.h"

#include <deque>
#include <utility>

#include "core/mutex.h"

namespace hbm::interop {
namespace {

struct Handles {
  core::Mutex mutex;
  std::deque<hbm_allocator> all HBM_GUARDED_BY(mutex);  // a deque moves none of its elements
};

// Leaked: static objects may destroy their allocators late.
Handles& TheHandles() {
  static Handles* const handles = new Handles;
  return *handles;
}

}  // namespace

hbm_allocator* NewHandle(std::unique_ptr<Allocator> allocator, std::string device) {
  std::string policy = ToString(allocator->policy());
  Handles& handles = TheHandles();
  core::MutexLock lock(handles.mutex);
  hbm_allocator& handle = handles.all.emplace_back();
  handle.device = std::move(device);
  handle.policy = std::move(policy);
  handle.allocator.store(allocator.release(), std::memory_order_release);
  return &handle;
}

absl::Status NoAllocator(const hbm_allocator* handle) {
  return absl::InvalidArgumentError(handle == nullptr
                                        ? "the allocator is null"
                                        : "the allocator was destroyed by hbm_allocator_destroy");
}

}  // namespace hbm::interop
