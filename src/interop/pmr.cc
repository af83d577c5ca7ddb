// SPDX-License-Identifier: Apache-2.0
#include "hbmalloc/pmr.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "observe/log.h"

namespace hbm {
namespace {

class HostResource final : public std::pmr::memory_resource {
 public:
  explicit HostResource(std::unique_ptr<Allocator> allocator) : allocator_(std::move(allocator)) {}

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    AllocateOptions options;
    options.alignment = std::max(alignment, kMinAlignment);
    options.stream = StreamRef::Synchronized();
    const absl::StatusOr<void*> block =
        allocator_->Allocate(std::max<std::size_t>(bytes, 1), options);
    if (!block.ok()) throw std::bad_alloc();
    return *block;
  }

  void do_deallocate(void* ptr, std::size_t /*bytes*/, std::size_t /*alignment*/) override {
    const absl::Status status = allocator_->Deallocate(ptr, StreamRef::Synchronized());
    if (!status.ok()) observe::LogWarning(std::string(status.message()));
  }

  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::unique_ptr<Allocator> allocator_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<std::pmr::memory_resource>> MakeMemoryResource(
    const Policy& policy, std::shared_ptr<Device> device) {
  if (device == nullptr) return absl::InvalidArgumentError("device: null");
  absl::StatusOr<std::shared_ptr<MemorySource>> source = device->MakeSource(policy);
  if (!source.ok()) return source.status();
  if (!(*source)->IsHostAccessible()) {
    const std::string_view name = device->Name();
    return absl::InvalidArgumentError(absl::StrCat(
        "the CPU cannot use this memory of ", absl::string_view(name.data(), name.size()),
        ": set memory_kind=pinned_host or unified, or take the device \"host\""));
  }
  source->reset();
  absl::StatusOr<std::unique_ptr<Allocator>> allocator = MakeAllocator(policy, std::move(device));
  if (!allocator.ok()) return allocator.status();
  return std::make_unique<HostResource>(*std::move(allocator));
}

}  // namespace hbm
