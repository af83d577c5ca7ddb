// SPDX-License-Identifier: Apache-2.0
//
// File: work_log.h
//
// Which freed addresses work may still touch. Each free is noted with the stream
// that it is ordered after; markers in that stream's work prove, in batches, that
// everything noted before is done.
//
//   WorkLog log(source->timeline());
//   WorkLog::Entry entry = log.NoteFree(stream, {begin, end});
//   ...
//   log.Poll();
//   if (!log.MakeBusySet().Overlaps(page_begin, page_end)) ...   // nobody touches the page
//
// A marker is recorded only during a call that is given the stream: a handle need
// not stay valid afterwards. Only the legacy default stream can be marked at any
// time. The last few frees on another one, if it is not seen again, stay busy until
// the whole device was waited for (AllDone).
//
// Thread-compatible: the owner locks. Recording and polling call the timeline,
// which takes well under a microsecond.
#ifndef HBMALLOC_STRATEGIES_WORK_LOG_H_
#define HBMALLOC_STRATEGIES_WORK_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/chunk_table.h"
#include "core/compiler.h"
#include "hbmalloc/memory_source.h"

namespace hbm::strategies {

struct AddressRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The union of ranges, to look pages up in.
class BusySet {
 public:
  explicit BusySet(std::vector<AddressRange> ranges);
  bool Overlaps(std::uint64_t begin, std::uint64_t end) const;
  bool empty() const { return ranges_.empty(); }
  // Where in [begin, end) the first run of `bytes` bytes lies that nothing overlaps, at a
  // multiple of `alignment`, a power of two; `end` if nowhere.
  std::uint64_t FindQuiet(std::uint64_t begin, std::uint64_t end, std::uint64_t bytes,
                          std::uint64_t alignment) const;

 private:
  std::vector<AddressRange> ranges_;  // apart from each other, in order
};

class WorkLog {
 public:
  // Whose work may still touch a range: a stream's number, and how far that
  // stream's work must be done. Order kSafe: nobody's.
  struct Entry {
    core::OrderId order = core::kSafe;
    std::uint64_t sequence = 0;
  };

  // Null: work is always done when a block is freed.
  explicit WorkLog(Timeline* timeline) : timeline_(timeline) {}
  ~WorkLog();
  WorkLog(const WorkLog&) = delete;
  WorkLog& operator=(const WorkLog&) = delete;

  // The range was freed, ordered after the work queued on `stream` so far.
  Entry NoteFree(StreamRef stream, AddressRange range) {
    if (timeline_ == nullptr || !stream.is_handle()) return {};
    // The default stream, which many programs use alone, is known without asking.
    if (HBM_LIKELY(IsLegacy(stream) && legacy_ != core::kSafe)) {
      return NoteIn(*legacy_log_, legacy_, stream, range);
    }
    core::OrderId order;
    Log& log = *LogOf(stream, &order);
    return NoteIn(log, order, stream, range);
  }

  // Records a marker for what was noted on the stream since the last one.
  void Mark(StreamRef stream);

  // The number of a stream, for requests; kSafe if nothing of it was ever noted.
  core::OrderId OrderOf(StreamRef stream) const;

  // Marks the default stream, and asks which markers are done. Returns whether
  // anything became so.
  bool Poll();
  bool IsDone(const Entry& entry) const {
    return entry.order == core::kSafe || logs_[entry.order - 1]->done >= entry.sequence;
  }
  // The sequence of the latest entry of this order.
  std::uint64_t NotedIn(core::OrderId order) const { return logs_[order - 1]->noted; }
  // Everything of this order up to the sequence returned is done.
  std::uint64_t DoneThrough(core::OrderId order) const { return logs_[order - 1]->done; }
  core::OrderId num_orders() const { return static_cast<core::OrderId>(logs_.size()) + 1; }

  bool has_pending() const { return pending_ != 0; }
  BusySet MakeBusySet() const;

  // The oldest marker that is not done; 0 if there is none.
  Timeline::Marker OldestMarker() const;
  // The oldest marker of an order that covers this many freed bytes of it, the latest
  // if none does; 0 if there is none.
  Timeline::Marker MarkerCovering(core::OrderId order, std::uint64_t bytes) const;
  // Until the next call, the marker stays valid even if it is seen done. 0: none.
  void KeepMarker(Timeline::Marker marker) { kept_ = marker; }
  // For waiting for the whole device: how far each stream's notes go now, and that
  // all of that is done.
  std::vector<std::uint64_t> NotedSoFar() const;
  void AllDone(const std::vector<std::uint64_t>& noted);
  // Whether a marker covers all that was noted of an order, and which.
  Timeline::Marker LatestMarker(core::OrderId order) const;

 private:
  // A marker costs about half a microsecond on a GPU: it is shared by this many
  // frees, or by this many bytes, whichever comes first. The default stream can be
  // marked whenever memory is looked for, so it needs fewer on the way.
  static constexpr std::uint32_t kFreesPerMarker = 16;
  static constexpr std::uint64_t kBytesPerMarker = std::uint64_t{16} << 20;
  static constexpr std::uint64_t kBytesPerLegacyMarker = std::uint64_t{64} << 20;
  // CUDA's name for the legacy default stream, beside null.
  static constexpr std::uintptr_t kLegacyHandle = 1;

  struct Batch {
    AddressRange ranges[kFreesPerMarker];
    std::uint32_t count = 0;
    std::uint64_t last = 0;  // sequence
    std::uint64_t age = 0;   // counts up over all streams
    Timeline::Marker marker = 0;
  };
  struct Log {
    std::uint64_t stream_id = 0;
    bool is_legacy = false;    // the default stream, whose handle is always valid
    std::uint64_t noted = 0;   // sequence of the latest entry
    std::uint64_t marked = 0;  // covered by a marker
    std::uint64_t done = 0;
    std::uint64_t unmarked_bytes = 0;
    std::uint64_t bytes_per_marker = kBytesPerMarker;
    Batch open;  // of the sequences after `marked`
    std::deque<Batch> batches;
  };

  static bool IsLegacy(StreamRef stream) { return stream.value() <= kLegacyHandle; }
  Entry NoteIn(Log& log, core::OrderId order, StreamRef stream, AddressRange range) {
    // If no marker can be had, the entries since the last one become one long one.
    if (HBM_UNLIKELY(log.open.count == kFreesPerMarker)) Spill(log);
    log.open.ranges[log.open.count++] = range;
    ++log.noted;
    ++pending_;
    log.unmarked_bytes += range.end - range.begin;
    if (HBM_UNLIKELY(log.open.count == kFreesPerMarker ||
                     log.unmarked_bytes >= log.bytes_per_marker)) {
      MarkAndPoll(log, stream);
    }
    return {order, log.noted};
  }
  void MarkAndPoll(Log& log, StreamRef stream);
  Log* LogOf(StreamRef stream, core::OrderId* order);
  void Spill(Log& log);
  void PopBatch(Log& log);
  bool IsMarkerDone(Timeline::Marker marker) const;
  const Log* FindLog(StreamRef stream, core::OrderId* order) const;
  void MarkLog(Log& log, StreamRef stream);
  bool PollLog(Log& log);

  Timeline* const timeline_;
  std::vector<std::unique_ptr<Log>> logs_;  // order - 1
  std::uint64_t pending_ = 0;               // entries that are not done
  std::uint64_t age_ = 0;
  Timeline::Marker kept_ = 0;
  core::OrderId legacy_ = core::kSafe;  // the default stream's
  Log* legacy_log_ = nullptr;
  mutable core::OrderId last_used_ = core::kSafe;
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_WORK_LOG_H_
