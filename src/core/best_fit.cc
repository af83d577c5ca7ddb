// SPDX-License-Identifier: Apache-2.0
#include "core/best_fit.h"

#include <algorithm>

#include "core/compiler.h"

namespace hbm::core {
namespace {

// How many free chunks are tried for a large alignment before one is taken that
// fits wherever it lies.
constexpr int kAlignedProbes = 8;

}  // namespace

bool BestFit::AddRegion(std::uint64_t address, std::uint64_t bytes) {
  if (!PrepareBatch()) return false;
  if (!regions_.empty()) CountMore();
  const ChunkId id = chunks_.New();
  chunks_[id] = Chunk{};
  chunks_[id].address = address;
  chunks_[id].size = bytes;
  const std::uint32_t number = UnusedRegionNumber();
  chunks_[id].SetRegion(number);
  if (ordered_) chunks_.details(id).order = kSafe;
  const auto after = std::upper_bound(
      regions_.begin(), regions_.end(), address,
      [](std::uint64_t value, const Region& region) { return value < region.address; });
  regions_.insert(after, Region{address, bytes, id, id, address, number});
  safe_.Insert(KeyOf(id));
  return true;
}

bool BestFit::IsIdle(const Region& region) const {
  const Chunk& first = chunks_[region.first];
  return first.is_free() && first.size == region.bytes && OrderOf(region.first) == kSafe;
}

void BestFit::RemoveRegion(std::uint64_t address) {
  for (auto region = regions_.begin(); region != regions_.end(); ++region) {
    if (region->address != address) continue;
    safe_.Erase(KeyOf(region->first));
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
    const std::uint64_t start = AlignUpTo(key.address(), request.alignment);
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

ChunkId BestFit::AllocateRare(const Request& request) {
  if (!ordered_) return AllocateAs<false, true>(request);
  return request.alignment > kChunkUnit ? AllocateAs<true, true>(request)
                                        : AllocateAs<true, false>(request);
}

ChunkId BestFit::TakeFree(FreeKey key, OrderId order, std::uint64_t prefix,
                          const Request& request) {
  const FreeIndex::Place place = FreeIndex::PlaceOf(key);
  return ordered_ ? TakeFreeAs<true, true>(place, order, prefix, request)
                  : TakeFreeAs<false, true>(place, order, prefix, request);
}

void BestFit::MakeLive(ChunkId id, const Request& request) {
  ordered_ ? MakeLiveAs<true>(id, request) : MakeLiveAs<false>(id, request);
}

bool BestFit::PrepareBatch() {
  for (const std::uint32_t batch : {kBatch, std::uint32_t{1}}) {
    // An operation makes at most two chunks, one live block and two free chunks.
    const std::uint32_t room = 2 * batch + kSlack;
    if (chunks_.HasSpare(room) && live_.Reserve(room) && safe_.Reserve(room)) {
      prepared_ = batch - 1;
      return true;
    }
  }
  return false;
}

ChunkId BestFit::Coalesce(ChunkId id, OrderId order) {
  const ChunkId next = chunks_[id].next;
  const ChunkId prev = chunks_[id].prev;
  if (CanMerge<true>(next, order)) {
    Delist(next, order);
    UnlinkAfter(id);
  }
  if (CanMerge<true>(prev, order)) {
    Delist(prev, order);
    UnlinkAfter(prev);
    id = prev;
  }
  return id;
}

void BestFit::Enlist(ChunkId id, OrderId order, std::uint64_t sequence) {
  IndexOf(order).Insert(KeyOf(id));
  chunks_.details(id).order = order;
  if (order != kSafe) Join(id, order, sequence);
}

void BestFit::Delist(ChunkId id, OrderId order) {
  IndexOf(order).Erase(KeyOf(id));
  if (order != kSafe) Leave(id, order);
}

void BestFit::FreeOrdered(ChunkId id, OrderId order, std::uint64_t sequence) {
  FreeAs<true>(id, order, sequence);
}

void BestFit::Join(ChunkId id, OrderId order, std::uint64_t sequence) {
  Order& own = *orders_[order];
  own.bytes += chunks_[id].size;
  unsafe_bytes_ += chunks_[id].size;
  chunks_.details(id).stream_or_sequence = sequence;
  QueueInsertAfter(own, own.queue_tail, id);
}

void BestFit::Leave(ChunkId id, OrderId order) {
  Order& own = *orders_[order];
  own.bytes -= chunks_[id].size;
  unsafe_bytes_ -= chunks_[id].size;
  QueueRemove(own, id);
}

// At the front if `where` is kNoChunk.
void BestFit::QueueInsertAfter(Order& order, ChunkId where, ChunkId id) {
  ChunkId& before = where == kNoChunk ? order.queue_head : chunks_.details(where).queue_next;
  const ChunkId next = before;
  before = id;
  (next == kNoChunk ? order.queue_tail : chunks_.details(next).tag_or_queue_prev) = id;
  chunks_.details(id).tag_or_queue_prev = where;
  chunks_.details(id).queue_next = next;
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

void BestFit::Move(OrderId from, std::uint64_t up_to, OrderId to, std::uint64_t sequence) {
  if (from == kSafe || from == to || from >= orders_.size() || orders_[from] == nullptr) return;
  Order& own = *orders_[from];
  while (own.queue_head != kNoChunk &&
         chunks_.details(own.queue_head).stream_or_sequence <= up_to) {
    const ChunkId id = own.queue_head;
    if (!Prepare() || !EnsureOrder(to)) return;
    own.index.Erase(KeyOf(id));
    Leave(id, from);
    FreeAs<true>(id, to, sequence);
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

void BestFit::AddFreeSums(FreeIndex::Sums* sums) const {
  safe_.AddSums(sums);
  for (const auto& order : orders_) {
    if (order != nullptr) order->index.AddSums(sums);
  }
}

void BestFit::FindLargestInRegions(int looks, std::vector<std::uint64_t>* largest) const {
  if (regions_.size() == 1) {
    largest->front() = std::max(largest->front(), LargestFree());
    return;
  }
  std::vector<bool> seen;
  const auto look_at = [&](const FreeIndex& index) {
    seen.assign(regions_.size(), false);
    std::size_t left = regions_.size();
    FreeKey last;
    index.VisitDescending([&](FreeKey key) {
      const auto at = static_cast<std::size_t>(RegionOf(key.address()) - regions_.data());
      if (!seen[at]) --left;
      seen[at] = true;
      (*largest)[at] = std::max((*largest)[at], key.size());
      last = key;
      return left != 0 && --looks > 0;
    });
    for (std::size_t i = 0; looks <= 0 && i < regions_.size(); ++i) {
      if (!seen[i]) (*largest)[i] = std::max((*largest)[i], last.size());
    }
  };
  look_at(safe_);
  for (OrderId order = 1; order < orders_.size(); ++order) {
    if (FreeBytes(order) != 0) look_at(orders_[order]->index);
  }
}

std::uint32_t BestFit::UnusedRegionNumber() const {
  std::vector<bool> used(regions_.size() + 2);
  for (const Region& region : regions_) {
    if (region.number < used.size()) used[region.number] = true;
  }
  std::uint32_t number = 1;
  while (used[number]) ++number;
  return number <= Chunk::kMaxRegion ? number : 0;
}

// Once in a pool's life: when it gets its second region, or an index.
void BestFit::CountMore() {
  if (extra_ != nullptr) return;
  extra_ = std::make_unique<Extra>();
  extra_->live_bytes.resize(Chunk::kMaxRegion + 1);
  for (const Region& region : regions_) {
    for (ChunkId id = region.first; id != kNoChunk; id = chunks_[id].next) {
      if (chunks_[id].is_live()) extra_->live_bytes[region.number] += chunks_[id].size;
    }
  }
}

std::uint64_t BestFit::LiveBytes(const Region& region) const {
  if (extra_ != nullptr && region.number != 0) return extra_->live_bytes[region.number];
  std::uint64_t bytes = 0;
  for (ChunkId id = region.first; id != kNoChunk; id = chunks_[id].next) {
    if (chunks_[id].is_live()) bytes += chunks_[id].size;
  }
  return bytes;
}

HBM_NOINLINE void BestFit::NoteLast(ChunkId id, std::uint64_t used) {
  Region& region = *RegionAt(chunks_[id].address);
  region.last = id;
  region.highest = std::max(region.highest, used);
}

void BestFit::ResetHeights() {
  for (Region& region : regions_) {
    ChunkId id = region.last;
    while (id != kNoChunk && chunks_[id].is_free()) id = chunks_[id].prev;
    region.highest = id == kNoChunk ? region.address : chunks_[id].end();
  }
}

ChunkId BestFit::FindLiveHolding(std::uint64_t address) {
  if (const ChunkId id = FindLive(address); id != kNoChunk) return id;
  if (RegionOf(address) == nullptr) return kNoChunk;
  CountMore();
  auto& by_address = extra_->by_address;
  if (!extra_->has_index) {
    extra_->has_index = true;
    for (const Region& region : regions_) {
      for (ChunkId id = region.first; id != kNoChunk; id = chunks_[id].next) {
        if (chunks_[id].is_live()) by_address.emplace(chunks_[id].address, id);
      }
    }
  }
  auto after = by_address.upper_bound(address);
  if (after == by_address.begin()) return kNoChunk;
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
  if (extra_ != nullptr) {
    bytes += sizeof(Extra) + extra_->live_bytes.capacity() * sizeof(std::uint64_t) +
             extra_->by_address.size() * (2 * sizeof(std::uint64_t) * 3 / 2);
  }
  return bytes;
}

}  // namespace hbm::core
