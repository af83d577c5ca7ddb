// SPDX-License-Identifier: Apache-2.0
#include "strategies/work_log.h"

#include <algorithm>

namespace hbm::strategies {
BusySet::BusySet(std::vector<AddressRange> ranges) : ranges_(std::move(ranges)) {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  std::size_t kept = 0;
  for (const AddressRange& range : ranges_) {
    if (kept != 0 && range.begin <= ranges_[kept - 1].end) {
      ranges_[kept - 1].end = std::max(ranges_[kept - 1].end, range.end);
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
}

bool BusySet::Overlaps(std::uint64_t begin, std::uint64_t end) const {
  const auto first_after =
      std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                       [](std::uint64_t value, const AddressRange& r) { return value < r.end; });
  return first_after != ranges_.end() && first_after->begin < end;
}

std::uint64_t BusySet::FindQuiet(std::uint64_t begin, std::uint64_t end, std::uint64_t bytes,
                                 std::uint64_t alignment) const {
  const auto align = [&](std::uint64_t at) { return (at + alignment - 1) & ~(alignment - 1); };
  auto next =
      std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                       [](std::uint64_t value, const AddressRange& r) { return value < r.end; });
  std::uint64_t at = align(begin);
  for (; at < end && bytes <= end - at; ++next) {
    if (next == ranges_.end() || at + bytes <= next->begin) return at;
    at = align(std::max(at, next->end));
  }
  return end;
}

WorkLog::~WorkLog() {
  for (const auto& log : logs_) {
    for (const Batch& batch : log->batches) {
      if (batch.marker != 0) timeline_->Forget(batch.marker);
    }
  }
}

const WorkLog::Log* WorkLog::FindLog(StreamRef stream, core::OrderId* order) const {
  *order = core::kSafe;
  if (timeline_ == nullptr || !stream.is_handle()) return nullptr;
  if (IsLegacy(stream) && legacy_ != core::kSafe) {
    *order = legacy_;
    return logs_[legacy_ - 1].get();
  }
  const absl::StatusOr<std::uint64_t> id = timeline_->StreamId(stream);
  if (!id.ok()) return nullptr;
  if (last_used_ != core::kSafe && logs_[last_used_ - 1]->stream_id == *id) {
    *order = last_used_;
    return logs_[last_used_ - 1].get();
  }
  for (std::size_t i = 0; i < logs_.size(); ++i) {
    if (logs_[i]->stream_id != *id) continue;
    *order = last_used_ = static_cast<core::OrderId>(i + 1);
    return logs_[i].get();
  }
  return nullptr;
}

core::OrderId WorkLog::OrderOf(StreamRef stream) const {
  if (logs_.empty()) return core::kSafe;
  core::OrderId order;
  FindLog(stream, &order);
  return order;
}

WorkLog::Log* WorkLog::LogOf(StreamRef stream, core::OrderId* order) {
  if (FindLog(stream, order) != nullptr) return logs_[*order - 1].get();
  auto log = std::make_unique<Log>();
  // A stream whose id cannot be had gets a log that no marker is recorded for.
  const absl::StatusOr<std::uint64_t> id = timeline_->StreamId(stream);
  log->stream_id = id.ok() ? *id : ~std::uint64_t{0};
  log->is_legacy = IsLegacy(stream);
  logs_.push_back(std::move(log));
  *order = last_used_ = static_cast<core::OrderId>(logs_.size());
  if (logs_.back()->is_legacy) {
    legacy_ = last_used_;
    legacy_log_ = logs_.back().get();
    legacy_log_->bytes_per_marker = kBytesPerLegacyMarker;
  }
  return logs_.back().get();
}

void WorkLog::MarkAndPoll(Log& log, StreamRef stream) {
  MarkLog(log, stream);
  PollLog(log);
}

void WorkLog::Spill(Log& log) {
  log.batches.push_back(log.open);
  log.batches.back().last = log.noted;
  log.batches.back().age = ++age_;
  log.open.count = 0;
}

void WorkLog::Mark(StreamRef stream) {
  core::OrderId order;
  if (logs_.empty() || FindLog(stream, &order) == nullptr) return;
  MarkLog(*logs_[order - 1], stream);
}

void WorkLog::MarkLog(Log& log, StreamRef stream) {
  if (log.marked == log.noted) return;
  const absl::StatusOr<Timeline::Marker> marker = timeline_->Record(stream);
  if (!marker.ok()) return;  // no proof: the ranges stay busy
  log.marked = log.noted;
  log.unmarked_bytes = 0;
  if (log.batches.empty() && (*marker == 0 || IsMarkerDone(*marker))) {
    if (*marker != 0) timeline_->Forget(*marker);
    pending_ -= log.open.count;
    log.open.count = 0;
    log.done = log.marked;
    return;
  }
  // Batches that were spilled without a marker are covered by this one too.
  if (log.open.count != 0) Spill(log);
  if (log.batches.empty()) return;
  log.batches.back().marker = *marker;
}

bool WorkLog::IsMarkerDone(Timeline::Marker marker) const {
  const absl::StatusOr<bool> done = timeline_->IsDone(marker);
  return done.ok() && *done;
}

bool WorkLog::PollLog(Log& log) {
  bool any = false;
  for (;;) {
    // A batch without a marker of its own is proven by the next one that has one.
    std::size_t marked = 0;
    while (marked < log.batches.size() && log.batches[marked].marker == 0) ++marked;
    if (marked == log.batches.size()) return any;
    const Timeline::Marker marker = log.batches[marked].marker;
    if (marker == kept_ || !IsMarkerDone(marker)) return any;
    for (std::size_t i = 0; i <= marked; ++i) PopBatch(log);
    any = true;
  }
}

void WorkLog::PopBatch(Log& log) {
  const Batch& batch = log.batches.front();
  if (batch.marker != 0) timeline_->Forget(batch.marker);
  log.done = batch.last;
  pending_ -= batch.count;
  log.batches.pop_front();
}

bool WorkLog::Poll() {
  bool any = false;
  for (const auto& log : logs_) {
    if (log->is_legacy) MarkLog(*log, StreamRef());
    if (PollLog(*log)) any = true;
  }
  return any;
}

BusySet WorkLog::MakeBusySet() const {
  std::vector<AddressRange> ranges;
  ranges.reserve(pending_);
  for (const auto& log : logs_) {
    for (const Batch& batch : log->batches) {
      ranges.insert(ranges.end(), batch.ranges, batch.ranges + batch.count);
    }
    ranges.insert(ranges.end(), log->open.ranges, log->open.ranges + log->open.count);
  }
  return BusySet(std::move(ranges));
}

Timeline::Marker WorkLog::OldestMarker() const {
  const Batch* oldest = nullptr;
  for (const auto& log : logs_) {
    for (const Batch& batch : log->batches) {
      if (batch.marker == 0) continue;
      if (oldest == nullptr || batch.age < oldest->age) oldest = &batch;
      break;
    }
  }
  return oldest == nullptr ? 0 : oldest->marker;
}

Timeline::Marker WorkLog::MarkerCovering(core::OrderId order, std::uint64_t bytes) const {
  Timeline::Marker latest = 0;
  std::uint64_t covered = 0;
  for (const Batch& batch : logs_[order - 1]->batches) {
    for (std::uint32_t i = 0; i < batch.count; ++i) {
      covered += batch.ranges[i].end - batch.ranges[i].begin;
    }
    if (batch.marker == 0) continue;
    latest = batch.marker;
    if (covered >= bytes) break;
  }
  return latest;
}

std::vector<std::uint64_t> WorkLog::NotedSoFar() const {
  std::vector<std::uint64_t> noted;
  noted.reserve(logs_.size());
  for (const auto& log : logs_) noted.push_back(log->noted);
  return noted;
}

void WorkLog::AllDone(const std::vector<std::uint64_t>& noted) {
  for (std::size_t i = 0; i < noted.size(); ++i) {
    Log& log = *logs_[i];
    while (!log.batches.empty() && log.batches.front().last <= noted[i]) PopBatch(log);
    if (!log.batches.empty() || log.done >= noted[i]) continue;
    // Of the open entries, those that were noted by then.
    const auto count = static_cast<std::uint32_t>(noted[i] - log.done);
    std::copy(log.open.ranges + count, log.open.ranges + log.open.count, log.open.ranges);
    log.open.count -= count;
    pending_ -= count;
    log.done = noted[i];
    log.marked = std::max(log.marked, noted[i]);
  }
}

Timeline::Marker WorkLog::LatestMarker(core::OrderId order) const {
  const Log& log = *logs_[order - 1];
  return log.marked == log.noted && !log.batches.empty() ? log.batches.back().marker : 0;
}

}  // namespace hbm::strategies
