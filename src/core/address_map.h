// SPDX-License-Identifier: Apache-2.0
//
// File: address_map.h
//
// Finds the chunk of a block by the block's address: a hash table with open
// addressing and 8-byte slots, each a fingerprint and a chunk's number. Erasing
// shifts later slots back, so there are no tombstones and lookups stay short.
//
//   AddressMap map;
//   if (!map.Reserve(1)) return false;
//   map.Insert(address, id);
//   ChunkId id = map.Find(address, [&](ChunkId id) { return table[id].address == address; });
//
// The fingerprint alone says where a slot belongs, so that moving slots reads
// nothing else. Two addresses may share one: Find asks the caller.
#ifndef HBMALLOC_CORE_ADDRESS_MAP_H_
#define HBMALLOC_CORE_ADDRESS_MAP_H_

#include <cstddef>
#include <cstdint>

#include "core/chunk_table.h"
#include "core/compiler.h"
#include "core/paged_array.h"

namespace hbm::core {

class AddressMap {
 public:
  AddressMap() = default;
  AddressMap(const AddressMap&) = delete;
  AddressMap& operator=(const AddressMap&) = delete;

  // Makes sure that the next `count` Inserts succeed; false if there is no memory.
  bool Reserve(std::size_t count) {
    while (HBM_UNLIKELY(count_ + count > max_count_)) {
      if (!Rehash()) return false;
    }
    return true;
  }

  // Requires that the address is not there, and Reserve.
  void Insert(std::uint64_t address, ChunkId id) {
    const std::uint64_t fingerprint = Fingerprint(address);
    std::size_t i = Home(fingerprint);
    while (slots_[i] != 0) i = (i + 1) & mask_;
    slots_[i] = Slot(fingerprint, id);
    ++count_;
  }

  // The chunk for which `is_it(id)`, among those whose address looks the same;
  // kNoChunk if there is none.
  template <typename Predicate>
  ChunkId Find(std::uint64_t address, Predicate is_it) const {
    const std::uint64_t fingerprint = Fingerprint(address);
    for (std::size_t i = Home(fingerprint); slots_[i] != 0; i = (i + 1) & mask_) {
      if (slots_[i] >> 32 != fingerprint) continue;
      const ChunkId id = static_cast<ChunkId>(slots_[i]);
      if (is_it(id)) return id;
    }
    return kNoChunk;
  }

  // The same, and takes it out.
  template <typename Predicate>
  ChunkId Take(std::uint64_t address, Predicate is_it) {
    const std::uint64_t fingerprint = Fingerprint(address);
    for (std::size_t i = Home(fingerprint); slots_[i] != 0; i = (i + 1) & mask_) {
      if (slots_[i] >> 32 != fingerprint) continue;
      const ChunkId id = static_cast<ChunkId>(slots_[i]);
      if (!is_it(id)) continue;
      EraseSlot(i);
      return id;
    }
    return kNoChunk;
  }

  // Asks the processor to have the address's slot at hand soon.
  void Prefetch(std::uint64_t address) const {
    __builtin_prefetch(slots_ + Home(Fingerprint(address)), 1);
  }

  std::size_t size() const { return count_; }
  std::size_t TouchedBytes() const { return (mask_ + 1) * sizeof(std::uint64_t); }

 private:
  static std::uint64_t Fingerprint(std::uint64_t address) {
    // The high half of a product with an odd constant near 2^64 / golden ratio:
    // neighbours spread over the whole table.
    return (address >> 8) * 0x9E3779B97F4A7C15u >> 32;
  }
  static std::uint64_t Slot(std::uint64_t fingerprint, ChunkId id) {
    return fingerprint << 32 | id;
  }
  std::size_t Home(std::uint64_t fingerprint) const { return fingerprint >> shift_; }

  void EraseSlot(std::size_t hole) {
    for (std::size_t i = (hole + 1) & mask_; slots_[i] != 0; i = (i + 1) & mask_) {
      const std::size_t home = Home(slots_[i] >> 32);
      // It may move back to the hole if its home is not between the two.
      if (((i - home) & mask_) >= ((i - hole) & mask_)) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole] = 0;
    --count_;
  }

  bool Rehash();

  // Without pages yet, the table is this one slot, which stays empty.
  std::uint64_t no_slot_ = 0;
  std::uint64_t* slots_ = &no_slot_;
  std::size_t mask_ = 0;
  int shift_ = 32;
  std::size_t count_ = 0;
  std::size_t max_count_ = 0;
  PagedArray<std::uint64_t> pages_;
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_ADDRESS_MAP_H_
