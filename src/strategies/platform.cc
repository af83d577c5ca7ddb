// SPDX-License-Identifier: Apache-2.0
#include "strategies/platform.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "observe/log.h"
#include "policy/text.h"
#include "strategies/source_state.h"

namespace hbm::strategies {
namespace {

std::uintptr_t AddressOf(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

Policy Effective(const StrategyContext& context) {
  Policy policy = context.policy;
  policy.memory_limit = context.limit.bytes;
  return policy;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Allocator>> MakePlatform(StrategyContext context) {
  return std::unique_ptr<Allocator>(std::make_unique<Platform>(std::move(context)));
}

Platform::Platform(StrategyContext context)
    : Allocator(Effective(context)),
      device_(context.device),
      source_(context.source),
      granularity_(std::max<std::size_t>(source_->Granularity(), kMinAlignment)),
      limit_(context.limit.bytes),
      limit_source_(context.limit.source) {}

Platform::~Platform() {
  EndSharing();
  std::vector<MemoryRange> held;
  std::size_t live;
  std::int64_t live_bytes;
  const RegionWatch::Change change = watch_.Begin();
  {
    core::MutexLock lock(mutex_);
    held = kept_;
    for (const auto& [address, block] : blocks_) held.push_back(block.range);
    live = blocks_.size();
    live_bytes = counters_.requested;
  }
  if (live != 0) {
    if (!DriverIsGone(*source_)) {
      observe::LogWarning(absl::StrCat("an allocator is destroyed while ", live, " blocks of ",
                                       policy::FormatBytes(static_cast<std::size_t>(live_bytes)),
                                       " are live; their memory goes back to the device"));
    }
    if (Timeline* const timeline = source_->timeline(); timeline != nullptr) {
      timeline->WaitForDevice().IgnoreError();
    }
  }
  for (const MemoryRange& range : held) {
    change.MayLeave(range);
    core::MutexLock source_lock(source_mutex_);
    source_->ReleaseBlock(range).IgnoreError();
  }
}

std::size_t Platform::HeldLocked() const {
  const std::size_t held = source_->HeldBytes();
  return held != 0 ? held : block_bytes_;
}

void Platform::UpdatePeakLocked() { peak_held_ = std::max(peak_held_, HeldLocked()); }

std::nullopt_t Platform::Failed(AllocError error, AllocError* why) {
  core::MutexLock lock(mutex_);
  ++counters_.failures;
  *why = error;
  return std::nullopt;
}

// The limit allows the request, but the device has no room: whose is it?
AllocError Platform::Exhausted() {
  const absl::StatusOr<MemoryInfo> memory = source_->GetMemoryInfo();
  std::size_t held;
  {
    core::MutexLock lock(mutex_);
    held = HeldLocked();
  }
  const std::size_t taken = memory.ok() ? memory->total - std::min(memory->total, memory->free) : 0;
  const bool others = taken > held && taken - held >= granularity_;
  return {absl::StatusCode::kResourceExhausted,
          others ? OomCause::kOtherProcess : OomCause::kDevice};
}

void* Platform::DoAllocate(const Request& request, AllocError* why) noexcept {
  void* const block = AllocateOnce(request, why);
  if (block != nullptr || why->code != absl::StatusCode::kResourceExhausted) return block;
  if (ReleaseKept() == 0) return nullptr;
  {
    core::MutexLock lock(mutex_);
    --counters_.failures;
  }
  *why = {};
  return AllocateOnce(request, why);
}

// A block from the source that the limit allows, or why there is none.
std::optional<MemoryRange> Platform::TakeBlock(const Request& request, RegionWatch::Change* change,
                                               AllocError* why) {
  constexpr AllocError kOverLimit{absl::StatusCode::kResourceExhausted, OomCause::kLimit};
  core::MutexLock source_lock(source_mutex_);
  std::size_t limit;
  {
    core::MutexLock lock(mutex_);
    limit = limit_;
  }
  if (request.bytes > limit) return Failed(kOverLimit, why);
  const absl::StatusOr<MemoryRange> range =
      source_->AllocateBlock(request.bytes, request.alignment);
  if (!range.ok()) {
    if (absl::IsResourceExhausted(range.status())) return Failed(Exhausted(), why);
    LogSourceError("platform", range.status());
    return Failed({SourceError(range.status()).code(), OomCause::kNone}, why);
  }
  // What a request adds to what is held only the source knows: sharing granules,
  // it may be nothing.
  bool over;
  {
    core::MutexLock lock(mutex_);
    block_bytes_ += range->bytes;
    over = HeldLocked() > limit;
    *change = watch_.Begin();
  }
  const std::uint64_t address = AddressOf(range->address);
  const bool usable = address != 0 && address % request.alignment == 0 &&
                      range->bytes >= request.bytes &&
                      address <= std::numeric_limits<std::uint64_t>::max() - range->bytes;
  if (!over && usable) return *range;
  source_->ReleaseBlock(*range).IgnoreError();
  {
    core::MutexLock lock(mutex_);
    block_bytes_ -= range->bytes;
  }
  if (over) return Failed(kOverLimit, why);
  observe::LogWarning(
      "platform: the memory source gave a block that is null, too small or not aligned as asked");
  return Failed({absl::StatusCode::kInternal, OomCause::kNone}, why);
}

void* Platform::AllocateOnce(const Request& request, AllocError* why) {
  RegionWatch::Change change;
  const std::optional<MemoryRange> range = TakeBlock(request, &change, why);
  if (!range.has_value()) return nullptr;
  change.Mapped(*range);
  {
    core::MutexLock lock(mutex_);
    const bool is_new = blocks_
                            .emplace(AddressOf(range->address),
                                     Block{*range, request.bytes, request.stream, request.tag, {}})
                            .second;
    if (is_new) {
      UpdatePeakLocked();
      counters_.Allocated(range->bytes, request.bytes);
      return range->address;
    }
    block_bytes_ -= range->bytes;
  }
  // Not given back: that would free it under the block that holds it.
  observe::LogWarning("platform: the memory source gave a block that it had given out already");
  Failed({absl::StatusCode::kInternal, OomCause::kNone}, why);
  return nullptr;
}

std::size_t Platform::ReleaseKept() {
  std::vector<MemoryRange> kept;
  RegionWatch::Change change;
  {
    core::MutexLock lock(mutex_);
    kept.swap(kept_);
    change = watch_.Begin();
  }
  std::size_t released = 0;
  for (const MemoryRange& range : kept) {
    bool leaves = change.MayLeave(range);
    if (leaves) {
      {
        core::MutexLock source_lock(source_mutex_);
        leaves = source_->ReleaseBlock(range).ok();
      }
      if (!leaves) change.Mapped(range);
    }
    if (leaves) released += range.bytes;
    core::MutexLock lock(mutex_);
    if (leaves) {
      block_bytes_ -= range.bytes;
    } else {
      kept_.push_back(range);
    }
  }
  return released;
}

absl::Status Platform::DoAddPeer(int ordinal) {
  core::MutexLock lock(source_mutex_);
  return source_->AddPeer(ordinal);
}

absl::Status Platform::DoSetRegionCallback(std::shared_ptr<const RegionCallback> callback) {
  absl::Status status =
      watch_.Replace(std::move(callback), mutex_, [&]() HBM_NO_THREAD_SAFETY_ANALYSIS {
        std::vector<MemoryRange> ranges = kept_;
        for (const auto& [address, block] : blocks_) ranges.push_back(block.range);
        return ranges;
      });
  // What was freed while the new one was told of it, or was kept by the one before.
  if (status.ok()) ReleaseKept();
  return status;
}

absl::Duration Platform::Now() const {
  SimulatedClock* const clock = device_ == nullptr ? nullptr : device_->simulated_clock();
  return clock != nullptr ? clock->Now() : absl::Now() - absl::UnixEpoch();
}

absl::Status Platform::WaitFor(StreamRef stream) {
  Timeline& timeline = *source_->timeline();
  const absl::StatusOr<bool> idle = timeline.IsIdle(stream);
  if (!idle.ok()) return idle.status();
  if (*idle) return absl::OkStatus();
  const absl::StatusOr<Timeline::Marker> marker = timeline.Record(stream);
  if (!marker.ok()) return marker.status();
  absl::Status waited;
  const absl::StatusOr<bool> done = timeline.IsDone(*marker);
  if (!done.ok()) {
    waited = done.status();
  } else if (!*done) {
    const absl::Duration start = Now();
    waited = timeline.WaitOnHost(*marker, absl::InfiniteDuration());
    core::MutexLock lock(mutex_);
    ++waits_;
    wait_nanoseconds_ += absl::ToInt64Nanoseconds(Now() - start);
  }
  timeline.Forget(*marker);
  return waited;
}

// What a capture uses is used by launches to come, which no free can wait for.
absl::Status Platform::CheckNotCaptured(const Block& block, StreamRef last) {
  std::vector<StreamRef> streams = block.used_on;
  if (last.is_handle()) streams.push_back(last);
  for (const StreamRef stream : streams) {
    const absl::StatusOr<bool> capturing = source_->timeline()->IsCapturing(stream);
    if (!capturing.ok()) return capturing.status();
    if (!*capturing) continue;
    return absl::FailedPreconditionError(
        "a CUDA graph is being captured on a stream that uses the block; free it after that, or "
        "announce the capture by BeginCapturePool");
  }
  return absl::OkStatus();
}

absl::Status Platform::WaitForUsers(const Block& block, StreamRef after) {
  if (source_->timeline() == nullptr || after.is_synchronized()) return absl::OkStatus();
  const StreamRef last = after.is_of_allocation() ? block.stream : after;
  if (source_->ReleaseBlockWaits()) return CheckNotCaptured(block, last);
  if (last.is_handle()) {
    if (absl::Status waited = WaitFor(last); !waited.ok()) return waited;
  }
  for (StreamRef stream : block.used_on) {
    if (absl::Status waited = WaitFor(stream); !waited.ok()) return waited;
  }
  return absl::OkStatus();
}

absl::Status Platform::DoDeallocate(void* ptr, StreamRef after) {
  Block block;
  RegionWatch::Change change;
  {
    // Out of the table first: of two frees of one block, the second finds nothing.
    core::MutexLock lock(mutex_);
    const auto found = blocks_.find(AddressOf(ptr));
    if (found == blocks_.end()) return absl::CancelledError();
    block = std::move(found->second);
    blocks_.erase(found);
    change = watch_.Begin();
  }
  absl::Status released = WaitForUsers(block, after);
  bool stays_after_all = false;
  if (released.ok() && !change.MayLeave(block.range)) {
    core::MutexLock lock(mutex_);
    kept_.push_back(block.range);
    counters_.Freed(block.range.bytes, block.requested);
    return absl::OkStatus();
  }
  if (released.ok()) {
    core::MutexLock source_lock(source_mutex_);
    released = source_->ReleaseBlock(block.range);
    stays_after_all = !released.ok();
  }
  if (stays_after_all) change.Mapped(block.range);
  core::MutexLock lock(mutex_);
  if (!released.ok()) {
    blocks_.emplace(AddressOf(ptr), std::move(block));
    return released;
  }
  block_bytes_ -= block.range.bytes;
  counters_.Freed(block.range.bytes, block.requested);
  return released;
}

absl::Status Platform::DoRecordUse(void* ptr, StreamRef stream) {
  core::MutexLock lock(mutex_);
  const auto found = blocks_.find(AddressOf(ptr));
  if (found == blocks_.end()) return absl::CancelledError();
  if (source_->timeline() == nullptr) return absl::OkStatus();
  std::vector<StreamRef>& used_on = found->second.used_on;
  if (std::find(used_on.begin(), used_on.end(), stream) == used_on.end()) {
    used_on.push_back(stream);
  }
  return absl::OkStatus();
}

absl::StatusOr<BlockInfo> Platform::DoDescribe(const void* ptr) const {
  core::MutexLock lock(mutex_);
  auto after = blocks_.upper_bound(AddressOf(ptr));
  if (after != blocks_.begin()) {
    const Block& block = (--after)->second;
    if (AddressOf(ptr) - after->first < block.range.bytes) {
      return BlockInfo{block.range.address, block.requested, block.range.bytes,
                       block.stream,        block.tag,       block.range};
    }
  }
  return absl::NotFoundError(
      absl::StrCat("no live block of this allocator holds the address ", AddressOf(ptr)));
}

Stats Platform::DoGetStats() const {
  Stats stats;
  {
    core::MutexLock lock(mutex_);
    counters_.AddTo(stats);
    stats.bytes_limit = static_cast<std::int64_t>(limit_);
    stats.limit_source = limit_source_;
    stats.pool_bytes = static_cast<std::int64_t>(HeldLocked());
    stats.peak_pool_bytes = static_cast<std::int64_t>(peak_held_);
    stats.num_regions = static_cast<std::int64_t>(blocks_.size());
    stats.num_waits = waits_;
    stats.wait_nanoseconds = wait_nanoseconds_;
  }
  const DriverUse use = source_->GetDriverUse();
  stats.driver_calls = static_cast<std::int64_t>(use.calls);
  stats.driver_nanoseconds = static_cast<std::int64_t>(use.nanoseconds);
  return stats;
}

void Platform::DoGetFigures(Figures* figures) const {
  core::MutexLock lock(mutex_);
  counters_.AddTo(*figures);
}

void Platform::DoResetPeakStats() {
  core::MutexLock lock(mutex_);
  counters_.ResetPeaks();
  peak_held_ = HeldLocked();
}

Snapshot Platform::DoTakeSnapshot() const {
  core::MutexLock lock(mutex_);
  Snapshot snapshot;
  for (const auto& [address, block] : blocks_) {
    Snapshot::Region& region = snapshot.regions.emplace_back();
    region.range = block.range;
    region.chunks.push_back({block.range.address, block.range.bytes, block.requested,
                             ChunkState::kLive, block.stream, block.tag});
  }
  return snapshot;
}

// Only what a region callback kept is held without being in use.
absl::StatusOr<TrimResult> Platform::DoTrim(const TrimOptions& /*options*/) {
  TrimResult result;
  result.released = ReleaseKept();
  core::MutexLock lock(mutex_);
  for (const MemoryRange& range : kept_) result.pinned += range.bytes;
  return result;
}

absl::Status Platform::DoSetMemoryLimit(std::size_t bytes) {
  const std::size_t limit = bytes / granularity_ * granularity_;
  if (limit == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory limit: ", bytes, " is under one granule of the source, ", granularity_, " bytes"));
  }
  core::MutexLock lock(mutex_);
  limit_ = limit;
  limit_source_ = LimitSource::kSetMemoryLimit;
  return absl::OkStatus();
}

}  // namespace hbm::strategies
