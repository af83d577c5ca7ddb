// SPDX-License-Identifier: Apache-2.0
#include "core/backed_space.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace hbm::core {
namespace {

std::uint64_t AlignUp(std::uint64_t address, std::uint64_t alignment) {
  return (address + alignment - 1) & ~(alignment - 1);
}
std::uint64_t AlignDown(std::uint64_t address, std::uint64_t alignment) {
  return address & ~(alignment - 1);
}

}  // namespace

// Chunks side by side that a block may be placed over.
struct BackedSpace::Run {
  ChunkId first = kNoChunk;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool is_last = false;  // nothing lies after it in the range
};

bool BackedSpace::AddRange(std::uint64_t address, std::uint64_t bytes) {
  if (!AddRegion(address, bytes)) return false;
  const ChunkId id = RegionOf(address)->first;
  Delist(id, kSafe);
  MakeHole(id);
  return true;
}

ChunkId BackedSpace::AllocateRarely(const Request& request) {
  OrderId order = kSafe;
  const FreeKey key = FindFree(request, &order);
  return key ? TakeBest(key, order, request) : kNoChunk;
}

inline ChunkId BackedSpace::TakeBest(FreeKey key, OrderId order, const Request& request) {
  live_.Prefetch(key.address());
  if (__builtin_expect(!ReserveForAllocate(request.order), 0)) return kNoChunk;
  const std::uint64_t begin = key.address();
  const std::uint64_t end = begin + key.size();
  const std::uint64_t low = AlignUp(begin, request.alignment);
  const std::uint64_t high = AlignDown(end - request.rounded, request.alignment);
  // A chunk that ends inside a granule shares it with a neighbour in use.
  const std::uint64_t in_granule = granule_ - 1;
  const auto newly_occupied = [&](std::uint64_t at) {
    const std::uint64_t last = at + request.rounded;
    const bool shares_first = at == begin && (at & in_granule) != 0;
    const bool shares_last = last == end && (last & in_granule) != 0;
    return ((last + in_granule) >> granule_shift_) - (at >> granule_shift_) -
           (shares_first ? 1 : 0) - (shares_last ? 1 : 0);
  };
  const std::uint64_t at = high > low && newly_occupied(high) < newly_occupied(low) ? high : low;
  return ordered_ ? TakeFree(key, order, at - begin, request)
                  : TakeFreeAs<false, true>(FreeIndex::PlaceOf(key), order, at - begin, request);
}

ChunkId BackedSpace::AllocateFrom(OrderId order, const Request& request) {
  if (order >= orders_.size() || orders_[order] == nullptr) return kNoChunk;
  const FreeKey key = Search(request, orders_[order]->index);
  return key ? TakeBest(key, order, request) : kNoChunk;
}

FreeKey BackedSpace::FreeBlock(ChunkId id, OrderId order, std::uint64_t sequence) {
  if (!EnsureOrder(order) || !Prepare() || !IndexOf(order).Reserve(1)) {
    Hold(id);  // lost to reuse, as in BestFit::Free
    return FreeKey();
  }
  chunks_[id].SetFree();
  id = Coalesce(id, order);
  Enlist(id, order, sequence);
  return KeyOf(id);
}

bool BackedSpace::IsUsable(ChunkId id, OrderId order) const {
  if (id == kNoChunk) return false;
  if (IsHole(id)) return true;
  if (!chunks_[id].is_free()) return false;
  const OrderId own = OrderOf(id);
  return own == kSafe || own == order;
}

BackedSpace::Run BackedSpace::RunAround(ChunkId id, OrderId order) const {
  Run run;
  run.first = id;
  while (IsUsable(chunks_[run.first].prev, order)) run.first = chunks_[run.first].prev;
  ChunkId last = id;
  while (IsUsable(chunks_[last].next, order)) last = chunks_[last].next;
  run.begin = chunks_[run.first].address;
  run.end = chunks_[last].end();
  run.is_last = chunks_[last].next == kNoChunk;
  return run;
}

// Counts what a block at `address` would need and occupy, and keeps the best.
void BackedSpace::Consider(const Run& run, std::uint64_t address, const Request& request,
                           const PageMap& pages, Placement* best) const {
  const std::uint64_t end = address + request.rounded;
  if (address < run.begin || end > run.end) return;
  std::uint64_t unbacked = 0;
  for (ChunkId id = run.first; id != kNoChunk && chunks_[id].address < end; id = chunks_[id].next) {
    if (!IsHole(id) || chunks_[id].end() <= address) continue;
    unbacked += AlignUp(std::min(end, chunks_[id].end()), granule_) -
                AlignDown(std::max(address, chunks_[id].address), granule_);
  }
  std::uint64_t occupied = unbacked;
  for (std::size_t i = pages.FirstAfter(address); i < pages.size() && pages[i].address < end; ++i) {
    if (pages[i].address >= run.begin && pages[i].end() <= run.end) occupied += pages[i].bytes;
    if (best->found && occupied > best->newly_occupied) return;
  }
  const std::uint64_t run_bytes = run.end - run.begin;
  if (!best->found || std::make_tuple(occupied, unbacked, run_bytes) <
                          std::make_tuple(best->newly_occupied, best->unbacked, best->run_bytes)) {
    *best = Placement{true, address, unbacked, occupied, run_bytes, run.first};
  }
}

BackedSpace::Placement BackedSpace::Choose(const Request& request, const PageMap& pages, bool all,
                                           bool in_hole) const {
  Placement best;
  if (in_hole) {
    const std::uint64_t alignment = std::max(request.alignment, granule_);
    for (const auto& [address, id] : holes_) {
      Run hole{id, address, chunks_[id].end(), true};
      Consider(hole, AlignUp(address, alignment), request, pages, &best);
    }
    return best;
  }
  const auto consider_run = [&](const Run& run) {
    if (run.end - run.begin < request.rounded) return;
    const auto consider = [&](std::uint64_t at) { Consider(run, at, request, pages, &best); };
    consider(AlignUp(run.begin, request.alignment));
    if (!run.is_last) consider(AlignDown(run.end - request.rounded, request.alignment));
    for (ChunkId id = run.first; id != kNoChunk && chunks_[id].address < run.end;
         id = chunks_[id].next) {
      if (IsHole(id)) continue;
      consider(AlignUp(chunks_[id].address, request.alignment));
      if (chunks_[id].size >= request.rounded) {
        consider(AlignDown(chunks_[id].end() - request.rounded, request.alignment));
      }
    }
  };
  std::uint64_t seen_end = 0;  // holes come in order of address, and so do their runs
  for (const auto& [address, id] : holes_) {
    if (address < seen_end) continue;
    const Run run = RunAround(id, request.order);
    seen_end = run.end;
    consider_run(run);
  }
  if (!all) return best;
  VisitFree(request.rounded, [&](FreeKey key) {
    const Run run = RunAround(key.id(), request.order);
    // With a hole in it, it was looked at above.
    for (ChunkId id = run.first; id != kNoChunk && chunks_[id].address < run.end;
         id = chunks_[id].next) {
      if (IsHole(id)) return true;
    }
    consider_run(run);
    return true;
  });
  return best;
}

bool BackedSpace::ReserveForChanges(std::uint32_t count) {
  prepared_ = 0;  // those changes are not counted one by one
  return chunks_.HasSpare(2 * count + kSlack) && safe_.Reserve(3 * count + kSlack) &&
         live_.Reserve(kSlack);
}

ChunkId BackedSpace::CutOut(ChunkId id, std::uint64_t begin, std::uint64_t end) {
  const bool is_hole = IsHole(id);
  const OrderId order = is_hole ? kSafe : OrderOf(id);
  const std::uint64_t sequence = order == kSafe ? 0 : chunks_.details(id).stream_or_sequence;
  const auto put_back = [&](ChunkId rest) {
    if (is_hole) {
      chunks_[rest].SetUnbacked();
      holes_[chunks_[rest].address] = rest;
    } else {
      chunks_[rest].SetFree();
      Enlist(rest, order, sequence);
    }
  };
  if (is_hole) {
    holes_.erase(chunks_[id].address);
  } else {
    Delist(id, order);
  }
  if (begin > chunks_[id].address) {
    const ChunkId rest = id;
    id = SplitAt(id, begin - chunks_[id].address);
    put_back(rest);
  }
  if (end < chunks_[id].end()) put_back(SplitAt(id, end - chunks_[id].address));
  chunks_[id].SetHeld();
  return id;
}

ChunkId BackedSpace::HoldRange(ChunkId from, std::uint64_t begin, std::uint64_t end) {
  while (chunks_[from].end() <= begin) from = chunks_[from].next;
  prepared_ = 0;
  ChunkId held = kNoChunk;
  for (ChunkId id = from; id != kNoChunk && chunks_[id].address < end;) {
    const std::uint64_t piece_begin = std::max(begin, chunks_[id].address);
    const std::uint64_t piece_end = std::min(end, chunks_[id].end());
    const ChunkId piece = CutOut(id, piece_begin, piece_end);
    id = chunks_[piece].next;
    if (held == kNoChunk) {
      held = piece;
    } else {
      UnlinkAfter(held);
    }
  }
  return held;
}

void BackedSpace::MakeHole(ChunkId id) {
  const ChunkId next = chunks_[id].next;
  const ChunkId prev = chunks_[id].prev;
  if (next != kNoChunk && IsHole(next)) {
    holes_.erase(chunks_[next].address);
    UnlinkAfter(id);
  }
  if (prev != kNoChunk && IsHole(prev)) {
    UnlinkAfter(prev);
    return;  // the hole before it keeps its place among the holes
  }
  chunks_[id].SetUnbacked();
  holes_[chunks_[id].address] = id;
}

void BackedSpace::Settle(ChunkId held, const PageMap& pages) {
  prepared_ = 0;
  for (;;) {
    const std::uint64_t begin = chunks_[held].address;
    const std::uint64_t end = chunks_[held].end();
    // How far the state at `begin` goes on.
    std::size_t i = pages.FirstAfter(begin);
    const bool backed = i < pages.size() && pages[i].address <= begin;
    std::uint64_t cut = end;
    if (backed) {
      cut = pages[i].end();
      while (++i < pages.size() && pages[i].address == cut && cut < end) cut = pages[i].end();
    } else if (i < pages.size()) {
      cut = pages[i].address;
    }
    ChunkId rest = kNoChunk;
    if (cut < end) {
      rest = SplitAt(held, cut - begin);
      chunks_[rest].SetHeld();
    }
    if (backed) {
      Free(held);
      prepared_ = 0;
    } else {
      MakeHole(held);
    }
    if (rest == kNoChunk) return;
    held = rest;
  }
}

ChunkId BackedSpace::SettleBlock(ChunkId held, std::uint64_t address, const Request& request,
                                 const PageMap& pages) {
  ChunkId before = kNoChunk;
  ChunkId after = kNoChunk;
  if (address > chunks_[held].address) {
    before = held;
    held = SplitAt(held, address - chunks_[held].address);
  }
  if (address + request.rounded < chunks_[held].end()) {
    after = SplitAt(held, request.rounded);
    chunks_[after].SetHeld();
  }
  MakeLive(held, request);
  if (before != kNoChunk) Settle(before, pages);
  if (after != kNoChunk) Settle(after, pages);
  return held;
}

std::uint64_t BackedSpace::HoleBytesFrom(std::uint64_t address) const {
  auto after = holes_.upper_bound(address);
  if (after == holes_.begin()) return 0;
  --after;
  const std::uint64_t end = chunks_[after->second].end();
  return address < end ? end - address : 0;
}

}  // namespace hbm::core
