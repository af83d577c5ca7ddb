// SPDX-License-Identifier: Apache-2.0
#include "strategies/observation.h"

#include <utility>

#include "observe/ticks.h"

namespace hbm {

std::string_view ToString(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::kAllocate:
      return "allocate";
    case Event::Kind::kAllocateFailure:
      return "allocate failure";
    case Event::Kind::kFree:
      return "free";
    case Event::Kind::kTrim:
      return "trim";
    case Event::Kind::kSetMemoryLimit:
      return "set_memory_limit";
  }
  return "unknown";
}

namespace internal {
namespace {

// Whether this thread is inside an event callback: what that does is not told to it.
thread_local bool tells_event = false;

}  // namespace

absl::Status Observation::Start(Allocator& allocator, const Setup& setup) {
  Observation& observation = *allocator.observation_;
  observation.clock_ = setup.clock;
  if (!setup.policy.trace.empty()) {
    absl::StatusOr<std::shared_ptr<observe::TraceRecorder>> recorder =
        observe::TraceRecorder::Open(setup.policy.trace);
    if (!recorder.ok()) return recorder.status();
    observation.recorder_ = *std::move(recorder);
    observation.device_ = observation.recorder_->AddDevice(setup.address_space, setup.device);
    observation.Add(allocator, kTrace);
  }
  if (setup.policy.means) {
    {
      core::MutexLock lock(observation.means_mutex_);
      observation.means_.last = observation.Now();
    }
    observation.NoteChange(allocator);
    observation.Add(allocator, kMeans);
  }
  if (observe::ProfilerIsAttached()) observation.Add(allocator, kProfiler);
  return absl::OkStatus();
}

void Observation::Add(Allocator& allocator, Watch watch) {
  watches_.fetch_or(watch);
  allocator.watched_.store(true);
}

void Observation::Remove(Allocator& allocator, Watch watch) {
  const unsigned left = watches_.fetch_and(~unsigned{watch}) & ~unsigned{watch};
  allocator.watched_.store(left != 0);
}

std::int64_t Observation::Now() const {
  return clock_ != nullptr ? absl::ToInt64Nanoseconds(clock_->Now()) : observe::SteadyNanoseconds();
}

void Observation::SetLowMemoryCallback(LowMemoryCallback callback) {
  auto next = callback == nullptr ? nullptr
                                  : std::make_shared<const LowMemoryCallback>(std::move(callback));
  core::MutexLock lock(mutex_);
  low_memory_.swap(next);
}

std::shared_ptr<const LowMemoryCallback> Observation::low_memory_callback() const {
  core::MutexLock lock(mutex_);
  return low_memory_;
}

void Observation::SetEventCallback(Allocator& allocator, EventCallback callback) {
  auto next =
      callback == nullptr ? nullptr : std::make_shared<const EventCallback>(std::move(callback));
  core::MutexLock lock(mutex_);
  event_.swap(next);
  if (event_ != nullptr) {
    Add(allocator, kEvents);
  } else {
    Remove(allocator, kEvents);
  }
}

void Observation::NoteCaptures(Allocator& allocator, bool any) {
  core::MutexLock lock(mutex_);
  if (any) {
    Add(allocator, kCaptures);
  } else {
    Remove(allocator, kCaptures);
  }
}

void Observation::Advance(std::int64_t now) const {
  if (now <= means_.last) return;
  const auto passed = static_cast<double>(now - means_.last);
  means_.pool += passed * static_cast<double>(means_.pool_bytes);
  means_.live += passed * static_cast<double>(means_.live_bytes);
  means_.last = now;
}

void Observation::NoteChange(const Allocator& allocator) {
  core::MutexLock lock(means_mutex_);
  Advance(Now());
  const Stats stats = allocator.GetStats();
  means_.pool_bytes = stats.pool_bytes;
  means_.live_bytes = stats.requested_bytes;
}

std::optional<double> Observation::MeanPoolOverLive(const Allocator& allocator) const {
  if ((watches_.load(std::memory_order_relaxed) & kMeans) == 0) return std::nullopt;
  const_cast<Observation*>(this)->NoteChange(allocator);
  core::MutexLock lock(means_mutex_);
  if (means_.live <= 0) return std::nullopt;
  return means_.pool / means_.live;
}

Observation::Scope::Scope(Allocator& allocator, Event::Kind kind)
    : allocator_(allocator),
      observation_(*allocator.observation_),
      watches_(observation_.watches_.load(std::memory_order_acquire)) {
  if (__builtin_expect(watches_ <= kTrace, 1)) return;
  if ((watches_ & kProfiler) != 0) observe::BeginRange(ToString(kind).data());
  if (!TellsEvents()) return;
  const Stats stats = allocator_.GetStats();
  before_.calls = static_cast<std::uint64_t>(stats.driver_calls);
  before_.nanoseconds = static_cast<std::uint64_t>(stats.driver_nanoseconds);
  start_ = observation_.Now();
}

void Observation::Scope::Allocated(const void* block, std::size_t bytes,
                                   const AllocateOptions& options, absl::StatusCode code,
                                   OomCause cause) {
  // Nothing was asked for, or nothing that makes sense.
  if (block == nullptr &&
      (code == absl::StatusCode::kOk || code == absl::StatusCode::kInvalidArgument)) {
    return;
  }
  const TagId tag = options.tag.value != 0 ? options.tag : CurrentTag();
  if ((watches_ & kTrace) != 0) {
    observation_.recorder_->Allocated(observation_.device_, block, bytes,
                                      std::max(options.alignment, kMinAlignment), options.stream,
                                      tag);
  }
  if (__builtin_expect(watches_ <= kTrace, 1)) return;
  if ((watches_ & kMeans) != 0) observation_.NoteChange(allocator_);
  if (!TellsEvents()) return;
  Event event;
  event.kind = block != nullptr ? Event::Kind::kAllocate : Event::Kind::kAllocateFailure;
  event.address = const_cast<void*>(block);
  event.bytes = bytes;
  event.alignment = options.alignment;
  event.stream = options.stream;
  event.tag = tag;
  event.cause = cause;
  Tell(event);
}

void Observation::Scope::Freeing(void* ptr, StreamRef after) {
  if (TellsEvents()) {
    if (absl::StatusOr<BlockInfo> info = allocator_.Describe(ptr); info.ok()) {
      freed_ = *std::move(info);
    }
  }
  if ((watches_ & kTrace) != 0) {
    observation_.recorder_->Freeing(observation_.device_, ptr, after);
  }
}

void Observation::Scope::Freed(void* ptr, StreamRef after, bool done) {
  if (!done) {
    if ((watches_ & kTrace) == 0) return;
    const absl::StatusOr<BlockInfo> info = allocator_.Describe(ptr);
    const bool is_block = info.ok() && info->address == ptr;
    observation_.recorder_->FreeRefused(
        observation_.device_, ptr, is_block ? info->requested_bytes : 0,
        is_block ? info->stream : StreamRef(), is_block ? info->tag : TagId{});
    return;
  }
  if (__builtin_expect(watches_ <= kTrace, 1)) return;
  if ((watches_ & kMeans) != 0) observation_.NoteChange(allocator_);
  if (!TellsEvents()) return;
  Event event;
  event.kind = Event::Kind::kFree;
  event.address = ptr;
  event.bytes = freed_.requested_bytes;
  event.stream = after.is_of_allocation() ? freed_.stream : after;
  event.tag = freed_.tag;
  Tell(event);
}

void Observation::Scope::Changed(Event::Kind kind, std::size_t bytes) {
  if ((watches_ & kMeans) != 0) observation_.NoteChange(allocator_);
  if (!TellsEvents()) return;
  Event event;
  event.kind = kind;
  event.bytes = bytes;
  Tell(event);
}

void Observation::Scope::Tell(Event event) {
  if (tells_event) return;
  std::shared_ptr<const EventCallback> callback;
  {
    core::MutexLock lock(observation_.mutex_);
    callback = observation_.event_;
  }
  if (callback == nullptr) return;
  event.stats = allocator_.GetStats();
  event.time_nanoseconds = observation_.Now();
  event.duration_nanoseconds = event.time_nanoseconds - start_;
  event.driver_calls = event.stats.driver_calls - static_cast<std::int64_t>(before_.calls);
  event.driver_nanoseconds =
      event.stats.driver_nanoseconds - static_cast<std::int64_t>(before_.nanoseconds);
  tells_event = true;
  (*callback)(event);
  tells_event = false;
}

}  // namespace internal
}  // namespace hbm
