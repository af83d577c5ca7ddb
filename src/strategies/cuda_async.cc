// SPDX-License-Identifier: Apache-2.0
#include "strategies/cuda_async.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "observe/log.h"
#include "policy/text.h"
#include "strategies/source_state.h"

namespace hbm::strategies {
namespace {

// The driver rounds requests up to whole units of this many bytes.
constexpr std::size_t kPoolUnit = 512;
constexpr std::size_t kMostBytes = std::size_t{1} << 46;

std::uintptr_t AddressOf(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }
void* PointerTo(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

Policy Effective(const StrategyContext& context) {
  Policy policy = context.policy;
  policy.memory_limit = context.limit.bytes;
  return policy;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Allocator>> MakeCudaAsync(StrategyContext context) {
  StreamOrderedMemory* const memory = context.source->stream_ordered_memory();
  if (memory == nullptr) {
    const std::string_view name = context.source->Name();
    return absl::UnimplementedError(
        absl::StrCat("strategy: cuda_async needs a CUDA device's own pool, which ",
                     absl::string_view(name.data(), name.size()),
                     " does not have; bfc, on_demand and platform work there"));
  }
  StreamOrderedMemory::PoolOptions options;
  options.limit = context.limit.bytes;
  options.release_threshold = context.policy.release_threshold.value_or(
      *context.policy.preallocate ? context.limit.bytes : 0);
  absl::StatusOr<std::unique_ptr<StreamOrderedPool>> pool = memory->MakePool(options);
  if (!pool.ok()) return pool.status();
  const std::size_t step = (*pool)->Granularity();
  if (context.limit.bytes < step) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory_limit: ", policy::FormatBytes(context.limit.bytes),
        " is under one step of the driver's pool, which grows by ", policy::FormatBytes(step)));
  }
  context.limit.bytes -= context.limit.bytes % step;
  return std::unique_ptr<Allocator>(
      std::make_unique<CudaAsync>(std::move(context), *std::move(pool), options.release_threshold));
}

CudaAsync::CudaAsync(StrategyContext context, std::unique_ptr<StreamOrderedPool> pool,
                     std::size_t release_threshold)
    : Allocator(Effective(context)),
      device_(context.device),
      source_(context.source),
      pool_(std::move(pool)),
      release_threshold_(release_threshold),
      granularity_(std::max({source_->Granularity(), pool_->Granularity(), kMinAlignment})),
      limit_(context.limit.bytes),
      limit_source_(context.limit.source) {}

CudaAsync::~CudaAsync() {
  EndSharing();
  Blocks blocks;
  {
    core::MutexLock lock(mutex_);
    blocks.swap(blocks_);
  }
  if (blocks.empty()) return;
  if (!DriverIsGone(*source_)) {
    std::size_t live_bytes = 0;
    for (const auto& [address, block] : blocks) live_bytes += block.requested;
    observe::LogWarning(absl::StrCat("an allocator is destroyed while ", blocks.size(),
                                     " blocks of ", policy::FormatBytes(live_bytes),
                                     " are live; their memory goes back to the device"));
  }
  // Their streams may be gone: once the device is done, none is needed.
  if (Timeline* const timeline = source_->timeline(); timeline != nullptr) {
    timeline->WaitForDevice().IgnoreError();
  }
  for (const auto& [address, block] : blocks) {
    pool_->Free(block.base, StreamRef::Synchronized()).IgnoreError();
  }
}

void CudaAsync::GiveBackBytes(std::size_t bytes) {
  core::MutexLock lock(mutex_);
  taken_ -= bytes;
}

// From the pool, within the limit. What is asked for is entered before the pool is
// asked, so that two threads together cannot pass the limit.
absl::StatusOr<void*> CudaAsync::Take(std::size_t bytes, StreamRef stream, OomCause* cause) {
  std::size_t limit;
  {
    core::MutexLock lock(mutex_);
    limit = limit_;
    if (bytes > limit || taken_ > limit - bytes) {
      *cause = OomCause::kLimit;
      return absl::ResourceExhaustedError("the limit is reached");
    }
    taken_ += bytes;
  }
  *cause = OomCause::kDevice;
  absl::StatusOr<void*> block = pool_->Allocate(bytes, stream);
  if (!block.ok()) {
    GiveBackBytes(bytes);
    return block.status();
  }
  if (pool_->EnforcesLimit() && limit >= *policy().memory_limit) return block;
  const absl::StatusOr<StreamOrderedPool::Usage> usage = pool_->GetUsage();
  if (!usage.ok() || usage->reserved <= limit) return block;
  pool_->Free(*block, stream).IgnoreError();
  GiveBackBytes(bytes);
  *cause = OomCause::kFragmentation;
  return absl::ResourceExhaustedError("the pool would hold more than the limit");
}

void* CudaAsync::DoAllocate(const Request& request, AllocError* why) noexcept {
  const std::size_t spare = request.alignment > kMinAlignment ? request.alignment : 0;
  OomCause cause = OomCause::kLimit;
  absl::StatusOr<void*> base = nullptr;
  std::size_t bytes = 0;
  if (request.bytes <= kMostBytes) {
    bytes = (request.bytes + spare + kPoolUnit - 1) / kPoolUnit * kPoolUnit;
    base = Take(bytes, request.stream, &cause);
    if (!base.ok() && absl::IsResourceExhausted(base.status()) && cause != OomCause::kLimit) {
      base = TakeAfterWaiting(bytes, request.stream, &cause);
    }
  } else {
    base = absl::ResourceExhaustedError("larger than any device");
  }
  if (!base.ok() && !absl::IsResourceExhausted(base.status())) {
    LogSourceError("cuda_async", base.status());
  }
  core::MutexLock lock(mutex_);
  if (!base.ok()) {
    ++counters_.failures;
    const bool exhausted = absl::IsResourceExhausted(base.status());
    *why = {base.status().code(), exhausted ? cause : OomCause::kNone};
    return nullptr;
  }
  const std::uintptr_t address =
      (AddressOf(*base) + request.alignment - 1) & ~(std::uintptr_t{request.alignment} - 1);
  blocks_.emplace(address, Block{*base, bytes, request.bytes, request.stream, request.tag});
  counters_.Allocated(bytes, request.bytes);
  return PointerTo(address);
}

// What streams still have to free may be enough: once, wait and trim.
absl::StatusOr<void*> CudaAsync::TakeAfterWaiting(std::size_t bytes, StreamRef stream,
                                                  OomCause* cause) {
  absl::Status done = pool_->Synchronize(stream);
  if (done.ok()) done = pool_->TrimTo(0);
  if (absl::IsFailedPrecondition(done)) return done;  // in a capture
  if (!done.ok()) return absl::ResourceExhaustedError("the driver's pool cannot be trimmed");
  {
    core::MutexLock lock(mutex_);
    ++waits_;
  }
  return Take(bytes, stream, cause);
}

// The free takes its turn on one stream, so that stream waits for the others. Where
// it has no stream, the caller does.
absl::Status CudaAsync::JoinUsers(const std::vector<StreamRef>& users, StreamRef last) {
  Timeline* const timeline = source_->timeline();
  if (timeline == nullptr) return absl::OkStatus();
  for (const StreamRef user : users) {
    const absl::StatusOr<Timeline::Marker> marker = timeline->Record(user);
    if (!marker.ok()) return marker.status();
    const absl::Status waited = last.is_handle()
                                    ? timeline->WaitOnStream(last, *marker)
                                    : timeline->WaitOnHost(*marker, absl::InfiniteDuration());
    timeline->Forget(*marker);
    if (!waited.ok()) return waited;
  }
  return absl::OkStatus();
}

absl::Status CudaAsync::DoDeallocate(void* ptr, StreamRef after) {
  Block block;
  std::vector<StreamRef> users;
  {
    // Out of the table first: of two frees of one block, the second finds nothing.
    core::MutexLock lock(mutex_);
    const auto found = blocks_.find(AddressOf(ptr));
    if (found == blocks_.end()) return absl::CancelledError();
    block = found->second;
    blocks_.erase(found);
    if (!used_on_.empty()) {
      const auto used = used_on_.find(AddressOf(ptr));
      if (used != used_on_.end()) {
        users = std::move(used->second);
        used_on_.erase(used);
      }
    }
  }
  const StreamRef last = after.is_of_allocation() ? block.stream : after;
  absl::Status freed;
  if (!after.is_synchronized() && !users.empty()) freed = JoinUsers(users, last);
  if (freed.ok()) freed = pool_->Free(block.base, last);
  core::MutexLock lock(mutex_);
  if (!freed.ok()) {
    blocks_.emplace(AddressOf(ptr), block);
    if (!users.empty()) used_on_[AddressOf(ptr)] = std::move(users);
    return freed;
  }
  taken_ -= block.bytes;
  counters_.Freed(block.bytes, block.requested);
  return freed;
}

absl::Status CudaAsync::DoRecordUse(void* ptr, StreamRef stream) {
  core::MutexLock lock(mutex_);
  const auto found = blocks_.find(AddressOf(ptr));
  if (found == blocks_.end()) return absl::CancelledError();
  if (stream == found->second.stream) return absl::OkStatus();
  std::vector<StreamRef>& used_on = used_on_[AddressOf(ptr)];
  if (std::find(used_on.begin(), used_on.end(), stream) == used_on.end()) {
    used_on.push_back(stream);
  }
  return absl::OkStatus();
}

absl::StatusOr<BlockInfo> CudaAsync::DoDescribe(const void* ptr) const {
  core::MutexLock lock(mutex_);
  auto after = blocks_.upper_bound(AddressOf(ptr));
  if (after != blocks_.begin()) {
    const Block& block = (--after)->second;
    if (AddressOf(ptr) < AddressOf(block.base) + block.bytes) {
      return BlockInfo{
          PointerTo(after->first),  block.requested, block.bytes, block.stream, block.tag,
          {block.base, block.bytes}};
    }
  }
  return absl::NotFoundError(
      absl::StrCat("no live block of this allocator holds the address ", AddressOf(ptr)));
}

Stats CudaAsync::DoGetStats() const {
  Stats stats;
  const absl::StatusOr<StreamOrderedPool::Usage> usage = pool_->GetUsage();
  {
    core::MutexLock lock(mutex_);
    counters_.AddTo(stats);
    stats.bytes_limit = static_cast<std::int64_t>(limit_);
    stats.limit_source = limit_source_;
    stats.num_waits = waits_;
    stats.num_regions = static_cast<std::int64_t>(blocks_.size());
  }
  if (usage.ok()) {
    stats.pool_bytes = static_cast<std::int64_t>(usage->reserved);
    stats.peak_pool_bytes = static_cast<std::int64_t>(usage->peak_reserved);
  }
  const DriverUse use = source_->GetDriverUse();
  stats.driver_calls = static_cast<std::int64_t>(use.calls);
  stats.driver_nanoseconds = static_cast<std::int64_t>(use.nanoseconds);
  return stats;
}

void CudaAsync::DoGetFigures(Figures* figures) const {
  core::MutexLock lock(mutex_);
  counters_.AddTo(*figures);
}

void CudaAsync::DoResetPeakStats() {
  pool_->ResetPeak().IgnoreError();
  core::MutexLock lock(mutex_);
  counters_.ResetPeaks();
}

Snapshot CudaAsync::DoTakeSnapshot() const {
  core::MutexLock lock(mutex_);
  Snapshot snapshot;
  for (const auto& [address, block] : blocks_) {
    Snapshot::Region& region = snapshot.regions.emplace_back();
    region.range = {block.base, block.bytes};
    region.chunks.push_back({PointerTo(address), block.bytes, block.requested, ChunkState::kLive,
                             block.stream, block.tag});
  }
  return snapshot;
}

// The driver gives nothing back that a stream has freed before it has seen, in a call
// that waits, that the stream came to it. With a limit that is the default stream, and
// those that it is ordered with; all others only if it may take as long as it takes.
absl::Status CudaAsync::WaitForFrees(const TrimOptions& options) {
  Timeline* const timeline = source_->timeline();
  if (timeline == nullptr || options.max_wait <= absl::ZeroDuration()) return absl::OkStatus();
  // To wait is what makes the driver give back all but its threshold.
  const bool keeps = options.keep_pool_bytes > release_threshold_;
  if (keeps) {
    absl::Status kept = pool_->SetReleaseThreshold(options.keep_pool_bytes);
    if (!kept.ok()) return kept;
  }
  absl::Status waited;
  if (options.max_wait == absl::InfiniteDuration()) {
    waited = timeline->WaitForDevice();
  } else if (const absl::StatusOr<Timeline::Marker> marker = timeline->Record(StreamRef());
             marker.ok()) {  // not in a capture: there what is pending stays so
    // To see that it is done is not enough for the pool; to wait for what is done is.
    if (timeline->WaitOnHost(*marker, options.max_wait).ok()) {
      timeline->WaitOnHost(*marker, absl::InfiniteDuration()).IgnoreError();
    }
    timeline->Forget(*marker);
  }
  if (keeps) waited.Update(pool_->SetReleaseThreshold(release_threshold_));
  return waited;
}

absl::StatusOr<TrimResult> CudaAsync::DoTrim(const TrimOptions& options) {
  const absl::StatusOr<StreamOrderedPool::Usage> before = pool_->GetUsage();
  if (!before.ok()) return before.status();
  if (absl::Status waited = WaitForFrees(options); !waited.ok()) return waited;
  if (absl::Status trimmed = pool_->TrimTo(options.keep_pool_bytes); !trimmed.ok()) return trimmed;
  const absl::StatusOr<StreamOrderedPool::Usage> after = pool_->GetUsage();
  if (!after.ok()) return after.status();
  TrimResult result;
  std::size_t taken;
  {
    core::MutexLock lock(mutex_);
    taken = taken_;
  }
  result.released = before->reserved - std::min(before->reserved, after->reserved);
  // Over what is live and what is kept, the driver still holds what streams have to
  // free, and what shares a granule with live blocks; it does not say which is which.
  const std::size_t wanted = std::max(taken, options.keep_pool_bytes);
  result.pending = after->reserved - std::min(after->reserved, wanted);
  return result;
}

absl::Status CudaAsync::DoSetMemoryLimit(std::size_t bytes) {
  const std::size_t limit = bytes / granularity_ * granularity_;
  if (limit == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory limit: ", policy::FormatBytes(bytes),
                     " is under one step of the driver's pool, which grows by ",
                     policy::FormatBytes(granularity_)));
  }
  core::MutexLock lock(mutex_);
  limit_ = limit;
  limit_source_ = LimitSource::kSetMemoryLimit;
  return absl::OkStatus();
}

}  // namespace hbm::strategies
