// SPDX-License-Identifier: Apache-2.0
//
// File: observation.h
//
// Everything that may watch an allocator, behind the one flag that its public
// functions look at: the trace recorder, the time integrals, event callbacks and a
// profiler. Nothing here runs under a strategy's lock.
//
//   absl::Status started = internal::Observation::Start(*allocator, {policy, ...});
#ifndef HBMALLOC_STRATEGIES_OBSERVATION_H_
#define HBMALLOC_STRATEGIES_OBSERVATION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "core/mutex.h"
#include "hbmalloc/allocator.h"
#include "observe/nvtx.h"
#include "observe/trace_recorder.h"

namespace hbm::internal {

class Observation {
 public:
  // What the policy wants to have watched from the start. `address_space` tells
  // devices apart whose addresses may be the same.
  struct Setup {
    const Policy& policy;
    SimulatedClock* clock;  // may be null
    const void* address_space;
    std::string_view device;
  };
  static absl::Status Start(Allocator& allocator, const Setup& setup);

  void SetLowMemoryCallback(LowMemoryCallback callback) HBM_EXCLUDES(mutex_);
  std::shared_ptr<const LowMemoryCallback> low_memory_callback() const HBM_EXCLUDES(mutex_);
  void SetEventCallback(Allocator& allocator, EventCallback callback) HBM_EXCLUDES(mutex_);
  // Whether there are capture pools, which stand beside the same flag.
  void NoteCaptures(Allocator& allocator, bool any) HBM_EXCLUDES(mutex_);

  std::optional<double> MeanPoolOverLive(const Allocator& allocator) const
      HBM_EXCLUDES(means_mutex_);

  // One call of an allocator while it is watched, from its start to the end of this
  // object's life.
  class Scope {
   public:
    Scope(Allocator& allocator, Event::Kind kind);
    ~Scope() {
      if ((watches_ & kProfiler) != 0) observe::EndRange();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    void Allocated(const void* block, std::size_t bytes, const AllocateOptions& options,
                   absl::StatusCode code, OomCause cause);
    void Freeing(void* ptr, StreamRef after);
    void Freed(void* ptr, StreamRef after, bool done);
    // A trim or a limit.
    void Changed(Event::Kind kind, std::size_t bytes);

   private:
    bool TellsEvents() const { return (watches_ & kEvents) != 0; }
    void Tell(Event event);

    Allocator& allocator_;
    Observation& observation_;
    const unsigned watches_;
    // For events and means alone.
    std::int64_t start_ = 0;
    DriverUse before_;
    BlockInfo freed_;
  };

 private:
  friend class Scope;
  enum Watch : unsigned { kTrace = 1, kMeans = 2, kEvents = 4, kProfiler = 8, kCaptures = 16 };

  void Add(Allocator& allocator, Watch watch);
  void Remove(Allocator& allocator, Watch watch);
  std::int64_t Now() const;
  // The state changed: what was so until now is added to the integrals.
  void NoteChange(const Allocator& allocator) HBM_EXCLUDES(means_mutex_);

  std::atomic<unsigned> watches_{0};
  std::shared_ptr<observe::TraceRecorder> recorder_;
  std::uint16_t device_ = 0;
  SimulatedClock* clock_ = nullptr;

  mutable core::Mutex mutex_;
  std::shared_ptr<const LowMemoryCallback> low_memory_ HBM_GUARDED_BY(mutex_);
  std::shared_ptr<const EventCallback> event_ HBM_GUARDED_BY(mutex_);

  struct Means {
    std::int64_t last = 0;  // nanoseconds
    double pool = 0;        // integrals, in byte-nanoseconds
    double live = 0;
    std::int64_t pool_bytes = 0;  // since `last`
    std::int64_t live_bytes = 0;
  };
  mutable core::Mutex means_mutex_;
  mutable Means means_ HBM_GUARDED_BY(means_mutex_);
  void Advance(std::int64_t now) const HBM_REQUIRES(means_mutex_);
};

}  // namespace hbm::internal

#endif  // HBMALLOC_STRATEGIES_OBSERVATION_H_
