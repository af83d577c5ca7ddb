// SPDX-License-Identifier: Apache-2.0
//
// File: naive_best_fit.h
//
// XLA's best fit as plainly as it can be said: one list of chunks by address, and
// every search looks at all of them. It shares nothing with the library.
//
//   NaiveBestFit model(/*preallocate=*/false, limit, capacity);
//   std::int64_t address = model.Allocate(1000);      // -1: out of memory
//   model.Free(address);
#ifndef HBMALLOC_TESTS_SUPPORT_NAIVE_BEST_FIT_H_
#define HBMALLOC_TESTS_SUPPORT_NAIVE_BEST_FIT_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <list>

namespace hbm::testing {

class NaiveBestFit {
 public:
  // The memory behind it: regions are whole 2 MiB granules, 2 MiB apart, from
  // address 0, as far as `capacity` goes.
  NaiveBestFit(bool preallocate, std::int64_t limit, std::int64_t capacity)
      : limit_(limit),
        capacity_(capacity),
        next_region_(preallocate ? limit : std::min(limit, kGranule)) {
    if (preallocate) Extend(kUnit);
  }

  std::int64_t Allocate(std::int64_t bytes) {
    const std::int64_t need = (bytes + kUnit - 1) / kUnit * kUnit;
    auto best = Best(need);
    if (best == chunks_.end() && Extend(need)) best = Best(need);
    if (best == chunks_.end()) return -1;
    if (best->size >= 2 * need || best->size - need >= kMaxWaste) {
      if (best->size > need) {
        chunks_.insert(std::next(best),
                       Chunk{best->address + need, best->size - need, best->region, true});
        best->size = need;
      }
    }
    best->is_free = false;
    in_use_ += best->size;
    peak_in_use_ = std::max(peak_in_use_, in_use_);
    return best->address;
  }

  void Free(std::int64_t address) {
    const auto found = std::find_if(chunks_.begin(), chunks_.end(),
                                    [&](const Chunk& c) { return c.address == address; });
    in_use_ -= found->size;
    found->is_free = true;
    MergeWithNext(found);
    if (found != chunks_.begin()) MergeWithNext(std::prev(found));
  }

  std::int64_t pool_bytes() const { return pool_; }
  std::int64_t bytes_in_use() const { return in_use_; }
  std::int64_t peak_bytes_in_use() const { return peak_in_use_; }
  std::int64_t largest_free() const {
    std::int64_t largest = 0;
    for (const Chunk& chunk : chunks_) {
      if (chunk.is_free) largest = std::max(largest, chunk.size);
    }
    return largest;
  }

 private:
  static constexpr std::int64_t kUnit = 256;
  static constexpr std::int64_t kGranule = std::int64_t{2} << 20;
  static constexpr std::int64_t kMaxWaste = std::int64_t{128} << 20;

  struct Chunk {
    std::int64_t address;
    std::int64_t size;
    int region;
    bool is_free;
  };
  using Chunks = std::list<Chunk>;

  Chunks::iterator Best(std::int64_t need) {
    auto best = chunks_.end();
    for (auto chunk = chunks_.begin(); chunk != chunks_.end(); ++chunk) {
      if (!chunk->is_free || chunk->size < need) continue;
      if (best == chunks_.end() || chunk->size < best->size) best = chunk;  // addresses ascend
    }
    return best;
  }

  bool Extend(std::int64_t need) {
    const std::int64_t available = std::max<std::int64_t>(0, limit_ - pool_) / kUnit * kUnit;
    if (need > available) return false;
    bool doubled = false;
    for (; next_region_ < need; next_region_ *= 2) doubled = true;
    std::int64_t size = std::min(next_region_, available);
    while (!Take(size)) {
      const auto less = static_cast<std::int64_t>(static_cast<float>(size) * 0.9F);
      size = std::min((less + kUnit - 1) / kUnit * kUnit, size - kUnit);
      if (size < need) return false;
    }
    if (!doubled) next_region_ *= 2;
    return true;
  }

  bool Take(std::int64_t size) {
    const std::int64_t whole = (size + kGranule - 1) / kGranule * kGranule;
    if (pool_ + whole > capacity_) return false;
    chunks_.push_back(Chunk{next_address_, whole, regions_++, true});
    next_address_ += whole + kGranule;
    pool_ += whole;
    return true;
  }

  void MergeWithNext(Chunks::iterator chunk) {
    const auto next = std::next(chunk);
    if (next == chunks_.end() || !chunk->is_free || !next->is_free ||
        chunk->region != next->region) {
      return;
    }
    chunk->size += next->size;
    chunks_.erase(next);
  }

  const std::int64_t limit_;
  const std::int64_t capacity_;
  Chunks chunks_;
  std::int64_t next_region_;
  std::int64_t next_address_ = 0;
  int regions_ = 0;
  std::int64_t pool_ = 0;
  std::int64_t in_use_ = 0;
  std::int64_t peak_in_use_ = 0;
};

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_SUPPORT_NAIVE_BEST_FIT_H_
