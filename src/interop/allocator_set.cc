// SPDX-License-Identifier: Apache-2.0
#include "hbmalloc/allocator_set.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "hbmalloc/device.h"

namespace hbm {
namespace {

absl::Status NoSuchOrdinal(int ordinal, std::size_t size) {
  return absl::InvalidArgumentError(
      absl::StrCat("device ", ordinal, ": the set has ", size, " devices, counted from 0"));
}

absl::Status Named(const std::string& device, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(device, ": ", status.message()));
}

}  // namespace

absl::StatusOr<AllocatorSet> AllocatorSet::Make(const Policy& policy,
                                                const std::vector<std::string>& devices) {
  AllocatorSet set;
  for (const std::string& name : devices) {
    absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(name);
    if (!device.ok()) return Named(name, device.status());
    absl::StatusOr<std::unique_ptr<Allocator>> allocator = MakeAllocator(policy, *device);
    if (!allocator.ok()) return Named(name, allocator.status());
    set.allocators_.push_back(*std::move(allocator));
  }
  return set;
}

absl::StatusOr<AllocatorSet> AllocatorSet::Make(
    std::vector<std::unique_ptr<Allocator>> allocators) {
  for (const std::unique_ptr<Allocator>& allocator : allocators) {
    if (allocator == nullptr) return absl::InvalidArgumentError("an allocator of the set is null");
  }
  AllocatorSet set;
  set.allocators_ = std::move(allocators);
  return set;
}

Allocator* AllocatorSet::at(int ordinal) const {
  const auto index = static_cast<std::size_t>(ordinal);
  return ordinal >= 0 && index < allocators_.size() ? allocators_[index].get() : nullptr;
}

absl::StatusOr<void*> AllocatorSet::Allocate(int ordinal, std::size_t bytes,
                                             const AllocateOptions& options) const {
  Allocator* const allocator = at(ordinal);
  if (allocator == nullptr) return NoSuchOrdinal(ordinal, size());
  return allocator->Allocate(bytes, options);
}

absl::Status AllocatorSet::Deallocate(int ordinal, void* ptr, StreamRef after) const {
  Allocator* const allocator = at(ordinal);
  if (allocator == nullptr) return NoSuchOrdinal(ordinal, size());
  return allocator->Deallocate(ptr, after);
}

absl::Status AllocatorSet::Deallocate(void* ptr, StreamRef after) const {
  if (ptr == nullptr) return absl::OkStatus();
  const absl::StatusOr<int> owner = FindOwner(ptr);
  if (!owner.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("Deallocate: ", owner.status().message()));
  }
  return Deallocate(*owner, ptr, after);
}

absl::StatusOr<int> AllocatorSet::FindOwner(const void* ptr) const {
  for (std::size_t i = 0; i < allocators_.size(); ++i) {
    if (allocators_[i]->Describe(ptr).ok()) return static_cast<int>(i);
  }
  return absl::NotFoundError(absl::StrCat("0x", absl::Hex(reinterpret_cast<std::uintptr_t>(ptr)),
                                          " lies in no live block of the set's ", size(),
                                          " devices"));
}

}  // namespace hbm
