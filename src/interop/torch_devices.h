// SPDX-License-Identifier: Apache-2.0
//
// File: torch_devices.h
//
// One allocator per device for PyTorch and CuPy, made at the device's first request.
//
//   absl::StatusOr<hbm_allocator*> handle = DeviceAllocator(ordinal);
#ifndef HBMALLOC_INTEROP_TORCH_DEVICES_H_
#define HBMALLOC_INTEROP_TORCH_DEVICES_H_

#include <atomic>

#include "absl/status/statusor.h"
#include "hbmalloc/c_api.h"

namespace hbm::interop {

inline constexpr int kMostDevices = 128;

// FailedPrecondition in a process that was forked after the first allocator was made.
// Thread-safe; without a lock once the allocator is there.
absl::StatusOr<hbm_allocator*> DeviceAllocator(int device);

// The allocator if there is one already. Null in a forked child.
hbm_allocator* DeviceAllocatorOrNull(int device);

// Whether this process was forked from one that had allocators.
bool IsForkedChild();

// Tests have no GPU: from now on every device is made by this spec; before the first one.
void SetDeviceSpecForTest(const char* spec);

}  // namespace hbm::interop

#endif  // HBMALLOC_INTEROP_TORCH_DEVICES_H_
