// SPDX-License-Identifier: Apache-2.0
#include "interop/torch_devices.h"

#include <pthread.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "hbmalloc/allocator.h"
#include "interop/c_handle.h"

namespace hbm::interop {
namespace {

// With the memory of the whole device, as PyTorch's own allocator has. PyTorch's host
// queues far ahead of the GPU, so that much of what is freed cannot move yet: waiting for
// it holds the pool down, and the GPU has work meanwhile.
constexpr char kPolicy[] = "elastic:memory_fraction=1,slack=0.04,reuse_wait=100ms";

struct Devices {
  std::array<std::atomic<hbm_allocator*>, kMostDevices> handles{};
  std::atomic<bool> any{false};
  std::atomic<bool> forked{false};
  std::atomic<const char*> spec_for_test{nullptr};
  core::Mutex mutex;  // for making one
};

// Leaked, allocators too: tensors are freed until the very end.
Devices& TheDevices() {
  static Devices* const devices = [] {
    pthread_atfork(nullptr, nullptr, [] {
      if (TheDevices().any.load()) TheDevices().forked.store(true);
    });
    return new Devices;
  }();
  return *devices;
}

absl::StatusOr<hbm_allocator*> Make(int device) {
  // XLA's variables say nothing to PyTorch.
  const bool is_set = std::getenv("HBMALLOC_POLICY") != nullptr;
  absl::StatusOr<Policy> policy = is_set ? PolicyFromEnv() : ParsePolicy(kPolicy);
  if (!policy.ok()) return policy.status();
  const char* const spec = TheDevices().spec_for_test.load();
  std::string name = spec != nullptr ? spec : absl::StrCat("cuda:", device);
  absl::StatusOr<std::shared_ptr<Device>> opened = OpenDevice(name);
  if (!opened.ok()) return opened.status();
  absl::StatusOr<std::unique_ptr<Allocator>> allocator = MakeAllocator(*policy, *opened);
  if (!allocator.ok()) return allocator.status();
  return NewHandle(*std::move(allocator), std::move(name));
}

}  // namespace

void SetDeviceSpecForTest(const char* spec) { TheDevices().spec_for_test.store(spec); }

bool IsForkedChild() { return TheDevices().forked.load(std::memory_order_relaxed); }

hbm_allocator* DeviceAllocatorOrNull(int device) {
  if (device < 0 || device >= kMostDevices || IsForkedChild()) return nullptr;
  return TheDevices().handles[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

absl::StatusOr<hbm_allocator*> DeviceAllocator(int device) {
  if (hbm_allocator* const handle = DeviceAllocatorOrNull(device); handle != nullptr) return handle;
  if (device < 0 || device >= kMostDevices) {
    return absl::InvalidArgumentError(absl::StrCat("device ", device, ": no GPU has that number"));
  }
  Devices& devices = TheDevices();
  if (IsForkedChild()) {
    return absl::FailedPreconditionError(
        "this process was forked from one that uses the GPU, where CUDA cannot be used: start it "
        "by "
        "spawn (torch.multiprocessing.set_start_method(\"spawn\")) or keep GPU tensors out of it");
  }
  core::MutexLock lock(devices.mutex);
  std::atomic<hbm_allocator*>& slot = devices.handles[static_cast<std::size_t>(device)];
  if (slot.load() == nullptr) {
    absl::StatusOr<hbm_allocator*> made = Make(device);
    if (!made.ok()) return made.status();
    slot.store(*made, std::memory_order_release);
    devices.any.store(true);
  }
  return slot.load();
}

}  // namespace hbm::interop
