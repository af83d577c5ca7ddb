// SPDX-License-Identifier: Apache-2.0
//
// File: shared_capacity.h
//
// The capacity of a simulated device, or of host memory, that several processes open
// by one name ("sim:80GiB,shared=NAME"). It stands for the device itself: it knows
// what is held, and who, but arbitrates nothing. As a driver does, it has the memory
// of a process back when that process ends.
//
//   auto capacity = SharedCapacity::Open("sim-NAME", 80 * kGiB);
//   if (!(*capacity)->TryTake(bytes)) return absl::ResourceExhaustedError(...);
#ifndef HBMALLOC_SHARING_SHARED_CAPACITY_H_
#define HBMALLOC_SHARING_SHARED_CAPACITY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sharing/slot_file.h"

namespace hbm::sharing {

// Thread-safe. Sizes are bytes.
class SharedCapacity {
 public:
  static absl::StatusOr<std::shared_ptr<SharedCapacity>> Open(const std::string& key,
                                                              std::uint64_t total);

  bool TryTake(std::uint64_t bytes);
  // Requires that this object took the bytes. No effect in a child of fork.
  void Return(std::uint64_t bytes);
  // The total less what living processes hold. 0 if that cannot be told.
  std::uint64_t available();

 private:
  explicit SharedCapacity(std::unique_ptr<SlotFile> file) : file_(std::move(file)) {}

  const std::unique_ptr<SlotFile> file_;
};

}  // namespace hbm::sharing

#endif  // HBMALLOC_SHARING_SHARED_CAPACITY_H_
