// SPDX-License-Identifier: Apache-2.0
//
// File: gpu_name.h
//
// How a GPU may be named. Needs no driver, so that a typing error is one on every
// machine.
//
//   absl::StatusOr<std::string> which = ParseGpuName("cuda:0000:65:00.0");
//   // "0000:65:00.0"
#ifndef HBMALLOC_SOURCES_GPU_NAME_H_
#define HBMALLOC_SOURCES_GPU_NAME_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hbm::sources {

// The ordinal, UUID, MIG UUID or PCI bus id that the spec of a CUDA device names.
// InvalidArgument: it is none of these.
absl::StatusOr<std::string> ParseGpuName(std::string_view spec);

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_GPU_NAME_H_
