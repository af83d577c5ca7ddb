// SPDX-License-Identifier: Apache-2.0
//
// File: cost_model.h
//
// What a driver charges for its calls, so that a simulated device can add it up:
//
//   std::int64_t ns = CostNanoseconds(DriverCall::kMemCreate, 64 << 20);
//
// The figures are medians measured on an idle H200 with driver 580 and CUDA 13.0.
// They are linear in bytes between the measured sizes, keep the last slope
// beyond them, and are flat below the first. Virtual-memory calls are charged
// once per handle that they touch: a driver charges for handles, hardly for bytes.
// Other machines differ by up to 25 times: measure there before planning.
#ifndef HBMALLOC_SOURCES_COST_MODEL_H_
#define HBMALLOC_SOURCES_COST_MODEL_H_

#include <cstddef>
#include <cstdint>

namespace hbm::sources {

enum class DriverCall {
  kMalloc,          // cudaMalloc, by the bytes of the region
  kFree,            // cudaFree, the same
  kAddressReserve,  // by the bytes of the reservation
  kMemCreate,       // this and those below, by the bytes of one handle
  kMemMap,
  kMemSetAccess,
  kMemUnmap,
  kMemRelease,
  kAddressFree,  // by the bytes of the reservation
};

// Nanoseconds of one call. For a call over several handles, add one cost each.
std::int64_t CostNanoseconds(DriverCall call, std::size_t bytes);

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_COST_MODEL_H_
