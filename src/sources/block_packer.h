// SPDX-License-Identifier: Apache-2.0
//
// File: block_packer.h
//
// How a driver packs small device allocations: many share one granule, and the
// granule is held while any of them lives. Best fit, with coalescing inside a
// granule; addresses only.
//
//   BlockPacker packer(2 << 20);
//   std::uintptr_t at = packer.Place(bytes, alignment);
//   if (at == 0) { packer.AddGranule(address); at = packer.Place(bytes, alignment); }
//   std::uintptr_t emptied = packer.Remove(at, bytes);   // a granule to give back, or 0
//
// Not thread-safe.
#ifndef HBMALLOC_SOURCES_BLOCK_PACKER_H_
#define HBMALLOC_SOURCES_BLOCK_PACKER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

namespace hbm::sources {

class BlockPacker {
 public:
  explicit BlockPacker(std::size_t granule_bytes) : granule_bytes_(granule_bytes) {}

  // Adds an empty granule. Requires an address that is a multiple of its size.
  void AddGranule(std::uintptr_t address);

  // The address of a new block, or 0 if no granule is certain to have room.
  // Requires alignment to be a power of two, and bytes a multiple of some power
  // of two that every block's alignment is at least.
  std::uintptr_t Place(std::size_t bytes, std::size_t alignment);

  // Removes a block that Place gave. The address of its granule if that is empty
  // now (it is forgotten), else 0.
  std::uintptr_t Remove(std::uintptr_t address, std::size_t bytes);

 private:
  std::uintptr_t GranuleOf(std::uintptr_t address) const {
    return address - address % granule_bytes_;
  }
  void AddFree(std::uintptr_t address, std::size_t bytes);
  void EraseFree(std::map<std::uintptr_t, std::size_t>::iterator run);

  const std::size_t granule_bytes_;
  std::map<std::uintptr_t, std::size_t> free_by_address_;
  std::set<std::pair<std::size_t, std::uintptr_t>> free_by_size_;
  std::unordered_map<std::uintptr_t, std::size_t> live_bytes_;  // of each granule
};

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_BLOCK_PACKER_H_
