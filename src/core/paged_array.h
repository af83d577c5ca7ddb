// SPDX-License-Identifier: Apache-2.0
//
// File: paged_array.h
//
// A flat array that grows without being copied: its pages come straight from the
// operating system and are moved, not duplicated, when its address range becomes
// too small. Elements start as zero bytes, and pages that were never touched cost
// no memory. Huge pages are asked for beyond the first 2 MiB.
//
//   PagedArray<Chunk> chunks;
//   if (!chunks.Grow(chunks.capacity() + 1)) return false;  // the machine has no memory
//   chunks[7].size = 256;
//
// Growing moves the array: references into it end there.
#ifndef HBMALLOC_CORE_PAGED_ARRAY_H_
#define HBMALLOC_CORE_PAGED_ARRAY_H_

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

namespace hbm::core {

// Pages of zero bytes, a multiple of 4 KiB; null if there are none. Moving and
// releasing are told the size they were got with.
void* AllocatePages(std::size_t bytes);
void* GrowPages(void* pages, std::size_t old_bytes, std::size_t new_bytes);
void ReleasePages(void* pages, std::size_t bytes);

template <typename T>
class PagedArray {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved by page");

 public:
  PagedArray() = default;
  PagedArray(PagedArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PagedArray& operator=(PagedArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PagedArray() { ReleasePages(data_, bytes_); }

  T& operator[](std::size_t index) { return data_[index]; }
  const T& operator[](std::size_t index) const { return data_[index]; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t capacity() const { return bytes_ / sizeof(T); }

  // Makes room for at least `count` elements; false if the machine has no memory.
  bool Grow(std::size_t count) {
    if (count <= capacity()) return true;
    std::size_t bytes = bytes_ == 0 ? kFirstBytes : bytes_;
    while (bytes / sizeof(T) < count) bytes *= 2;
    void* const grown = GrowPages(data_, bytes_, bytes);
    if (grown == nullptr) return false;
    data_ = static_cast<T*>(grown);
    bytes_ = bytes;
    return true;
  }

 private:
  // Addresses, not memory: only touched pages count.
  static constexpr std::size_t kFirstBytes = std::size_t{256} << 10;

  T* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_PAGED_ARRAY_H_
