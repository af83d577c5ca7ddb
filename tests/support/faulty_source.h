// SPDX-License-Identifier: Apache-2.0
//
// File: faulty_source.h
//
// Wraps any memory source so that a test decides which calls fail, sees every
// call before it is made, and counts what is not given back.
//
//   auto source = std::make_shared<FaultySource>(inner);
//   source->Fail(SourceCall::kMap, 3, absl::InternalError("injected"));
//   auto allocator = MakeAllocator(policy, source);
//   ...
//   EXPECT_EQ(source->GetOutstanding(), Outstanding{});     // nothing leaked
//
// Failed calls do not reach the source inside. The wrapper keeps its own books of
// what is mapped and accessible, apart from those of the library. Thread-safe as
// far as the source inside is.
#ifndef HBMALLOC_TESTS_SUPPORT_FAULTY_SOURCE_H_
#define HBMALLOC_TESTS_SUPPORT_FAULTY_SOURCE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "hbmalloc/device.h"
#include "hbmalloc/memory_source.h"

namespace hbm::testing {

enum class SourceCall {
  kGetMemoryInfo,
  kAllocateRegion,
  kReleaseRegion,
  kAllocateBlock,
  kReleaseBlock,
  kReserve,
  kFreeReservation,
  kCreate,
  kRelease,
  kMap,
  kSetAccess,
  kUnmap,
  kStreamId,
  kRecord,
  kIsDone,
  kWaitOnHost,
  kWaitOnStream,
  kWaitForDevice,
};
inline constexpr std::size_t kNumSourceCalls = 18;
const char* ToString(SourceCall call);

// One call as the allocator made it; what does not apply is 0.
struct CallRecord {
  SourceCall call = SourceCall::kGetMemoryInfo;
  MemoryRange range;  // address and size in question
  VirtualMemory::Handle handle = 0;
  Timeline::Marker marker = 0;
  std::uint64_t stream = 0;  // StreamRef::value()
};

// What was got and not given back.
struct Outstanding {
  std::size_t regions = 0;
  std::size_t blocks = 0;
  std::size_t reservations = 0;
  std::size_t handles = 0;
  std::size_t mappings = 0;
  std::size_t markers = 0;

  friend bool operator==(const Outstanding& a, const Outstanding& b) {
    return a.regions == b.regions && a.blocks == b.blocks && a.reservations == b.reservations &&
           a.handles == b.handles && a.mappings == b.mappings && a.markers == b.markers;
  }
  friend std::ostream& operator<<(std::ostream& out, const Outstanding& value) {
    return out << value.regions << " regions, " << value.blocks << " blocks, " << value.reservations
               << " reservations, " << value.handles << " handles, " << value.mappings
               << " mappings, " << value.markers << " markers";
  }
};

class FaultySource final : public MemorySource {
 public:
  explicit FaultySource(std::shared_ptr<MemorySource> inner);
  ~FaultySource() override;

  // From the k-th call of its kind from now on (1 is the next), `times` calls in
  // a row answer `status`.
  void Fail(SourceCall call, int k, absl::Status status, int times = 1);
  // The same, counting calls of every kind that can fail (k-th driver call).
  void FailAny(int k, absl::Status status, int times = 1);
  // Calls for which it answers an error fail with that. It is called under a lock
  // and must not call back.
  void FailWhen(std::function<absl::Status(const CallRecord&)> decide);
  void StopFailing();

  // Makes each call of a kind take at least this long.
  void SlowDown(SourceCall call, absl::Duration delay);

  // Sees each call before it is made, failing ones too; called without a lock.
  void Observe(std::function<void(const CallRecord&)> observer);

  // The most bytes that may be reserved at once, to run out of addresses.
  void LimitReservations(std::size_t bytes);

  int Count(SourceCall call) const;
  int CountAll() const;
  Outstanding GetOutstanding() const;
  // The most handles, and mappings, that ever were at once.
  Outstanding GetPeak() const;

  // Whether every byte of the range may be used: in a region or a block, or
  // mapped with access.
  bool IsUsable(MemoryRange range) const;

  std::string_view Name() const override { return inner_->Name(); }
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override;
  std::size_t Granularity() const override { return inner_->Granularity(); }
  absl::StatusOr<MemoryRange> AllocateRegion(std::size_t bytes) override;
  absl::Status ReleaseRegion(MemoryRange region) override;
  absl::StatusOr<MemoryRange> AllocateBlock(std::size_t bytes, std::size_t alignment) override;
  absl::Status ReleaseBlock(MemoryRange block) override;
  std::size_t HeldBytes() const override { return inner_->HeldBytes(); }
  VirtualMemory* virtual_memory() override;
  Timeline* timeline() override;
  bool IsHostAccessible() const override { return inner_->IsHostAccessible(); }
  DriverUse GetDriverUse() const override { return inner_->GetDriverUse(); }

 private:
  class FaultyMapper;
  class FaultyTimeline;

  struct Mapping {
    std::size_t bytes = 0;
    bool accessible = false;
  };

  // OK, or the injected error, once observers have seen the call and any delay
  // has passed.
  absl::Status Begin(const CallRecord& record);
  absl::Status Injected(const CallRecord& record) HBM_REQUIRES(mutex_);
  void NotePeaks() HBM_REQUIRES(mutex_);
  Outstanding Current() const HBM_REQUIRES(mutex_);

  struct Fault {
    int first = 0;  // counted from 1; 0 is none
    int last = 0;
    absl::Status status;
  };

  const std::shared_ptr<MemorySource> inner_;
  std::unique_ptr<FaultyMapper> mapper_;
  std::unique_ptr<FaultyTimeline> timeline_;

  mutable core::Mutex mutex_;
  std::array<int, kNumSourceCalls> counts_ HBM_GUARDED_BY(mutex_) = {};
  int total_ HBM_GUARDED_BY(mutex_) = 0;
  std::array<Fault, kNumSourceCalls> faults_ HBM_GUARDED_BY(mutex_);
  Fault any_fault_ HBM_GUARDED_BY(mutex_);
  std::function<absl::Status(const CallRecord&)> decide_ HBM_GUARDED_BY(mutex_);
  std::function<void(const CallRecord&)> observer_ HBM_GUARDED_BY(mutex_);
  std::array<absl::Duration, kNumSourceCalls> delays_ HBM_GUARDED_BY(mutex_);
  std::size_t reservation_limit_ HBM_GUARDED_BY(mutex_) = ~std::size_t{0};

  std::map<std::uintptr_t, std::size_t> regions_ HBM_GUARDED_BY(mutex_);
  std::map<std::uintptr_t, std::size_t> blocks_ HBM_GUARDED_BY(mutex_);
  std::map<std::uintptr_t, std::size_t> reservations_ HBM_GUARDED_BY(mutex_);
  std::map<VirtualMemory::Handle, std::size_t> handles_ HBM_GUARDED_BY(mutex_);
  std::map<std::uintptr_t, Mapping> mappings_ HBM_GUARDED_BY(mutex_);
  std::multiset<Timeline::Marker> markers_ HBM_GUARDED_BY(mutex_);
  Outstanding peak_ HBM_GUARDED_BY(mutex_);
};

// A device whose sources are faulty ones over those of another device.
class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(std::shared_ptr<Device> inner) : inner_(std::move(inner)) {}

  // The source made last, or null.
  std::shared_ptr<FaultySource> source() const { return source_; }

  std::string_view Name() const override { return inner_->Name(); }
  std::string_view Uuid() const override { return inner_->Uuid(); }
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override { return inner_->GetMemoryInfo(); }
  absl::StatusOr<std::shared_ptr<MemorySource>> MakeSource(const Policy& policy) override {
    absl::StatusOr<std::shared_ptr<MemorySource>> made = inner_->MakeSource(policy);
    if (!made.ok()) return made.status();
    source_ = std::make_shared<FaultySource>(*std::move(made));
    return source_;
  }
  SimulatedClock* simulated_clock() override { return inner_->simulated_clock(); }
  bool IsCuda() const override { return inner_->IsCuda(); }

 private:
  const std::shared_ptr<Device> inner_;
  std::shared_ptr<FaultySource> source_;
};

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_SUPPORT_FAULTY_SOURCE_H_
