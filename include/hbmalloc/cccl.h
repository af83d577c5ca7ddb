// SPDX-License-Identifier: Apache-2.0
//
// File: cccl.h
//
// An allocator as a memory resource of CCCL's cuda::mr, and so of RMM (26.06 and newer).
// Header-only; C++17. Needs CCCL 3.1 or newer: CUDA 13.1, or the wheel nvidia-cuda-cccl.
//
//   std::shared_ptr<hbm::Allocator> allocator = *hbm::MakeAllocator(policy, device);
//   hbm::CcclResource resource(allocator);
//   rmm::mr::set_current_device_resource(resource);       // RMM
//   cuda::mr::any_resource<cuda::mr::device_accessible> any = resource;
#ifndef HBMALLOC_CCCL_H_
#define HBMALLOC_CCCL_H_

#if !__has_include(<cuda/memory_resource>)
#error \
    "hbmalloc/cccl.h: <cuda/memory_resource> is not found; add CCCL 3.1 or newer (CUDA 13.1, or the wheel nvidia-cuda-cccl) to the include path"
#endif
#include <cuda/version>
#if CCCL_VERSION < 3001000
#error \
    "hbmalloc/cccl.h needs CCCL 3.1 or newer, where cuda::mr::resource has its present form; this is older (see CCCL_VERSION). Put the headers of CUDA 13.1 or of the wheel nvidia-cuda-cccl first"
#else

#include <cstddef>
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "hbmalloc/allocator.h"

namespace hbm {

// What is thrown when there is no memory: cuda::mr has no other way to say it.
class CcclBadAlloc : public std::bad_alloc {
 public:
  explicit CcclBadAlloc(const absl::Status& status)
      : text_(std::make_shared<std::string>(status.message().data(), status.message().size())) {}
  const char* what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<std::string> text_;  // copies of an exception must not throw
};

// A copyable handle: equal if the allocator is the same one, which it keeps alive.
class CcclResource {
 public:
  explicit CcclResource(std::shared_ptr<Allocator> allocator) : allocator_(std::move(allocator)) {}

  void* allocate(cuda::stream_ref stream, std::size_t bytes,
                 std::size_t alignment = kMinAlignment) {
    return Get(StreamRef::FromHandle(stream.get()), bytes, alignment);
  }
  void deallocate(cuda::stream_ref stream, void* ptr, std::size_t /*bytes*/,
                  std::size_t /*alignment*/ = kMinAlignment) noexcept {
    allocator_->Deallocate(ptr, StreamRef::FromHandle(stream.get())).IgnoreError();
  }

  // Of memory on which no work is in flight; and the caller vouches for the same when
  // giving it back.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = kMinAlignment) {
    return Get(StreamRef::Synchronized(), bytes, alignment);
  }
  void deallocate_sync(void* ptr, std::size_t /*bytes*/,
                       std::size_t /*alignment*/ = kMinAlignment) noexcept {
    allocator_->Deallocate(ptr, StreamRef::Synchronized()).IgnoreError();
  }

  Allocator& allocator() const { return *allocator_; }

  friend bool operator==(const CcclResource& a, const CcclResource& b) {
    return a.allocator_ == b.allocator_;
  }
  friend bool operator!=(const CcclResource& a, const CcclResource& b) { return !(a == b); }
  friend constexpr void get_property(const CcclResource&, cuda::mr::device_accessible) noexcept {}

 private:
  void* Get(StreamRef stream, std::size_t bytes, std::size_t alignment) {
    AllocateOptions options;
    options.alignment = alignment;
    options.stream = stream;
    absl::StatusOr<void*> block = allocator_->Allocate(bytes, options);
    if (!block.ok()) throw CcclBadAlloc(block.status());
    return *block;
  }

  std::shared_ptr<Allocator> allocator_;
};

static_assert(cuda::mr::resource_with<CcclResource, cuda::mr::device_accessible>,
              "cuda::mr::resource has another form than in CCCL 3.1 to 3.6");

}  // namespace hbm

#endif  // CCCL_VERSION
#endif  // HBMALLOC_CCCL_H_
