// SPDX-License-Identifier: Apache-2.0
//
// File: shared_blocks.h
//
// The blocks that a thread cache has of its pool, by address. Finding one takes no
// lock and writes nothing, so that threads do not slow each other down.
//
//   SharedBlocks blocks;
//   SharedBlock* block = blocks.Add(address);          // null: full
//   if (SharedBlock* b = blocks.Find(address)) ...     // from any thread
//
// A record stays for as long as the table lives, and is used again when its
// address comes back. The number of records is bounded.
#ifndef HBMALLOC_CORE_SHARED_BLOCKS_H_
#define HBMALLOC_CORE_SHARED_BLOCKS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/mutex.h"

namespace hbm::core {

enum class SharedUse : std::uint32_t {
  kGone,    // not the cache's now: the pool's own books say what it is
  kCached,  // free, in a magazine or the depot
  kLive,    // a block that a caller holds
};

// A cache line each: blocks next to each other belong to different threads. What
// is not atomic belongs to whoever took the block out of its last state.
struct alignas(64) SharedBlock {
  std::atomic<std::uint64_t> address{0};
  std::atomic<SharedUse> use{SharedUse::kGone};
  std::uint32_t size_class = 0;
  std::uint64_t chunk_bytes = 0;
  // Snapshots read these while their owner writes them: each is whole, and they
  // belong together whenever no call is in progress.
  std::atomic<std::uint64_t> requested{0};
  std::atomic<std::uint64_t> stream{0};
  std::atomic<std::uint32_t> tag{0};
  std::uint32_t chain_length = 0;     // of the chain that starts here, in the depot
  SharedBlock* next = nullptr;        // in a chain
  SharedBlock* next_chain = nullptr;  // in the depot
};

class SharedBlocks {
 public:
  SharedBlocks() { Publish(kFirstSlots); }
  SharedBlocks(const SharedBlocks&) = delete;
  SharedBlocks& operator=(const SharedBlocks&) = delete;

  SharedBlock* Find(std::uint64_t address) const {
    const Table& table = *table_.load(std::memory_order_acquire);
    for (std::size_t i = Hash(address) & table.mask;; i = (i + 1) & table.mask) {
      SharedBlock* const block = table.slots[i].load(std::memory_order_acquire);
      if (block == nullptr) return nullptr;
      if (block->address.load(std::memory_order_relaxed) == address) return block;
    }
  }

  // The record of an address, new or old; null if there are too many.
  SharedBlock* Add(std::uint64_t address) HBM_EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kFirstSlots = 4096;
  static constexpr std::size_t kMaxBlocks = std::size_t{1} << 20;

  struct Table {
    std::size_t mask = 0;
    std::unique_ptr<std::atomic<SharedBlock*>[]> slots;
  };

  static std::size_t Hash(std::uint64_t address) {
    return static_cast<std::size_t>((address >> 8) * 0x9E3779B97F4A7C15u >> 32);
  }
  static void Put(Table& table, SharedBlock* block);
  // Readers may still be in the tables before this one, so those stay.
  void Publish(std::size_t slots);

  std::atomic<const Table*> table_{nullptr};
  Mutex mutex_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::deque<SharedBlock> blocks_ HBM_GUARDED_BY(mutex_);
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_SHARED_BLOCKS_H_
