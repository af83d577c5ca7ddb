// SPDX-License-Identifier: Apache-2.0
//
// File: pmr.h
//
// Host memory for the standard library's containers: the machine's own, or pinned, which
// a GPU copies from and to without a detour.
//
//   absl::StatusOr<std::unique_ptr<std::pmr::memory_resource>> pinned =
//       hbm::MakeMemoryResource(*hbm::ParsePolicy("elastic:memory_kind=pinned_host"), device);
//   std::pmr::vector<float> batch(1024, pinned->get());
#ifndef HBMALLOC_PMR_H_
#define HBMALLOC_PMR_H_

#include <memory>
#include <memory_resource>

#include "absl/status/statusor.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/device.h"
#include "hbmalloc/policy.h"

namespace hbm {

// As MakeAllocator; InvalidArgument also if the CPU cannot reach the policy's memory on
// the device. The resource is thread-safe. What the standard demands of it: it throws
// std::bad_alloc when there is no memory. Work that uses a block must be done before a
// container frees it.
absl::StatusOr<std::unique_ptr<std::pmr::memory_resource>> MakeMemoryResource(
    const Policy& policy, std::shared_ptr<Device> device);

}  // namespace hbm

#endif  // HBMALLOC_PMR_H_
