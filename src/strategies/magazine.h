// SPDX-License-Identifier: Apache-2.0
//
// File: magazine.h
//
// What a thread cache keeps: size classes, and magazines, which are chains of free
// blocks of one class.
//
//   Chain chain;
//   chain.Push(block);
//   if (chain.length >= MagazineSize(ClassOf(5000))) ...   // a full magazine
#ifndef HBMALLOC_STRATEGIES_MAGAZINE_H_
#define HBMALLOC_STRATEGIES_MAGAZINE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/shared_blocks.h"

namespace hbm::strategies {

inline constexpr std::size_t kUnit = 256;
inline constexpr std::size_t kMaxCached = std::size_t{1} << 20;
inline constexpr std::uint32_t kClasses = 80;

// One class for each unit up to 16, then eight for each power of two.
constexpr std::uint32_t ClassOf(std::size_t bytes) {
  const auto last_unit = static_cast<std::uint32_t>((bytes - 1) / kUnit);
  const auto shift = static_cast<std::uint32_t>(28 - __builtin_clz(last_unit | 8));
  return (shift << 3) + (last_unit >> shift);
}
constexpr std::size_t ClassBytes(std::uint32_t size_class) {
  if (size_class < 16) return (size_class + 1) * kUnit;
  const std::uint32_t shift = (size_class >> 3) - 1;
  return (std::size_t{(size_class & 7) + 9} << shift) * kUnit;
}
static_assert(ClassOf(1) == 0 && ClassBytes(0) == kUnit);
static_assert(ClassOf(16 * kUnit + 1) == 16 && ClassBytes(16) == 18 * kUnit);
static_assert(ClassOf(kMaxCached) == kClasses - 1 && ClassBytes(kClasses - 1) == kMaxCached);

inline constexpr std::uint32_t kMostBlocks = 32;

// A table: frees look at it, and a division costs as much as the rest of a free.
struct MagazineSizes {
  std::uint8_t of[kClasses] = {};
  constexpr MagazineSizes() {
    for (std::uint32_t i = 0; i < kClasses; ++i) {
      const std::size_t blocks = (std::size_t{256} << 10) / ClassBytes(i);
      of[i] = static_cast<std::uint8_t>(std::clamp<std::size_t>(blocks, 2, kMostBlocks));
    }
  }
};
inline constexpr MagazineSizes kMagazineSizes;
constexpr std::uint32_t MagazineSize(std::uint32_t size_class) {
  return kMagazineSizes.of[size_class];
}

struct Chain {
  core::SharedBlock* head = nullptr;
  std::uint32_t length = 0;

  void Push(core::SharedBlock* block) {
    block->next = head;
    head = block;
    ++length;
  }
  core::SharedBlock* Pop() {
    core::SharedBlock* const block = head;
    head = block->next;
    --length;
    return block;
  }
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_MAGAZINE_H_
