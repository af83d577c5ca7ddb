// SPDX-License-Identifier: Apache-2.0
//
// What is the same for every strategy: checks, waiting, and the words of errors.
#include "hbmalloc/allocator.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/forked.h"
#include "core/mutex.h"
#include "observe/oom_details.h"
#include "observe/oom_report.h"
#include "sharing/membership.h"
#include "strategies/capture.h"
#include "strategies/debug_checks.h"
#include "strategies/observation.h"
#include "strategies/report_walk.h"

namespace hbm {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

// What most allocators never need. Callers that wait for memory sleep here; every free
// that finds one of them moves the generation on.
struct Allocator::Waiting {
  std::unique_ptr<sharing::Membership> membership;  // null without sharing
  // Null if the memory works in a child of fork as well. In a child the allocator
  // counts as watched, and so its hits are refused too.
  std::unique_ptr<core::RaisedInChild> fork_guard;
  core::Mutex mutex;
  std::condition_variable_any freed;
  std::uint64_t generation HBM_GUARDED_BY(mutex) = 0;
};

Allocator::Allocator(Policy effective_policy)
    : policy_(std::move(effective_policy)),
      observation_(std::make_unique<internal::Observation>()),
      waiting_(std::make_unique<Waiting>()),
      captures_(std::make_unique<Captures>()) {}

Allocator::~Allocator() = default;

// What was tried beyond looking for memory, for the report.
struct Allocator::Tried {
  int callbacks = 0;
  absl::Duration in_callbacks;
  int looks = 0;  // while waiting
  absl::Duration waited;
};

void Allocator::EndSharing() { waiting_->membership.reset(); }

void Allocator::RefuseInChildren() {
  waiting_->fork_guard = std::make_unique<core::RaisedInChild>(&watched_);
}

absl::Status Allocator::CheckProcess() const {
  if (waiting_->fork_guard == nullptr || !waiting_->fork_guard->IsInChild()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "this process is the child of a fork, and the allocator is its parent's: a GPU's driver does "
      "not work here. Start processes that use a GPU afresh (spawn or forkserver in Python's "
      "multiprocessing), or fork before anything uses the GPU");
}

void Allocator::BeginSharing(std::unique_ptr<sharing::Membership> membership) {
  waiting_->membership = std::move(membership);
  waiting_->membership->Begin(this);
}

absl::StatusOr<void*> Allocator::AllocateSlow(std::size_t bytes, const AllocateOptions& options,
                                              AllocError why) {
  absl::Duration max_wait =
      options.max_wait < absl::ZeroDuration() ? policy_.max_wait : options.max_wait;
  // Others give back what they do not need, if they are given a moment.
  if (waiting_->membership != nullptr && why.cause == OomCause::kOtherProcess &&
      options.max_wait < absl::ZeroDuration() && policy_.max_wait == absl::ZeroDuration()) {
    max_wait = sharing::kDefaultWaitForOthers;
  }
  const absl::Time start = absl::Now();
  void* block = nullptr;
  Tried tried;
  if (TryAgainAfterCallback(bytes, options, &why, &block, &tried)) return block;
  if (why.code != absl::StatusCode::kResourceExhausted || max_wait <= absl::ZeroDuration() ||
      IsImpossible(bytes)) {
    return FailedAllocation(bytes, options, why, tried);
  }
  // The count is raised before the next attempt: a free that the attempt does not
  // see comes later than it and so sees the count.
  waiters_.fetch_add(1);
  const absl::Time deadline = start + max_wait;
  for (;;) {
    std::uint64_t seen;
    {
      core::MutexLock lock(waiting_->mutex);
      seen = waiting_->generation;
    }
    block = Attempt<true>(bytes, options, true, &why);
    ++tried.looks;
    if (block != nullptr || why.code != absl::StatusCode::kResourceExhausted) break;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration() || IsImpossible(bytes)) break;
    // In slices: memory that another process frees wakes nobody here.
    const absl::Duration slice = std::min(left, absl::Milliseconds(20));
    core::MutexLock lock(waiting_->mutex);
    if (waiting_->generation == seen) {
      waiting_->freed.wait_for(waiting_->mutex, absl::ToChronoNanoseconds(slice));
    }
  }
  waiters_.fetch_sub(1);
  if (block != nullptr) return block;
  tried.waited = absl::Now() - start - tried.in_callbacks;
  return FailedAllocation(bytes, options, why, tried);
}

// Lets the low-memory callback free something, as often as it says that trying again
// is worth it. True if that gave the block.
bool Allocator::TryAgainAfterCallback(std::size_t bytes, const AllocateOptions& options,
                                      AllocError* why, void** block, Tried* tried) {
  static thread_local bool is_inside = false;
  if (is_inside || why->code != absl::StatusCode::kResourceExhausted) return false;
  const std::shared_ptr<const LowMemoryCallback> callback = observation_->low_memory_callback();
  if (callback == nullptr) return false;
  LowMemory low;
  low.bytes = bytes;
  low.alignment = options.alignment;
  low.stream = options.stream;
  low.tag = options.tag.value != 0 ? options.tag : CurrentTag();
  while (low.attempt < kMostLowMemoryAttempts) {
    low.cause = why->cause;
    is_inside = true;
    const absl::Time start = absl::Now();
    const bool again = (*callback)(low);
    tried->in_callbacks += absl::Now() - start;
    ++tried->callbacks;
    is_inside = false;
    if (!again) return false;
    *block = Attempt<true>(bytes, options, true, why);
    if (*block != nullptr) return true;
    if (why->code != absl::StatusCode::kResourceExhausted) return false;
    ++low.attempt;
  }
  return false;
}

void Allocator::SetLowMemoryCallback(LowMemoryCallback callback) {
  observation_->SetLowMemoryCallback(std::move(callback));
}
void Allocator::SetEventCallback(EventCallback callback) {
  observation_->SetEventCallback(*this, std::move(callback));
}

absl::StatusOr<void*> Allocator::AllocateWatched(std::size_t bytes,
                                                 const AllocateOptions& options) {
  if (absl::Status process = CheckProcess(); !process.ok()) return process;
  internal::Observation::Scope scope(*this, Event::Kind::kAllocate);
  AllocError why;
  absl::StatusOr<void*> result = Attempt<true>(bytes, options, true, &why);
  if (*result == nullptr && why.code != absl::StatusCode::kOk) {
    result = AllocateSlow(bytes, options, why);
  }
  scope.Allocated(result.ok() ? *result : nullptr, bytes, options, result.status().code(),
                  result.ok() ? OomCause::kNone : GetOomCause(result.status()));
  return result;
}

void* Allocator::TryAllocateWatched(std::size_t bytes, const AllocateOptions& options,
                                    AllocError* why) noexcept {
  if (waiting_->fork_guard != nullptr && waiting_->fork_guard->IsInChild()) {
    *why = {absl::StatusCode::kFailedPrecondition, OomCause::kNone};
    return nullptr;
  }
  internal::Observation::Scope scope(*this, Event::Kind::kAllocate);
  void* const block = Attempt<true>(bytes, options, false, why);
  scope.Allocated(block, bytes, options, why->code, why->cause);
  return block;
}

absl::Status Allocator::DeallocateWatched(void* ptr, StreamRef after) {
  if (absl::Status process = CheckProcess(); !process.ok()) return process;
  internal::Observation::Scope scope(*this, Event::Kind::kFree);
  scope.Freeing(ptr, after);
  absl::Status status = DeallocateBesideCaptures(ptr, after);
  scope.Freed(ptr, after, status.ok());
  if (!status.ok()) return FailedDeallocation(ptr, std::move(status));
  NotifyFreed();
  return status;
}

// No free can help what is larger than the limit: only a higher limit could.
bool Allocator::IsImpossible(std::size_t bytes) const {
  return bytes > static_cast<std::size_t>(DoGetStats().bytes_limit);
}

void Allocator::WakeWaiters() {
  {
    core::MutexLock lock(waiting_->mutex);
    ++waiting_->generation;
  }
  waiting_->freed.notify_all();
}

absl::Status Allocator::FailedAllocation(std::size_t bytes, const AllocateOptions& options,
                                         const AllocError& why, const Tried& tried) const {
  if (why.code == absl::StatusCode::kInvalidArgument) {
    if (options.stream.is_of_allocation()) {
      return absl::InvalidArgumentError(
          "stream: OfAllocation() has no meaning for an allocation; give the stream that will use "
          "the block");
    }
    if (options.alignment != 0 && (options.alignment & (options.alignment - 1)) == 0 &&
        options.alignment <= kMaxAlignment) {
      return absl::InvalidArgumentError(
          "stream: not a living stream of this device; see the log for the driver's words");
    }
    return absl::InvalidArgumentError(
        absl::StrCat("alignment: ", options.alignment,
                     " is not allowed; it must be a power of two from 1 to ", kMaxAlignment));
  }
  if (why.code == absl::StatusCode::kFailedPrecondition) {
    return absl::FailedPreconditionError(
        absl::StrCat("allocating ", bytes,
                     " bytes: a CUDA graph is being captured, and what is free can only be had by "
                     "waiting for work, which a capture forbids; allocate before the capture"));
  }
  if (why.code == absl::StatusCode::kUnavailable) {
    return absl::UnavailableError(absl::StrCat(
        "allocating ", bytes,
        " bytes: the driver has shut down, or cannot be used in this process (one that "
        "was forked after the driver was initialised)"));
  }
  if (why.code != absl::StatusCode::kResourceExhausted) {
    return absl::Status(why.code, absl::StrCat("allocating ", bytes,
                                               " bytes: the memory source reported an error that "
                                               "is not a shortage of memory; see the log"));
  }
  observe::OomReportInput input;
  input.bytes = bytes;
  input.alignment = options.alignment;
  input.stream = options.stream;
  input.tag = options.tag.value != 0 ? options.tag : CurrentTag();
  input.cause = why.cause;
  if (tried.callbacks != 0) {
    input.attempts.push_back(
        {absl::StrCat("the low-memory callback, ", tried.callbacks, " times"), tried.in_callbacks});
  }
  if (tried.looks != 0) {
    input.attempts.push_back(
        {absl::StrCat("waiting for a free, ", tried.looks, " looks"), tried.waited});
  }
  input.policy = policy_;
  input.stats = GetStats();
  const auto* const walk = dynamic_cast<const strategies::ReportWalk*>(this);
  input.snapshot = walk != nullptr ? walk->TakeReportSnapshot() : DoTakeSnapshot();
  if (captures_->any.load()) MarkKept(&input.snapshot);
  if (const absl::StatusOr<MemoryInfo> memory = DoGetDeviceMemory(); memory.ok()) {
    input.device = *memory;
  }
  std::string report = observe::BuildOomReport(input);
  if (waiting_->membership != nullptr && why.cause == OomCause::kOtherProcess) {
    absl::StrAppend(&report, "\nothers: ", waiting_->membership->DescribeHolders());
  }
  absl::Status status = absl::ResourceExhaustedError(report);
  observe::SetOomDetails(observe::DetailsOf(input), &status);
  return status;
}

absl::Status Allocator::BadPointer(const void* ptr, std::string_view operation) const {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %p is not the start of a live block of this allocator; it was never "
                      "given out, lies inside a block, or is freed already",
                      View(operation), ptr));
}

absl::Status Allocator::FailedDeallocation(const void* ptr, absl::Status why) const {
  return absl::IsCancelled(why) ? BadPointer(ptr, "Deallocate") : why;
}

absl::Status Allocator::RecordUse(void* ptr, StreamRef stream) {
  if (ptr == nullptr) return absl::OkStatus();
  if (!stream.is_handle()) {
    return absl::InvalidArgumentError("RecordUse: give the stream on which the block is used");
  }
  absl::Status status =
      captures_->any.load() ? RecordUseBesideCaptures(ptr, stream) : DoRecordUse(ptr, stream);
  return absl::IsCancelled(status) ? BadPointer(ptr, "RecordUse") : status;
}

absl::StatusOr<BlockInfo> Allocator::Describe(const void* ptr) const {
  absl::StatusOr<BlockInfo> info = DoDescribe(ptr);
  return captures_->any.load() ? DescribeBesideCaptures(std::move(info)) : info;
}

absl::Status Allocator::CheckMemory() const { return DoCheckMemory(); }

Stats Allocator::GetStats() const {
  Stats stats = DoGetStats();
  core::MutexLock lock(captures_->mutex);
  captures_->pools.AddTo(&stats);
  return stats;
}

void Allocator::ResetPeakStats() {
  DoResetPeakStats();
  core::MutexLock lock(captures_->mutex);
  captures_->pools.ResetCounts();
}

Fragmentation Allocator::GetFragmentation() const {
  const Stats stats = GetStats();
  const auto ratio = [](std::int64_t a, std::int64_t b) {
    return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
  };
  Fragmentation figures;
  figures.free_bytes = stats.pool_bytes - stats.bytes_in_use;
  figures.largest_free_bytes = stats.largest_free_block_bytes;
  if (figures.free_bytes > 0) {
    figures.external = 1.0 - ratio(figures.largest_free_bytes, figures.free_bytes);
  }
  if (stats.bytes_in_use > 0) {
    figures.rounding_waste = 1.0 - ratio(stats.requested_bytes, stats.bytes_in_use);
  }
  figures.utilization = ratio(stats.bytes_in_use, stats.pool_bytes);
  figures.peak_utilization = ratio(stats.peak_bytes_in_use, stats.peak_pool_bytes);
  figures.height_over_load = ratio(stats.highest_used_bytes, stats.peak_requested_bytes);
  figures.mean_pool_over_live = observation_->MeanPoolOverLive(*this);
  return figures;
}

Figures Allocator::GetFigures() const {
  Figures figures;
  figures.device = GetFragmentation();
  DoGetFigures(&figures);
  return figures;
}

Snapshot Allocator::TakeSnapshot() const {
  Snapshot snapshot = DoTakeSnapshot();
  if (captures_->any.load()) MarkKept(&snapshot);
  return snapshot;
}

absl::StatusOr<TrimResult> Allocator::Trim(const TrimOptions& options) {
  if (!is_watched()) return DoTrim(options);
  internal::Observation::Scope scope(*this, Event::Kind::kTrim);
  absl::StatusOr<TrimResult> result = DoTrim(options);
  if (result.ok()) scope.Changed(Event::Kind::kTrim, result->released);
  return result;
}

absl::Status Allocator::SetMemoryLimit(std::size_t bytes) {
  // Statistics are signed: no limit is shown as more than they can hold.
  bytes = std::min(bytes, std::size_t{1} << 62);
  internal::Observation::Scope scope(*this, Event::Kind::kSetMemoryLimit);
  absl::Status status = DoSetMemoryLimit(bytes);
  if (!status.ok()) return status;
  scope.Changed(Event::Kind::kSetMemoryLimit, bytes);
  NotifyFreed();
  return status;
}

absl::Status Allocator::AddPeer(int ordinal) {
  if (absl::Status here = CheckProcess(); !here.ok()) return here;
  return DoAddPeer(ordinal);
}

absl::Status Allocator::DoAddPeer(int /*ordinal*/) {
  return absl::UnimplementedError(
      absl::StrCat("AddPeer: with the strategy ", View(ToString(*policy_.strategy)),
                   " the driver maps memory; name the peer in the policy, as in peers=1"));
}

absl::Status Allocator::SetRegionCallback(RegionCallback callback) {
  if (callback == nullptr) return DoSetRegionCallback(nullptr);
  return DoSetRegionCallback(std::make_shared<const RegionCallback>(std::move(callback)));
}

absl::Status Allocator::DoSetRegionCallback(std::shared_ptr<const RegionCallback> /*callback*/) {
  return absl::UnimplementedError(
      absl::StrCat("SetRegionCallback: with the strategy ", View(ToString(*policy_.strategy)),
                   " the driver maps memory and does not say when; elastic, bfc, on_demand and "
                   "platform do"));
}

}  // namespace hbm
