// SPDX-License-Identifier: Apache-2.0
#include "strategies/pool.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/compiler.h"
#include "observe/log.h"
#include "policy/text.h"
#include "strategies/free_sums.h"
#include "strategies/source_state.h"
#include "strategies/thread_cache.h"

namespace hbm::strategies {
namespace {

using core::ChunkId;
using core::kChunkUnit;
using core::kNoChunk;
using core::RoundToChunk;

std::uint64_t AddressOf(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

void* PointerTo(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// A stream's bits as they were given.
StreamRef StreamOf(std::uint64_t value) {
  if (value == StreamRef::Synchronized().value()) return StreamRef::Synchronized();
  return StreamRef::FromHandle(PointerTo(value));
}

// For that many more elements.
template <typename T>
void MakeRoom(std::size_t more, std::vector<T>* elements) {
  if (elements->capacity() - elements->size() >= more) return;
  elements->reserve(std::max(2 * elements->capacity(), elements->size() + more));
}

std::uint64_t FloorToUnit(std::uint64_t bytes) { return bytes / kChunkUnit * kChunkUnit; }

// XLA's factor, and its precision: products of sizes above 16 MiB are rounded, and
// placements after a shortage depend on it.
std::uint64_t BackOff(std::uint64_t bytes) {
  constexpr float kFactor = 0.9F;
  const auto less = static_cast<std::uint64_t>(static_cast<float>(bytes) * kFactor);
  const std::uint64_t rounded = RoundToChunk(less);
  return rounded < bytes ? rounded : bytes - std::min(bytes, kChunkUnit);
}

core::BestFit::Options FitOptions(const StrategyContext& context) {
  core::BestFit::Options options;
  const double fraction = context.policy.fragmentation_fraction;
  if (fraction > 0) {
    options.max_waste =
        static_cast<std::uint64_t>(fraction * static_cast<double>(context.limit.bytes));
  }
  return options;
}

bool IsOrdered(const StrategyContext& context) {
  return *context.policy.stream_mode == StreamMode::kOrdered &&
         context.source->timeline() != nullptr;
}

std::uint64_t FirstRegionBytes(const StrategyContext& context) {
  if (*context.policy.preallocate) return RoundToChunk(context.limit.start_bytes);
  const std::uint64_t growth = context.policy.growth;
  return RoundToChunk(std::min<std::uint64_t>(context.limit.bytes, growth));
}

// Free chunks that are looked at to find the largest of each region.
constexpr int kMostLooks = 4096;

RegionFigures FiguresOf(const core::BestFit::Region& region, std::uint64_t live_bytes,
                        std::uint64_t largest_free) {
  RegionFigures figures;
  figures.address = region.address;
  figures.bytes = static_cast<std::int64_t>(region.bytes);
  figures.in_use_bytes = static_cast<std::int64_t>(live_bytes);
  figures.free_bytes = figures.bytes - figures.in_use_bytes;
  figures.largest_free_bytes =
      std::min(static_cast<std::int64_t>(largest_free), figures.free_bytes);
  figures.highest_used_bytes = static_cast<std::int64_t>(region.highest - region.address);
  figures.utilization =
      static_cast<double>(figures.in_use_bytes) / static_cast<double>(figures.bytes);
  if (figures.free_bytes > 0) {
    figures.external = 1.0 - static_cast<double>(figures.largest_free_bytes) /
                                 static_cast<double>(figures.free_bytes);
  }
  return figures;
}

Policy Effective(const StrategyContext& context) {
  Policy policy = context.policy;
  policy.memory_limit = context.limit.bytes;
  return policy;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Allocator>> MakePool(StrategyContext context) {
  // Held back blocks, and streams that blocks must wait for, need every free.
  const bool needs_frees =
      context.policy.quarantine != 0 ||
      (context.policy.stream_mode == StreamMode::kOrdered && context.source->timeline() != nullptr);
  if (context.policy.thread_cache && needs_frees) {
    context.policy.thread_cache = false;
    observe::LogWarning(
        "thread_cache: not possible with stream_mode=ordered on this device or with quarantine; "
        "it is off");
  }
  const bool preallocate = *context.policy.preallocate;
  const bool thread_cache = context.policy.thread_cache;
  const std::shared_ptr<MemorySource> source = context.source;
  auto pool = std::make_unique<Pool>(std::move(context));
  if (preallocate) {
    if (absl::Status taken = pool->Preallocate(); !taken.ok()) return taken;
  }
  if (thread_cache) return MakeThreadCached(std::move(pool), source);
  return std::unique_ptr<Allocator>(std::move(pool));
}

Pool::Pool(StrategyContext context)
    : Allocator(Effective(context)),
      device_(context.device),
      source_(context.source),
      granularity_(std::max<std::uint64_t>(source_->Granularity(), kChunkUnit)),
      start_bytes_(FloorToUnit(context.limit.start_bytes)),
      quarantine_bytes_(context.policy.quarantine),
      garbage_collection_(context.policy.garbage_collection),
      is_plain_(!IsOrdered(context) && context.policy.quarantine == 0),
      next_region_bytes_(std::max(FirstRegionBytes(context), kChunkUnit)),
      fit_(FitOptions(context)),
      limit_(context.limit.bytes),
      limit_source_(context.limit.source) {
  if (IsOrdered(context)) {
    order_ = std::make_unique<StreamOrder>(&fit_, &mutex_, source_->timeline());
  }
}

Pool::~Pool() {
  EndSharing();
  core::MutexLock growth_lock(growth_mutex_);
  std::vector<core::BestFit::Region> regions;
  std::int64_t live = 0;
  std::int64_t live_bytes = 0;
  {
    core::MutexLock lock(mutex_);
    regions = fit_.regions();
    for (const core::BestFit::Region& region : regions) {
      for (ChunkId id = region.first; id != kNoChunk; id = fit_.chunk(id).next) {
        if (fit_.chunk(id).is_live()) ++live;
      }
    }
    live_bytes = counters_.requested;
  }
  if (live != 0 && !DriverIsGone(*source_)) {
    observe::LogWarning(absl::StrCat("an allocator is destroyed while ", live, " blocks of ",
                                     policy::FormatBytes(static_cast<std::size_t>(live_bytes)),
                                     " are live; their memory goes back to the device"));
  }
  // Work on live or just freed blocks may still be in flight.
  if (Timeline* const timeline = source_->timeline(); timeline != nullptr && !regions.empty()) {
    timeline->WaitForDevice().IgnoreError();
  }
  const RegionWatch::Change change = watch_.Begin();
  for (const core::BestFit::Region& region : regions) {
    change.MayLeave({PointerTo(region.address), region.bytes});
    const absl::Status released = source_->ReleaseRegion({PointerTo(region.address), region.bytes});
    if (!released.ok()) {
      observe::LogWarning(absl::StrCat("giving a region back: ", released.ToString()));
    }
  }
}

absl::Status Pool::Preallocate() {
  core::MutexLock growth_lock(growth_mutex_);
  // A pool that may not shrink is had whole or not at all.
  const bool may_shrink = policy().on_shortage == OnShortage::kShrink;
  absl::Status grown = Grow(may_shrink ? kChunkUnit : start_bytes_, nullptr, nullptr);
  std::uint64_t got;
  {
    core::MutexLock lock(mutex_);
    got = pool_bytes_;
    if (grown.ok() && got < start_bytes_) {
      shrunk_to_ = got;
      limit_source_ = LimitSource::kShortage;
    }
    // A pool that may grow past its start does so as on_demand does.
    if (limit_ > start_bytes_) {
      next_region_bytes_ = std::max(RoundToChunk(policy().growth), kChunkUnit);
    }
  }
  if (!grown.ok()) {
    if (!absl::IsResourceExhausted(grown)) return grown;
    return absl::ResourceExhaustedError(absl::StrCat(
        "preallocating ", policy::FormatBytes(start_bytes_), " of ",
        absl::string_view(source_->Name().data(), source_->Name().size()), ": ", grown.message(),
        may_shrink ? "; not even the smallest pool fits"
                   : "; on_shortage=shrink would take less, memory_fraction, memory_limit and "
                     "reserve say how much is asked for"));
  }
  if (got < start_bytes_) ReportShortage(start_bytes_);
  return absl::OkStatus();
}

void Pool::ReportShortage(std::uint64_t wanted) {
  std::uint64_t got;
  {
    core::MutexLock lock(mutex_);
    got = pool_bytes_;
  }
  Policy policy = this->policy();
  policy.memory_limit = got;
  SetEffectivePolicy(std::move(policy));
  observe::LogWarning(absl::StrCat(
      "preallocation: ", policy::FormatBytes(wanted), " did not fit in ",
      absl::string_view(source_->Name().data(), source_->Name().size()), "; the pool is ",
      policy::FormatBytes(got), ". on_shortage=fail makes this an error"));
}

std::size_t Pool::BookkeepingBytes() const {
  core::MutexLock lock(mutex_);
  return fit_.BookkeepingBytes() + sizeof(*this) - sizeof(fit_);
}

inline void* Pool::AllocateLocked(const core::BestFit::Request& request) {
  const ChunkId id = fit_.Allocate(request);
  if (HBM_UNLIKELY(id == kNoChunk)) return nullptr;
  const core::Chunk& chunk = fit_.chunk(id);
  counters_.Allocated(chunk.size, request.requested);
  return PointerTo(chunk.address);
}

void* Pool::DoAllocate(const Request& request, AllocError* why) noexcept {
  if (HBM_LIKELY(is_plain_ && request.alignment == kChunkUnit)) {
    core::BestFit::Request plain;
    plain.requested = request.bytes;
    plain.rounded = RoundToChunk(request.bytes);
    plain.stream = request.stream.value();
    plain.tag = request.tag.value;
    if (HBM_LIKELY(plain.rounded != 0)) {
      core::MutexLock lock(mutex_);
      const ChunkId id = fit_.AllocatePlain(plain);
      if (HBM_LIKELY(id != kNoChunk)) {
        const core::Chunk& chunk = fit_.chunk(id);
        counters_.Allocated(chunk.size, request.bytes);
        return PointerTo(chunk.address);
      }
    }
  }
  return AllocateOther(request, why);
}

HBM_NOINLINE void* Pool::AllocateOther(const Request& request, AllocError* why) {
  core::BestFit::Request fit_request;
  fit_request.requested = request.bytes;
  fit_request.rounded = RoundToChunk(request.bytes);
  fit_request.alignment = request.alignment;
  fit_request.stream = request.stream.value();
  fit_request.tag = request.tag.value;
  if (order_ != nullptr) return AllocateOrdered(fit_request, request, why);
  if (fit_request.rounded != 0) {
    core::MutexLock lock(mutex_);
    if (void* const block = AllocateLocked(fit_request)) return block;
  }
  return AllocateSlow(fit_request, request, why);
}

void* Pool::AllocateOrdered(core::BestFit::Request request, const Request& asked, AllocError* why) {
  const StreamRef stream = asked.stream;
  absl::StatusOr<StreamOrder::Key> key = order_->Identify(stream);
  if (HBM_LIKELY(key.ok() && request.rounded != 0)) {
    core::MutexLock lock(mutex_);
    request.order = order_->Find(*key);
    if (HBM_LIKELY(request.order != StreamOrder::kUnknown)) {
      void* const block = AllocateLocked(request);
      if (HBM_LIKELY(block != nullptr)) return block;
    }
  }
  if (!key.ok()) return FailForStream(key.status(), why);
  if (request.rounded != 0 && request.order == StreamOrder::kUnknown) {
    const absl::StatusOr<core::OrderId> order = order_->Introduce(stream, *key);
    if (!order.ok()) return FailForStream(order.status(), why);
    request.order = *order;
    core::MutexLock lock(mutex_);
    if (void* const block = AllocateLocked(request); block != nullptr) return block;
  }
  return AllocateSlow(request, asked, why);
}

void* Pool::FailForStream(const absl::Status& status, AllocError* why) {
  LogSourceError("a stream", status);
  core::MutexLock lock(mutex_);
  ++counters_.failures;
  *why = {status.code(), OomCause::kNone};
  return nullptr;
}

void* Pool::AllocateSlow(const core::BestFit::Request& request, const Request& asked,
                         AllocError* why) {
  if (request.rounded == 0) {
    core::MutexLock lock(mutex_);
    ++counters_.failures;
    *why = {absl::StatusCode::kResourceExhausted, OomCause::kLimit};
    return nullptr;
  }
  core::MutexLock growth_lock(growth_mutex_);
  if (order_ != nullptr) order_->Poll();
  {
    // Another thread may have grown the pool while this one waited for the lock.
    core::MutexLock lock(mutex_);
    void* block = AllocateLocked(request);
    if (block == nullptr && FlushQuarantineLocked()) block = AllocateLocked(request);
    if (block != nullptr) return block;
  }
  // A region starts at least at a unit: beyond that, alignment may cost a prefix.
  const std::uint64_t bytes = request.rounded + request.alignment - kChunkUnit;
  void* block = nullptr;
  absl::Status grown = Grow(bytes, &request, &block);
  if (absl::IsResourceExhausted(grown) && garbage_collection_) {
    std::uint64_t idle = 0;
    std::uint64_t available = 0;
    {
      core::MutexLock lock(mutex_);
      for (const core::BestFit::Region& region : fit_.regions()) {
        if (fit_.IsIdle(region)) idle += region.bytes;
      }
      available = AvailableLocked();
    }
    if (idle != 0 && available + idle >= bytes) {
      const absl::Status released = ReleaseIdleRegions(0, 0).status();
      if (released.ok()) {
        grown = Grow(bytes, &request, &block);
      } else if (absl::IsFailedPrecondition(released)) {
        grown = released;  // the device cannot be waited for in a capture
      }
    }
  }
  if (block != nullptr) return block;
  const bool is_short = absl::IsResourceExhausted(grown) || absl::IsFailedPrecondition(grown);
  if (order_ != nullptr && (grown.ok() || is_short) && HasFree(request.rounded)) {
    // Nothing else fits: this stream waits for the memory of others.
    const absl::Status borrowed = order_->Borrow(asked.stream, request.order, asked.may_wait, [&] {
      core::MutexLock lock(mutex_);
      if (block == nullptr) block = AllocateLocked(request);
      return block != nullptr;
    });
    if (block != nullptr) return block;
    if (!borrowed.ok()) grown = borrowed;
  }
  *why = Exhausted(request.rounded, grown);
  return nullptr;
}

bool Pool::HasFree(std::uint64_t bytes) const {
  core::MutexLock lock(mutex_);
  return pool_bytes_ - static_cast<std::uint64_t>(counters_.in_use) >= bytes;
}

absl::Status Pool::Grow(std::uint64_t bytes, const core::BestFit::Request* request, void** block) {
  std::uint64_t available;
  {
    core::MutexLock lock(mutex_);
    available = AvailableLocked();
  }
  if (bytes > available) return absl::ResourceExhaustedError("the limit is reached");
  bool enlarged = false;
  while (bytes > next_region_bytes_) {
    next_region_bytes_ *= 2;
    enlarged = true;
  }
  const absl::StatusOr<MemoryRange> range =
      TakeFromSource(bytes, std::min(next_region_bytes_, available));
  if (!range.ok()) return SourceError(range.status());
  if (!enlarged && next_region_bytes_ <= core::kMaxChunkBytes / 2) next_region_bytes_ *= 2;
  return AddRegion(*range, request, block);
}

// The most that the source gives, in steps of a tenth less.
absl::StatusOr<MemoryRange> Pool::TakeFromSource(std::uint64_t least, std::uint64_t most) {
  for (std::uint64_t bytes = most;;) {
    absl::StatusOr<MemoryRange> range = source_->AllocateRegion(bytes);
    if (range.ok() || !absl::IsResourceExhausted(range.status())) return range;
    bytes = BackOff(bytes);
    if (bytes < least || bytes == 0) return range;
  }
}

absl::Status Pool::AddRegion(MemoryRange range, const core::BestFit::Request* request,
                             void** block) {
  const std::uint64_t address = AddressOf(range.address);
  const bool usable = address != 0 && address % kChunkUnit == 0 && range.bytes >= kChunkUnit &&
                      range.bytes % kChunkUnit == 0 && range.bytes <= core::kMaxChunkBytes &&
                      address <= std::numeric_limits<std::uint64_t>::max() - range.bytes;
  bool added = false;
  bool overlaps = false;
  const RegionWatch::Change change = usable ? watch_.Begin() : RegionWatch::Change();
  TellMapped(change, range);
  if (usable) {
    core::MutexLock lock(mutex_);
    for (const core::BestFit::Region& region : fit_.regions()) {
      overlaps |= address < region.end() && region.address < address + range.bytes;
    }
    added = !overlaps && fit_.AddRegion(address, range.bytes);
    if (added) {
      pool_bytes_ += range.bytes;
      peak_pool_bytes_ = std::max(peak_pool_bytes_, pool_bytes_);
      if (request != nullptr) *block = AllocateLocked(*request);
    }
  }
  if (added) return absl::OkStatus();
  if (overlaps) {
    // Not given back: that would free what the other region holds.
    return absl::InternalError(absl::StrCat(
        "the memory source gave a region that overlaps one it had given already: address ", address,
        ", ", range.bytes, " bytes"));
  }
  MayLeave(change, range);
  source_->ReleaseRegion(range).IgnoreError();
  if (usable) return absl::ResourceExhaustedError("the host has no memory for the books");
  return absl::InternalError(
      absl::StrCat("the memory source gave a region that is null, not aligned to ", kChunkUnit,
                   " bytes, not a multiple of it or at the end of all addresses: address ", address,
                   ", ", range.bytes, " bytes"));
}

AllocError Pool::Exhausted(std::uint64_t bytes, const absl::Status& growth) {
  AllocError error{absl::StatusCode::kResourceExhausted, OomCause::kLimit};
  std::uint64_t pool;
  std::uint64_t available;
  std::uint64_t free;
  std::uint64_t held;
  {
    core::MutexLock lock(mutex_);
    ++counters_.failures;
    pool = pool_bytes_;
    available = AvailableLocked();
    held = fit_.unsafe_bytes() + quarantined_ + (order_ ? order_->held_bytes_locked() : 0);
    free = pool - static_cast<std::uint64_t>(counters_.in_use) - held;
  }
  if (!growth.ok() && !absl::IsResourceExhausted(growth)) {
    LogSourceError("getting memory", growth);
    return {growth.code(), OomCause::kNone};
  }
  if (free >= bytes) {
    error.cause = OomCause::kFragmentation;
  } else if (free + held >= bytes && held != 0 && order_ != nullptr) {
    error.cause = OomCause::kPending;
  } else if (bytes <= available) {
    // The limit would have allowed it. Who has the rest of the device?
    const absl::StatusOr<MemoryInfo> memory = source_->GetMemoryInfo();
    const std::uint64_t taken =
        memory.ok() ? memory->total - std::min(memory->free, memory->total) : 0;
    const std::uint64_t others = taken - std::min(taken, pool);
    error.cause = others >= granularity_ ? OomCause::kOtherProcess : OomCause::kDevice;
  }
  return error;
}

absl::Status Pool::DoDeallocate(void* ptr, StreamRef after) {
  if (HBM_UNLIKELY(!is_plain_)) return DeallocateOther(ptr, after);
  core::MutexLock lock(mutex_);
  const ChunkId id = fit_.TakeLive(AddressOf(ptr));
  if (HBM_UNLIKELY(id == kNoChunk)) return absl::CancelledError();
  const core::Chunk& chunk = fit_.chunk(id);
  counters_.Freed(chunk.size, chunk.requested());
  fit_.FreePlain(id);
  return absl::OkStatus();
}

HBM_NOINLINE absl::Status Pool::DeallocateOther(void* ptr, StreamRef after) {
  if (order_ != nullptr) return DeallocateOrdered(ptr, after);
  core::MutexLock lock(mutex_);
  const ChunkId id = fit_.TakeLive(AddressOf(ptr));
  if (id == kNoChunk) return absl::CancelledError();
  const core::Chunk& chunk = fit_.chunk(id);
  counters_.Freed(chunk.size, chunk.requested());
  HoldBackLocked(id);
  return absl::OkStatus();
}

std::uint32_t Pool::TakeSeveral(std::size_t bytes, std::uint32_t count, Pooled* blocks) {
  core::BestFit::Request request;
  request.requested = bytes;
  request.rounded = RoundToChunk(bytes);
  if (request.rounded == 0) return 0;
  core::MutexLock lock(mutex_);
  for (std::uint32_t i = 0; i < count; ++i) {
    const ChunkId id = fit_.AllocatePlain(request);
    if (id == kNoChunk) return i;
    const core::Chunk& chunk = fit_.chunk(id);
    counters_.Allocated(chunk.size, bytes);
    blocks[i] = {chunk.address, chunk.size};
  }
  return count;
}

void Pool::FreeSeveral(const std::uint64_t* addresses, std::uint32_t count) {
  core::MutexLock lock(mutex_);
  for (std::uint32_t i = 0; i < count; ++i) {
    const ChunkId id = fit_.TakeLive(addresses[i]);
    if (id == kNoChunk) continue;
    const core::Chunk& chunk = fit_.chunk(id);
    counters_.Freed(chunk.size, chunk.requested());
    fit_.FreePlain(id);
  }
}

absl::Status Pool::DeallocateOrdered(void* ptr, StreamRef after) {
  // A stream that is named now is identified first. The block's own is the one that it
  // was allocated on, which lives.
  absl::StatusOr<StreamOrder::Key> key = StreamOrder::kNoKey;
  if (!after.is_of_allocation()) key = order_->Identify(after);
  StreamRef last = after;
  core::OrderId order = StreamOrder::kUnknown;
  bool due = false;
  {
    core::MutexLock lock(mutex_);
    // As long as one stream is known, what it frees is safe.
    if (HBM_LIKELY(!after.is_handle() && order_->IsOneStreamLocked() && quarantine_bytes_ == 0)) {
      const ChunkId id = fit_.TakeLive(AddressOf(ptr));
      if (HBM_UNLIKELY(id == kNoChunk)) return absl::CancelledError();
      const core::Chunk& chunk = fit_.chunk(id);
      counters_.Freed(chunk.size, chunk.requested());
      fit_.FreePlain(id);
      return absl::OkStatus();
    }
    const ChunkId id = fit_.FindLive(AddressOf(ptr));
    if (HBM_UNLIKELY(id == kNoChunk)) return absl::CancelledError();
    if (after.is_of_allocation()) {
      last = fit_.chunk(id).has_details() ? StreamOf(fit_.details(id).stream_or_sequence)
                                          : StreamRef();
      order = order_->OrderOfBlockLocked(fit_.OrderOf(id), last);
    } else if (after.is_synchronized()) {
      order = core::kSafe;
      order_->DropUsesLocked(id);
    } else if (HBM_LIKELY(key.ok())) {
      order = order_->Find(*key);
    }
    if (HBM_LIKELY(order != StreamOrder::kUnknown && !order_->HasUsesLocked(id))) {
      fit_.TakeLive(AddressOf(ptr));
      const core::Chunk& chunk = fit_.chunk(id);
      counters_.Freed(chunk.size, chunk.requested());
      if (HBM_UNLIKELY(quarantine_bytes_ != 0)) {
        HoldBackLocked(id, order);
        return absl::OkStatus();
      }
      due = order_->FreeLocked(id, order);
      if (HBM_LIKELY(!due)) return absl::OkStatus();
    }
  }
  if (due) {
    order_->Mark(order, last);
    return absl::OkStatus();
  }
  return DeallocateHeld(ptr, last, key);
}

// The rare ways to free: after a stream that was not seen before, or that several
// streams have used the block.
absl::Status Pool::DeallocateHeld(void* ptr, StreamRef last,
                                  const absl::StatusOr<StreamOrder::Key>& key) {
  // What is no living stream cannot be introduced; its block is held back until the
  // whole device is waited for.
  if (key.ok() && *key != StreamOrder::kNoKey) order_->Introduce(last, *key).IgnoreError();
  ChunkId id;
  {
    core::MutexLock lock(mutex_);
    id = fit_.TakeLive(AddressOf(ptr));
    if (id == kNoChunk) return absl::CancelledError();
    const core::Chunk& chunk = fit_.chunk(id);
    counters_.Freed(chunk.size, chunk.requested());
    order_->HoldLocked(id);
  }
  order_->MarkHeld(id, last, key.ok());
  return absl::OkStatus();
}

void Pool::FreeLocked(ChunkId id, core::OrderId order) {
  if (order_ != nullptr) {
    order_->FreeLocked(id, order);
  } else {
    fit_.Free(id);
  }
}

void Pool::HoldBackLocked(ChunkId id, core::OrderId order) {
  fit_.Hold(id);
  quarantine_.push_back({id, order});
  quarantined_ += fit_.chunk(id).size;
  while (quarantined_ > quarantine_bytes_) {
    const Quarantined oldest = quarantine_.front();
    quarantine_.pop_front();
    quarantined_ -= fit_.chunk(oldest.id).size;
    FreeLocked(oldest.id, oldest.order);
  }
}

bool Pool::FlushQuarantineLocked() {
  if (quarantine_.empty()) return false;
  for (const Quarantined& held : quarantine_) FreeLocked(held.id, held.order);
  quarantine_.clear();
  quarantined_ = 0;
  return true;
}

absl::Status Pool::DoRecordUse(void* ptr, StreamRef stream) {
  ChunkId id;
  {
    core::MutexLock lock(mutex_);
    id = fit_.FindLive(AddressOf(ptr));
    if (id == kNoChunk) return absl::CancelledError();
    if (order_ == nullptr) return absl::OkStatus();
  }
  return order_->AddUse(id, stream);
}

absl::StatusOr<BlockInfo> Pool::DoDescribe(const void* ptr) const {
  core::MutexLock lock(mutex_);
  const ChunkId id = ptr == nullptr ? kNoChunk : fit_.FindLiveHolding(AddressOf(ptr));
  if (id == kNoChunk) {
    return absl::NotFoundError(
        absl::StrCat("no live block of this allocator holds the address ", AddressOf(ptr)));
  }
  const core::Chunk& chunk = fit_.chunk(id);
  BlockInfo info;
  info.address = PointerTo(chunk.address);
  info.requested_bytes = chunk.requested();
  info.chunk_bytes = chunk.size;
  if (chunk.has_details()) {
    info.stream = StreamOf(fit_.details(id).stream_or_sequence);
    info.tag = TagId{fit_.details(id).tag_or_queue_prev};
  }
  const core::BestFit::Region* const region = fit_.RegionOf(chunk.address);
  info.region = {PointerTo(region->address), region->bytes};
  return info;
}

Stats Pool::DoGetStats() const {
  Stats stats;
  {
    core::MutexLock lock(mutex_);
    counters_.AddTo(stats);
    const std::uint64_t limit = shrunk_to_ == 0 ? limit_ : std::max(shrunk_to_, pool_bytes_);
    stats.bytes_limit = static_cast<std::int64_t>(limit);
    stats.limit_source = limit_source_;
    stats.largest_free_block_bytes = static_cast<std::int64_t>(fit_.LargestFree());
    stats.pool_bytes = static_cast<std::int64_t>(pool_bytes_);
    stats.peak_pool_bytes = static_cast<std::int64_t>(peak_pool_bytes_);
    stats.num_regions = static_cast<std::int64_t>(fit_.regions().size());
    for (const core::BestFit::Region& region : fit_.regions()) {
      stats.highest_used_bytes += static_cast<std::int64_t>(region.highest - region.address);
    }
    if (order_ != nullptr) {
      stats.num_waits = order_->waits_locked();
      stats.wait_nanoseconds = order_->wait_nanoseconds_locked();
    }
    stats.pending_bytes = static_cast<std::int64_t>(fit_.unsafe_bytes() + quarantined_ +
                                                    (order_ ? order_->held_bytes_locked() : 0));
  }
  const DriverUse use = source_->GetDriverUse();
  stats.driver_calls = static_cast<std::int64_t>(use.calls);
  stats.driver_nanoseconds = static_cast<std::int64_t>(use.nanoseconds);
  return stats;
}

void Pool::DoGetFigures(Figures* figures) const {
  core::FreeIndex::Sums sums{};
  std::vector<core::BestFit::Region> regions;
  std::vector<std::uint64_t> largest;
  std::vector<std::uint64_t> live;
  {
    core::MutexLock lock(mutex_);
    counters_.AddTo(*figures);
    fit_.AddFreeSums(&sums);
    regions = fit_.regions();
    largest.resize(regions.size());
    if (!regions.empty()) fit_.FindLargestInRegions(kMostLooks, &largest);
    // With one region the device's count says it all.
    for (const core::BestFit::Region& region : regions) {
      live.push_back(regions.size() == 1 ? static_cast<std::uint64_t>(counters_.in_use)
                                         : fit_.LiveBytes(region));
    }
  }
  AddFreeSums(sums, figures);
  for (std::size_t i = 0; i < regions.size(); ++i) {
    figures->regions.push_back(FiguresOf(regions[i], live[i], largest[i]));
  }
}

void Pool::DoResetPeakStats() {
  core::MutexLock lock(mutex_);
  counters_.ResetPeaks();
  fit_.ResetHeights();
  peak_pool_bytes_ = pool_bytes_;
}

Snapshot::Chunk Pool::DescribeLocked(ChunkId id) const {
  const core::Chunk& chunk = fit_.chunk(id);
  Snapshot::Chunk piece;
  piece.address = PointerTo(chunk.address);
  piece.bytes = chunk.size;
  if (chunk.is_free()) {
    piece.state = fit_.OrderOf(id) == core::kSafe ? ChunkState::kFree : ChunkState::kPending;
    return piece;
  }
  piece.state = chunk.is_live() ? ChunkState::kLive : ChunkState::kPending;
  if (chunk.is_live()) piece.requested_bytes = chunk.requested();
  if (!chunk.has_details()) return piece;
  piece.stream = StreamOf(fit_.details(id).stream_or_sequence);
  piece.tag = TagId{fit_.details(id).tag_or_queue_prev};
  return piece;
}

Snapshot Pool::DoTakeSnapshot() const {
  core::MutexLock lock(mutex_);
  Snapshot snapshot;
  for (const core::BestFit::Region& region : fit_.regions()) {
    Snapshot::Region& out = snapshot.regions.emplace_back();
    out.range = {PointerTo(region.address), region.bytes};
    for (ChunkId id = region.first; id != kNoChunk; id = fit_.chunk(id).next) {
      out.chunks.push_back(DescribeLocked(id));
    }
  }
  return snapshot;
}

Snapshot Pool::TakeReportSnapshot() const {
  std::vector<core::BestFit::Region> regions;
  std::uint64_t looks = 0;
  {
    core::MutexLock lock(mutex_);
    regions = fit_.regions();
    // Other threads may undo steps of the walk; not for ever.
    looks = 4 * std::uint64_t{fit_.num_records()} + 4 * kChunksPerLook;
  }
  Snapshot snapshot;
  for (const core::BestFit::Region& region : regions) {
    Snapshot::Region& out = snapshot.regions.emplace_back();
    out.range = {PointerTo(region.address), region.bytes};
    Walk walk{region.address, region.end(), {}};
    bool is_done = false;
    while (!is_done && looks > 0) {
      // No memory is got under the lock.
      MakeRoom(kChunksPerLook, &walk.seen);
      MakeRoom(kChunksPerLook, &out.chunks);
      core::MutexLock lock(mutex_);
      is_done = WalkLocked(&walk, &out.chunks);
      looks -= std::min<std::uint64_t>(looks, kChunksPerLook);
    }
  }
  return snapshot;
}

bool Pool::WalkLocked(Walk* walk, std::vector<Snapshot::Chunk>* out) const {
  std::uint32_t left = kChunksPerLook;
  // Where the walk was: the latest chunk that it saw and that is still one. Chunks go
  // only by becoming part of the one before them.
  ChunkId id = kNoChunk;
  while (id == kNoChunk && !walk->seen.empty()) {
    if (left-- == 0) return false;
    const auto [seen, address] = walk->seen.back();
    if (fit_.IsChunkAt(seen, address)) {
      id = fit_.chunk(seen).end() > walk->at ? seen : fit_.chunk(seen).next;
      if (id == kNoChunk) return true;
    } else {
      walk->seen.pop_back();
    }
  }
  if (id == kNoChunk) {
    const core::BestFit::Region* const region = fit_.RegionOf(walk->at);
    if (region == nullptr) return true;  // given back meanwhile
    id = region->first;
  }
  for (; id != kNoChunk; id = fit_.chunk(id).next) {
    if (left-- == 0) return false;
    const core::Chunk& chunk = fit_.chunk(id);
    walk->seen.emplace_back(id, chunk.address);
    if (chunk.end() <= walk->at) continue;
    if (chunk.address >= walk->end) return true;
    Snapshot::Chunk piece = DescribeLocked(id);
    // What the chunk has of bytes that were told of already stays told.
    const std::uint64_t told = walk->at - std::min(walk->at, chunk.address);
    piece.address = PointerTo(chunk.address + told);
    piece.bytes = std::min(chunk.end(), walk->end) - (chunk.address + told);
    out->push_back(piece);
    walk->at = chunk.end();
  }
  return true;
}

void Pool::TellMapped(const RegionWatch::Change& change, MemoryRange range) {
  if (!change.is_on()) return;
  {
    core::MutexLock lock(mutex_);
    coming_bytes_ += range.bytes;
  }
  growth_mutex_.Unlock();
  change.Mapped(range);
  growth_mutex_.Lock();
  core::MutexLock lock(mutex_);
  coming_bytes_ -= range.bytes;
}

bool Pool::MayLeave(const RegionWatch::Change& change, MemoryRange range) {
  if (!change.is_on()) return true;
  growth_mutex_.Unlock();
  const bool may_leave = change.MayLeave(range);
  growth_mutex_.Lock();
  return may_leave;
}

absl::Status Pool::DoAddPeer(int ordinal) {
  core::MutexLock lock(growth_mutex_);
  return source_->AddPeer(ordinal);
}

absl::Status Pool::DoSetRegionCallback(std::shared_ptr<const RegionCallback> callback) {
  return watch_.Replace(std::move(callback), growth_mutex_, [&] {
    std::vector<MemoryRange> ranges;
    core::MutexLock lock(mutex_);
    for (const core::BestFit::Region& region : fit_.regions()) {
      ranges.push_back({PointerTo(region.address), region.bytes});
    }
    return ranges;
  });
}

absl::StatusOr<Pool::Released> Pool::ReleaseIdleRegions(std::uint64_t keep, std::uint64_t enough) {
  std::vector<core::BestFit::Region> idle;
  {
    core::MutexLock lock(mutex_);
    std::uint64_t left = pool_bytes_;
    const auto& regions = fit_.regions();
    for (auto region = regions.rbegin(); region != regions.rend() && left > enough; ++region) {
      if (!fit_.IsIdle(*region) || left < keep || left - keep < region->bytes) continue;
      idle.push_back(*region);
      left -= region->bytes;
    }
    for (const core::BestFit::Region& region : idle) fit_.RemoveRegion(region.address);
  }
  if (idle.empty()) return Released{};
  const RegionWatch::Change change = watch_.Begin();
  absl::Status failed;
  // Work on what was freed may still be in flight, and a driver that unmaps does
  // not wait for it.
  if (Timeline* const timeline = source_->timeline(); timeline != nullptr) {
    failed.Update(timeline->WaitForDevice());
  }
  // Its bytes count as held until the source has them back.
  Released released;
  for (const core::BestFit::Region& region : idle) {
    const MemoryRange range{PointerTo(region.address), region.bytes};
    const bool leaves = failed.ok() && MayLeave(change, range);
    if (leaves) {
      failed.Update(source_->ReleaseRegion(range));
      if (!failed.ok()) TellMapped(change, range);
    }
    core::MutexLock lock(mutex_);
    if (leaves && failed.ok()) {
      released.bytes += region.bytes;
      pool_bytes_ -= region.bytes;
    } else {
      if (failed.ok()) released.vetoed += region.bytes;
      fit_.AddRegion(region.address, region.bytes);
    }
  }
  if (!failed.ok()) return failed;
  return released;
}

absl::StatusOr<TrimResult> Pool::DoTrim(const TrimOptions& options) {
  core::MutexLock growth_lock(growth_mutex_);
  if (order_ != nullptr) order_->PollUntilDone(options.max_wait);
  const absl::StatusOr<Released> released = ReleaseIdleRegions(options.keep_pool_bytes, 0);
  if (!released.ok()) return released.status();
  TrimResult result;
  result.released = released->bytes;
  core::MutexLock lock(mutex_);
  std::uint64_t idle = 0;
  for (const core::BestFit::Region& region : fit_.regions()) {
    if (fit_.IsIdle(region)) idle += region.bytes;
  }
  result.pending = fit_.unsafe_bytes() + quarantined_ + (order_ ? order_->held_bytes_locked() : 0);
  result.pinned = pool_bytes_ - static_cast<std::uint64_t>(counters_.in_use) - result.pending -
                  idle + released->vetoed;
  return result;
}

absl::Status Pool::DoSetMemoryLimit(std::size_t bytes) {
  const std::uint64_t limit = bytes / granularity_ * granularity_;
  if (limit == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory limit: ", bytes, " is under one granule of the source, ", granularity_, " bytes"));
  }
  core::MutexLock growth_lock(growth_mutex_);
  {
    core::MutexLock lock(mutex_);
    limit_ = limit;
    limit_source_ = LimitSource::kSetMemoryLimit;
    shrunk_to_ = 0;
    if (pool_bytes_ <= limit_) return absl::OkStatus();
  }
  return ReleaseIdleRegions(0, limit).status();
}

}  // namespace hbm::strategies
