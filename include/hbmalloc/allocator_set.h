// SPDX-License-Identifier: Apache-2.0
//
// File: allocator_set.h
//
// One allocator for each of several devices.
//
//   absl::StatusOr<hbm::AllocatorSet> set = hbm::AllocatorSet::Make(policy, {"cuda:0", "cuda:1"});
//   absl::StatusOr<void*> block = set->Allocate(1, bytes);
//   set->Deallocate(*block).IgnoreError();        // finds the owner
#ifndef HBMALLOC_ALLOCATOR_SET_H_
#define HBMALLOC_ALLOCATOR_SET_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/policy.h"

namespace hbm {

// Thread-safe, movable. Ordinals count the devices in the order given.
class AllocatorSet {
 public:
  // All or none: the first failure is returned, with the device's name.
  static absl::StatusOr<AllocatorSet> Make(const Policy& policy,
                                           const std::vector<std::string>& devices);
  // Of allocators made elsewhere; none may be null.
  static absl::StatusOr<AllocatorSet> Make(std::vector<std::unique_ptr<Allocator>> allocators);

  std::size_t size() const { return allocators_.size(); }
  // Null: no such ordinal.
  Allocator* at(int ordinal) const;

  // InvalidArgument: no such ordinal; else as Allocator's.
  absl::StatusOr<void*> Allocate(int ordinal, std::size_t bytes,
                                 const AllocateOptions& options = {}) const;
  // Asks each allocator whether the block is its own. InvalidArgument: it is no live
  // block of any. Simulated devices have the same addresses: name the ordinal there.
  absl::Status Deallocate(void* ptr, StreamRef after = StreamRef::OfAllocation()) const;
  absl::Status Deallocate(int ordinal, void* ptr,
                          StreamRef after = StreamRef::OfAllocation()) const;
  // The ordinal whose block this address lies in. NotFound: none.
  absl::StatusOr<int> FindOwner(const void* ptr) const;

 private:
  std::vector<std::unique_ptr<Allocator>> allocators_;
};

}  // namespace hbm

#endif  // HBMALLOC_ALLOCATOR_SET_H_
