// SPDX-License-Identifier: Apache-2.0
#include "strategies/work_log.h"

#include <algorithm>

namespace hbm::strategies {
namespace {

// A marker costs about half a microsecond on a GPU: it is shared by this many
// frees, or by this many bytes, whichever comes first.
constexpr std::uint64_t kFreesPerMarker = 16;
constexpr std::uint64_t kBytesPerMarker = std::uint64_t{16} << 20;

// CUDA's name for the legacy default stream, beside null.
const StreamRef kLegacyStream = StreamRef::FromHandle(reinterpret_cast<void*>(1));

}  // namespace

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

WorkLog::~WorkLog() {
  for (const auto& log : logs_) {
    for (const Batch& batch : log->batches) timeline_->Forget(batch.marker);
  }
}

const WorkLog::Log* WorkLog::FindLog(StreamRef stream, core::OrderId* order) const {
  *order = core::kSafe;
  if (timeline_ == nullptr || !stream.is_handle()) return nullptr;
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

WorkLog::Log* WorkLog::LogOf(StreamRef stream) {
  core::OrderId order;
  if (FindLog(stream, &order) != nullptr) return logs_[order - 1].get();
  auto log = std::make_unique<Log>();
  // A stream whose id cannot be had gets a log that no marker is recorded for.
  const absl::StatusOr<std::uint64_t> id = timeline_->StreamId(stream);
  log->stream_id = id.ok() ? *id : ~std::uint64_t{0};
  log->is_legacy = stream.value() <= kLegacyStream.value();
  logs_.push_back(std::move(log));
  last_used_ = static_cast<core::OrderId>(logs_.size());
  return logs_.back().get();
}

WorkLog::Entry WorkLog::NoteFree(StreamRef stream, AddressRange range) {
  if (timeline_ == nullptr || !stream.is_handle()) return {};
  Log& log = *LogOf(stream);
  const core::OrderId order = last_used_;
  log.ranges.push_back(range);
  ++log.noted;
  ++pending_;
  log.unmarked_bytes += range.end - range.begin;
  if (log.noted - log.marked >= kFreesPerMarker || log.unmarked_bytes >= kBytesPerMarker) {
    MarkLog(log, stream);
    PollLog(log);
  }
  return {order, log.noted};
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
  if (*marker == 0) {
    if (log.batches.empty()) Finish(log, log.marked);
    return;
  }
  log.batches.push_back({log.marked, ++age_, *marker});
}

void WorkLog::Finish(Log& log, std::uint64_t through) {
  const std::uint64_t count = through - log.done;
  log.ranges.erase(log.ranges.begin(), log.ranges.begin() + static_cast<std::ptrdiff_t>(count));
  log.done = through;
  pending_ -= count;
}

bool WorkLog::PollLog(Log& log) {
  bool any = false;
  while (!log.batches.empty()) {
    if (log.batches.front().marker == kept_) break;
    const absl::StatusOr<bool> done = timeline_->IsDone(log.batches.front().marker);
    if (!done.ok() || !*done) break;
    timeline_->Forget(log.batches.front().marker);
    Finish(log, log.batches.front().last);
    log.batches.pop_front();
    any = true;
  }
  return any;
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
    ranges.insert(ranges.end(), log->ranges.begin(), log->ranges.end());
  }
  return BusySet(std::move(ranges));
}

Timeline::Marker WorkLog::OldestMarker() const {
  const Batch* oldest = nullptr;
  for (const auto& log : logs_) {
    if (log->batches.empty()) continue;
    if (oldest == nullptr || log->batches.front().age < oldest->age) oldest = &log->batches.front();
  }
  return oldest == nullptr ? 0 : oldest->marker;
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
    while (!log.batches.empty() && log.batches.front().last <= noted[i]) {
      timeline_->Forget(log.batches.front().marker);
      log.batches.pop_front();
    }
    if (noted[i] <= log.done) continue;
    log.marked = std::max(log.marked, noted[i]);
    Finish(log, noted[i]);
  }
}

Timeline::Marker WorkLog::LatestMarker(core::OrderId order) const {
  const Log& log = *logs_[order - 1];
  return log.marked == log.noted && !log.batches.empty() ? log.batches.back().marker : 0;
}

}  // namespace hbm::strategies
