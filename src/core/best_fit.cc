// SPDX-License-Identifier: Apache-2.0
#include "core/best_fit.h"

#include <algorithm>

namespace hbm::core {
namespace {

// How many free chunks are tried for a large alignment before one is taken that
// fits wherever it lies.
constexpr int kAlignedProbes = 8;

std::uint64_t AlignUp(std::uint64_t address, std::uint64_t alignment) {
  return (address + alignment - 1) & ~(alignment - 1);
}

}  // namespace

bool BestFit::AddRegion(std::uint64_t address, std::uint64_t bytes) {
  if (!chunks_.HasSpare(1) || !safe_.Reserve(1)) return false;
  const ChunkId id = chunks_.New();
  chunks_[id].address = address;
  chunks_[id].size = bytes;
  const auto after = std::upper_bound(
      regions_.begin(), regions_.end(), address,
      [](std::uint64_t value, const Region& region) { return value < region.address; });
  regions_.insert(after, Region{address, bytes, id});
  Enlist(id, kSafe, 0);
  return true;
}

bool BestFit::IsIdle(const Region& region) const {
  const Chunk& first = chunks_[region.first];
  return first.is_free() && first.size == region.bytes && OrderOf(region.first) == kSafe;
}

void BestFit::RemoveRegion(std::uint64_t address) {
  for (auto region = regions_.begin(); region != regions_.end(); ++region) {
    if (region->address != address) continue;
    Delist(region->first, kSafe);
    chunks_.Delete(region->first);
    regions_.erase(region);
    return;
  }
}

const BestFit::Region* BestFit::RegionOf(std::uint64_t address) const {
  auto after = std::upper_bound(
      regions_.begin(), regions_.end(), address,
      [](std::uint64_t value, const Region& region) { return value < region.address; });
  if (after == regions_.begin()) return nullptr;
  --after;
  return address < after->end() ? &*after : nullptr;
}

FreeKey BestFit::SearchAligned(const Request& request, const FreeIndex& index) const {
  const auto fits = [&](FreeKey key) {
    const std::uint64_t start = AlignUp(key.address(), request.alignment);
    return start - key.address() <= key.size() - request.rounded;
  };
  FreeKey key = index.LowerBound(request.rounded);
  for (int probe = 0; probe < kAlignedProbes && key; ++probe) {
    if (fits(key)) return key;
    key = index.Next(key);
  }
  const std::uint64_t padded = request.rounded + request.alignment - kChunkUnit;
  return padded > kMaxChunkBytes ? FreeKey() : index.LowerBound(padded);
}

FreeKey BestFit::Search(const Request& request, const FreeIndex& index) const {
  if (__builtin_expect(request.alignment > kChunkUnit, 0)) return SearchAligned(request, index);
  return index.LowerBound(request.rounded);
}

ChunkId BestFit::Allocate(const Request& request) {
  OrderId order;
  const FreeKey key = FindFree(request, &order);
  if (!key) return kNoChunk;
  live_.Prefetch(key.address());
  if (__builtin_expect(!ReserveForAllocate(request.order), 0)) return kNoChunk;
  return TakeFree(key, order, AlignUp(key.address(), request.alignment) - key.address(), request);
}

void BestFit::MakeLive(ChunkId id, const Request& request) {
  Chunk& chunk = chunks_[id];
  const bool with_details = ordered_ || (request.stream | request.tag) != 0;
  chunk.SetLive(request.requested, with_details);
  if (with_details) {
    ChunkDetails& details = chunks_.details(id);
    details.stream_or_sequence = request.stream;
    details.order = request.order;
    details.tag_or_queue_prev = request.tag;
  }
  live_.Insert(chunk.address, id);
  if (by_address_ != nullptr) by_address_->emplace(chunk.address, id);
}

ChunkId BestFit::TakeFree(FreeKey key, OrderId order, std::uint64_t prefix,
                          const Request& request) {
  ChunkId id = key.id();
  std::uint64_t size = key.size();
  const std::uint64_t extra = size - prefix - request.rounded;
  const bool cut_tail = extra != 0 && (size - prefix >= 2 * request.rounded || extra >= max_waste_);
  // What is split off stands in the queue where the chunk stood.
  const std::uint64_t sequence = order == kSafe ? 0 : chunks_.details(id).stream_or_sequence;
  if (cut_tail) {
    const ChunkId tail = SplitAt(id, prefix + request.rounded);
    if (ordered_) chunks_.details(tail).order = order;
    IndexOf(order).Insert(KeyOf(tail));
    if (order != kSafe) {
      chunks_.details(tail).stream_or_sequence = sequence;
      QueueInsertAfter(*orders_[order], id, tail);
    }
  }
  IndexOf(order).Erase(key);
  if (prefix != 0) {
    const ChunkId block = SplitAt(id, prefix);
    IndexOf(order).Insert(KeyOf(id));  // the prefix keeps the number and the place
    if (ordered_) chunks_.details(block).order = order;
    id = block;
  } else if (order != kSafe) {
    QueueRemove(*orders_[order], id);
  }

  if (order != kSafe) {
    orders_[order]->bytes -= chunks_[id].size;
    unsafe_bytes_ -= chunks_[id].size;
  }
  MakeLive(id, request);
  return id;
}

// Cuts a chunk in two and returns the upper part. Neither is put anywhere.
ChunkId BestFit::SplitAt(ChunkId id, std::uint64_t offset) {
  const ChunkId upper = chunks_.New();
  Chunk& low = chunks_[id];
  Chunk& high = chunks_[upper];
  high.address = low.address + offset;
  high.size = low.size - offset;
  high.prev = id;
  high.next = low.next;
  if (high.next != kNoChunk) chunks_[high.next].prev = upper;
  low.size = offset;
  low.next = upper;
  return upper;
}

// Makes a chunk one with the chunk after it, which ends.
void BestFit::UnlinkAfter(ChunkId id) {
  Chunk& low = chunks_[id];
  const ChunkId gone = low.next;
  const Chunk& high = chunks_[gone];
  low.size += high.size;
  low.next = high.next;
  if (low.next != kNoChunk) chunks_[low.next].prev = id;
  chunks_.Delete(gone);
}

// Makes a free chunk, which is in no index, one with its neighbours of the same
// order; returns what it is then called.
ChunkId BestFit::Coalesce(ChunkId id, OrderId order) {
  const ChunkId next = chunks_[id].next;
  const ChunkId prev = chunks_[id].prev;
  if (CanMerge(next, order)) {
    Delist(next, order);
    UnlinkAfter(id);
  }
  if (CanMerge(prev, order)) {
    Delist(prev, order);
    UnlinkAfter(prev);
    id = prev;
  }
  return id;
}

void BestFit::Free(ChunkId id, OrderId order, std::uint64_t sequence) {
  if (__builtin_expect(!IndexOf(order).Reserve(1), 0)) {
    // The machine has no memory for a table's next page. The chunk stays out of
    // reach: it is lost to reuse, but no record is wrong.
    Hold(id);
    return;
  }
  chunks_[id].SetFree();
  Enlist(Coalesce(id, order), order, sequence);
}

void BestFit::Enlist(ChunkId id, OrderId order, std::uint64_t sequence) {
  IndexOf(order).Insert(KeyOf(id));
  if (!ordered_) return;
  ChunkDetails& details = chunks_.details(id);
  details.order = order;
  if (order == kSafe) return;
  details.stream_or_sequence = sequence;
  Order& own = *orders_[order];
  own.bytes += chunks_[id].size;
  unsafe_bytes_ += chunks_[id].size;
  QueueAppend(own, id);
}

void BestFit::Delist(ChunkId id, OrderId order) {
  IndexOf(order).Erase(KeyOf(id));
  if (order == kSafe) return;
  Order& own = *orders_[order];
  own.bytes -= chunks_[id].size;
  unsafe_bytes_ -= chunks_[id].size;
  QueueRemove(own, id);
}

void BestFit::QueueAppend(Order& order, ChunkId id) {
  if (order.queue_tail != kNoChunk) return QueueInsertAfter(order, order.queue_tail, id);
  ChunkDetails& details = chunks_.details(id);
  details.tag_or_queue_prev = kNoChunk;
  details.queue_next = kNoChunk;
  order.queue_head = order.queue_tail = id;
}

void BestFit::QueueInsertAfter(Order& order, ChunkId where, ChunkId id) {
  ChunkDetails& before = chunks_.details(where);
  ChunkDetails& details = chunks_.details(id);
  details.tag_or_queue_prev = where;
  details.queue_next = before.queue_next;
  before.queue_next = id;
  if (details.queue_next != kNoChunk) {
    chunks_.details(details.queue_next).tag_or_queue_prev = id;
  } else {
    order.queue_tail = id;
  }
}

void BestFit::QueueRemove(Order& order, ChunkId id) {
  const ChunkDetails& details = chunks_.details(id);
  const ChunkId prev = details.tag_or_queue_prev;
  const ChunkId next = details.queue_next;
  (prev != kNoChunk ? chunks_.details(prev).queue_next : order.queue_head) = next;
  (next != kNoChunk ? chunks_.details(next).tag_or_queue_prev : order.queue_tail) = prev;
}

bool BestFit::EnsureOrder(OrderId order) {
  if (order == kSafe) return true;
  if (order >= orders_.size()) orders_.resize(order + 1);
  if (orders_[order] == nullptr) orders_[order] = std::make_unique<Order>();
  return orders_[order]->index.Reserve(1);
}

void BestFit::Promote(OrderId order, std::uint64_t up_to) {
  if (order == kSafe || order >= orders_.size() || orders_[order] == nullptr) return;
  Order& own = *orders_[order];
  while (own.queue_head != kNoChunk &&
         chunks_.details(own.queue_head).stream_or_sequence <= up_to) {
    const ChunkId id = own.queue_head;
    if (!safe_.Reserve(1)) return;
    Delist(id, order);
    Enlist(Coalesce(id, kSafe), kSafe, 0);
  }
}

std::uint64_t BestFit::LargestFree(OrderId order) const {
  if (order == kSafe) return safe_.Largest().size();
  return FreeBytes(order) == 0 ? 0 : orders_[order]->index.Largest().size();
}

std::uint64_t BestFit::LargestFree() const {
  std::uint64_t largest = safe_.Largest().size();
  if (unsafe_bytes_ == 0) return largest;
  for (OrderId order = 1; order < orders_.size(); ++order) {
    largest = std::max(largest, LargestFree(order));
  }
  return largest;
}

ChunkId BestFit::FindLiveHolding(std::uint64_t address) {
  if (const ChunkId id = FindLive(address); id != kNoChunk) return id;
  if (RegionOf(address) == nullptr) return kNoChunk;
  if (by_address_ == nullptr) {
    by_address_ = std::make_unique<absl::btree_map<std::uint64_t, ChunkId>>();
    for (const Region& region : regions_) {
      for (ChunkId id = region.first; id != kNoChunk; id = chunks_[id].next) {
        if (chunks_[id].is_live()) by_address_->emplace(chunks_[id].address, id);
      }
    }
  }
  auto after = by_address_->upper_bound(address);
  if (after == by_address_->begin()) return kNoChunk;
  --after;
  return address < chunks_[after->second].end() ? after->second : kNoChunk;
}

std::size_t BestFit::BookkeepingBytes() const {
  std::size_t bytes = sizeof(*this) - sizeof(safe_) + safe_.TouchedBytes() +
                      chunks_.TouchedBytes() + live_.TouchedBytes() +
                      regions_.capacity() * sizeof(Region) +
                      orders_.capacity() * sizeof(orders_[0]);
  for (const auto& order : orders_) {
    if (order != nullptr) bytes += sizeof(Order) - sizeof(FreeIndex) + order->index.TouchedBytes();
  }
  if (by_address_ != nullptr) bytes += by_address_->size() * (2 * sizeof(std::uint64_t) * 3 / 2);
  return bytes;
}

}  // namespace hbm::core
