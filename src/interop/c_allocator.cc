// SPDX-License-Identifier: Apache-2.0
//
// Allocators and blocks for C.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/c_api.h"
#include "interop/c_failure.h"
#include "interop/c_handle.h"
#include "interop/c_struct.h"

namespace hbm::interop {
namespace {

absl::Status Null(const char* name) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is null"));
}

absl::Status Create(const char* policy_text, const char* device_text, hbm_allocator** out) {
  if (out == nullptr) return Null("out");
  *out = nullptr;
  absl::StatusOr<Policy> policy =
      policy_text == nullptr ? PolicyFromEnv() : ParsePolicy(policy_text);
  if (!policy.ok()) return policy.status();
  absl::StatusOr<std::shared_ptr<Device>> device =
      OpenDevice(device_text == nullptr ? "cuda:0" : device_text);
  if (!device.ok()) return device.status();
  absl::StatusOr<std::unique_ptr<Allocator>> allocator = MakeAllocator(*policy, *device);
  if (!allocator.ok()) return allocator.status();
  *out = NewHandle(*std::move(allocator), std::string((*device)->Name()));
  return absl::OkStatus();
}

absl::Duration MaxWait(std::int64_t nanoseconds) {
  if (nanoseconds == HBM_WAIT_POLICY) return -absl::InfiniteDuration();
  if (nanoseconds == HBM_WAIT_FOREVER) return absl::InfiniteDuration();
  return nanoseconds < 0 ? absl::ZeroDuration() : absl::Nanoseconds(nanoseconds);
}

absl::Status Store(const absl::StatusOr<void*>& block, void** out) {
  if (!block.ok()) return block.status();
  *out = *block;
  return absl::OkStatus();
}

absl::Status AllocateEx(Allocator& allocator, const hbm_allocate_options* given, void** out) {
  hbm_allocate_options known;
  if (absl::Status status = ReadStruct(given, "options", &known); !status.ok()) return status;
  if ((known.flags & ~std::uint32_t{HBM_ALLOCATE_CONTIGUOUS}) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("options->flags is ", known.flags, ": only HBM_ALLOCATE_CONTIGUOUS is known"));
  }
  if (known.max_wait_ns < HBM_WAIT_NEVER) {
    return absl::InvalidArgumentError(absl::StrCat("options->max_wait_ns is ", known.max_wait_ns,
                                                   ": HBM_WAIT_NEVER (-1) or more is allowed"));
  }
  AllocateOptions options;
  if (known.alignment != 0) options.alignment = known.alignment;
  options.stream = AllocationStream(known.stream);
  options.max_wait = MaxWait(known.max_wait_ns);
  options.tag = TagId{known.tag};
  options.contiguous = (known.flags & HBM_ALLOCATE_CONTIGUOUS) != 0;
  return Store(allocator.Allocate(known.bytes, options), out);
}

absl::Status DescribeInto(Allocator& allocator, const void* address, hbm_block_info* out) {
  const absl::StatusOr<BlockInfo> info = allocator.Describe(address);
  if (!info.ok()) return info.status();
  hbm_block_info known = HBM_INIT(hbm_block_info);
  known.address = info->address;
  known.requested_bytes = info->requested_bytes;
  known.chunk_bytes = info->chunk_bytes;
  known.stream = CStream(info->stream);
  known.region_address = info->region.address;
  known.region_bytes = info->region.bytes;
  known.tag = info->tag.value;
  return WriteStruct(known, "out", out);
}

}  // namespace
}  // namespace hbm::interop

using hbm::Allocator;
using hbm::interop::Guard;
using hbm::interop::WithAllocator;

hbm_status hbm_allocator_create(const char* policy, const char* device, hbm_allocator** out) {
  return Guard([&] { return hbm::interop::Create(policy, device, out); });
}

hbm_status hbm_allocator_destroy(hbm_allocator* allocator) {
  return Guard([&]() -> absl::Status {
    if (allocator == nullptr) return absl::OkStatus();
    std::unique_ptr<Allocator> last(allocator->allocator.exchange(nullptr));
    return last == nullptr ? hbm::interop::NoAllocator(allocator) : absl::OkStatus();
  });
}

const char* hbm_policy(const hbm_allocator* allocator) {
  return hbm::interop::Find(allocator) == nullptr ? "" : allocator->policy.c_str();
}

hbm_status hbm_allocate(hbm_allocator* allocator, size_t bytes, size_t alignment, hbm_stream stream,
                        void** out) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) -> absl::Status {
    if (out == nullptr) return hbm::interop::Null("out");
    *out = nullptr;
    hbm::AllocateOptions options;
    if (alignment != 0) options.alignment = alignment;
    options.stream = hbm::interop::AllocationStream(stream);
    return hbm::interop::Store(a.Allocate(bytes, options), out);
  }));
}

hbm_status hbm_allocate_ex(hbm_allocator* allocator, const hbm_allocate_options* options,
                           void** out) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) -> absl::Status {
    if (out == nullptr) return hbm::interop::Null("out");
    *out = nullptr;
    return hbm::interop::AllocateEx(a, options, out);
  }));
}

hbm_status hbm_deallocate(hbm_allocator* allocator, void* block, hbm_stream stream) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) {
    return a.Deallocate(block, hbm::interop::FreeStream(stream));
  }));
}

hbm_status hbm_record_use(hbm_allocator* allocator, void* block, hbm_stream stream) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) {
    return a.RecordUse(block, hbm::interop::AllocationStream(stream));
  }));
}

hbm_status hbm_describe(hbm_allocator* allocator, const void* address, hbm_block_info* out) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) {
    const absl::Status status = hbm::interop::CheckStruct(out, "out");
    return status.ok() ? hbm::interop::DescribeInto(a, address, out) : status;
  }));
}

hbm_status hbm_begin_capture_pool(hbm_allocator* allocator, hbm_stream stream, uint64_t* pool) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) -> absl::Status {
    if (pool == nullptr) return hbm::interop::Null("pool");
    const absl::StatusOr<hbm::CapturePool> begun =
        a.BeginCapturePool(hbm::interop::AllocationStream(stream), hbm::CapturePool{*pool});
    if (!begun.ok()) return begun.status();
    *pool = begun->id;
    return absl::OkStatus();
  }));
}

hbm_status hbm_end_capture_pool(hbm_allocator* allocator, uint64_t pool) {
  return Guard(WithAllocator(
      allocator, [&](Allocator& a) { return a.EndCapturePool(hbm::CapturePool{pool}); }));
}

hbm_status hbm_release_capture_pool(hbm_allocator* allocator, uint64_t pool, hbm_stream stream) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) {
    return a.ReleaseCapturePool(hbm::CapturePool{pool}, hbm::interop::AllocationStream(stream));
  }));
}
