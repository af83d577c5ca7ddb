// SPDX-License-Identifier: Apache-2.0
//
// What callers ask of elastic. How memory is found is in elastic_plan.cc, how the
// driver is called in elastic_driver.cc.
#include "strategies/elastic.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "observe/log.h"
#include "policy/text.h"
#include "strategies/free_sums.h"
#include "strategies/source_state.h"

namespace hbm::strategies {
namespace {

using core::BackedSpace;
using core::ChunkId;
using core::kNoChunk;

// Addresses are reserved for large blocks for twice what the device has, so that runs
// of free addresses are there when those in use are scattered, and for half of it
// for small blocks.
constexpr std::uint64_t kLargeAddressHalves = 4;
constexpr std::uint64_t kSmallAddressHalves = 1;
// The least that is worth reserving, and the most that the books can hold.
constexpr std::uint64_t kLeastAddressBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kMostAddressBytes = std::uint64_t{1} << 47;

// The longest that a request waits for work on freed memory.
constexpr absl::Duration kLongestWaitForWork = absl::Seconds(10);
// Other ways that are tried after a driver's error that is not a shortage.
constexpr int kRetriesAfterError = 2;
// A stream becomes the owner after this many requests without one of the owner's.
constexpr int kRequestsToOwn = 32;

std::uint64_t AddressOf(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

void* PointerTo(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

StreamRef StreamOf(std::uint64_t value) {
  if (value == StreamRef::Synchronized().value()) return StreamRef::Synchronized();
  return StreamRef::FromHandle(PointerTo(value));
}

Policy Effective(const StrategyContext& context) {
  Policy policy = context.policy;
  policy.memory_limit = context.limit.bytes;
  return policy;
}

}  // namespace

namespace {
// Larger units would leave no room for two.
constexpr std::size_t kMostGranuleBytes = std::size_t{1} << 30;
}  // namespace

absl::StatusOr<std::unique_ptr<Allocator>> MakeElastic(StrategyContext context) {
  if (context.source->virtual_memory() == nullptr) {
    const std::string_view name = context.source->Name();
    return absl::InvalidArgumentError(absl::StrCat(
        "strategy: elastic needs a memory source with virtual memory, which ",
        absl::string_view(name.data(), name.size()), " has not; use bfc or on_demand"));
  }
  const std::size_t granule = context.source->virtual_memory()->Granularity();
  if (granule < core::kChunkUnit || granule > kMostGranuleBytes || (granule & (granule - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the memory source's granularity of virtual memory is ", granule,
                     " bytes; allowed: a power "
                     "of two from ",
                     core::kChunkUnit, " to ", kMostGranuleBytes));
  }
  auto elastic = std::make_unique<Elastic>(std::move(context));
  if (absl::Status started = elastic->Start(); !started.ok()) return started;
  return std::unique_ptr<Allocator>(std::move(elastic));
}

Elastic::Elastic(StrategyContext context)
    : Allocator(Effective(context)),
      device_(context.device),
      source_(context.source),
      memory_(*source_->virtual_memory()),
      timeline_(source_->timeline()),
      clock_(device_ == nullptr ? nullptr : device_->simulated_clock()),
      granule_(memory_.Granularity()),
      ordered_(context.policy.stream_mode == StreamMode::kOrdered && timeline_ != nullptr),
      reuse_wait_(context.policy.reuse_wait),
      idle_release_(context.policy.idle_release),
      frees_plainly_(!ordered_ && idle_release_ == absl::InfiniteDuration()),
      start_bytes_(*context.policy.preallocate ? context.limit.start_bytes / granule_ * granule_
                                               : 0),
      quarantine_bytes_(context.policy.quarantine),
      spaces_{BackedSpace({granule_, ordered_}), BackedSpace({granule_, ordered_})},
      growth_(context.policy.slack, granule_),
      work_(timeline_),
      limit_(context.limit.bytes / granule_ * granule_),
      limit_source_(context.limit.source) {}

absl::Status Elastic::Start() {
  const absl::StatusOr<MemoryInfo> memory = source_->GetMemoryInfo();
  if (!memory.ok()) return memory.status();
  std::uint64_t unit = std::max<std::uint64_t>(memory->total, kLeastAddressBytes) / 2;
  unit = std::min(unit, kMostAddressBytes / (kLargeAddressHalves + kSmallAddressHalves));
  unit = unit / granule_ * granule_;
  // Any limit can be raised to the device's size later, so that is what counts.
  for (;;) {
    const std::uint64_t bytes = unit * (kLargeAddressHalves + kSmallAddressHalves);
    const absl::StatusOr<MemoryRange> range = memory_.Reserve(bytes);
    if (range.ok()) {
      const std::uint64_t address = AddressOf(range->address);
      if (address == 0 || address % granule_ != 0 || range->bytes < bytes ||
          address > std::numeric_limits<std::uint64_t>::max() - range->bytes) {
        memory_.FreeReservation(*range).IgnoreError();
        return absl::InternalError(absl::StrCat(
            "the memory source reserved addresses that are null, not aligned to ", granule_,
            " bytes, too few or at the end of all addresses: ", bytes, " bytes asked for, address ",
            address, ", ", range->bytes, " bytes given"));
      }
      reservation_ = *range;
      break;
    }
    if (!absl::IsResourceExhausted(range.status()) || unit < 2 * granule_) return range.status();
    unit = unit / 2 / granule_ * granule_;
  }
  const std::uint64_t base = AddressOf(reservation_.address);
  large_begin_ = base + kSmallAddressHalves * unit;
  {
    core::MutexLock lock(mutex_);
    if (!spaces_[kSmall].AddRange(base, kSmallAddressHalves * unit) ||
        !spaces_[kLarge].AddRange(large_begin_, kLargeAddressHalves * unit)) {
      return absl::ResourceExhaustedError("the host has no memory for the books");
    }
  }
  if (idle_release_ != absl::InfiniteDuration()) {
    idle_timer_ = std::make_unique<IdleTimer>(clock_, [this] { return ReleaseDue(); });
  }
  return start_bytes_ == 0 ? absl::OkStatus() : Preallocate();
}

Elastic::~Elastic() {
  EndSharing();
  idle_timer_.reset();
  std::int64_t live = 0;
  std::int64_t live_bytes = 0;
  {
    core::MutexLock lock(mutex_);
    for (const BackedSpace& space : spaces_) {
      if (space.regions().empty()) continue;
      for (ChunkId id = space.regions().front().first; id != kNoChunk; id = space.chunk(id).next) {
        if (space.chunk(id).is_live()) ++live;
      }
    }
    live_bytes = counters_.requested;
  }
  if (live != 0 && !DriverIsGone(*source_)) {
    observe::LogWarning(absl::StrCat("an allocator is destroyed while ", live, " blocks of ",
                                     policy::FormatBytes(static_cast<std::size_t>(live_bytes)),
                                     " are live; their memory goes back to the device"));
  }
  core::MutexLock growth_lock(growth_mutex_);
  // Work on live or just freed blocks may still be in flight.
  if (timeline_ != nullptr && pages_.size() != 0) timeline_->WaitForDevice().IgnoreError();
  absl::Status failure;
  const auto note = [&](const absl::Status& status) {
    if (!status.ok()) failure = status;
  };
  const auto give_back = [&](const core::Mapping& mapping) {
    note(memory_.Unmap({PointerTo(mapping.address), mapping.bytes}));
    note(memory_.Release(mapping.handle));
  };
  const RegionWatch::Change change = watch_.Begin();
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    change.MayLeave({PointerTo(pages_[i].address), pages_[i].bytes});
    give_back(pages_[i]);
  }
  for (const Stuck& stuck : stuck_) {
    for (const core::Mapping& mapping : stuck.mappings) give_back(mapping);
  }
  for (const core::Mapping& handle : loose_) note(memory_.Release(handle.handle));
  if (reservation_.bytes != 0) note(memory_.FreeReservation(reservation_));
  if (!failure.ok()) {
    observe::LogWarning(absl::StrCat("giving memory back: ", failure.ToString()));
  }
}

absl::Duration Elastic::Now() const {
  if (clock_ != nullptr) return clock_->Now();
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

bool Elastic::IsForeignLocked(StreamRef stream, FitRequest* request) {
  request->order = core::kSafe;
  if (!ordered_) return stream.is_synchronized();
  if (owner_ == core::kSafe) return false;  // no work is in flight on anything free
  const core::OrderId order = work_.OrderOf(stream);
  if (HBM_LIKELY(order == owner_)) {
    foreign_run_ = 0;
    return false;
  }
  ++foreign_run_;
  request->order = order;
  return true;
}

// With the owner's notes done, nobody's work touches chunks of order kSafe. Those of the
// new owner's order join them: that is what the owner's are.
bool Elastic::MayOwnLocked(FitRequest* request) {
  if (request->order == core::kSafe || foreign_run_ < kRequestsToOwn) return false;
  if (!work_.IsDone({owner_, work_.NotedIn(owner_)})) return false;
  for (BackedSpace& space : spaces_) {
    space.Promote(request->order, work_.NotedIn(request->order));
  }
  owner_ = request->order;
  foreign_run_ = 0;
  request->order = core::kSafe;
  return true;
}

bool Elastic::IsQuietLocked(std::uint64_t begin, std::uint64_t end) {
  const auto is_quiet = [&]() HBM_NO_THREAD_SAFETY_ANALYSIS {
    return !work_.has_pending() || !work_.MakeBusySet().Overlaps(begin, end);
  };
  // The notes are asked first: asking the driver costs more.
  return is_quiet() || (work_.Poll() && is_quiet());
}

void* Elastic::AllocateForeign(int part, const FitRequest& request) {
  BackedSpace& space = spaces_[part];
  if (request.order != core::kSafe) {
    const ChunkId own = space.AllocateFrom(request.order, request);
    if (own != kNoChunk) return TakenLocked(part, own);
  }
  FitRequest safe = request;
  safe.order = core::kSafe;
  const ChunkId id = space.AllocateBacked(safe);
  if (id == kNoChunk) return nullptr;
  const core::Chunk& chunk = space.chunk(id);
  if (IsQuietLocked(chunk.address, chunk.end())) return TakenLocked(part, id);
  space.Free(space.TakeLive(chunk.address));
  return nullptr;
}

HBM_ALWAYS_INLINE void* Elastic::AllocateHit(int part, const FitRequest& request, bool foreign) {
  if (HBM_UNLIKELY(!held_back_.empty())) PollWorkLocked();
  if (HBM_UNLIKELY(foreign)) return AllocateForeign(part, request);
  const ChunkId id = spaces_[part].AllocateBacked(request);
  return id == kNoChunk ? nullptr : TakenLocked(part, id);
}

void* Elastic::AllocateLocked(int part, const FitRequest& request, bool foreign) {
  return AllocateHit(part, request, foreign);
}

void* Elastic::DoAllocate(const Request& asked, AllocError* why) noexcept {
  FitRequest request;
  request.requested = asked.bytes;
  request.rounded = core::RoundToChunk(asked.bytes);
  request.alignment = asked.alignment;
  request.stream = asked.stream.value();
  request.tag = asked.tag.value;
  int part = kLarge;
  if (__builtin_expect(request.rounded != 0, 1)) {
    core::MutexLock lock(mutex_);
    if (request.rounded < growth_.small_bytes() && !asked.contiguous) part = kSmall;
    const bool foreign = IsForeignLocked(asked.stream, &request);
    const bool best_place = part == kLarge && (asked.contiguous || growth_.PlacesTightly());
    if (__builtin_expect(!best_place, 1)) {
      void* const block = AllocateHit(part, request, foreign);
      if (HBM_LIKELY(block != nullptr)) return block;
    }
  }
  return AllocateSlow(part, request, asked, why);
}

// What a slow request can have now, or how it could be had.
Elastic::Planned Elastic::FindOrPlan(int part, const Request& asked, const Known& known,
                                     FitRequest* request, Found* found) {
  core::MutexLock lock(mutex_);
  // Meanwhile another thread may have freed, or made memory.
  PollWorkLocked();
  const bool tight = part == kLarge && growth_.PlacesTightly();
  const bool foreign = IsForeignLocked(asked.stream, request) && !MayOwnLocked(request);
  if (asked.contiguous) {
    found->block = AllocateContiguous(*request, foreign);
  } else if (foreign || !tight) {
    found->block = AllocateLocked(part, *request, foreign);
    if (found->block == nullptr && foreign) found->block = AllocateQuiet(part, *request);
  }
  if (found->block != nullptr) return Planned::kReady;
  const Terms terms{asked.contiguous, asked.contiguous || foreign, tight, known.may_wait,
                    known.device_is_full ? std::min(limit_, PoolWithPromisesLocked()) : limit_};
  growth_.SetWanted(request->requested);
  const Planned planned = MakePlan(part, *request, terms, known.vetoed, found);
  growth_.SetWanted(0);
  if (planned == Planned::kReady && found->plan.steps.empty()) {
    found->block = TakenLocked(part, Commit(&found->plan, true, request, found->at.address));
  }
  return planned;
}

void* Elastic::AllocateSlow(int part, FitRequest request, const Request& asked, AllocError* why) {
  core::MutexLock growth_lock(growth_mutex_);
  RetryStuck();
  ReleaseExcess();
  int retries = 0;
  absl::Duration wait_left = asked.may_wait ? kLongestWaitForWork : absl::ZeroDuration();
  absl::Duration reuse_left = asked.may_wait ? reuse_wait_ : absl::ZeroDuration();
  absl::Status driver;
  Planned planned = Planned::kShort;
  Known known;
  while (request.rounded != 0) {
    Found found;
    Plan& plan = found.plan;
    known.may_wait = reuse_left > absl::ZeroDuration();
    planned = FindOrPlan(part, asked, known, &request, &found);
    if (found.block != nullptr) return found.block;
    if (planned == Planned::kBusy) {
      if (!WaitForOwner(asked.stream, plan.missing, &reuse_left)) reuse_left = absl::ZeroDuration();
      continue;
    }
    if (planned != Planned::kReady) {
      if (planned == Planned::kHostMemory) break;
      {
        core::MutexLock lock(mutex_);
        if (quarantined_ != 0) {
          FlushQuarantineLocked(0);
          continue;
        }
      }
      if (void* const block = AllocateAcrossStreams(part, request, asked.stream)) return block;
      if (WaitForWork(asked.stream, &wait_left) || WaitForOtherPlans(&wait_left)) continue;
      break;
    }
    if (plan.change.is_on() && !AskToLeave(&plan, &known.vetoed)) {
      core::MutexLock lock(mutex_);
      Commit(&plan, false, nullptr, 0);
      continue;
    }
    driver = Execute(&plan);
    if (plan.change.is_on()) TellMapped(plan, driver.ok());
    {
      core::MutexLock lock(mutex_);
      const ChunkId id =
          Commit(&plan, driver.ok(), driver.ok() ? &request : nullptr, found.at.address);
      if (id != kNoChunk) return TakenLocked(part, id);
    }
    if (absl::IsResourceExhausted(driver)) {
      // The device is low although the limit is not reached: once more, with what is
      // idle in place of new memory.
      if (known.device_is_full) break;
      known.device_is_full = true;
    } else if (++retries > kRetriesAfterError) {
      break;
    }
  }
  *why = Exhausted(request, planned, known.device_is_full, driver);
  return nullptr;
}

AllocError Elastic::Exhausted(const FitRequest& request, Planned why, bool device_is_full,
                              const absl::Status& driver) {
  AllocError error{absl::StatusCode::kResourceExhausted, OomCause::kLimit};
  std::uint64_t pool;
  {
    core::MutexLock lock(mutex_);
    ++counters_.failures;
    pool = pool_bytes_;
    const auto in_use = static_cast<std::uint64_t>(counters_.in_use);
    if (request.rounded == 0 || in_use + request.rounded > limit_) return error;
    if (HasPendingLocked()) {
      error.cause = OomCause::kPending;
      return error;
    }
  }
  if (!driver.ok() && !absl::IsResourceExhausted(driver)) {
    LogSourceError("getting memory", driver);
    return {SourceError(driver).code(), OomCause::kNone};
  }
  error.cause = OomCause::kFragmentation;
  if (!device_is_full || why == Planned::kNoPlace) return error;
  const absl::StatusOr<MemoryInfo> info = source_->GetMemoryInfo();
  const std::uint64_t taken = info.ok() ? info->total - std::min(info->free, info->total) : 0;
  const std::uint64_t others = taken - std::min(taken, pool);
  error.cause = others >= granule_ ? OomCause::kOtherProcess : OomCause::kDevice;
  return error;
}

absl::Status Elastic::DoDeallocate(void* ptr, StreamRef after) {
  const std::uint64_t address = AddressOf(ptr);
  const int part = PartOf(address);
  bool release = false;
  bool excess = false;
  {
    core::MutexLock lock(mutex_);
    BackedSpace& space = spaces_[part];
    const ChunkId id = space.TakeLive(address);
    if (__builtin_expect(id == kNoChunk, 0)) return absl::CancelledError();
    const core::Chunk& chunk = space.chunk(id);
    counters_.Freed(chunk.size, chunk.requested());
    growth_.Freed(chunk.requested());
    const AddressRange range{chunk.address, chunk.end()};
    WorkLog::Entry entry;
    if (timeline_ != nullptr) {
      StreamRef stream = after;
      if (stream.is_of_allocation()) {
        stream = chunk.has_details() ? StreamOf(space.details(id).stream_or_sequence) : StreamRef();
      }
      entry = work_.NoteFree(stream, range);
      const auto uses = uses_.empty() ? uses_.end() : uses_.find(address);
      if (__builtin_expect(uses != uses_.end(), 0)) {
        HeldBack held{part, id, {entry}};
        for (const StreamRef use : uses->second) {
          held.until.push_back(work_.NoteFree(use, range));
          work_.Mark(use);
        }
        if (!after.is_synchronized()) work_.Mark(stream);
        uses_.erase(uses);
        space.Hold(id);
        held_back_bytes_ += chunk.size;
        held_back_.push_back(std::move(held));
        return absl::OkStatus();
      }
    }
    if (HBM_UNLIKELY(owner_ == core::kSafe)) owner_ = entry.order;
    if (__builtin_expect(quarantine_bytes_ != 0, 0)) {
      space.Hold(id);
      quarantined_ += chunk.size;
      quarantine_.push_back({part, id, entry});
      FlushQuarantineLocked(quarantine_bytes_);
    } else if (HBM_LIKELY(frees_plainly_)) {
      space.Free(id);
    } else {
      FreeLocked(part, id, entry);
      release = !freed_at_.empty() && Now() - freed_at_.front().when >= idle_release_;
    }
    excess = pool_bytes_ > limit_;
  }
  if (__builtin_expect(release, 0)) ReleaseExpired();
  if (__builtin_expect(excess, 0)) {  // the limit was lowered below what was in use
    core::MutexLock growth_lock(growth_mutex_);
    ReleaseExcess();
  }
  return absl::OkStatus();
}

void Elastic::FreeLocked(int part, ChunkId id, WorkLog::Entry entry) {
  if (frees_plainly_) {
    spaces_[part].Free(id);
    return;
  }
  const AddressRange range{spaces_[part].chunk(id).address, spaces_[part].chunk(id).end()};
  const core::OrderId order = ordered_ && entry.order != owner_ ? entry.order : core::kSafe;
  const core::FreeKey free = spaces_[part].FreeBlock(id, order, entry.sequence);
  // A handle can only have become idle in a chunk that is as large as one.
  if (idle_release_ != absl::InfiniteDuration() && free.size() >= granule_) {
    freed_at_.push_back({Now(), range});
  }
}

void Elastic::FlushQuarantineLocked(std::uint64_t keep) {
  while (quarantined_ > keep) {
    const Quarantined oldest = quarantine_.front();
    quarantine_.pop_front();
    quarantined_ -= spaces_[oldest.part].chunk(oldest.id).size;
    FreeLocked(oldest.part, oldest.id, oldest.entry);
  }
}

void Elastic::PollWorkLocked() {
  if (timeline_ == nullptr) {
    FlushQuarantineLocked(quarantine_bytes_);
    return;
  }
  work_.Poll();
  if (ordered_) {
    for (core::OrderId order = 1; order < work_.num_orders(); ++order) {
      spaces_[kSmall].Promote(order, work_.DoneThrough(order));
      spaces_[kLarge].Promote(order, work_.DoneThrough(order));
    }
  }
  for (std::size_t i = 0; i < held_back_.size();) {
    const HeldBack& held = held_back_[i];
    const bool done = std::all_of(held.until.begin(), held.until.end(),
                                  [&](const WorkLog::Entry& e)
                                      HBM_NO_THREAD_SAFETY_ANALYSIS { return work_.IsDone(e); });
    if (!done) {
      ++i;
      continue;
    }
    held_back_bytes_ -= spaces_[held.part].chunk(held.id).size;
    FreeLocked(held.part, held.id, {});
    held_back_.erase(held_back_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

absl::Status Elastic::DoRecordUse(void* ptr, StreamRef stream) {
  core::MutexLock lock(mutex_);
  const std::uint64_t address = AddressOf(ptr);
  const BackedSpace& space = spaces_[PartOf(address)];
  const ChunkId id = space.FindLive(address);
  if (id == kNoChunk) return absl::CancelledError();
  const StreamRef own =
      space.chunk(id).has_details() ? StreamOf(space.details(id).stream_or_sequence) : StreamRef();
  if (timeline_ == nullptr || stream == own) return absl::OkStatus();
  std::vector<StreamRef>& uses = uses_[address];
  if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
  return absl::OkStatus();
}

absl::StatusOr<BlockInfo> Elastic::DoDescribe(const void* ptr) const {
  const std::uint64_t address = AddressOf(ptr);
  // The mappings may not change between the two looks.
  core::MutexLock growth_lock(growth_mutex_);
  core::MutexLock lock(mutex_);
  BackedSpace& space = spaces_[PartOf(address)];
  const ChunkId id = ptr == nullptr ? kNoChunk : space.FindLiveHolding(address);
  if (id == kNoChunk) {
    return absl::NotFoundError(
        absl::StrCat("no live block of this allocator holds the address ", address));
  }
  const core::Chunk& chunk = space.chunk(id);
  BlockInfo info;
  info.address = PointerTo(chunk.address);
  info.requested_bytes = chunk.requested();
  info.chunk_bytes = chunk.size;
  if (chunk.has_details()) {
    info.stream = StreamOf(space.details(id).stream_or_sequence);
    info.tag = TagId{space.details(id).tag_or_queue_prev};
  }
  // The handles that back it, which follow one another without a gap.
  std::size_t i = pages_.FirstAfter(chunk.address);
  const std::uint64_t begin = pages_[i].address;
  while (pages_[i].end() < chunk.end()) ++i;
  info.region = {PointerTo(begin), pages_[i].end() - begin};
  return info;
}

Stats Elastic::DoGetStats() const {
  Stats stats;
  {
    core::MutexLock lock(mutex_);
    counters_.AddTo(stats);
    stats.bytes_limit = static_cast<std::int64_t>(limit_);
    stats.limit_source = limit_source_;
    stats.largest_free_block_bytes = static_cast<std::int64_t>(
        std::max(spaces_[kSmall].LargestFree(), spaces_[kLarge].LargestFree()));
    stats.pool_bytes = static_cast<std::int64_t>(pool_bytes_);
    stats.peak_pool_bytes = static_cast<std::int64_t>(peak_pool_bytes_);
    stats.num_regions = static_cast<std::int64_t>(num_mappings_);
    stats.pending_bytes =
        static_cast<std::int64_t>(spaces_[kSmall].unsafe_bytes() + spaces_[kLarge].unsafe_bytes() +
                                  held_back_bytes_ + quarantined_);
    stats.num_waits = static_cast<std::int64_t>(waits_);
    stats.wait_nanoseconds = wait_nanoseconds_;
  }
  const DriverUse use = source_->GetDriverUse();
  stats.driver_calls = static_cast<std::int64_t>(use.calls);
  stats.driver_nanoseconds = static_cast<std::int64_t>(use.nanoseconds);
  return stats;
}

void Elastic::DoGetFigures(Figures* figures) const {
  core::FreeIndex::Sums sums{};
  {
    core::MutexLock lock(mutex_);
    counters_.AddTo(*figures);
    for (const BackedSpace& space : spaces_) space.AddFreeSums(&sums);
  }
  AddFreeSums(sums, figures);
}

void Elastic::DoResetPeakStats() {
  core::MutexLock lock(mutex_);
  counters_.ResetPeaks();
  peak_pool_bytes_ = pool_bytes_;
}

Snapshot Elastic::DoTakeSnapshot() const {
  // While pages move, what is held back is neither free nor backed.
  core::MutexLock growth_lock(growth_mutex_);
  core::MutexLock lock(mutex_);
  Snapshot snapshot;
  for (const BackedSpace& space : spaces_) {
    bool in_region = false;
    for (ChunkId id = space.regions().front().first; id != kNoChunk; id = space.chunk(id).next) {
      const core::Chunk& chunk = space.chunk(id);
      if (space.IsHole(id)) {
        in_region = false;
        continue;
      }
      if (!in_region) snapshot.regions.push_back({{PointerTo(chunk.address), 0}, {}});
      in_region = true;
      Snapshot::Region& region = snapshot.regions.back();
      region.range.bytes += chunk.size;
      Snapshot::Chunk& piece = region.chunks.emplace_back();
      piece.address = PointerTo(chunk.address);
      piece.bytes = chunk.size;
      if (chunk.is_free()) {
        piece.state = space.OrderOf(id) == core::kSafe ? ChunkState::kFree : ChunkState::kPending;
        continue;
      }
      piece.state = chunk.is_live() ? ChunkState::kLive : ChunkState::kPending;
      if (!chunk.is_live()) continue;
      piece.requested_bytes = chunk.requested();
      if (!chunk.has_details()) continue;
      piece.stream = StreamOf(space.details(id).stream_or_sequence);
      piece.tag = TagId{space.details(id).tag_or_queue_prev};
    }
  }
  return snapshot;
}

}  // namespace hbm::strategies
