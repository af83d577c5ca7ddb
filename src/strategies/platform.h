// SPDX-License-Identifier: Apache-2.0
//
// File: platform.h
//
// The strategy platform: every request is a call of the memory source, and so is
// every free. Nothing is kept.
//
//   absl::StatusOr<std::unique_ptr<Allocator>> platform = MakePlatform(std::move(context));
//
// Frees. Over a source with a timeline, Deallocate marks the work queued so far on
// the streams that used the block and blocks the caller until it is done; only
// then is the block given back. It does not rely on a driver's free waiting.
#ifndef HBMALLOC_STRATEGIES_PLATFORM_H_
#define HBMALLOC_STRATEGIES_PLATFORM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "core/mutex.h"
#include "hbmalloc/allocator.h"
#include "strategies/counters.h"
#include "strategies/region_watch.h"
#include "strategies/registry.h"

namespace hbm::strategies {

absl::StatusOr<std::unique_ptr<Allocator>> MakePlatform(StrategyContext context);

class Platform final : public Allocator {
 public:
  explicit Platform(StrategyContext context);
  ~Platform() override;

 private:
  struct Block {
    MemoryRange range;
    std::size_t requested = 0;
    StreamRef stream;
    TagId tag;
    std::vector<StreamRef> used_on;
  };
  // By address: a block that holds a given address is the last that starts at or
  // before it.
  using Blocks = absl::btree_map<std::uintptr_t, Block>;

  void* DoAllocate(const Request& request, AllocError* why) noexcept override;
  absl::Status DoDeallocate(void* ptr, StreamRef after) override;
  absl::Status DoRecordUse(void* ptr, StreamRef stream) override;
  absl::StatusOr<BlockInfo> DoDescribe(const void* ptr) const override;
  Stats DoGetStats() const override;
  void DoGetFigures(Figures* figures) const override;
  void DoResetPeakStats() override;
  Snapshot DoTakeSnapshot() const override;
  absl::StatusOr<TrimResult> DoTrim(const TrimOptions& options) override;
  absl::Status DoSetMemoryLimit(std::size_t bytes) override;
  Timeline* DoGetTimeline() const override { return source_->timeline(); }
  absl::Status DoAddPeer(int ordinal) override;
  absl::Status DoSetRegionCallback(std::shared_ptr<const RegionCallback> callback) override;
  absl::StatusOr<MemoryInfo> DoGetDeviceMemory() const override { return source_->GetMemoryInfo(); }

  std::size_t HeldLocked() const HBM_REQUIRES(mutex_);
  void UpdatePeakLocked() HBM_REQUIRES(mutex_);
  void* AllocateOnce(const Request& request, AllocError* why) HBM_EXCLUDES(mutex_, source_mutex_);
  std::optional<MemoryRange> TakeBlock(const Request& request, RegionWatch::Change* change,
                                       AllocError* why) HBM_EXCLUDES(mutex_, source_mutex_);
  // Asks again about freed blocks that a region callback kept. Bytes given back.
  std::size_t ReleaseKept() HBM_EXCLUDES(mutex_, source_mutex_);
  std::nullopt_t Failed(AllocError error, AllocError* why) HBM_EXCLUDES(mutex_);
  AllocError Exhausted();
  absl::Status CheckNotCaptured(const Block& block, StreamRef last);
  absl::Status WaitForUsers(const Block& block, StreamRef after);
  absl::Status WaitFor(StreamRef stream);
  // The clock that waiting moves: the device's own where it is simulated.
  absl::Duration Now() const;

  const std::shared_ptr<Device> device_;  // kept alive, and before the source
  const std::shared_ptr<MemorySource> source_;
  const std::size_t granularity_;

  core::Mutex source_mutex_;  // one call of the source at a time; taken before mutex_
  RegionWatch watch_;

  mutable core::SpinLock mutex_;
  Blocks blocks_ HBM_GUARDED_BY(mutex_);
  // Freed, but kept by a region callback.
  std::vector<MemoryRange> kept_ HBM_GUARDED_BY(mutex_);
  BlockCounters counters_ HBM_GUARDED_BY(mutex_);
  std::size_t limit_ HBM_GUARDED_BY(mutex_);
  LimitSource limit_source_ HBM_GUARDED_BY(mutex_);
  std::size_t block_bytes_ HBM_GUARDED_BY(mutex_) = 0;  // of all ranges from the source
  std::size_t peak_held_ HBM_GUARDED_BY(mutex_) = 0;
  std::int64_t waits_ HBM_GUARDED_BY(mutex_) = 0;
  std::int64_t wait_nanoseconds_ HBM_GUARDED_BY(mutex_) = 0;
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_PLATFORM_H_
