// SPDX-License-Identifier: Apache-2.0
//
// File: backed_space.h
//
// Best fit with coalescing over addresses that are only partly backed by memory.
// Beside live and free chunks there are holes: addresses with no memory behind
// them. Free chunks are backed from end to end, so that a block that fits one
// needs nothing else; what needs more is placed over free chunks and holes
// together, and the owner fills the holes.
//
//   BackedSpace space({/*granule=*/2 << 20, /*ordered=*/false});
//   space.AddRange(base, bytes);                        // one hole
//   Placement at = space.Choose(request, pages, false);
//   ChunkId held = space.HoldRange(at.first, begin, end);   // nobody else touches it now
//   ... map memory, tell `pages` ...
//   ChunkId block = space.SettleBlock(held, at.address, request, pages);
//
// Free and held chunks, orders and lookups are those of BestFit. Holes start and
// end on granules. Thread-compatible; nothing here calls a driver.
#ifndef HBMALLOC_CORE_BACKED_SPACE_H_
#define HBMALLOC_CORE_BACKED_SPACE_H_

#include <cstdint>

#include "absl/container/btree_map.h"
#include "core/best_fit.h"
#include "core/page_map.h"

namespace hbm::core {

class BackedSpace : public BestFit {
 public:
  struct Options {
    std::uint64_t granule = std::uint64_t{2} << 20;
    bool ordered = false;
  };

  // Where a block would go. Sizes in bytes.
  struct Placement {
    bool found = false;
    std::uint64_t address = 0;
    std::uint64_t unbacked = 0;        // that need memory first
    std::uint64_t newly_occupied = 0;  // unbacked, and of mappings that are wholly free now
    std::uint64_t run_bytes = 0;       // of the free run that it lies in
    ChunkId first = kNoChunk;          // the run's first chunk
  };

  explicit BackedSpace(const Options& options)
      : BestFit({/*max_waste=*/1, options.ordered}),
        granule_(options.granule),
        granule_shift_(__builtin_ctzll(options.granule)) {}

  // The range becomes one hole. False if there is no host memory for its record.
  bool AddRange(std::uint64_t address, std::uint64_t bytes);

  // A block in the best fitting free chunk, at the end of it that newly occupies
  // fewer granules. kNoChunk if none fits.
  HBM_ALWAYS_INLINE ChunkId AllocateBacked(const Request& request) {
    return HBM_LIKELY(!ordered_ && request.alignment <= kChunkUnit) ? AllocatePlain(request)
                                                                    : AllocateRarely(request);
  }

  // The place that newly occupies the fewest bytes of mappings; of those the one
  // that needs the fewest unbacked bytes, then the shortest run. Looks at the runs
  // of free chunks and holes that have a hole, and with `all` at the fully backed
  // ones too. With `in_hole`, the block lies in one hole and starts on a granule.
  // Takes time proportional to the free chunks.
  Placement Choose(const Request& request, const PageMap& pages, bool all,
                   bool in_hole = false) const;

  // The same among the free chunks of another order, which the caller has made
  // safe for the request's.
  ChunkId AllocateFrom(OrderId order, const Request& request);

  // As BestFit::Free; returns the free chunk that it became part of.
  FreeKey FreeBlock(ChunkId id, OrderId order, std::uint64_t sequence);

  // Makes sure that holding and settling `count` ranges does not run out of host
  // memory; false if there is none.
  bool ReserveForChanges(std::uint32_t count);
  // [begin, end), which only free chunks and holes cover, becomes one held chunk.
  // `from` is one of the chunks before or at `begin` in the same run.
  ChunkId HoldRange(ChunkId from, std::uint64_t begin, std::uint64_t end);
  // The held chunk becomes free where `pages` back it, and holes elsewhere.
  void Settle(ChunkId held, const PageMap& pages);
  // The same, and a block of it. Requires that the block is backed.
  ChunkId SettleBlock(ChunkId held, std::uint64_t address, const Request& request,
                      const PageMap& pages);

  // Calls visit(key) for each free safe chunk of at least `bytes` bytes, smallest
  // first, until it returns false.
  template <typename Visit>
  void VisitFree(std::uint64_t bytes, Visit visit) const {
    for (FreeKey key = safe_.LowerBound(bytes); key; key = safe_.Next(key)) {
      if (!visit(key)) return;
    }
  }
  std::size_t num_free() const { return safe_.size(); }
  bool IsHole(ChunkId id) const { return chunks_[id].use() == ChunkUse::kUnbacked; }
  // Bytes of the hole that starts at or holds `address`, from there on; 0 if none.
  std::uint64_t HoleBytesFrom(std::uint64_t address) const;

 private:
  struct Run;

  // What TakeBest does where there is one order and no alignment to think of.
  HBM_ALWAYS_INLINE ChunkId AllocatePlain(const Request& request) {
    const FreeIndex::Place place = safe_.Find(request.rounded);
    const FreeKey key = place.key;
    if (HBM_UNLIKELY(!key)) return kNoChunk;
    const std::uint64_t begin = key.address();
    live_.Prefetch(begin);
    if (HBM_UNLIKELY(!Prepare())) return kNoChunk;
    const std::uint64_t end = begin + key.size();
    // Granules that the block would newly occupy at either end: a granule that the
    // chunk shares with a neighbour in use is not counted.
    const std::uint64_t at_begin =
        GranulesTo(begin + request.rounded + granule_ - 1) - GranulesTo(begin + granule_ - 1);
    const std::uint64_t at_end = GranulesTo(end) - GranulesTo(end - request.rounded);
    if (HBM_LIKELY(at_end >= at_begin)) {
      return TakeFreeAs<false, false>(place, kSafe, 0, request);
    }
    return TakeFree(key, kSafe, key.size() - request.rounded, request);
  }
  std::uint64_t GranulesTo(std::uint64_t address) const { return address >> granule_shift_; }
  ChunkId AllocateRarely(const Request& request);
  ChunkId TakeBest(FreeKey key, OrderId order, const Request& request);

  bool IsUsable(ChunkId id, OrderId order) const;
  Run RunAround(ChunkId id, OrderId order) const;
  void Consider(const Run& run, std::uint64_t address, const Request& request, const PageMap& pages,
                Placement* best) const;
  // Cuts [begin, end) out of a free chunk or hole; it is in no index then.
  ChunkId CutOut(ChunkId id, std::uint64_t begin, std::uint64_t end);
  void MakeHole(ChunkId id);

  const std::uint64_t granule_;  // a power of two
  const int granule_shift_;
  absl::btree_map<std::uint64_t, ChunkId> holes_;  // by address
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_BACKED_SPACE_H_
