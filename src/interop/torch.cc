// SPDX-License-Identifier: Apache-2.0
#include "hbmalloc/torch.h"

#include <atomic>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "hbmalloc/allocator.h"
#include "interop/c_failure.h"
#include "interop/c_handle.h"
#include "interop/torch_devices.h"
#include "observe/log.h"

namespace hbm::interop {
namespace {

void Warn(const char* what, const absl::Status& status) noexcept {
  if (status.ok()) return;
  try {
    observe::LogWarning(absl::StrCat(what, ": ", status.message()));
  } catch (...) {  // no memory for the warning
  }
}

// Frameworks look for "CUDA out of memory" in the text.
[[noreturn]] void Throw(const absl::Status& status) {
  const bool no_memory = absl::IsResourceExhausted(status);
  throw std::runtime_error(
      absl::StrCat(no_memory ? "CUDA out of memory (hbmalloc): " : "hbmalloc: ", status.message()));
}

absl::StatusOr<void*> AllocateOn(int device, std::size_t bytes, void* stream) {
  const absl::StatusOr<hbm_allocator*> handle = DeviceAllocator(device);
  if (!handle.ok()) return handle.status();
  AllocateOptions options;
  options.stream = StreamRef::FromHandle(stream);
  return Find(*handle)->Allocate(bytes, options);
}

void FreeOn(int device, void* block, StreamRef stream) noexcept {
  if (block == nullptr) return;
  hbm_allocator* const handle = DeviceAllocatorOrNull(device);
  if (handle == nullptr) return;  // a forked child's copy of a tensor: the parent's to free
  Warn("a block could not be freed", Find(handle)->Deallocate(block, stream));
}

// The allocator that a live block is of.
template <typename Visit>
bool VisitOwner(const Visit& visit) {
  for (int device = 0; device < kMostDevices; ++device) {
    hbm_allocator* const handle = DeviceAllocatorOrNull(device);
    if (handle != nullptr && visit(*Find(handle))) return true;
  }
  return false;
}

// PyTorch's pools and ours.
struct Pools {
  struct Pool {
    CapturePool pool;
    void* stream = nullptr;
  };
  using Key = std::tuple<int, unsigned long long, unsigned long long>;  // NOLINT(runtime/int)
  std::atomic<hbm_torch_stream_function> current_stream{nullptr};
  core::Mutex mutex;
  std::map<Key, Pool> pools HBM_GUARDED_BY(mutex);
};
Pools& ThePools() {
  static Pools* const pools = new Pools;
  return *pools;
}
Pools::Key KeyOf(int device, hbm_torch_pool pool) { return {device, pool.first, pool.second}; }

void* CurrentStream(int device) {
  const hbm_torch_stream_function function = ThePools().current_stream.load();
  return function == nullptr ? nullptr : function(device);
}

absl::Status BeginPool(int device, hbm_torch_pool pool) {
  const absl::StatusOr<hbm_allocator*> handle = DeviceAllocator(device);
  if (!handle.ok()) return handle.status();
  if (ThePools().current_stream.load() == nullptr) {
    return absl::FailedPreconditionError(
        "a CUDA graph is captured, but hbm_torch_set_current_stream_function was not called, so "
        "the "
        "stream is unknown: install the allocator with hbmalloc/torch.py");
  }
  void* const stream = CurrentStream(device);
  core::MutexLock lock(ThePools().mutex);
  Pools::Pool& known = ThePools().pools[KeyOf(device, pool)];
  const absl::StatusOr<CapturePool> begun =
      Find(*handle)->BeginCapturePool(StreamRef::FromHandle(stream), known.pool);
  if (!begun.ok()) {
    if (known.pool.id == 0) ThePools().pools.erase(KeyOf(device, pool));
    return begun.status();
  }
  known = {*begun, stream};
  return absl::OkStatus();
}

absl::Status EndPool(int device, hbm_torch_pool pool) {
  hbm_allocator* const handle = DeviceAllocatorOrNull(device);
  core::MutexLock lock(ThePools().mutex);
  const auto known = ThePools().pools.find(KeyOf(device, pool));
  if (handle == nullptr || known == ThePools().pools.end()) return absl::OkStatus();
  return Find(handle)->EndCapturePool(known->second.pool);
}

// PyTorch says nothing of the stream of the last launch, and its own allocator frees a
// pool's memory with cudaFree, which waits for the device: the legacy default stream is
// ordered after all streams that are not non-blocking, so PyTorch's are.
absl::Status ReleasePool(int device, hbm_torch_pool pool) {
  hbm_allocator* const handle = DeviceAllocatorOrNull(device);
  core::MutexLock lock(ThePools().mutex);
  const auto known = ThePools().pools.find(KeyOf(device, pool));
  if (handle == nullptr || known == ThePools().pools.end()) return absl::OkStatus();
  const absl::Status status =
      Find(handle)->ReleaseCapturePool(known->second.pool, StreamRef::FromHandle(nullptr));
  if (status.ok()) ThePools().pools.erase(known);
  return status;
}

}  // namespace
}  // namespace hbm::interop

using hbm::Allocator;
using hbm::StreamRef;

void* hbm_torch_allocate(std::ptrdiff_t bytes, int device, void* stream) {
  if (bytes <= 0) return nullptr;
  absl::StatusOr<void*> block =
      hbm::interop::AllocateOn(device, static_cast<std::size_t>(bytes), stream);
  if (!block.ok()) hbm::interop::Throw(block.status());
  return *block;
}

void hbm_torch_free(void* block, std::ptrdiff_t /*bytes*/, int device, void* stream) {
  hbm::interop::FreeOn(device, block, StreamRef::FromHandle(stream));
}

void hbm_torch_init(int /*device_count*/) {}

void hbm_torch_empty_cache() {
  hbm::interop::VisitOwner([](Allocator& allocator) {
    hbm::interop::Warn("empty_cache", allocator.Trim().status());
    return false;
  });
}

void hbm_torch_set_memory_fraction(double fraction, int device) {
  const absl::StatusOr<hbm_allocator*> handle = hbm::interop::DeviceAllocator(device);
  if (!handle.ok()) hbm::interop::Throw(handle.status());
  std::size_t total = 0;
  std::size_t free = 0;
  if (hbm_device_memory((*handle)->device.c_str(), &total, &free) != HBM_OK) {
    hbm::interop::Throw(absl::InternalError(hbm_last_error()));
  }
  if (!(fraction >= 0 && fraction <= 1)) {
    hbm::interop::Throw(absl::InvalidArgumentError(
        absl::StrCat("the memory fraction is ", fraction, ": 0 to 1 is allowed")));
  }
  const auto limit = static_cast<std::size_t>(fraction * static_cast<double>(total));
  const absl::Status status = hbm::interop::Find(*handle)->SetMemoryLimit(limit);
  if (!status.ok()) hbm::interop::Throw(status);
}

void* hbm_torch_base_allocation(void* address, std::size_t* bytes) {
  void* base = nullptr;
  hbm::interop::VisitOwner([&](Allocator& allocator) {
    const absl::StatusOr<hbm::BlockInfo> info = allocator.Describe(address);
    if (!info.ok()) return false;
    base = info->address;
    if (bytes != nullptr) *bytes = info->chunk_bytes;
    return true;
  });
  return base;
}

void hbm_torch_record_stream(void* block, void* stream) {
  if (block == nullptr) return;
  hbm::interop::VisitOwner([&](Allocator& allocator) {
    return allocator.RecordUse(block, StreamRef::FromHandle(stream)).ok();
  });
}

void hbm_torch_set_current_stream_function(hbm_torch_stream_function function) {
  hbm::interop::ThePools().current_stream.store(function);
}

void hbm_torch_begin_allocate_to_pool(int device, hbm_torch_pool pool,
                                      std::function<bool(void*)> /*filter*/) {
  const absl::Status status = hbm::interop::BeginPool(device, pool);
  if (!status.ok()) hbm::interop::Throw(status);
}

void hbm_torch_end_allocate_to_pool(int device, hbm_torch_pool pool) {
  hbm::interop::Warn("the end of a graph's capture", hbm::interop::EndPool(device, pool));
}

void hbm_torch_release_pool(int device, hbm_torch_pool pool) {
  hbm::interop::Warn("the release of a graph's pool", hbm::interop::ReleasePool(device, pool));
}

hbm_allocator* hbm_torch_allocator(int device) {
  hbm_allocator* handle = nullptr;
  (void)hbm::interop::Guard([&]() -> absl::Status {
    absl::StatusOr<hbm_allocator*> found = hbm::interop::DeviceAllocator(device);
    if (found.ok()) handle = *found;
    return found.status();
  });
  return handle;
}

void* hbm_cupy_malloc(void* context, std::size_t bytes, int device) {
  void* block = nullptr;
  (void)hbm::interop::Guard([&]() -> absl::Status {
    const auto current_stream = reinterpret_cast<hbm_torch_stream_function>(context);
    void* const stream = current_stream == nullptr ? nullptr : current_stream(device);
    absl::StatusOr<void*> allocated = hbm::interop::AllocateOn(device, bytes, stream);
    if (allocated.ok()) block = *allocated;
    return allocated.status();
  });
  return block;
}

void hbm_cupy_free(void* /*context*/, void* block, int device) {
  hbm::interop::FreeOn(device, block, StreamRef::OfAllocation());
}
