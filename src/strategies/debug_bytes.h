// SPDX-License-Identifier: Apache-2.0
//
// File: debug_bytes.h
//
// Patterns in memory, whether the host reaches it or only the device does.
//
//   DebugBytes bytes(source.get());
//   if (!bytes.reachable()) ...                      // a simulated device
//   bytes.Fill(zone, kRedZone, 256, stream);
//   absl::StatusOr<Damage> damage = bytes.Compare(zone, kRedZone, 256, stream);
#ifndef HBMALLOC_STRATEGIES_DEBUG_BYTES_H_
#define HBMALLOC_STRATEGIES_DEBUG_BYTES_H_

#include <array>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/memory_source.h"
#include "hbmalloc/stream.h"
#include "sources/memory_bytes.h"

namespace hbm::strategies {

// As floating-point numbers of every width, fresh bytes are NaN, so that what is read
// before it is written spoils the result at once; freed ones are huge and negative.
inline constexpr unsigned char kFresh = 0xFF;
inline constexpr unsigned char kFreed = 0xFE;
inline constexpr unsigned char kRedZone = 0xFD;

// What differs from a pattern.
struct Damage {
  std::size_t first = 0;  // offset of the first byte that differs
  std::size_t last = 0;
  std::size_t count = 0;                     // 0: nothing differs
  std::array<unsigned char, 16> found = {};  // what lies at `first` and after it
  std::size_t num_found = 0;
};
// "3 bytes are overwritten, from offset 12 to 14; there is 00 00 80".
std::string ToString(const Damage& damage);

// Thread-safe. Blocks until the device has done it.
class DebugBytes {
 public:
  explicit DebugBytes(MemorySource* source);
  // Whether there are bytes at all, and a way to them.
  bool reachable() const { return device_ != nullptr || host_; }
  absl::Status Fill(void* address, unsigned char value, std::size_t bytes, StreamRef after) const;
  absl::StatusOr<Damage> Compare(const void* address, unsigned char value, std::size_t bytes,
                                 StreamRef after) const;

 private:
  // First of all, because the host would not wait for a stream's work.
  sources::MemoryBytes* const device_;
  const bool host_;
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_DEBUG_BYTES_H_
