// SPDX-License-Identifier: Apache-2.0
//
// How elastic finds memory for a request: where the block goes, and which handles
// fill what is not backed there. Books only; elastic_driver.cc carries it out.
#include <algorithm>
#include <tuple>
#include <utility>

#include "strategies/elastic.h"

namespace hbm::strategies {

using core::BackedSpace;
using core::ChunkId;
using core::FreeKey;
using core::kNoChunk;
using core::Mapping;

namespace {

// Free chunks that are tried for a quiet place.
constexpr int kQuietProbes = 64;

std::uint64_t RoundDown(std::uint64_t bytes, std::uint64_t unit) { return bytes / unit * unit; }
std::uint64_t RoundUp(std::uint64_t bytes, std::uint64_t unit) {
  return RoundDown(bytes + unit - 1, unit);
}

}  // namespace

// The proof that a page may move: see elastic.h.
std::vector<Elastic::IdleHandle> Elastic::GatherIdle(std::uint64_t except_begin,
                                                     std::uint64_t except_end, const Vetoed& vetoed,
                                                     std::uint64_t* busy_bytes) {
  std::vector<IdleHandle> idle;
  for (const Mapping& loose : loose_) idle.push_back({loose, 0, 0, kNoChunk, kLarge});
  work_.Poll();
  const BusySet busy = work_.MakeBusySet();
  for (int part : {kSmall, kLarge}) {
    spaces_[part].VisitFree(granule_, [&](FreeKey key) HBM_NO_THREAD_SAFETY_ANALYSIS {
      const std::uint64_t end = key.address() + key.size();
      std::size_t i = pages_.FirstAfter(key.address());
      if (i < pages_.size() && pages_[i].address < key.address()) ++i;
      for (; i < pages_.size() && pages_[i].end() <= end; ++i) {
        const Mapping& page = pages_[i];
        if (page.address < except_end && page.end() > except_begin) continue;
        if (busy.Overlaps(page.address, page.end())) {
          if (busy_bytes != nullptr) *busy_bytes += page.bytes;
          continue;
        }
        if (std::find(vetoed.begin(), vetoed.end(), page.address) != vetoed.end()) continue;
        idle.push_back({page, key.size(), key.address(), key.id(), part});
      }
      return true;
    });
  }
  return idle;
}

Elastic::Planned Elastic::MakePlan(int part, const FitRequest& request, const Terms& terms,
                                   const Vetoed& vetoed, Found* found) {
  const BackedSpace::Placement at = spaces_[part].Choose(request, pages_, terms.all, terms.in_hole);
  if (!at.found) return Planned::kNoPlace;
  found->at = at;
  Plan* const plan = &found->plan;
  plan->part = part;
  plan->begin = at.address;
  plan->end = at.address + request.rounded;
  if (at.unbacked != 0) {
    const Planned filled = FillHoles(terms, at, vetoed, plan);
    if (filled != Planned::kReady) return filled;
  }
  return HoldPlan(at, plan) ? Planned::kReady : Planned::kHostMemory;
}

Elastic::Planned Elastic::FillHoles(const Terms& terms, const BackedSpace::Placement& at,
                                    const Vetoed& vetoed, Plan* plan) {
  const std::uint64_t begin = RoundDown(plan->begin, granule_);
  const std::uint64_t end = RoundUp(plan->end, granule_);
  const bool is_small = plan->part == kSmall;
  std::uint64_t pool = PoolWithPromisesLocked();
  std::vector<IdleHandle> idle;
  const std::uint64_t budget = growth_.Budget(terms.limit);
  const std::uint64_t need = pool + at.unbacked;
  if (!loose_.empty() || need + growth_.SpareHandle(is_small) > budget) {
    // What only waits for work is no less movable than what is idle.
    std::uint64_t busy_bytes = spaces_[kSmall].unsafe_bytes() + spaces_[kLarge].unsafe_bytes();
    idle = GatherIdle(begin, end, vetoed, &busy_bytes);
    std::uint64_t idle_bytes = 0;
    for (const IdleHandle& handle : idle) idle_bytes += handle.mapping.bytes;
    if (need > budget) {
      growth_.NotePressure({need, idle_bytes + busy_bytes, LargestPinned(idle)});
    }
    if (terms.may_wait && busy_bytes != 0 && need > budget + idle_bytes) {
      plan->missing = need - budget - idle_bytes;
      return Planned::kBusy;
    }
    if (need > terms.limit + idle_bytes) return Planned::kShort;
    SortVictims(&idle);
  }
  for (std::uint64_t address = begin; address < end;) {
    const std::size_t i = pages_.FirstAfter(address);
    if (i < pages_.size() && pages_[i].address <= address) {
      address = pages_[i].end();
      continue;
    }
    const std::uint64_t piece_end = i < pages_.size() ? std::min(end, pages_[i].address) : end;
    if (!FillPiece(address, piece_end, terms.contiguous, terms.limit, &idle, &pool, plan)) {
      return Planned::kShort;
    }
    address = piece_end;
  }
  return Planned::kReady;
}

// What of the largest free chunk for large blocks could not be stolen: mostly the
// rest of a handle that a growing program is about to use.
std::uint64_t Elastic::LargestPinned(const std::vector<IdleHandle>& idle) {
  const std::uint64_t largest = spaces_[kLarge].LargestFree(core::kSafe);
  std::uint64_t address = 0;
  spaces_[kLarge].VisitFree(largest, [&](FreeKey key) {
    address = key.address();
    return true;
  });
  std::uint64_t pinned = largest;
  for (const IdleHandle& handle : idle) {
    if (handle.part == kLarge && handle.chunk_address == address) pinned -= handle.mapping.bytes;
  }
  return pinned;
}

void Elastic::SortVictims(std::vector<IdleHandle>* idle) {
  // What is mapped nowhere first, then from the largest chunks, where what remains
  // is the most.
  const auto key = [](const IdleHandle& handle) {
    return std::make_tuple(handle.mapping.address == 0, handle.chunk_bytes, handle.mapping.address,
                           handle.mapping.handle);
  };
  std::sort(idle->begin(), idle->end(),
            [&](const IdleHandle& a, const IdleHandle& b) { return key(b) < key(a); });
}

bool Elastic::FillPiece(std::uint64_t begin, std::uint64_t end, bool contiguous,
                        std::uint64_t limit, std::vector<IdleHandle>* idle, std::uint64_t* pool,
                        Plan* plan) {
  const bool is_small = plan->part == kSmall;
  const std::uint64_t budget = growth_.Budget(limit);
  const auto take = [&](std::size_t position, Step::Kind kind, std::uint64_t to) {
    const IdleHandle handle = (*idle)[position];
    idle->erase(idle->begin() + static_cast<std::ptrdiff_t>(position));
    plan->steps.push_back({kind, to, handle.mapping.bytes, plan->victims.size()});
    plan->victims.push_back({handle, kNoChunk, false});
  };
  for (std::uint64_t at = begin; at < end;) {
    const std::uint64_t wanted = end - at;
    const std::uint64_t room = contiguous ? wanted : spaces_[plan->part].HoleBytesFrom(at);
    const std::uint64_t bytes =
        contiguous ? wanted
                   : growth_.NextHandle({wanted, room, is_small, *pool, limit, !idle->empty()});
    const bool may_exceed = idle->empty() && *pool + bytes <= limit;
    const bool has_loose = !idle->empty() && idle->front().mapping.address == 0;
    if (!has_loose && (*pool + bytes <= budget || may_exceed)) {
      plan->steps.push_back({Step::Kind::kCreate, at, bytes, 0});
      *pool += bytes;
      at += bytes;
      continue;
    }
    const std::size_t best =
        BestVictim(*idle, wanted, room, contiguous ? wanted : growth_.SpareHandle(is_small));
    if (best < idle->size() && (!contiguous || (*idle)[best].mapping.bytes == wanted)) {
      const std::uint64_t moved = (*idle)[best].mapping.bytes;
      take(best, Step::Kind::kMove, at);
      at += moved;
      continue;
    }
    if (!idle->empty() && (*pool + bytes > budget)) {
      // None fits. The smallest makes room for a new one of the right size.
      const auto smallest = std::min_element(
          idle->begin(), idle->end(),
          [](const auto& a, const auto& b) { return a.mapping.bytes < b.mapping.bytes; });
      *pool -= smallest->mapping.bytes;
      take(static_cast<std::size_t>(smallest - idle->begin()), Step::Kind::kRelease, 0);
      continue;
    }
    std::uint64_t least = std::min(bytes, wanted);
    if (*pool + least > limit) {
      if (contiguous) return false;
      least = limit > *pool ? std::min(least, RoundDown(limit - *pool, granule_)) : 0;
    }
    if (least == 0) return false;
    plan->steps.push_back({Step::Kind::kCreate, at, least, 0});
    *pool += least;
    at += least;
  }
  return true;
}

// The handle of the wanted size, or the one that is nearest below, or one that is
// larger and has room; idle.size() if there is none.
std::size_t Elastic::BestVictim(const std::vector<IdleHandle>& idle, std::uint64_t wanted,
                                std::uint64_t room, std::uint64_t spare) {
  std::size_t best = idle.size();
  std::uint64_t least = ~std::uint64_t{0};
  for (std::size_t i = 0; i < idle.size() && least != 0; ++i) {
    const std::uint64_t bytes = idle[i].mapping.bytes;
    if (bytes > room || (bytes > wanted && bytes > spare)) continue;
    const std::uint64_t misfit = bytes <= wanted ? wanted - bytes : (bytes - wanted) * 2 + granule_;
    if (misfit >= least) continue;
    least = misfit;
    best = i;
    if (growth_.is_tightest() && bytes == granule_) break;  // all are alike
  }
  return best;
}

bool Elastic::HoldVictims(Plan* plan) {
  const auto changes = static_cast<std::uint32_t>(plan->victims.size()) + 2;
  if (!spaces_[kSmall].ReserveForChanges(changes) || !spaces_[kLarge].ReserveForChanges(changes)) {
    return false;
  }
  // In order of address within a chunk, because holding a piece cuts the chunk.
  std::vector<Victim*> in_order;
  for (Victim& victim : plan->victims) {
    if (victim.idle.mapping.address != 0) {
      in_order.push_back(&victim);
      continue;
    }
    const auto at = std::find_if(loose_.begin(), loose_.end(), [&](const Mapping& loose) {
      return loose.handle == victim.idle.mapping.handle;
    });
    if (at != loose_.end()) loose_.erase(at);
  }
  std::sort(in_order.begin(), in_order.end(), [](const Victim* a, const Victim* b) {
    return a->idle.mapping.address < b->idle.mapping.address;
  });
  const IdleHandle* last = nullptr;
  ChunkId from = kNoChunk;
  for (Victim* victim : in_order) {
    const IdleHandle& idle = victim->idle;
    if (last == nullptr || idle.chunk != last->chunk || idle.part != last->part) from = idle.chunk;
    from = spaces_[idle.part].HoldRange(from, idle.mapping.address, idle.mapping.end());
    victim->held = from;
    last = &idle;
  }
  return true;
}

// From here on nobody else can use what the plan changes.
bool Elastic::HoldPlan(const BackedSpace::Placement& at, Plan* plan) {
  if (!HoldVictims(plan)) return false;
  for (const Step& step : plan->steps) {
    if (step.kind == Step::Kind::kRelease) continue;
    plan->begin = std::min(plan->begin, step.to);
    plan->end = std::max(plan->end, step.to + step.bytes);
  }
  plan->held = spaces_[plan->part].HoldRange(at.first, plan->begin, plan->end);
  for (const Step& step : plan->steps) {
    if (step.kind == Step::Kind::kCreate) plan->promised += step.bytes;
  }
  promised_bytes_ += plan->promised;
  plan->change = watch_.Begin();
  return true;
}

// Looks for one mapping that holds the whole block. Placed so, a block keeps its
// handle as long as it lives: only idle handles move.
void* Elastic::AllocateContiguous(const FitRequest& request, bool foreign) {
  const BusySet busy = foreign ? work_.MakeBusySet() : BusySet({});
  std::uint64_t best = ~std::uint64_t{0};
  std::uint64_t place = 0;
  ChunkId chunk = kNoChunk;
  spaces_[kLarge].VisitFree(request.rounded, [&](FreeKey key) HBM_NO_THREAD_SAFETY_ANALYSIS {
    const std::uint64_t end = key.address() + key.size();
    for (std::size_t i = pages_.FirstAfter(key.address());
         i < pages_.size() && pages_[i].address < end; ++i) {
      const std::uint64_t begin = std::max(key.address(), pages_[i].address);
      const std::uint64_t start = (begin + request.alignment - 1) & ~(request.alignment - 1);
      if (start + request.rounded > std::min(end, pages_[i].end()) || pages_[i].bytes >= best) {
        continue;
      }
      if (busy.Overlaps(start, start + request.rounded)) continue;
      best = pages_[i].bytes;
      place = start;
      chunk = key.id();
    }
    return true;
  });
  // A much larger handle is worth more elsewhere.
  if (chunk == kNoChunk || best > 2 * RoundUp(request.rounded, granule_)) return nullptr;
  if (!spaces_[kLarge].ReserveForChanges(2)) return nullptr;
  const ChunkId held = spaces_[kLarge].HoldRange(chunk, place, place + request.rounded);
  return TakenLocked(kLarge, spaces_[kLarge].SettleBlock(held, place, request, pages_));
}

void* Elastic::AllocateQuiet(int part, const FitRequest& request) {
  const BusySet busy = work_.MakeBusySet();
  std::uint64_t place = 0;
  ChunkId chunk = kNoChunk;
  int probes = 0;
  spaces_[part].VisitFree(request.rounded, [&](FreeKey key) {
    const std::uint64_t end = key.address() + key.size();
    place = busy.FindQuiet(key.address(), end, request.rounded, request.alignment);
    if (place != end) chunk = key.id();
    return chunk == kNoChunk && ++probes < kQuietProbes;
  });
  if (chunk == kNoChunk || !spaces_[part].ReserveForChanges(2)) return nullptr;
  const ChunkId held = spaces_[part].HoldRange(chunk, place, place + request.rounded);
  return TakenLocked(part, spaces_[part].SettleBlock(held, place, request, pages_));
}

// The waiting stream comes after all that the other one's chunks were freed after.
void* Elastic::AllocateAcrossStreams(int part, const FitRequest& request, StreamRef stream) {
  if (!ordered_ || !stream.is_handle()) return nullptr;
  core::MutexLock lock(mutex_);
  FitRequest own = request;
  const bool foreign = IsForeignLocked(stream, &own);
  for (core::OrderId order = 1; order < work_.num_orders(); ++order) {
    const bool is_own = foreign ? order == own.order : order == owner_;
    const core::OrderId from = order == owner_ ? core::kSafe : order;
    if (is_own || spaces_[part].LargestFree(from) < request.rounded) continue;
    const Timeline::Marker marker = work_.LatestMarker(order);
    if (marker == 0 || !timeline_->WaitOnStream(stream, marker).ok()) continue;
    own.order = core::kSafe;
    const ChunkId id = from == core::kSafe ? spaces_[part].AllocateBacked(own)
                                           : spaces_[part].AllocateFrom(from, own);
    if (id == kNoChunk) continue;
    ++waits_;
    return TakenLocked(part, id);
  }
  return nullptr;
}

}  // namespace hbm::strategies
