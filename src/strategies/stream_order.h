// SPDX-License-Identifier: Apache-2.0
//
// File: stream_order.h
//
// Stream order for a pool of chunks: which freed chunk may be handed to which
// stream, and when.
//
//   StreamOrder order(&fit, &mutex, timeline);
//   absl::StatusOr<Key> key = order.Identify(stream);           // not under a lock
//   OrderId id = order.Find(*key);                   // under the pool's lock
//   if (id == StreamOrder::kUnknown) order.Introduce(stream, *key);   // not under it
//   bool due = order.FreeLocked(chunk, id);          // under the lock
//   if (due) order.Mark(id, stream);                 // not under it
//
// The rule: a chunk freed after stream S's work is usable on S at once, on another
// stream only when that work is done, or when the other stream was made to wait.
//
// Why a reuse is safe.
//  1. One stream. As long as one stream is known, everything that touches the pool
//     is ordered on it, so every free chunk is safe for it. No event, no call of
//     the driver, and XLA's placements.
//  2. A second stream appears (Introduce). From that moment the first stream's
//     frees carry its order; an event recorded after that moment covers all that
//     was freed before it; and each new stream is made to wait for that event
//     before it is known, that is, before it gets its first chunk.
//  3. From then on a chunk freed on S has order S and a sequence number. An event
//     recorded on S when the last sequence number was n covers every chunk up to n:
//     the caller had queued its work on S before it freed the chunk. So chunks up to
//     n become safe for all when the event is done (Poll), and usable by T once T
//     waits for the event (Borrow).
//  4. Handles. A stream that was created is known by its driver's id, asked for in each
//     call that gives it: a handle that was destroyed can come back at once for a new
//     stream, while the old one's work still runs. A handle is used during the call that
//     gives it and never later, since the driver may crash on one that was destroyed
//     meanwhile; only the legacy default stream is always there. So what was freed last
//     on another stream may have no event, and the whole device is waited for if that
//     is all that is left (once: from then on every free has its event).
#ifndef HBMALLOC_STRATEGIES_STREAM_ORDER_H_
#define HBMALLOC_STRATEGIES_STREAM_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/best_fit.h"
#include "core/compiler.h"
#include "core/mutex.h"
#include "hbmalloc/memory_source.h"
#include "hbmalloc/stream.h"

namespace hbm::strategies {

class StreamOrder {
 public:
  static constexpr core::OrderId kUnknown = ~core::OrderId{0};

  // All must outlive this. `mutex` guards `fit`; functions with "Locked" in their
  // name, and Find, are called under it, the others are not.
  StreamOrder(core::BestFit* fit, core::SpinLock* mutex, Timeline* timeline)
      : fit_(*fit), mutex_(*mutex), timeline_(*timeline), streams_(1) {}
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // What a stream is known by, for as long as the call lasts that gave it.
  // Calls the driver for streams that were created. InvalidArgument: no living stream.
  using Key = std::uint64_t;
  static constexpr Key kNoKey = ~Key{0} - 2;
  absl::StatusOr<Key> Identify(StreamRef stream) {
    if (HBM_LIKELY(IsLegacy(stream))) return kLegacyKey;
    if (!stream.is_handle()) return kSynchronizedKey;
    absl::StatusOr<Key> id = timeline_.StreamId(stream);
    if (HBM_UNLIKELY(id.ok() && (*id & Timeline::kCaptured) != 0))
      return IdentifyCaptured(stream, *id);
    return id;
  }

  // The order of chunks that a stream may use; kUnknown: introduce it first.
  core::OrderId Find(Key key) { return key == cached_key_ ? cached_order_ : FindSlow(key); }

  // One stream at most is known, and no block is used on another one.
  bool IsOneStreamLocked() const { return !several_ && uses_.empty(); }

  // The order in which a block is freed that was allocated in `order` on `stream`.
  core::OrderId OrderOfBlockLocked(core::OrderId order, StreamRef stream) const {
    // While one stream was known it had no order of its own; it was the first.
    return order == core::kSafe && several_ && stream.is_handle() ? 1 : order;
  }

  // Makes a stream known. Calls the driver.
  absl::StatusOr<core::OrderId> Introduce(StreamRef stream, Key key);

  // Frees a taken chunk in order. True: Mark is due.
  bool FreeLocked(core::ChunkId id, core::OrderId order);
  // Records how far a stream has come. The stream's handle is valid now.
  void Mark(core::OrderId order, StreamRef stream);

  // A use of a live block on a further stream, which lives until the block is freed.
  // InvalidArgument: no living stream.
  absl::Status AddUse(core::ChunkId id, StreamRef stream);
  bool HasUsesLocked(core::ChunkId id) const { return !uses_.empty() && uses_.count(id) != 0; }
  void DropUsesLocked(core::ChunkId id) { uses_.erase(id); }
  // Holds a taken chunk back until the streams that used it, and `last`, are done.
  void HoldLocked(core::ChunkId id);
  void MarkHeld(core::ChunkId id, StreamRef last, bool is_living);

  // Makes safe what is safe by now. Does not block.
  void Poll();
  // Poll, after waiting at most `timeout` for the work on freed memory.
  void PollUntilDone(absl::Duration timeout);
  // Makes memory of other streams usable on `stream` by having it wait for them,
  // until `retry` is true; with `may_wait`, by waiting itself at the last.
  // FailedPrecondition: a capture forbids it.
  absl::Status Borrow(StreamRef stream, core::OrderId order, bool may_wait,
                      const std::function<bool()>& retry);

  std::uint64_t held_bytes_locked() const { return held_bytes_; }
  std::int64_t waits_locked() const { return waits_; }
  std::int64_t wait_nanoseconds_locked() const { return wait_nanoseconds_; }

 private:
  // A marker covers what was freed on its stream up to a sequence number.
  struct Mark_ {
    std::uint64_t sequence = 0;
    Timeline::Marker marker = 0;
  };
  struct Stream {
    Key key = kNoKey;
    std::uintptr_t handle = 0;        // to compare, never for the driver
    std::uint64_t last_sequence = 0;  // of its latest free
    std::uint64_t unmarked_bytes = 0;
    int unmarked = 0;
    std::deque<Mark_> marks;  // sequence rising
  };
  struct Use {
    StreamRef handle;
    Key key = kNoKey;
  };
  struct Held {
    core::ChunkId id = core::kNoChunk;
    std::vector<Use> uses;
    std::vector<Timeline::Marker> markers;
    bool marked = false;  // the markers cover all work; else only a wait for the device does
  };

  // A driver counts its streams' ids up from small numbers; the sources set the top
  // bit for some of their own.
  static constexpr Key kLegacyKey = ~Key{0} - 1;
  static constexpr Key kSynchronizedKey = ~Key{0};
  // The legacy default stream is 0 or 1.
  static bool IsLegacy(StreamRef stream) { return stream.value() <= 1; }
  core::OrderId FindSlow(Key key);
  core::OrderId OrderLocked(core::OrderId index) const { return several_ ? index : core::kSafe; }
  absl::Status Join(bool is_captured) HBM_REQUIRES(slow_mutex_);
  Key IdentifyCaptured(StreamRef stream, Key key);
  absl::StatusOr<core::OrderId> AddLocked(StreamRef stream, Key key);
  void PushMarkLocked(Stream& stream, Mark_ mark);
  // Marks the legacy default stream if there is anything to mark.
  void MarkLegacy(absl::Status* capture) HBM_REQUIRES(slow_mutex_);
  bool BorrowFrom(core::OrderId from, StreamRef stream, core::OrderId order)
      HBM_REQUIRES(slow_mutex_);
  void BorrowHeld(StreamRef stream, core::OrderId order) HBM_REQUIRES(slow_mutex_);
  absl::Status WaitFor(StreamRef stream, Timeline::Marker marker);
  absl::Status WaitForDevice() HBM_REQUIRES(slow_mutex_);
  std::vector<core::OrderId> OthersWithMemory(core::OrderId order);
  bool AnythingPending();
  void CountWait(std::int64_t nanoseconds);

  core::BestFit& fit_;
  core::SpinLock& mutex_;
  Timeline& timeline_;

  core::Mutex slow_mutex_;  // around calls of the timeline; never taken under mutex_
  Timeline::Marker joined_ HBM_GUARDED_BY(slow_mutex_) = 0;  // covers the time of one stream
  bool join_needed_ HBM_GUARDED_BY(slow_mutex_) = true;

  // Under mutex_, which belongs to the pool.
  Key cached_key_ = kNoKey;
  core::OrderId cached_order_ = kUnknown;
  std::vector<Stream> streams_;  // by order; [0] is not used
  bool several_ = false;
  bool safe_is_safe_ = false;  // no work of the time of one stream is in flight
  bool mark_each_free_ = false;
  std::uint64_t sequence_ = 0;
  std::unordered_map<core::ChunkId, std::vector<Use>> uses_;
  std::vector<Held> held_;
  std::uint64_t held_bytes_ = 0;
  std::int64_t waits_ = 0;
  std::int64_t wait_nanoseconds_ = 0;
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_STREAM_ORDER_H_
