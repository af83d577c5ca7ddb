// SPDX-License-Identifier: Apache-2.0
//
// File: gunzip.h
//
// Gzip data in memory, as traces are shipped.
#ifndef HBMALLOC_OBSERVE_GUNZIP_H_
#define HBMALLOC_OBSERVE_GUNZIP_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hbm::observe {

bool LooksLikeGzip(std::string_view data);

// The contents of one gzip file (of several members, if it was concatenated).
// InvalidArgument: truncated, damaged, or more than `max_bytes` when unpacked.
// Unimplemented: the library was built without zlib.
absl::StatusOr<std::string> Gunzip(std::string_view data, std::size_t max_bytes);

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_GUNZIP_H_
