// SPDX-License-Identifier: Apache-2.0
//
// File: buffer.h
//
// A block with an owner.
//
//   absl::StatusOr<hbm::Buffer> buffer = hbm::Buffer::Allocate(*allocator, bytes, options);
//   Launch(s, buffer->data(), buffer->size());
//   // freed in the order of s when it goes out of scope
#ifndef HBMALLOC_BUFFER_H_
#define HBMALLOC_BUFFER_H_

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/stream.h"

namespace hbm {

// Movable, not copyable; empty by default. The allocator must outlive it. Not
// thread-safe, as a pointer is not.
class Buffer {
 public:
  // As Allocator::Allocate. Zero bytes give an empty buffer.
  static absl::StatusOr<Buffer> Allocate(Allocator& allocator, std::size_t bytes,
                                         const AllocateOptions& options = {}) {
    absl::StatusOr<void*> block = allocator.Allocate(bytes, options);
    if (!block.ok()) return block.status();
    return Buffer(&allocator, *block, bytes, options.stream);
  }

  Buffer() = default;
  ~Buffer() { Free().IgnoreError(); }
  Buffer(Buffer&& other) noexcept { Swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      Free().IgnoreError();
      Swap(other);
    }
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }  // as asked for
  bool empty() const { return data_ == nullptr; }
  Allocator* allocator() const { return allocator_; }
  // That it will be freed in the order of.
  StreamRef stream() const { return stream_; }

  // Frees in the order of this stream instead of the one it was allocated on, after
  // the caller has ordered it after the other's work.
  void set_stream(StreamRef stream) { stream_ = stream; }
  // Used on this stream too: see Allocator::RecordUse.
  absl::Status RecordUse(StreamRef stream) {
    return data_ == nullptr ? absl::OkStatus() : allocator_->RecordUse(data_, stream);
  }

  // Frees now, and says what went wrong. The buffer is empty then.
  absl::Status Free() {
    if (data_ == nullptr) return absl::OkStatus();
    bytes_ = 0;
    return allocator_->Deallocate(std::exchange(data_, nullptr), stream_);
  }
  // Gives the block up to the caller, who frees it.
  void* Release() {
    bytes_ = 0;
    return std::exchange(data_, nullptr);
  }

 private:
  Buffer(Allocator* allocator, void* data, std::size_t bytes, StreamRef stream)
      : allocator_(allocator), data_(data), bytes_(bytes), stream_(stream) {}
  void Swap(Buffer& other) {
    std::swap(allocator_, other.allocator_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
  }

  Allocator* allocator_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  StreamRef stream_;
};

}  // namespace hbm

#endif  // HBMALLOC_BUFFER_H_
