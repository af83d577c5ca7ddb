// SPDX-License-Identifier: Apache-2.0
//
// File: best_fit_hot.h
//
// The bodies of BestFit that every allocation and free runs through, in a header
// so that they become part of their callers. Include best_fit.h instead.
#ifndef HBMALLOC_CORE_BEST_FIT_HOT_H_
#define HBMALLOC_CORE_BEST_FIT_HOT_H_

#include "core/best_fit.h"
#include "core/compiler.h"

namespace hbm::core {

// Cuts a chunk in two and returns the upper part. Neither is put anywhere.
HBM_ALWAYS_INLINE ChunkId BestFit::SplitAt(ChunkId id, std::uint64_t offset) {
  const ChunkId upper = chunks_.New();
  Chunk& low = chunks_[id];
  Chunk& high = chunks_[upper];
  high.address = low.address + offset;
  high.size = low.size - offset;
  high.prev = id;
  high.next = low.next;
  high.SetFreeBeside(low);
  const ChunkId next = high.next;
  low.size = offset;
  low.next = upper;
  if (HBM_LIKELY(next != kNoChunk)) {
    chunks_[next].prev = upper;
  } else {
    NoteLast(upper, high.address);
  }
  return upper;
}

// Makes a chunk one with the chunk after it, which ends.
HBM_ALWAYS_INLINE void BestFit::UnlinkAfter(ChunkId id) {
  Chunk& low = chunks_[id];
  const ChunkId gone = low.next;
  const Chunk& high = chunks_[gone];
  low.size += high.size;
  low.next = high.next;
  if (HBM_LIKELY(low.next != kNoChunk)) {
    chunks_[low.next].prev = id;
  } else {
    NoteLast(id, 0);
  }
  chunks_.Delete(gone);
}

template <bool kOrdered, bool kAligned>
HBM_ALWAYS_INLINE FreeKey BestFit::FindFreeAs(const Request& request, OrderId* order) const {
  *order = kSafe;
  FreeKey key = kAligned ? Search(request, safe_) : safe_.LowerBound(request.rounded);
  if (kOrdered && request.order != kSafe && request.order < orders_.size() &&
      orders_[request.order] != nullptr) {
    const FreeKey own = Search(request, orders_[request.order]->index);
    if (own && (!key || own < key)) {
      key = own;
      *order = request.order;
    }
  }
  return key;
}

inline void BestFit::NoteLive(const Chunk& chunk, ChunkId id) {
  extra_->live_bytes[chunk.region()] += chunk.size;
  if (HBM_UNLIKELY(extra_->has_index)) extra_->by_address.emplace(chunk.address, id);
}

inline void BestFit::NoteTaken(const Chunk& chunk) {
  extra_->live_bytes[chunk.region()] -= chunk.size;
  if (HBM_UNLIKELY(extra_->has_index)) extra_->by_address.erase(chunk.address);
}

template <bool kOrdered>
HBM_ALWAYS_INLINE void BestFit::MakeLiveAs(ChunkId id, const Request& request) {
  Chunk& chunk = chunks_[id];
  const bool with_details = kOrdered || (request.stream | request.tag) != 0;
  chunk.SetLive(request.requested, with_details);
  if (with_details) {
    ChunkDetails& details = chunks_.details(id);
    details.stream_or_sequence = request.stream;
    details.order = request.order;
    details.tag_or_queue_prev = request.tag;
  }
  live_.Insert(chunk.address, id);
  if (HBM_UNLIKELY(extra_ != nullptr)) NoteLive(chunk, id);
}

template <bool kOrdered, bool kAligned>
HBM_ALWAYS_INLINE ChunkId BestFit::TakeFreeAs(FreeIndex::Place place, OrderId order,
                                              std::uint64_t prefix, const Request& request) {
  FreeIndex& index = kOrdered ? IndexOf(order) : safe_;
  const FreeKey key = place.key;
  ChunkId id = key.id();
  if (!kAligned) prefix = 0;
  const std::uint64_t extra = key.size() - prefix - request.rounded;
  // What is split off stands in its order's queue where the chunk stood.
  if (extra != 0 && (extra >= request.rounded || extra >= max_waste_)) {
    const ChunkId tail = SplitAt(id, prefix + request.rounded);
    index.Replace(place, FreeKey::Make(extra, key.address() + prefix + request.rounded, tail));
    if (kOrdered) {
      chunks_.details(tail).order = order;
      if (order != kSafe) {
        chunks_.details(tail).stream_or_sequence = chunks_.details(id).stream_or_sequence;
        QueueInsertAfter(*orders_[order], id, tail);
      }
    }
  } else {
    index.Erase(place);
    if (HBM_UNLIKELY(chunks_[id].next == kNoChunk)) {
      NoteLast(id, key.address() + prefix + request.rounded);
    }
  }
  if (kAligned && prefix != 0) {
    const ChunkId block = SplitAt(id, prefix);
    index.Insert(KeyOf(id));  // the prefix keeps the number and the place
    id = block;
  } else if (kOrdered && order != kSafe) {
    QueueRemove(*orders_[order], id);
  }
  if (kOrdered && order != kSafe) {
    orders_[order]->bytes -= chunks_[id].size;
    unsafe_bytes_ -= chunks_[id].size;
  }
  MakeLiveAs<kOrdered>(id, request);
  return id;
}

template <bool kOrdered, bool kAligned>
HBM_ALWAYS_INLINE ChunkId BestFit::AllocateAs(const Request& request) {
  OrderId order = kSafe;
  FreeIndex::Place place;
  if constexpr (kOrdered || kAligned) {
    place.key = FindFreeAs<kOrdered, kAligned>(request, &order);
    if (HBM_UNLIKELY(!place.key)) return kNoChunk;
    place = FreeIndex::PlaceOf(place.key);
  } else {
    place = safe_.Find(request.rounded);
    if (HBM_UNLIKELY(!place.key)) return kNoChunk;
  }
  const FreeKey key = place.key;
  live_.Prefetch(key.address());
  if (HBM_UNLIKELY(kOrdered ? !ReserveForAllocate(request.order) : !Prepare())) return kNoChunk;
  const std::uint64_t prefix =
      kAligned ? AlignUpTo(key.address(), request.alignment) - key.address() : 0;
  return TakeFreeAs<kOrdered, kAligned>(place, order, prefix, request);
}

HBM_ALWAYS_INLINE ChunkId BestFit::AllocatePlain(const Request& request) {
  return AllocateAs<false, false>(request);
}

HBM_ALWAYS_INLINE ChunkId BestFit::Allocate(const Request& request) {
  if (HBM_UNLIKELY(ordered_ || request.alignment > kChunkUnit)) return AllocateRare(request);
  return AllocateAs<false, false>(request);
}

template <bool kOrdered>
HBM_ALWAYS_INLINE bool BestFit::CanMerge(ChunkId id, OrderId order) const {
  return id != kNoChunk && chunks_[id].is_free() &&
         (!kOrdered || chunks_.details(id).order == order);
}

template <bool kOrdered>
HBM_ALWAYS_INLINE void BestFit::FreeAs(ChunkId id, OrderId order, std::uint64_t sequence) {
  FreeIndex& index = kOrdered ? IndexOf(order) : safe_;
  if (HBM_UNLIKELY(!Prepare() || (kOrdered && order != kSafe && !index.Reserve(1)))) {
    // The machine has no memory for a table's next page. The chunk stays out of
    // reach: it is lost to reuse, but no record is wrong.
    Hold(id);
    return;
  }
  Chunk& chunk = chunks_[id];
  chunk.SetFree();
  const ChunkId next = chunk.next;
  const ChunkId prev = chunk.prev;
  chunks_.Prefetch(next);
  chunks_.Prefetch(prev);
  const bool with_next = CanMerge<kOrdered>(next, order);
  const bool with_prev = CanMerge<kOrdered>(prev, order);
  // The new key takes the place of the neighbour's that it has.
  if (with_prev) {
    const FreeIndex::Place old = FreeIndex::PlaceOf(KeyOf(prev));
    if (kOrdered && order != kSafe) Leave(prev, order);
    if (with_next) {
      index.Erase(KeyOf(next));
      if (kOrdered && order != kSafe) Leave(next, order);
      UnlinkAfter(id);
    }
    UnlinkAfter(prev);
    id = prev;
    index.Replace(old, KeyOf(prev));
  } else if (with_next) {
    const FreeIndex::Place old = FreeIndex::PlaceOf(KeyOf(next));
    if (kOrdered && order != kSafe) Leave(next, order);
    UnlinkAfter(id);
    index.Replace(old, KeyOf(id));
  } else {
    index.Insert(KeyOf(id));
  }
  if (!kOrdered) return;
  chunks_.details(id).order = order;
  if (order != kSafe) Join(id, order, sequence);
}

HBM_ALWAYS_INLINE void BestFit::FreePlain(ChunkId id) { FreeAs<false>(id, kSafe, 0); }

HBM_ALWAYS_INLINE void BestFit::Free(ChunkId id, OrderId order, std::uint64_t sequence) {
  if (HBM_UNLIKELY(ordered_)) {
    FreeOrdered(id, order, sequence);
  } else {
    FreeAs<false>(id, kSafe, 0);
  }
}

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_BEST_FIT_HOT_H_
