// SPDX-License-Identifier: Apache-2.0
#include "strategies/stream_order.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace hbm::strategies {
namespace {

using core::ChunkId;
using core::kNoChunk;
using core::kSafe;
using core::OrderId;

// With several streams, an event is recorded when this much was freed since the
// last one: it costs about as much as ten frees, and what is not covered by one yet
// reaches other streams only with more effort.
constexpr std::uint64_t kMarkEveryBytes = std::uint64_t{64} << 10;
constexpr int kMarkEveryFrees = 16;
// More events than this on one stream are merged: the newest covers the others.
constexpr std::size_t kMaxMarks = 64;

std::int64_t NanosecondsNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

StreamOrder::~StreamOrder() {
  for (Stream& stream : streams_) {
    for (const Mark_& mark : stream.marks) timeline_.Forget(mark.marker);
  }
  for (const Held& held : held_) {
    for (const Timeline::Marker marker : held.markers) timeline_.Forget(marker);
  }
  if (joined_ != 0) timeline_.Forget(joined_);
}

OrderId StreamOrder::FindSlow(Key key) {
  if (key == kSynchronizedKey) {
    return safe_is_safe_ || streams_.size() == 1 ? kSafe : kUnknown;
  }
  for (OrderId order = 1; order < streams_.size(); ++order) {
    if (streams_[order].key != key) continue;
    cached_key_ = key;
    cached_order_ = OrderLocked(order);
    return cached_order_;
  }
  return kUnknown;
}

// In a capture that nobody announced a stream stands for itself, as far as its handle
// tells: when the work of a capture runs is not known here in any case.
StreamOrder::Key StreamOrder::IdentifyCaptured(StreamRef stream, Key key) {
  core::MutexLock lock(mutex_);
  for (OrderId order = static_cast<OrderId>(streams_.size()); --order > 0;) {
    if (streams_[order].handle == stream.value()) return streams_[order].key;
  }
  return key;
}

absl::StatusOr<OrderId> StreamOrder::AddLocked(StreamRef stream, Key key) {
  // Never the number of a stream that is gone: requests and marks of other threads that
  // still go by it would then be taken for the newcomer's.
  const OrderId order = static_cast<OrderId>(streams_.size());
  if (!fit_.EnsureOrder(order)) {
    return absl::ResourceExhaustedError("the host has no memory for a stream's books");
  }
  Stream& added = streams_.emplace_back();
  added.key = key;
  added.handle = stream.value();
  return OrderLocked(order);
}

absl::StatusOr<OrderId> StreamOrder::Introduce(StreamRef stream, Key key) {
  core::MutexLock slow(slow_mutex_);
  {
    core::MutexLock lock(mutex_);
    if (const OrderId order = FindSlow(key); order != kUnknown) return order;
    if (key != kSynchronizedKey && streams_.size() == 1) return AddLocked(stream, key);
  }
  // A second stream: from here on the first one's frees carry its order. What was
  // freed before is covered by an event, which the newcomer waits for.
  {
    core::MutexLock lock(mutex_);
    several_ = true;
    fit_.StartOrders();
    cached_key_ = kNoKey;
  }
  const bool is_captured =
      stream.is_handle() && !IsLegacy(stream) && (key & Timeline::kCaptured) != 0;
  if (absl::Status joined = Join(is_captured); !joined.ok()) return joined;
  if (joined_ != 0) {
    if (absl::Status waited = WaitFor(stream, joined_); !waited.ok()) return waited;
  }
  core::MutexLock lock(mutex_);
  if (key != kSynchronizedKey) return AddLocked(stream, key);
  safe_is_safe_ = true;
  return kSafe;
}

absl::Status StreamOrder::Join(bool is_captured) {
  if (join_needed_) {
    bool legacy = false;
    {
      core::MutexLock lock(mutex_);
      legacy = streams_.size() > 1 && streams_[1].key == kLegacyKey;
    }
    // The first stream may be gone by now, unless it is the default one.
    if (legacy) {
      const absl::StatusOr<Timeline::Marker> marker = timeline_.Record(StreamRef());
      if (!marker.ok()) return marker.status();
      joined_ = *marker;
    } else if (is_captured) {
      return absl::FailedPreconditionError(
          "the stream is being captured and was not seen before; allocate on it once before the "
          "capture, or call BeginCapturePool");
    } else if (absl::Status waited = timeline_.WaitForDevice(); !waited.ok()) {
      return waited;
    }
    join_needed_ = false;
  }
  if (joined_ == 0) return absl::OkStatus();
  const absl::StatusOr<bool> done = timeline_.IsDone(joined_);
  if (!done.ok()) return done.status();
  if (*done) timeline_.Forget(std::exchange(joined_, 0));
  return absl::OkStatus();
}

void StreamOrder::CountWait(std::int64_t nanoseconds) {
  core::MutexLock lock(mutex_);
  ++waits_;
  wait_nanoseconds_ += nanoseconds;
}

// Has the stream wait, or the caller where there is no particular stream.
absl::Status StreamOrder::WaitFor(StreamRef stream, Timeline::Marker marker) {
  absl::Status waited;
  const std::int64_t start = NanosecondsNow();
  if (stream.is_handle()) {
    waited = timeline_.WaitOnStream(stream, marker);
  } else {
    waited = timeline_.WaitOnHost(marker, absl::InfiniteDuration());
  }
  if (waited.ok()) CountWait(stream.is_handle() ? 0 : NanosecondsNow() - start);
  return waited;
}

bool StreamOrder::FreeLocked(ChunkId id, OrderId order) {
  if (order == kSafe) {
    fit_.Free(id);
    return false;
  }
  Stream& stream = streams_[order];
  stream.last_sequence = ++sequence_;
  stream.unmarked_bytes += fit_.chunk(id).size;
  ++stream.unmarked;
  fit_.Free(id, order, sequence_);
  return stream.unmarked_bytes >= kMarkEveryBytes || stream.unmarked >= kMarkEveryFrees ||
         mark_each_free_;
}

void StreamOrder::PushMarkLocked(Stream& stream, Mark_ mark) {
  if (stream.marks.size() >= kMaxMarks) {
    timeline_.Forget(stream.marks.back().marker);
    stream.marks.pop_back();
  }
  stream.marks.push_back(mark);
  if (mark.sequence == stream.last_sequence) {
    stream.unmarked = 0;
    stream.unmarked_bytes = 0;
  }
}

void StreamOrder::Mark(OrderId order, StreamRef handle) {
  core::MutexLock slow(slow_mutex_);
  std::uint64_t covered;
  {
    core::MutexLock lock(mutex_);
    covered = streams_[order].last_sequence;
    if (streams_[order].unmarked == 0) return;
  }
  // In a capture nothing is queued, so nothing can be marked; it is tried again
  // when the memory is wanted.
  const absl::StatusOr<Timeline::Marker> marker = timeline_.Record(handle);
  if (!marker.ok()) return;
  core::MutexLock lock(mutex_);
  PushMarkLocked(streams_[order], {covered, *marker});
}

void StreamOrder::MarkLegacy(absl::Status* capture) {
  OrderId order = 1;
  std::uint64_t covered;
  {
    core::MutexLock lock(mutex_);
    while (order < streams_.size() && streams_[order].key != kLegacyKey) ++order;
    if (order == streams_.size() || streams_[order].unmarked == 0) return;
    covered = streams_[order].last_sequence;
  }
  const absl::StatusOr<Timeline::Marker> marker = timeline_.Record(StreamRef());
  if (!marker.ok()) {
    if (absl::IsFailedPrecondition(marker.status())) *capture = marker.status();
    return;
  }
  core::MutexLock lock(mutex_);
  PushMarkLocked(streams_[order], {covered, *marker});
}

absl::Status StreamOrder::AddUse(ChunkId id, StreamRef stream) {
  const absl::StatusOr<Key> key = Identify(stream);
  if (!key.ok()) return key.status();
  OrderId order;
  {
    core::MutexLock lock(mutex_);
    order = Find(*key);
  }
  if (order == kUnknown) {
    if (const auto introduced = Introduce(stream, *key); !introduced.ok()) {
      return introduced.status();
    }
  }
  core::MutexLock lock(mutex_);
  std::vector<Use>& uses = uses_[id];
  for (const Use& use : uses) {
    if (use.key == *key) return absl::OkStatus();
  }
  uses.push_back(Use{stream, *key});
  return absl::OkStatus();
}

void StreamOrder::HoldLocked(ChunkId id) {
  Held& held = held_.emplace_back();
  held.id = id;
  const auto uses = uses_.find(id);
  if (uses != uses_.end()) {
    held.uses = std::move(uses->second);
    uses_.erase(uses);
  }
  held_bytes_ += fit_.chunk(id).size;
  fit_.Hold(id);
}

void StreamOrder::MarkHeld(ChunkId id, StreamRef last, bool is_living) {
  core::MutexLock slow(slow_mutex_);
  std::vector<Use> uses;
  {
    core::MutexLock lock(mutex_);
    for (const Held& held : held_) {
      if (held.id == id) uses = held.uses;
    }
  }
  bool all = is_living;
  std::vector<Timeline::Marker> markers;
  const auto add = [&](const absl::StatusOr<Timeline::Marker>& marker) {
    if (marker.ok()) markers.push_back(*marker);
    all = all && marker.ok();
  };
  if (is_living && last.is_handle()) add(timeline_.Record(last));
  for (const Use& use : uses) add(timeline_.Record(use.handle));
  core::MutexLock lock(mutex_);
  for (Held& held : held_) {
    if (held.id != id) continue;
    held.markers = std::move(markers);
    held.marked = all;
    return;
  }
  // The whole device was waited for in the meantime.
  for (const Timeline::Marker marker : markers) timeline_.Forget(marker);
}

void StreamOrder::Poll() {
  core::MutexLock slow(slow_mutex_);
  std::size_t count;
  {
    core::MutexLock lock(mutex_);
    count = streams_.size();
  }
  for (OrderId order = 1; order < count; ++order) {
    for (;;) {
      Mark_ first;
      {
        core::MutexLock lock(mutex_);
        if (streams_[order].marks.empty()) break;
        first = streams_[order].marks.front();
      }
      const absl::StatusOr<bool> done = timeline_.IsDone(first.marker);
      if (!done.ok() || !*done) break;
      core::MutexLock lock(mutex_);
      fit_.Promote(order, first.sequence);
      streams_[order].marks.pop_front();
      timeline_.Forget(first.marker);
    }
  }
  std::vector<Held> waiting;
  {
    core::MutexLock lock(mutex_);
    waiting.swap(held_);
  }
  std::vector<Held> left;
  for (Held& held : waiting) {
    bool done = held.marked;
    for (const Timeline::Marker marker : held.markers) {
      if (!done) break;
      const absl::StatusOr<bool> one = timeline_.IsDone(marker);
      done = one.ok() && *one;
    }
    if (!done) {
      left.push_back(std::move(held));
      continue;
    }
    for (const Timeline::Marker marker : held.markers) timeline_.Forget(marker);
    core::MutexLock lock(mutex_);
    held_bytes_ -= fit_.chunk(held.id).size;
    fit_.Free(held.id);
  }
  core::MutexLock lock(mutex_);
  held_.insert(held_.end(), std::make_move_iterator(left.begin()),
               std::make_move_iterator(left.end()));
}

void StreamOrder::PollUntilDone(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::Status capture;
  {
    core::MutexLock slow(slow_mutex_);
    MarkLegacy(&capture);
  }
  for (;;) {
    Poll();
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration() || !AnythingPending()) return;
    absl::SleepFor(std::min(left, absl::Microseconds(50)));
  }
}

bool StreamOrder::AnythingPending() {
  core::MutexLock lock(mutex_);
  return fit_.unsafe_bytes() != 0 || !held_.empty();
}

std::vector<OrderId> StreamOrder::OthersWithMemory(OrderId order) {
  core::MutexLock lock(mutex_);
  std::vector<OrderId> others;
  for (OrderId other = 1; other < streams_.size(); ++other) {
    if (other != order && fit_.FreeBytes(other) != 0) others.push_back(other);
  }
  std::sort(others.begin(), others.end(),
            [this](OrderId a, OrderId b) { return fit_.FreeBytes(a) > fit_.FreeBytes(b); });
  return others;
}

bool StreamOrder::BorrowFrom(OrderId from, StreamRef stream, OrderId order) {
  Mark_ newest;
  {
    core::MutexLock lock(mutex_);
    if (streams_[from].marks.empty()) return false;
    newest = streams_[from].marks.back();
  }
  if (!WaitFor(stream, newest.marker).ok()) return false;
  core::MutexLock lock(mutex_);
  // The stream's work from now on comes after all that the mark covers.
  if (order == kSafe) {
    fit_.Promote(from, newest.sequence);
  } else {
    streams_[order].last_sequence = ++sequence_;
    ++streams_[order].unmarked;
    fit_.Move(from, newest.sequence, order, sequence_);
  }
  for (const Mark_& mark : streams_[from].marks) timeline_.Forget(mark.marker);
  streams_[from].marks.clear();
  return true;
}

void StreamOrder::BorrowHeld(StreamRef stream, OrderId order) {
  std::vector<Held> waiting;
  {
    core::MutexLock lock(mutex_);
    waiting.swap(held_);
  }
  std::vector<Held> left;
  for (Held& held : waiting) {
    bool waited = held.marked;
    for (const Timeline::Marker marker : held.markers) {
      waited = waited && WaitFor(stream, marker).ok();
    }
    if (!waited) {
      left.push_back(std::move(held));
      continue;
    }
    for (const Timeline::Marker marker : held.markers) timeline_.Forget(marker);
    core::MutexLock lock(mutex_);
    held_bytes_ -= fit_.chunk(held.id).size;
    FreeLocked(held.id, order);
  }
  core::MutexLock lock(mutex_);
  held_.insert(held_.end(), std::make_move_iterator(left.begin()),
               std::make_move_iterator(left.end()));
}

absl::Status StreamOrder::WaitForDevice() {
  std::vector<std::uint64_t> covered;
  std::size_t held;
  {
    core::MutexLock lock(mutex_);
    for (const Stream& stream : streams_) covered.push_back(stream.last_sequence);
    held = held_.size();
  }
  const std::int64_t start = NanosecondsNow();
  if (absl::Status waited = timeline_.WaitForDevice(); !waited.ok()) return waited;
  CountWait(NanosecondsNow() - start);
  core::MutexLock lock(mutex_);
  for (OrderId order = 1; order < covered.size(); ++order) fit_.Promote(order, covered[order]);
  // Held blocks are added at the end, and only under slow_mutex_ taken out.
  for (std::size_t i = 0; i < held; ++i) {
    for (const Timeline::Marker marker : held_[i].markers) timeline_.Forget(marker);
    held_bytes_ -= fit_.chunk(held_[i].id).size;
    fit_.Free(held_[i].id);
  }
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(held));
  return absl::OkStatus();
}

absl::Status StreamOrder::Borrow(StreamRef stream, OrderId order, bool may_wait,
                                 const std::function<bool()>& retry) {
  if (!AnythingPending()) return absl::OkStatus();
  core::MutexLock slow(slow_mutex_);
  if (stream.is_handle()) {
    const absl::StatusOr<bool> capturing = timeline_.IsCapturing(stream);
    if (!capturing.ok()) return capturing.status();
    if (*capturing) {
      return absl::FailedPreconditionError(
          "freed memory of other streams cannot be had while a graph is captured");
    }
  }
  absl::Status capture;
  MarkLegacy(&capture);
  for (const OrderId from : OthersWithMemory(order)) {
    if (BorrowFrom(from, stream, order) && retry()) return absl::OkStatus();
  }
  BorrowHeld(stream, order);
  if (retry() || !may_wait || !AnythingPending()) return absl::OkStatus();
  // What is left has no event yet, and its streams may be gone; or it is the stream's
  // own, and lies beside memory that is safe for all, with which it coalesces once it is
  // safe too. The device as a whole can say when that is. It would spoil a capture.
  if (!capture.ok()) return capture;
  {
    core::MutexLock lock(mutex_);
    mark_each_free_ = true;
  }
  if (absl::Status waited = WaitForDevice(); !waited.ok()) return waited;
  retry();
  return absl::OkStatus();
}

}  // namespace hbm::strategies
