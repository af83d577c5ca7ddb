// SPDX-License-Identifier: Apache-2.0
//
// File: page_map.h
//
// Which physical memory is mapped where: the mappings of one address range, in
// order of address. A mapping is one handle, mapped whole; it can leave only
// whole.
//
//   PageMap pages;
//   pages.Add({/*address=*/base, /*bytes=*/2 << 20, /*handle=*/7});
//   if (const Mapping* page = pages.Holding(block)) ...
//
// Book-keeping only: nothing here calls a driver. Thread-compatible. Looking up
// takes logarithmic time, adding and removing moves the entries behind.
#ifndef HBMALLOC_CORE_PAGE_MAP_H_
#define HBMALLOC_CORE_PAGE_MAP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hbm::core {

struct Mapping {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t handle = 0;
  std::uint64_t end() const { return address + bytes; }
};

class PageMap {
 public:
  // Requires that it overlaps no other mapping.
  void Add(const Mapping& mapping) {
    mappings_.insert(mappings_.begin() + static_cast<std::ptrdiff_t>(FirstAfter(mapping.address)),
                     mapping);
    bytes_ += mapping.bytes;
  }

  // Takes out the mapping that starts at `address`. Requires that there is one.
  Mapping Remove(std::uint64_t address) {
    const auto at = mappings_.begin() + static_cast<std::ptrdiff_t>(FirstAfter(address));
    const Mapping mapping = *at;
    mappings_.erase(at);
    bytes_ -= mapping.bytes;
    return mapping;
  }

  // The position of the first mapping that ends after `address`; size() if none does.
  std::size_t FirstAfter(std::uint64_t address) const {
    return static_cast<std::size_t>(
        std::upper_bound(mappings_.begin(), mappings_.end(), address,
                         [](std::uint64_t value, const Mapping& m) { return value < m.end(); }) -
        mappings_.begin());
  }

  // The mapping that `address` lies in; null if it is not backed.
  const Mapping* Holding(std::uint64_t address) const {
    const std::size_t at = FirstAfter(address);
    return at < mappings_.size() && mappings_[at].address <= address ? &mappings_[at] : nullptr;
  }

  const Mapping& operator[](std::size_t position) const { return mappings_[position]; }
  std::size_t size() const { return mappings_.size(); }
  std::uint64_t bytes() const { return bytes_; }  // that are mapped

 private:
  std::vector<Mapping> mappings_;
  std::uint64_t bytes_ = 0;
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_PAGE_MAP_H_
