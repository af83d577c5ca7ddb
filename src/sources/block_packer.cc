// SPDX-License-Identifier: Apache-2.0
#include "sources/block_packer.h"

#include <iterator>

namespace hbm::sources {

void BlockPacker::AddFree(std::uintptr_t address, std::size_t bytes) {
  if (bytes == 0) return;
  free_by_address_[address] = bytes;
  free_by_size_.emplace(bytes, address);
}

void BlockPacker::EraseFree(std::map<std::uintptr_t, std::size_t>::iterator run) {
  free_by_size_.erase({run->second, run->first});
  free_by_address_.erase(run);
}

void BlockPacker::AddGranule(std::uintptr_t address) {
  live_bytes_[address] = 0;
  AddFree(address, granule_bytes_);
}

std::uintptr_t BlockPacker::Place(std::size_t bytes, std::size_t alignment) {
  // The smallest run first; a run can be too small once its start is aligned.
  for (auto run = free_by_size_.lower_bound({bytes, 0}); run != free_by_size_.end(); ++run) {
    const auto [size, start] = *run;
    const std::uintptr_t block = (start + alignment - 1) & ~(std::uintptr_t{alignment} - 1);
    const std::size_t padding = block - start;
    if (padding > size - bytes) continue;
    EraseFree(free_by_address_.find(start));
    AddFree(start, padding);
    AddFree(block + bytes, size - padding - bytes);
    live_bytes_[GranuleOf(block)] += bytes;
    return block;
  }
  return 0;
}

std::uintptr_t BlockPacker::Remove(std::uintptr_t address, std::size_t bytes) {
  const std::uintptr_t granule = GranuleOf(address);
  std::uintptr_t start = address;
  std::uintptr_t end = address + bytes;
  // Runs of neighbouring granules may touch, but a granule goes back alone.
  auto after = free_by_address_.lower_bound(address);
  if (after != free_by_address_.end() && after->first == end && GranuleOf(end) == granule) {
    end += after->second;
    EraseFree(after);
    after = free_by_address_.lower_bound(address);
  }
  if (after != free_by_address_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == start && GranuleOf(before->first) == granule) {
      start = before->first;
      EraseFree(before);
    }
  }
  std::size_t& live = live_bytes_[granule];
  live -= bytes;
  if (live != 0) {
    AddFree(start, end - start);
    return 0;
  }
  live_bytes_.erase(granule);
  return granule;
}

}  // namespace hbm::sources
