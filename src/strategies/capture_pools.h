// SPDX-License-Identifier: Apache-2.0
//
// File: capture_pools.h
//
// The books of what captured graphs use: which blocks belong to which capture
// pools, and which of those their owners have freed already. For the strategy below,
// all of them stay live until their last pool is released, so that no strategy can
// move, unmap, reuse or release them.
//
//   CapturePools pools;
//   CapturePool pool = pools.Open({}, stream, stream_id);
//   pools.Add(pool, block);                        // it was taken, or is used, there
//   pools.Keep(address);                           // freed by its owner, kept
//   pools.TakeKept(pool, stream, bytes, 256);      // and used once more
//   for (const auto& block : pools.Blocks(pool)) ... pools.Remove(pool, block.address);
//
// Numbers and addresses only: no driver, no strategy. Thread-compatible.
#ifndef HBMALLOC_STRATEGIES_CAPTURE_POOLS_H_
#define HBMALLOC_STRATEGIES_CAPTURE_POOLS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "hbmalloc/allocator.h"

namespace hbm::strategies {

class CapturePools {
 public:
  struct Block {
    std::uintptr_t address = 0;
    std::size_t capacity = 0;     // bytes that may be used
    std::size_t chunk_bytes = 0;  // that the strategy counts for it
    std::size_t requested = 0;    // by its present owner
    std::size_t counted = 0;      // requested, as far as the strategy knows
    StreamRef stream;
    TagId tag;
    bool taken_in_capture = false;
    bool kept = false;  // freed by its owner
    std::vector<std::uint64_t> pools;
  };
  struct OpenPool {
    CapturePool pool;
    StreamRef stream;
    std::uint64_t stream_id = 0;
  };

  // A new pool, or a known one again. False: it is unknown, or open already.
  bool Open(CapturePool* pool, StreamRef stream, std::uint64_t stream_id);
  // False: it is not open.
  bool Close(CapturePool pool);
  bool IsKnown(CapturePool pool) const { return pools_.count(pool.id) != 0; }
  bool IsOpen(CapturePool pool) const;
  const std::vector<OpenPool>& open() const { return open_; }
  bool empty() const { return pools_.empty(); }

  // Null: the block belongs to no pool.
  const Block* Find(std::uintptr_t address) const;
  // The block belongs to this pool, too. False: its owner has freed it meanwhile.
  bool Add(CapturePool pool, const Block& block);
  // Its owner frees the block. With `is_reusable`, a later request of its pool and
  // stream may have it. False: it is freed already.
  bool Keep(std::uintptr_t address, bool is_reusable);
  // A kept block of this pool alone, for another request; 0: there is none.
  std::uintptr_t TakeKept(CapturePool pool, StreamRef stream, std::size_t bytes,
                          std::size_t alignment, TagId tag);

  // Those that belong to the pool and to no other.
  std::vector<Block> BlocksOnlyOf(CapturePool pool) const;
  // No block belongs to it any more, but for those that are kept and of it alone.
  void Leave(CapturePool pool);
  // The block is the strategy's again.
  void Remove(std::uintptr_t address);
  void Forget(CapturePool pool) { pools_.erase(pool.id); }

  // What callers see: a kept block is no live one, a reused one was allocated anew.
  void AddTo(Stats* stats) const;
  void ResetCounts() { extra_allocs_ = extra_frees_ = 0; }

 private:
  // Pool, stream, capacity and address of a block that may be used once more.
  using Reusable = std::tuple<std::uint64_t, std::uintptr_t, std::size_t, std::uintptr_t>;

  static Reusable KeyOf(const Block& block) {
    return {block.pools.front(), block.stream.value(), block.capacity, block.address};
  }
  void CountKept(const Block& block, int sign);

  std::map<std::uint64_t, bool> pools_;  // whether it is open
  std::vector<OpenPool> open_;
  std::unordered_map<std::uintptr_t, Block> blocks_;
  std::set<Reusable> reusable_;
  std::uint64_t last_pool_ = 0;
  std::int64_t extra_allocs_ = 0;
  std::int64_t extra_frees_ = 0;
  std::int64_t kept_chunk_bytes_ = 0;
  std::int64_t extra_requested_ = 0;  // of live blocks over what the strategy counts
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_CAPTURE_POOLS_H_
