// SPDX-License-Identifier: Apache-2.0
//
// How elastic's plans are carried out: calls of the driver, what happens when one
// fails, and giving memory back.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "observe/log.h"
#include "policy/text.h"
#include "strategies/elastic.h"

namespace hbm::strategies {

using core::ChunkId;
using core::kNoChunk;
using core::Mapping;

namespace {

// Preallocated memory comes in handles of this size: few enough to be made fast,
// small enough to be given back one by one.
constexpr std::uint64_t kPreallocatedHandle = std::uint64_t{128} << 20;
// Waiting for work is done in slices, so that new frees are seen in between.
constexpr absl::Duration kWaitSlice = absl::Milliseconds(100);

MemoryRange RangeOf(std::uint64_t begin, std::uint64_t bytes) {
  return {reinterpret_cast<void*>(begin), bytes};  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

absl::Status Elastic::Execute(Plan* plan) {
  absl::Status done = ExecuteSteps(plan);
  if (done.ok()) done = GiveAccess(*plan);
  if (!done.ok()) UndoMapped(plan);
  return done;
}

absl::Status Elastic::ExecuteSteps(Plan* plan) {
  for (const Step& step : plan->steps) {
    VirtualMemory::Handle handle;
    if (step.kind == Step::Kind::kCreate) {
      const absl::StatusOr<VirtualMemory::Handle> made = memory_.Create(step.bytes);
      if (!made.ok()) return made.status();
      if (*made == 0) {
        return absl::InternalError("the memory source made a handle of 0, which stands for none");
      }
      handle = *made;
      plan->pool_change += static_cast<std::int64_t>(step.bytes);
      plan->pool_peak = std::max(plan->pool_peak, plan->pool_change);
    } else {
      Victim& victim = plan->victims[step.victim];
      if (absl::Status detached = Detach(&victim); !detached.ok()) return detached;
      handle = victim.idle.mapping.handle;
      if (step.kind == Step::Kind::kRelease) {
        ReleaseHandle(victim.idle.mapping, plan);
        continue;
      }
    }
    absl::Status mapped = memory_.Map(RangeOf(step.to, step.bytes).address, handle);
    if (!mapped.ok()) {
      const Mapping memory{0, step.bytes, handle};
      if (step.kind == Step::Kind::kCreate) {
        ReleaseHandle(memory, plan);
      } else {
        loose_.push_back(memory);
      }
      return mapped;
    }
    plan->mapped.push_back({{step.to, step.bytes, handle}, step.kind == Step::Kind::kCreate});
  }
  return absl::OkStatus();
}

absl::Status Elastic::Detach(Victim* victim) {
  const Mapping& mapping = victim->idle.mapping;
  if (mapping.address == 0) {
    victim->left = true;
    return absl::OkStatus();
  }
  absl::Status unmapped = memory_.Unmap(RangeOf(mapping.address, mapping.bytes));
  victim->left = unmapped.ok();
  return unmapped;
}

// One call for each run of new mappings: the driver charges by handle.
absl::Status Elastic::GiveAccess(const Plan& plan) {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  for (const NewMapping& made : plan.mapped) {
    if (made.mapping.address == end && end != 0) {
      end = made.mapping.end();
      continue;
    }
    if (end != 0) {
      if (absl::Status given = memory_.SetAccess(RangeOf(begin, end - begin)); !given.ok()) {
        return given;
      }
    }
    begin = made.mapping.address;
    end = made.mapping.end();
  }
  return end == 0 ? absl::OkStatus() : memory_.SetAccess(RangeOf(begin, end - begin));
}

// New memory goes back; what was moved stays at hand, mapped nowhere.
void Elastic::UndoMapped(Plan* plan) {
  for (const NewMapping& made : plan->mapped) {
    const Mapping& mapping = made.mapping;
    if (!memory_.Unmap(RangeOf(mapping.address, mapping.bytes)).ok()) {
      plan->stuck.push_back(mapping);
    } else if (made.is_new) {
      ReleaseHandle({0, mapping.bytes, mapping.handle}, plan);
    } else {
      loose_.push_back({0, mapping.bytes, mapping.handle});
    }
  }
  plan->mapped.clear();
}

void Elastic::ReleaseHandle(const Mapping& memory, Plan* plan) {
  if (memory_.Release(memory.handle).ok()) {
    plan->pool_change -= static_cast<std::int64_t>(memory.bytes);
  } else {
    loose_.push_back({0, memory.bytes, memory.handle});
  }
}

ChunkId Elastic::Commit(Plan* plan, bool done, const FitRequest* block, std::uint64_t address) {
  const auto changes = static_cast<std::uint32_t>(plan->victims.size() + plan->mapped.size()) + 4;
  // Only if the host has no memory at all; then what cannot be settled stays held.
  const bool can_settle =
      spaces_[kSmall].ReserveForChanges(changes) && spaces_[kLarge].ReserveForChanges(changes);
  peak_pool_bytes_ =
      std::max(peak_pool_bytes_, pool_bytes_ + static_cast<std::uint64_t>(plan->pool_peak));
  pool_bytes_ =
      static_cast<std::uint64_t>(static_cast<std::int64_t>(pool_bytes_) + plan->pool_change);
  promised_bytes_ -= plan->promised;
  for (const Victim& victim : plan->victims) {
    const Mapping& mapping = victim.idle.mapping;
    if (victim.left && mapping.address != 0) pages_.Remove(mapping.address);
    if (!victim.left && mapping.address == 0) loose_.push_back(mapping);
  }
  for (const NewMapping& made : plan->mapped) pages_.Add(made.mapping);
  num_mappings_ = pages_.size();
  if (!can_settle) return kNoChunk;
  for (const Victim& victim : plan->victims) {
    if (victim.held != kNoChunk) spaces_[victim.idle.part].Settle(victim.held, pages_);
  }
  if (plan->held == kNoChunk) return kNoChunk;
  if (!plan->stuck.empty()) {
    stuck_.push_back({plan->part, plan->held, std::move(plan->stuck)});
    return kNoChunk;
  }
  if (done && block != nullptr) {
    return spaces_[plan->part].SettleBlock(plan->held, address, *block, pages_);
  }
  // What was free in it is the owner's, or quiet.
  spaces_[plan->part].Settle(plan->held, pages_);
  return kNoChunk;
}

bool Elastic::AskToLeave(Plan* plan, Vetoed* vetoed) {
  growth_mutex_.Unlock();
  bool all_leave = true;
  for (Victim& victim : plan->victims) {
    const Mapping& mapping = victim.idle.mapping;
    if (mapping.address == 0) continue;
    victim.agreed = plan->change.MayLeave(RangeOf(mapping.address, mapping.bytes));
    if (victim.agreed) continue;
    vetoed->push_back(mapping.address);
    all_leave = false;
    break;
  }
  growth_mutex_.Lock();
  if (!all_leave) TellMapped(*plan, false);
  return all_leave;
}

void Elastic::TellMapped(const Plan& plan, bool done) {
  growth_mutex_.Unlock();
  for (const Victim& victim : plan.victims) {
    const Mapping& mapping = victim.idle.mapping;
    if (victim.agreed && !victim.left) plan.change.Mapped(RangeOf(mapping.address, mapping.bytes));
  }
  if (done) {
    for (const NewMapping& made : plan.mapped) {
      plan.change.Mapped(RangeOf(made.mapping.address, made.mapping.bytes));
    }
  }
  growth_mutex_.Lock();
}

absl::Status Elastic::DoAddPeer(int ordinal) {
  core::MutexLock lock(growth_mutex_);
  return source_->AddPeer(ordinal);
}

absl::Status Elastic::DoSetRegionCallback(std::shared_ptr<const RegionCallback> callback) {
  return watch_.Replace(std::move(callback), growth_mutex_, [&]() HBM_NO_THREAD_SAFETY_ANALYSIS {
    std::vector<MemoryRange> ranges;
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      ranges.push_back(RangeOf(pages_[i].address, pages_[i].bytes));
    }
    return ranges;
  });
}

void Elastic::RetryStuck() {
  for (std::size_t i = 0; i < stuck_.size();) {
    std::vector<Mapping>& mappings = stuck_[i].mappings;
    while (!mappings.empty()) {
      const Mapping mapping = mappings.back();
      if (!memory_.Unmap(RangeOf(mapping.address, mapping.bytes)).ok()) break;
      mappings.pop_back();
      loose_.push_back({0, mapping.bytes, mapping.handle});
    }
    if (!mappings.empty()) {
      ++i;
      continue;
    }
    core::MutexLock lock(mutex_);
    if (spaces_[stuck_[i].part].ReserveForChanges(4)) {
      spaces_[stuck_[i].part].Settle(stuck_[i].held, pages_);
    }
    stuck_.erase(stuck_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

bool Elastic::WaitForWork(StreamRef stream, absl::Duration* left) {
  if (timeline_ == nullptr || *left <= absl::ZeroDuration()) return false;
  Timeline::Marker marker;
  std::vector<std::uint64_t> noted;
  {
    core::MutexLock lock(mutex_);
    if (!HasPendingLocked()) return false;
    // The caller's stream is at hand, so what was freed on it can be marked now.
    if (stream.is_handle()) work_.Mark(stream);
    marker = work_.OldestMarker();
    work_.KeepMarker(marker);  // other threads may see that it is done meanwhile
    noted = work_.NotedSoFar();
  }
  return WaitForMarker(marker, noted, left);
}

bool Elastic::WaitForOwner(StreamRef stream, std::uint64_t bytes, absl::Duration* left) {
  if (timeline_ == nullptr || *left <= absl::ZeroDuration()) return false;
  Timeline::Marker marker;
  {
    core::MutexLock lock(mutex_);
    if (owner_ == core::kSafe) return false;
    if (stream.is_handle()) work_.Mark(stream);
    marker = work_.MarkerCovering(owner_, bytes);
    if (marker == 0) return false;
    work_.KeepMarker(marker);
  }
  return WaitForMarker(marker, {}, left);
}

// 0: for the whole device, after which all that is noted here is done.
bool Elastic::WaitForMarker(Timeline::Marker marker, const std::vector<std::uint64_t>& noted,
                            absl::Duration* left) {
  const absl::Duration began = Now();
  absl::Status waited = marker != 0 ? timeline_->WaitOnHost(marker, std::min(*left, kWaitSlice))
                                    : timeline_->WaitForDevice();
  const absl::Duration took = std::max(Now() - began, absl::Microseconds(1));
  *left -= took;
  core::MutexLock lock(mutex_);
  work_.KeepMarker(0);
  ++waits_;
  wait_nanoseconds_ += absl::ToInt64Nanoseconds(took);
  if (waited.ok() && marker == 0) work_.AllDone(noted);
  return waited.ok() || absl::IsDeadlineExceeded(waited);
}

bool Elastic::WaitForOtherPlans(absl::Duration* left) {
  if (*left <= absl::ZeroDuration()) return false;
  growth_mutex_.Unlock();
  const absl::Time began = absl::Now();
  const bool ended = watch_.WaitForChanges(*left);
  *left -= absl::Now() - began;
  growth_mutex_.Lock();
  return ended;
}

void Elastic::ReleaseExcess() {
  std::uint64_t limit;
  {
    core::MutexLock lock(mutex_);
    if (pool_bytes_ <= limit_) return;
    limit = limit_;
  }
  ReleaseIdle(limit, limit, nullptr, nullptr);
}

std::uint64_t Elastic::ReleaseIdle(std::uint64_t keep, std::uint64_t enough, const BusySet* only,
                                   const BusySet* except, Vetoed* vetoed) {
  Plan plan;
  {
    core::MutexLock lock(mutex_);
    PollWorkLocked();
    std::vector<IdleHandle> idle = GatherIdle(0, 0, {});
    std::sort(idle.begin(), idle.end(), [](const IdleHandle& a, const IdleHandle& b) {
      return a.mapping.bytes > b.mapping.bytes;
    });
    std::uint64_t pool = pool_bytes_;
    const auto release = [&](const IdleHandle& handle) {
      pool -= handle.mapping.bytes;
      plan.steps.push_back({Step::Kind::kRelease, 0, handle.mapping.bytes, plan.victims.size()});
      plan.victims.push_back({handle, kNoChunk, false});
    };
    const IdleHandle* smallest_kept = nullptr;
    for (const IdleHandle& handle : idle) {
      const Mapping& mapping = handle.mapping;
      if (pool < keep + mapping.bytes) {
        smallest_kept = &handle;
        continue;
      }
      if (only != nullptr && !only->Overlaps(mapping.address, mapping.end())) continue;
      if (except != nullptr && except->Overlaps(mapping.address, mapping.end())) continue;
      release(handle);
    }
    if (pool > enough && smallest_kept != nullptr) release(*smallest_kept);
    if (plan.steps.empty() || !HoldVictims(&plan)) return 0;
    plan.change = watch_.Begin();
  }
  if (plan.change.is_on()) KeepVetoed(&plan, vetoed);
  for (const Step& step : plan.steps) {
    Victim& victim = plan.victims[step.victim];
    if (Detach(&victim).ok()) ReleaseHandle(victim.idle.mapping, &plan);
  }
  if (plan.change.is_on()) TellMapped(plan, false);
  core::MutexLock lock(mutex_);
  Commit(&plan, true, nullptr, 0);
  return static_cast<std::uint64_t>(-plan.pool_change);
}

// Leaves in the plan what the region callback lets go.
void Elastic::KeepVetoed(Plan* plan, Vetoed* vetoed) {
  std::vector<Step> agreed;
  growth_mutex_.Unlock();
  for (const Step& step : plan->steps) {
    Victim& victim = plan->victims[step.victim];
    const Mapping& mapping = victim.idle.mapping;
    victim.agreed =
        mapping.address != 0 && plan->change.MayLeave(RangeOf(mapping.address, mapping.bytes));
    if (victim.agreed || mapping.address == 0) {
      agreed.push_back(step);
    } else if (vetoed != nullptr) {
      vetoed->push_back(mapping.address);
    }
  }
  growth_mutex_.Lock();
  plan->steps = std::move(agreed);
}

absl::Duration Elastic::ReleaseDue() {
  {
    core::MutexLock lock(mutex_);
    if (freed_at_.empty()) return idle_release_;
    const absl::Duration left = freed_at_.front().when + idle_release_ - Now();
    if (left > absl::ZeroDuration()) return left;
  }
  ReleaseExpired();
  return absl::ZeroDuration();
}

void Elastic::ReleaseExpired() {
  core::MutexLock growth_lock(growth_mutex_);
  std::vector<AddressRange> expired;
  std::vector<AddressRange> recent;
  {
    core::MutexLock lock(mutex_);
    PollWorkLocked();
    const absl::Duration now = Now();
    while (!freed_at_.empty() && now - freed_at_.front().when >= idle_release_) {
      expired.push_back(freed_at_.front().range);
      freed_at_.pop_front();
    }
    for (const FreedAt& freed : freed_at_) recent.push_back(freed.range);
    // What work may still touch is looked at again later.
    if (work_.has_pending()) {
      const BusySet busy = work_.MakeBusySet();
      for (const AddressRange& range : expired) {
        if (busy.Overlaps(range.begin, range.end)) freed_at_.push_back({now, range});
      }
    }
  }
  if (expired.empty()) return;
  // A handle that holds a part of an expired range is idle for long, unless another
  // part of it was freed only recently.
  const BusySet only(std::move(expired));
  const BusySet except(std::move(recent));
  Vetoed vetoed;
  ReleaseIdle(0, ~std::uint64_t{0}, &only, &except, &vetoed);
  core::MutexLock lock(mutex_);
  for (std::uint64_t address : vetoed) freed_at_.push_back({Now(), {address, address + granule_}});
}

absl::StatusOr<TrimResult> Elastic::DoTrim(const TrimOptions& options) {
  core::MutexLock growth_lock(growth_mutex_);
  RetryStuck();
  {
    core::MutexLock lock(mutex_);
    FlushQuarantineLocked(0);
  }
  TrimResult result;
  Vetoed vetoed;
  absl::Duration left = options.max_wait;
  for (;;) {
    result.released +=
        ReleaseIdle(options.keep_pool_bytes, ~std::uint64_t{0}, nullptr, nullptr, &vetoed);
    {
      core::MutexLock lock(mutex_);
      if (pool_bytes_ <= options.keep_pool_bytes || !HasPendingLocked()) break;
    }
    if (!WaitForWork(StreamRef::Synchronized(), &left)) break;
  }
  core::MutexLock lock(mutex_);
  PollWorkLocked();
  const std::uint64_t in_use = static_cast<std::uint64_t>(counters_.in_use);
  std::uint64_t idle_bytes = 0;
  for (const IdleHandle& handle : GatherIdle(0, 0, vetoed)) idle_bytes += handle.mapping.bytes;
  const std::uint64_t pending = std::min(PendingPageBytes(), pool_bytes_ - in_use - idle_bytes);
  result.pending = pending;
  result.pinned = pool_bytes_ - in_use - idle_bytes - pending;
  return result;
}

// Bytes of handles that would be idle but for work on them.
std::uint64_t Elastic::PendingPageBytes() {
  std::uint64_t bytes = held_back_bytes_;
  const BusySet busy = work_.MakeBusySet();
  for (int part : {kSmall, kLarge}) {
    bytes += spaces_[part].unsafe_bytes();
    spaces_[part].VisitFree(granule_, [&](core::FreeKey key) HBM_NO_THREAD_SAFETY_ANALYSIS {
      const std::uint64_t end = key.address() + key.size();
      std::size_t i = pages_.FirstAfter(key.address());
      if (i < pages_.size() && pages_[i].address < key.address()) ++i;
      for (; i < pages_.size() && pages_[i].end() <= end; ++i) {
        if (busy.Overlaps(pages_[i].address, pages_[i].end())) bytes += pages_[i].bytes;
      }
      return true;
    });
  }
  return bytes;
}

absl::Status Elastic::DoSetMemoryLimit(std::size_t bytes) {
  const std::uint64_t limit = bytes / granule_ * granule_;
  if (limit == 0) {
    return absl::InvalidArgumentError(absl::StrCat("memory limit: ", policy::FormatBytes(bytes),
                                                   " is less than one granule of ",
                                                   policy::FormatBytes(granule_)));
  }
  core::MutexLock growth_lock(growth_mutex_);
  {
    core::MutexLock lock(mutex_);
    limit_ = limit;
    limit_source_ = LimitSource::kSetMemoryLimit;
  }
  ReleaseExcess();
  return absl::OkStatus();
}

// Handles side by side from `begin` on, as many as the device has if it may be less.
absl::Status Elastic::CreateRun(std::uint64_t begin, std::uint64_t end, bool may_be_less,
                                Plan* plan) {
  std::uint64_t most = std::max(kPreallocatedHandle, granule_);
  for (std::uint64_t at = begin; at < end;) {
    const std::uint64_t bytes = std::min(end - at, most);
    plan->steps.assign(1, {Step::Kind::kCreate, at, bytes, 0});
    absl::Status made = ExecuteSteps(plan);
    if (made.ok()) {
      at += bytes;
    } else if (may_be_less && absl::IsResourceExhausted(made) && bytes > granule_) {
      most = bytes / 2 / granule_ * granule_;
    } else {
      return made;
    }
  }
  return absl::OkStatus();
}

absl::Status Elastic::Preallocate() {
  core::MutexLock growth_lock(growth_mutex_);
  const bool shrink = policy().on_shortage == OnShortage::kShrink;
  Plan plan;
  {
    core::MutexLock lock(mutex_);
    if (!spaces_[kLarge].ReserveForChanges(2)) {
      return absl::ResourceExhaustedError("the host has no memory for the books");
    }
    const core::BestFit::Region& region = spaces_[kLarge].regions().front();
    plan.begin = region.address;
    plan.end = region.address + std::min(start_bytes_, region.bytes);
    plan.held = spaces_[kLarge].HoldRange(region.first, plan.begin, plan.end);
  }
  absl::Status made = CreateRun(plan.begin, plan.end, shrink, &plan);
  const bool is_less = shrink && absl::IsResourceExhausted(made) && !plan.mapped.empty();
  absl::Status done = made.ok() || is_less ? GiveAccess(plan) : made;
  if (!done.ok()) UndoMapped(&plan);
  std::uint64_t got;
  {
    core::MutexLock lock(mutex_);
    Commit(&plan, true, nullptr, 0);
    got = pool_bytes_;
  }
  if (absl::IsResourceExhausted(done)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "preallocating ", policy::FormatBytes(start_bytes_), ": ", done.message(),
        shrink ? "; not even the smallest pool fits" : "; on_shortage=shrink would take less"));
  }
  if (done.ok() && is_less) {
    observe::LogWarning(absl::StrCat(
        "preallocation: ", policy::FormatBytes(start_bytes_), " did not fit; the pool starts with ",
        policy::FormatBytes(got), " and grows when it can. on_shortage=fail makes this an error"));
  }
  return done;
}

}  // namespace hbm::strategies
