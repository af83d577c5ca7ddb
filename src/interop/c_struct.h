// SPDX-License-Identifier: Apache-2.0
//
// File: c_struct.h
//
// Structs that begin with struct_size, between a caller and a library of different
// ages: what both know is copied, what one alone knows is zero.
//
//   hbm_allocate_options known;
//   absl::Status status = ReadStruct(options, "options", &known);
//   return WriteStruct(stats, "stats", out);
#ifndef HBMALLOC_INTEROP_C_STRUCT_H_
#define HBMALLOC_INTEROP_C_STRUCT_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace hbm::interop {

// No struct of any version is larger: a size beyond is one that was never set.
inline constexpr std::size_t kMostStructBytes = 4096;

template <typename Struct>
absl::Status CheckStruct(const Struct* given, const char* name) {
  if (given == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is null: give the address of a struct"));
  }
  if (given->struct_size < sizeof(std::size_t) || given->struct_size > kMostStructBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "->struct_size is ", given->struct_size,
                     ": set it to the sizeof of the struct, as HBM_INIT does"));
  }
  return absl::OkStatus();
}

// From the caller. What this library does not know must be zero.
template <typename Struct>
absl::Status ReadStruct(const Struct* given, const char* name, Struct* known) {
  if (absl::Status status = CheckStruct(given, name); !status.ok()) return status;
  const std::size_t bytes = given->struct_size;
  const auto* const raw = reinterpret_cast<const unsigned char*>(given);
  if (bytes > sizeof(Struct) && std::any_of(raw + sizeof(Struct), raw + bytes,
                                            [](unsigned char byte) { return byte != 0; })) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " sets a field that this version of the library does not have"));
  }
  *known = Struct{};
  std::memcpy(known, given, std::min(bytes, sizeof(Struct)));
  known->struct_size = sizeof(Struct);
  return absl::OkStatus();
}

// To the caller, who keeps the size that was given.
template <typename Struct>
absl::Status WriteStruct(const Struct& known, const char* name, Struct* out) {
  if (absl::Status status = CheckStruct(out, name); !status.ok()) return status;
  const std::size_t bytes = out->struct_size;
  auto* const raw = reinterpret_cast<unsigned char*>(out);
  constexpr std::size_t kAfterSize = sizeof(std::size_t);
  std::memset(raw + kAfterSize, 0, bytes - kAfterSize);
  std::memcpy(raw + kAfterSize, reinterpret_cast<const unsigned char*>(&known) + kAfterSize,
              std::min(bytes, sizeof(Struct)) - kAfterSize);
  return absl::OkStatus();
}

}  // namespace hbm::interop

#endif  // HBMALLOC_INTEROP_C_STRUCT_H_
