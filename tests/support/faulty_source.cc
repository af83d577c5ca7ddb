// SPDX-License-Identifier: Apache-2.0
#include "tests/support/faulty_source.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/time/clock.h"

namespace hbm::testing {
namespace {

std::uintptr_t AddressOf(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

std::size_t Index(SourceCall call) { return static_cast<std::size_t>(call); }

// Whether one of the ranges holds [start, start + bytes).
bool Holds(const std::map<std::uintptr_t, std::size_t>& ranges, std::uintptr_t start,
           std::size_t bytes) {
  const auto after = ranges.upper_bound(start);
  if (after == ranges.begin()) return false;
  const auto& [base, size] = *std::prev(after);
  return start - base <= size && bytes <= size - (start - base);
}

}  // namespace

const char* ToString(SourceCall call) {
  constexpr const char* kNames[kNumSourceCalls] = {
      "GetMemoryInfo", "AllocateRegion",  "ReleaseRegion", "AllocateBlock", "ReleaseBlock",
      "Reserve",       "FreeReservation", "Create",        "Release",       "Map",
      "SetAccess",     "Unmap",           "StreamId",      "Record",        "IsDone",
      "WaitOnHost",    "WaitOnStream",    "WaitForDevice"};
  return kNames[Index(call)];
}

class FaultySource::FaultyMapper final : public VirtualMemory {
 public:
  FaultyMapper(FaultySource* outer, VirtualMemory* inner) : outer_(*outer), inner_(*inner) {}

  std::size_t Granularity() const override { return inner_.Granularity(); }

  absl::StatusOr<MemoryRange> Reserve(std::size_t bytes) override {
    CallRecord record{SourceCall::kReserve, {nullptr, bytes}};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    if (!HasRoomFor(bytes)) return absl::ResourceExhaustedError("injected: no addresses left");
    absl::StatusOr<MemoryRange> range = inner_.Reserve(bytes);
    core::MutexLock lock(outer_.mutex_);
    if (range.ok()) outer_.reservations_[AddressOf(range->address)] = range->bytes;
    outer_.NotePeaks();
    return range;
  }

  absl::Status FreeReservation(MemoryRange range) override {
    CallRecord record{SourceCall::kFreeReservation, range};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    absl::Status freed = inner_.FreeReservation(range);
    core::MutexLock lock(outer_.mutex_);
    if (freed.ok()) outer_.reservations_.erase(AddressOf(range.address));
    return freed;
  }

  absl::StatusOr<Handle> Create(std::size_t bytes) override {
    CallRecord record{SourceCall::kCreate, {nullptr, bytes}};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    absl::StatusOr<Handle> handle = inner_.Create(bytes);
    core::MutexLock lock(outer_.mutex_);
    if (handle.ok()) outer_.handles_[*handle] = bytes;
    outer_.NotePeaks();
    return handle;
  }

  absl::Status Release(Handle handle) override {
    CallRecord record{SourceCall::kRelease, {}, handle};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    absl::Status released = inner_.Release(handle);
    core::MutexLock lock(outer_.mutex_);
    if (released.ok()) outer_.handles_.erase(handle);
    return released;
  }

  absl::Status Map(void* address, Handle handle) override {
    CallRecord record{SourceCall::kMap, {address, BytesOf(handle)}, handle};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    absl::Status mapped = inner_.Map(address, handle);
    core::MutexLock lock(outer_.mutex_);
    if (mapped.ok()) outer_.mappings_[AddressOf(address)] = {record.range.bytes, false};
    outer_.NotePeaks();
    return mapped;
  }

  absl::Status SetAccess(MemoryRange range) override {
    CallRecord record{SourceCall::kSetAccess, range};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    absl::Status set = inner_.SetAccess(range);
    core::MutexLock lock(outer_.mutex_);
    const auto [first, last] = Inside(range);
    for (auto it = first; set.ok() && it != last; ++it) it->second.accessible = true;
    return set;
  }

  absl::Status Unmap(MemoryRange range) override {
    CallRecord record{SourceCall::kUnmap, range};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    absl::Status unmapped = inner_.Unmap(range);
    core::MutexLock lock(outer_.mutex_);
    const auto [first, last] = Inside(range);
    if (unmapped.ok()) outer_.mappings_.erase(first, last);
    return unmapped;
  }

 private:
  using Iterator = std::map<std::uintptr_t, Mapping>::iterator;

  std::pair<Iterator, Iterator> Inside(MemoryRange range) HBM_REQUIRES(outer_.mutex_) {
    const std::uintptr_t start = AddressOf(range.address);
    return {outer_.mappings_.lower_bound(start), outer_.mappings_.lower_bound(start + range.bytes)};
  }

  std::size_t BytesOf(Handle handle) {
    core::MutexLock lock(outer_.mutex_);
    const auto found = outer_.handles_.find(handle);
    return found == outer_.handles_.end() ? 0 : found->second;
  }

  bool HasRoomFor(std::size_t bytes) {
    core::MutexLock lock(outer_.mutex_);
    if (outer_.reservation_limit_ == ~std::size_t{0}) return true;
    std::size_t reserved = 0;
    for (const auto& reservation : outer_.reservations_) reserved += reservation.second;
    return reserved <= outer_.reservation_limit_ && bytes <= outer_.reservation_limit_ - reserved;
  }

  FaultySource& outer_;
  VirtualMemory& inner_;
};

class FaultySource::FaultyTimeline final : public Timeline {
 public:
  FaultyTimeline(FaultySource* outer, Timeline* inner) : outer_(*outer), inner_(*inner) {}

  absl::StatusOr<std::uint64_t> StreamId(StreamRef stream) override {
    CallRecord record{SourceCall::kStreamId, {}, 0, 0, stream.value()};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    return inner_.StreamId(stream);
  }
  absl::StatusOr<Marker> Record(StreamRef stream) override {
    CallRecord record{SourceCall::kRecord, {}, 0, 0, stream.value()};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    absl::StatusOr<Marker> marker = inner_.Record(stream);
    core::MutexLock lock(outer_.mutex_);
    if (marker.ok() && *marker != 0) outer_.markers_.insert(*marker);
    outer_.NotePeaks();
    return marker;
  }
  absl::StatusOr<bool> IsDone(Marker marker) override {
    CallRecord record{SourceCall::kIsDone, {}, 0, marker};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    return inner_.IsDone(marker);
  }
  absl::Status WaitOnHost(Marker marker, absl::Duration timeout) override {
    CallRecord record{SourceCall::kWaitOnHost, {}, 0, marker};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    return inner_.WaitOnHost(marker, timeout);
  }
  absl::Status WaitOnStream(StreamRef stream, Marker marker) override {
    CallRecord record{SourceCall::kWaitOnStream, {}, 0, marker, stream.value()};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    return inner_.WaitOnStream(stream, marker);
  }
  void Forget(Marker marker) override {
    {
      core::MutexLock lock(outer_.mutex_);
      const auto found = outer_.markers_.find(marker);
      if (found != outer_.markers_.end()) outer_.markers_.erase(found);
    }
    inner_.Forget(marker);
  }
  absl::Status WaitForDevice() override {
    CallRecord record{SourceCall::kWaitForDevice, {}};
    if (absl::Status begun = outer_.Begin(record); !begun.ok()) return begun;
    return inner_.WaitForDevice();
  }

 private:
  FaultySource& outer_;
  Timeline& inner_;
};

FaultySource::FaultySource(std::shared_ptr<MemorySource> inner) : inner_(std::move(inner)) {
  if (VirtualMemory* memory = inner_->virtual_memory(); memory != nullptr) {
    mapper_ = std::make_unique<FaultyMapper>(this, memory);
  }
  if (Timeline* timeline = inner_->timeline(); timeline != nullptr) {
    timeline_ = std::make_unique<FaultyTimeline>(this, timeline);
  }
  core::MutexLock lock(mutex_);
  delays_.fill(absl::ZeroDuration());
}

FaultySource::~FaultySource() = default;

void FaultySource::Fail(SourceCall call, int k, absl::Status status, int times) {
  core::MutexLock lock(mutex_);
  const int first = counts_[Index(call)] + k;
  faults_[Index(call)] = {first, first + times - 1, std::move(status)};
}

void FaultySource::FailAny(int k, absl::Status status, int times) {
  core::MutexLock lock(mutex_);
  any_fault_ = {total_ + k, total_ + k + times - 1, std::move(status)};
}

void FaultySource::FailWhen(std::function<absl::Status(const CallRecord&)> decide) {
  core::MutexLock lock(mutex_);
  decide_ = std::move(decide);
}

void FaultySource::StopFailing() {
  core::MutexLock lock(mutex_);
  faults_ = {};
  any_fault_ = {};
  decide_ = nullptr;
}

void FaultySource::SlowDown(SourceCall call, absl::Duration delay) {
  core::MutexLock lock(mutex_);
  delays_[Index(call)] = delay;
}

void FaultySource::Observe(std::function<void(const CallRecord&)> observer) {
  core::MutexLock lock(mutex_);
  observer_ = std::move(observer);
}

void FaultySource::LimitReservations(std::size_t bytes) {
  core::MutexLock lock(mutex_);
  reservation_limit_ = bytes;
}

int FaultySource::Count(SourceCall call) const {
  core::MutexLock lock(mutex_);
  return counts_[Index(call)];
}

int FaultySource::CountAll() const {
  core::MutexLock lock(mutex_);
  return total_;
}

absl::Status FaultySource::Injected(const CallRecord& record) {
  const int nth = ++counts_[Index(record.call)];
  const int nth_of_all = ++total_;
  const auto hits = [](const Fault& fault, int n) {
    return fault.first != 0 && fault.first <= n && n <= fault.last;
  };
  if (hits(faults_[Index(record.call)], nth)) return faults_[Index(record.call)].status;
  if (hits(any_fault_, nth_of_all)) return any_fault_.status;
  return decide_ ? decide_(record) : absl::OkStatus();
}

absl::Status FaultySource::Begin(const CallRecord& record) {
  std::function<void(const CallRecord&)> observer;
  absl::Duration delay;
  absl::Status injected;
  {
    core::MutexLock lock(mutex_);
    observer = observer_;
    delay = delays_[Index(record.call)];
    injected = Injected(record);
  }
  if (observer) observer(record);
  if (delay > absl::ZeroDuration()) absl::SleepFor(delay);
  return injected;
}

Outstanding FaultySource::Current() const {
  return {regions_.size(), blocks_.size(),   reservations_.size(),
          handles_.size(), mappings_.size(), markers_.size()};
}

void FaultySource::NotePeaks() {
  const Outstanding now = Current();
  peak_.regions = std::max(peak_.regions, now.regions);
  peak_.blocks = std::max(peak_.blocks, now.blocks);
  peak_.reservations = std::max(peak_.reservations, now.reservations);
  peak_.handles = std::max(peak_.handles, now.handles);
  peak_.mappings = std::max(peak_.mappings, now.mappings);
  peak_.markers = std::max(peak_.markers, now.markers);
}

Outstanding FaultySource::GetOutstanding() const {
  core::MutexLock lock(mutex_);
  return Current();
}

Outstanding FaultySource::GetPeak() const {
  core::MutexLock lock(mutex_);
  return peak_;
}

bool FaultySource::IsUsable(MemoryRange range) const {
  core::MutexLock lock(mutex_);
  const std::uintptr_t start = AddressOf(range.address);
  if (Holds(regions_, start, range.bytes) || Holds(blocks_, start, range.bytes)) return true;
  std::uintptr_t covered = start;
  auto mapping = mappings_.upper_bound(start);
  if (mapping == mappings_.begin()) return false;
  for (--mapping; covered < start + range.bytes; ++mapping) {
    if (mapping == mappings_.end() || mapping->first > covered || !mapping->second.accessible) {
      return false;
    }
    const std::uintptr_t end = mapping->first + mapping->second.bytes;
    if (end <= covered) return false;
    covered = end;
  }
  return true;
}

absl::StatusOr<MemoryInfo> FaultySource::GetMemoryInfo() {
  if (absl::Status begun = Begin({SourceCall::kGetMemoryInfo, {}}); !begun.ok()) return begun;
  return inner_->GetMemoryInfo();
}

absl::StatusOr<MemoryRange> FaultySource::AllocateRegion(std::size_t bytes) {
  CallRecord record{SourceCall::kAllocateRegion, {nullptr, bytes}};
  if (absl::Status begun = Begin(record); !begun.ok()) return begun;
  absl::StatusOr<MemoryRange> region = inner_->AllocateRegion(bytes);
  core::MutexLock lock(mutex_);
  if (region.ok()) regions_[AddressOf(region->address)] = region->bytes;
  NotePeaks();
  return region;
}

absl::Status FaultySource::ReleaseRegion(MemoryRange region) {
  if (absl::Status begun = Begin({SourceCall::kReleaseRegion, region}); !begun.ok()) return begun;
  absl::Status released = inner_->ReleaseRegion(region);
  core::MutexLock lock(mutex_);
  if (released.ok()) regions_.erase(AddressOf(region.address));
  return released;
}

absl::StatusOr<MemoryRange> FaultySource::AllocateBlock(std::size_t bytes, std::size_t alignment) {
  CallRecord record{SourceCall::kAllocateBlock, {nullptr, bytes}};
  if (absl::Status begun = Begin(record); !begun.ok()) return begun;
  absl::StatusOr<MemoryRange> block = inner_->AllocateBlock(bytes, alignment);
  core::MutexLock lock(mutex_);
  if (block.ok()) blocks_[AddressOf(block->address)] = block->bytes;
  NotePeaks();
  return block;
}

absl::Status FaultySource::ReleaseBlock(MemoryRange block) {
  if (absl::Status begun = Begin({SourceCall::kReleaseBlock, block}); !begun.ok()) return begun;
  absl::Status released = inner_->ReleaseBlock(block);
  core::MutexLock lock(mutex_);
  if (released.ok()) blocks_.erase(AddressOf(block.address));
  return released;
}

VirtualMemory* FaultySource::virtual_memory() { return mapper_.get(); }

Timeline* FaultySource::timeline() { return timeline_.get(); }

}  // namespace hbm::testing
