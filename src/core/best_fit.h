// SPDX-License-Identifier: Apache-2.0
//
// File: best_fit.h
//
// XLA's best fit with coalescing: regions are cut into chunks, a request gets the
// smallest free chunk that fits and of those the lowest, and what is freed becomes
// one with its free neighbours.
//
//   BestFit fit({/*max_waste=*/128 << 20, /*ordered=*/false});
//   fit.AddRegion(address, bytes);
//   ChunkId block = fit.Allocate({.requested = 1000, .rounded = 1024});
//   ...
//   if (ChunkId id = fit.TakeLive(pointer)) fit.Free(id);
//
// Thread-compatible: the owner locks. Nothing here calls a driver.
//
// Orders. With `ordered`, each free chunk says whose work may still use it: order
// 0 (kSafe) nobody's, order s that of stream s. A request of order s is met from
// chunks of orders 0 and s, whichever has the better fit. Only chunks of equal
// order coalesce. Promote makes chunks safe. Without `ordered` there is order 0
// only, at no cost.
#ifndef HBMALLOC_CORE_BEST_FIT_H_
#define HBMALLOC_CORE_BEST_FIT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "core/address_map.h"
#include "core/chunk_table.h"
#include "core/compiler.h"
#include "core/free_index.h"

namespace hbm::core {

// Sizes and addresses are multiples of this many bytes.
inline constexpr std::uint64_t kChunkUnit = 256;

// Rounded up to whole units; 0 for what no chunk can hold.
inline std::uint64_t RoundToChunk(std::uint64_t bytes) {
  return bytes > kMaxChunkBytes ? 0 : (bytes + kChunkUnit - 1) & ~(kChunkUnit - 1);
}

// Requires a power of two.
inline std::uint64_t AlignUpTo(std::uint64_t address, std::uint64_t alignment) {
  return (address + alignment - 1) & ~(alignment - 1);
}

class BestFit {
 public:
  struct Options {
    // A chunk is handed out whole if what would be split off is under this many
    // bytes, and under the request's size.
    std::uint64_t max_waste = std::uint64_t{128} << 20;
    bool ordered = false;
  };
  struct Request {
    std::uint64_t requested = 0;           // bytes asked for, over 0
    std::uint64_t rounded = 0;             // RoundToChunk of it, over 0
    std::uint64_t alignment = kChunkUnit;  // a power of two, at least kChunkUnit
    OrderId order = kSafe;
    std::uint64_t stream = 0;  // only remembered
    std::uint32_t tag = 0;     // only remembered
  };
  struct Region {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    ChunkId first = kNoChunk;
    ChunkId last = kNoChunk;
    std::uint64_t highest = 0;  // end of the highest block since ResetHeights
    std::uint32_t number = 0;   // that its chunks have; 0 is shared by those beyond the last
    std::uint64_t end() const { return address + bytes; }
  };

  explicit BestFit(const Options& options)
      : ordered_(options.ordered), max_waste_(options.max_waste) {
    orders_.resize(1);
  }
  BestFit(const BestFit&) = delete;
  BestFit& operator=(const BestFit&) = delete;

  // The region becomes one free, safe chunk. False if there is no host memory for
  // its record. Requires that it overlaps no other region, starts at a unit and is
  // a whole number of units, at most kMaxChunkBytes.
  bool AddRegion(std::uint64_t address, std::uint64_t bytes);
  // Whether all of the region is one free, safe chunk.
  bool IsIdle(const Region& region) const;
  // Takes out an idle region.
  void RemoveRegion(std::uint64_t address);
  // In order of address.
  const std::vector<Region>& regions() const { return regions_; }
  // Bytes of the region's live chunks, where there are several regions.
  std::uint64_t LiveBytes(const Region& region) const;
  // The region that holds an address; null if none does.
  const Region* RegionOf(std::uint64_t address) const;

  // kNoChunk if no free chunk fits.
  ChunkId Allocate(const Request& request);

  // The same where neither is anything to think of: requires no order and an alignment
  // of kChunkUnit.
  ChunkId AllocatePlain(const Request& request);
  void FreePlain(ChunkId id);

  // The live block at exactly this address; kNoChunk if there is none.
  ChunkId FindLive(std::uint64_t address) const {
    return live_.Find(address, StartsAt{*this, address});
  }
  // The same, and ends its life: Free or Hold must follow.
  HBM_ALWAYS_INLINE ChunkId TakeLive(std::uint64_t address) {
    const ChunkId id = live_.Take(address, StartsAt{*this, address});
    if (HBM_UNLIKELY(extra_ != nullptr) && id != kNoChunk) NoteTaken(chunks_[id]);
    return id;
  }
  // The live block that holds an address. The first call builds an index of all
  // live blocks, which is kept from then on.
  ChunkId FindLiveHolding(std::uint64_t address);

  // A taken or held chunk becomes free. `sequence` never falls within an order.
  void Free(ChunkId id, OrderId order = kSafe, std::uint64_t sequence = 0);
  // A taken chunk is kept out of reach until Free.
  void Hold(ChunkId id) { chunks_[id].SetHeld(); }

  // Makes sure that chunks of this order can be freed; false if there is no memory.
  bool EnsureOrder(OrderId order);
  // The order's chunks whose latest free is not after `up_to` become safe.
  void Promote(OrderId order, std::uint64_t up_to) { Move(order, up_to, kSafe, 0); }
  // The same chunks get another order, as if freed in it just now. Requires that
  // EnsureOrder was called for it.
  void Move(OrderId from, std::uint64_t up_to, OrderId to, std::uint64_t sequence);
  // Free bytes of an order.
  std::uint64_t FreeBytes(OrderId order) const {
    return order < orders_.size() && orders_[order] != nullptr ? orders_[order]->bytes : 0;
  }
  // Free bytes of all orders but kSafe.
  std::uint64_t unsafe_bytes() const { return unsafe_bytes_; }

  // The size of the largest free chunk of any order; 0 if there is none.
  std::uint64_t LargestFree() const;
  // The same of one order.
  std::uint64_t LargestFree(OrderId order) const;

  // Adds the free chunks of all orders.
  void AddFreeSums(FreeIndex::Sums* sums) const;
  // Adds each region's largest free chunk to `largest`, by position in regions(). At
  // most `looks` chunks are looked at; what they leave open is bounded from above.
  void FindLargestInRegions(int looks, std::vector<std::uint64_t>* largest) const;
  // Each region's height becomes that of its highest chunk in use now.
  void ResetHeights();

  const Chunk& chunk(ChunkId id) const { return chunks_[id]; }
  // At least as many as there are chunks, and no more than ever were at once.
  std::uint32_t num_records() const { return chunks_.size(); }
  // Whether an id that was once a chunk's is now that of the chunk at this address.
  bool IsChunkAt(ChunkId id, std::uint64_t address) const { return chunks_.IsAt(id, address); }
  // Meaningful if the chunk has_details() or this is ordered.
  const ChunkDetails& details(ChunkId id) const { return chunks_.details(id); }
  OrderId OrderOf(ChunkId id) const { return ordered_ ? chunks_.details(id).order : kSafe; }
  bool ordered() const { return ordered_; }
  // From now on chunks have orders; all that is there is safe.
  void StartOrders() { ordered_ = true; }

  // Bytes of host memory in use.
  std::size_t BookkeepingBytes() const;

 protected:
  // The free chunks of one order but kSafe. The queue lists them by their latest
  // free, so that promoting touches only what becomes safe.
  struct Order {
    FreeIndex index;
    std::uint64_t bytes = 0;
    ChunkId queue_head = kNoChunk;
    ChunkId queue_tail = kNoChunk;
  };

  // What only some owners ask for, behind one pointer that blocks look at.
  struct Extra {
    std::vector<std::uint64_t> live_bytes;  // by the regions' numbers
    bool has_index = false;
    absl::btree_map<std::uint64_t, ChunkId> by_address;  // live blocks, with has_index
  };

  struct StartsAt {
    const BestFit& fit;
    std::uint64_t address;
    bool operator()(ChunkId id) const { return fit.chunks_[id].address == address; }
  };

  FreeIndex& IndexOf(OrderId order) { return order == kSafe ? safe_ : orders_[order]->index; }
  FreeKey KeyOf(ChunkId id) const {
    return FreeKey::Make(chunks_[id].size, chunks_[id].address, id);
  }
  // Makes sure that the next operation finds room in every table; false if the
  // machine has no memory. Looks only once in kBatch operations; who uses the tables
  // in other ways than Allocate and Free sets prepared_ to 0 afterwards.
  bool Prepare() {
    if (HBM_LIKELY(prepared_ != 0)) {
      --prepared_;
      return true;
    }
    return PrepareBatch();
  }
  bool PrepareBatch();
  bool ReserveForAllocate(OrderId order) {
    return Prepare() &&
           (order == kSafe || (EnsureOrder(order) && orders_[order]->index.Reserve(2)));
  }
  // The best free chunk for a request, of order kSafe or the request's; !key if none
  // fits. `order` becomes the chunk's.
  template <bool kOrdered, bool kAligned>
  FreeKey FindFreeAs(const Request& request, OrderId* order) const;
  FreeKey FindFree(const Request& request, OrderId* order) const {
    return FindFreeAs<true, true>(request, order);
  }
  FreeKey Search(const Request& request, const FreeIndex& index) const {
    return request.alignment > kChunkUnit ? SearchAligned(request, index)
                                          : index.LowerBound(request.rounded);
  }
  // Makes the block out of a free chunk, from its `prefix`-th byte on. Requires
  // ReserveForAllocate.
  template <bool kOrdered, bool kAligned>
  ChunkId TakeFreeAs(FreeIndex::Place place, OrderId order, std::uint64_t prefix,
                     const Request& request);
  ChunkId TakeFree(FreeKey key, OrderId order, std::uint64_t prefix, const Request& request);
  // Makes a live block of a chunk that is in no index.
  template <bool kOrdered>
  void MakeLiveAs(ChunkId id, const Request& request);
  void MakeLive(ChunkId id, const Request& request);
  FreeKey SearchAligned(const Request& request, const FreeIndex& index) const;
  // Both kinds of BestFit from one text, so that one of them pays nothing for the
  // other.
  template <bool kOrdered, bool kAligned>
  ChunkId AllocateAs(const Request& request);
  template <bool kOrdered>
  void FreeAs(ChunkId id, OrderId order, std::uint64_t sequence);
  ChunkId AllocateRare(const Request& request);
  void FreeOrdered(ChunkId id, OrderId order, std::uint64_t sequence);
  template <bool kOrdered>
  bool CanMerge(ChunkId id, OrderId order) const;
  // Makes a free chunk, which is in no index, one with its neighbours of the same
  // order; returns what it is then called.
  ChunkId Coalesce(ChunkId id, OrderId order);
  // Puts a free chunk into its order's index and, at the end, its queue; or takes
  // it out.
  void Enlist(ChunkId id, OrderId order, std::uint64_t sequence);
  void Delist(ChunkId id, OrderId order);
  // The books of an order but kSafe: a free chunk comes to its queue's end, or goes.
  void Join(ChunkId id, OrderId order, std::uint64_t sequence);
  void Leave(ChunkId id, OrderId order);
  void QueueInsertAfter(Order& order, ChunkId where, ChunkId id);
  void QueueRemove(Order& order, ChunkId id);
  void UnlinkAfter(ChunkId id);
  Region* RegionAt(std::uint64_t address) {
    return const_cast<Region*>(static_cast<const BestFit*>(this)->RegionOf(address));
  }
  // A chunk became its region's last one; a block that ends at `used` was cut from
  // what lies there. Nothing higher was ever in use: it would have been last itself.
  void NoteLast(ChunkId id, std::uint64_t used);
  // Begins to count what only some owners ask for.
  void CountMore();
  std::uint32_t UnusedRegionNumber() const;
  void NoteLive(const Chunk& chunk, ChunkId id);
  void NoteTaken(const Chunk& chunk);
  ChunkId SplitAt(ChunkId id, std::uint64_t offset);

  static constexpr std::uint32_t kBatch = 64;
  // Room beyond a batch, for changes that are not counted one by one.
  static constexpr std::uint32_t kSlack = 64;

  bool ordered_;
  std::uint32_t prepared_ = 0;  // operations that find room
  const std::uint64_t max_waste_;
  ChunkTable chunks_;
  AddressMap live_;
  std::uint64_t unsafe_bytes_ = 0;
  FreeIndex safe_;
  std::vector<std::unique_ptr<Order>> orders_;  // [0] is not used
  std::vector<Region> regions_;
  std::unique_ptr<Extra> extra_;
};

}  // namespace hbm::core

#include "core/best_fit_hot.h"  // IWYU pragma: export

#endif  // HBMALLOC_CORE_BEST_FIT_H_
