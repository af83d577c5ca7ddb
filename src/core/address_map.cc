// SPDX-License-Identifier: Apache-2.0
#include "core/address_map.h"

#include <utility>

namespace hbm::core {
namespace {

constexpr std::size_t kFirstSlots = 4096;
constexpr std::size_t kMostSlots = std::size_t{1} << 32;

}  // namespace

bool AddressMap::Rehash() {
  const std::size_t old_slots = max_count_ == 0 ? 0 : mask_ + 1;
  const std::size_t new_slots = old_slots == 0 ? kFirstSlots : old_slots * 2;
  if (new_slots > kMostSlots) return false;
  PagedArray<std::uint64_t> old;
  if (!old.Grow(new_slots)) return false;  // new pages are zero: all slots empty
  std::swap(old, pages_);
  slots_ = pages_.data();
  mask_ = new_slots - 1;
  shift_ = 32 - __builtin_ctzll(new_slots);
  // Three quarters full at most: 8-byte slots lie eight to a cache line, so a run
  // of taken ones is short in what it costs.
  max_count_ = new_slots - new_slots / 4;
  for (std::size_t k = 0; k < old_slots; ++k) {
    const std::uint64_t slot = old[k];
    if (slot == 0) continue;
    std::size_t i = Home(slot >> 32);
    while (slots_[i] != 0) i = (i + 1) & mask_;
    slots_[i] = slot;
  }
  return true;
}

}  // namespace hbm::core
