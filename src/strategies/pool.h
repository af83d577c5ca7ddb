// SPDX-License-Identifier: Apache-2.0
//
// File: pool.h
//
// The strategies bfc and on_demand: XLA's best fit (core/best_fit.h) over regions
// from a memory source. bfc takes its pool when it is made, on_demand takes
// regions as they are needed, each twice the last.
//
//   absl::StatusOr<std::unique_ptr<Allocator>> pool = MakePool(std::move(context));
//
// Two locks. mutex_ guards the books and is held for tens of nanoseconds;
// growth_mutex_ is held around calls of the source, and never taken while mutex_
// is held, so that hits go on while another thread waits for the driver. A region
// callback, if there is one, runs under neither.
#ifndef HBMALLOC_STRATEGIES_POOL_H_
#define HBMALLOC_STRATEGIES_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/best_fit.h"
#include "core/mutex.h"
#include "hbmalloc/allocator.h"
#include "strategies/counters.h"
#include "strategies/region_watch.h"
#include "strategies/registry.h"
#include "strategies/report_walk.h"
#include "strategies/stream_order.h"

namespace hbm::strategies {

absl::StatusOr<std::unique_ptr<Allocator>> MakePool(StrategyContext context);

class Pool final : public Allocator, public ReportWalk {
 public:
  explicit Pool(StrategyContext context);
  ~Pool() override;

  // Takes the pool that the policy wants at the start.
  absl::Status Preallocate();

  // Bytes of host memory that the books take.
  std::size_t BookkeepingBytes() const;

  Snapshot TakeReportSnapshot() const override HBM_EXCLUDES(mutex_);

  // For a cache of free blocks in front of the pool: several at once, under one lock.
  // Not for pools with stream order or quarantine.
  struct Pooled {
    std::uint64_t address;
    std::uint64_t chunk_bytes;
  };
  // At most `count` blocks of `bytes` from what is free now; how many there were.
  std::uint32_t TakeSeveral(std::size_t bytes, std::uint32_t count, Pooled* blocks)
      HBM_EXCLUDES(mutex_);
  // Frees blocks of this pool; what is none is passed over.
  void FreeSeveral(const std::uint64_t* addresses, std::uint32_t count) HBM_EXCLUDES(mutex_);

 private:
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

  // All but what DoAllocate meets at once.
  void* AllocateOther(const Request& request, AllocError* why);
  // The books' part of a request: a free chunk, or null.
  void* AllocateLocked(const core::BestFit::Request& request) HBM_REQUIRES(mutex_);
  // The rest: more memory from the source.
  void* AllocateSlow(const core::BestFit::Request& request, const Request& asked, AllocError* why)
      HBM_EXCLUDES(mutex_, growth_mutex_);
  // Adds a region of at least `bytes`, by XLA's rules. If `request` is given, it is
  // met before anybody else sees the region, and `block` is its address.
  absl::Status Grow(std::uint64_t bytes, const core::BestFit::Request* request, void** block)
      HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  absl::StatusOr<MemoryRange> TakeFromSource(std::uint64_t least, std::uint64_t most)
      HBM_REQUIRES(growth_mutex_);
  absl::Status AddRegion(MemoryRange range, const core::BestFit::Request* request, void** block)
      HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  // Gives idle regions back, largest addresses first, while the pool stays at or
  // above `keep` bytes and until it is at most `enough`.
  struct Released {
    std::size_t bytes = 0;
    std::size_t vetoed = 0;  // bytes that the region callback kept
  };
  absl::StatusOr<Released> ReleaseIdleRegions(std::uint64_t keep, std::uint64_t enough)
      HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  // Calls the region callback, without locks.
  void TellMapped(const RegionWatch::Change& change, MemoryRange range) HBM_REQUIRES(growth_mutex_)
      HBM_EXCLUDES(mutex_);
  bool MayLeave(const RegionWatch::Change& change, MemoryRange range) HBM_REQUIRES(growth_mutex_)
      HBM_EXCLUDES(mutex_);
  // What a request that must fail is told.
  AllocError Exhausted(std::uint64_t bytes, const absl::Status& growth) HBM_REQUIRES(growth_mutex_)
      HBM_EXCLUDES(mutex_);
  std::uint64_t AvailableLocked() const HBM_REQUIRES(mutex_) {
    const std::uint64_t taken = pool_bytes_ + coming_bytes_;
    return limit_ > taken ? (limit_ - taken) / core::kChunkUnit * core::kChunkUnit : 0;
  }
  // Stream order, where there is one.
  void* AllocateOrdered(core::BestFit::Request request, const Request& asked, AllocError* why);
  // Whether that many bytes of the pool are free, wherever they are and for whom.
  bool HasFree(std::uint64_t bytes) const;
  void* FailForStream(const absl::Status& status, AllocError* why);
  absl::Status DeallocateOther(void* ptr, StreamRef after) HBM_EXCLUDES(mutex_);
  absl::Status DeallocateOrdered(void* ptr, StreamRef after);
  absl::Status DeallocateHeld(void* ptr, StreamRef last,
                              const absl::StatusOr<StreamOrder::Key>& key);
  // A walk over a region's chunks that lets go of the lock on the way.
  struct Walk {
    std::uint64_t at;                                           // up to where chunks are told of
    std::uint64_t end;                                          // of the region
    std::vector<std::pair<core::ChunkId, std::uint64_t>> seen;  // chunks and their addresses
  };
  // The most chunks looked at before other threads get the lock: some microseconds.
  static constexpr std::uint32_t kChunksPerLook = 256;
  // Goes on for that many chunks; true at the end. Gets no memory where there is room
  // for as many more.
  bool WalkLocked(Walk* walk, std::vector<Snapshot::Chunk>* out) const HBM_REQUIRES(mutex_);
  Snapshot::Chunk DescribeLocked(core::ChunkId id) const HBM_REQUIRES(mutex_);
  void HoldBackLocked(core::ChunkId id, core::OrderId order = core::kSafe) HBM_REQUIRES(mutex_);
  void FreeLocked(core::ChunkId id, core::OrderId order) HBM_REQUIRES(mutex_);
  bool FlushQuarantineLocked() HBM_REQUIRES(mutex_);
  void ReportShortage(std::uint64_t wanted);

  const std::shared_ptr<Device> device_;  // kept alive, and before the source
  const std::shared_ptr<MemorySource> source_;
  const std::uint64_t granularity_;
  const std::uint64_t start_bytes_;
  const std::uint64_t quarantine_bytes_;
  const bool garbage_collection_;
  const bool is_plain_;  // neither stream order nor quarantine

  core::Mutex growth_mutex_;
  std::uint64_t next_region_bytes_ HBM_GUARDED_BY(growth_mutex_);
  RegionWatch watch_;

  mutable core::SpinLock mutex_;
  mutable core::BestFit fit_ HBM_GUARDED_BY(mutex_);
  BlockCounters counters_ HBM_GUARDED_BY(mutex_);
  std::uint64_t limit_ HBM_GUARDED_BY(mutex_);
  LimitSource limit_source_ HBM_GUARDED_BY(mutex_);
  std::uint64_t shrunk_to_ HBM_GUARDED_BY(mutex_) = 0;  // 0: the pool is as large as asked for
  std::uint64_t pool_bytes_ HBM_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_pool_bytes_ HBM_GUARDED_BY(mutex_) = 0;
  // Of regions that the region callback is being told of.
  std::uint64_t coming_bytes_ HBM_GUARDED_BY(mutex_) = 0;
  struct Quarantined {
    core::ChunkId id;
    core::OrderId order;
  };
  std::deque<Quarantined> quarantine_ HBM_GUARDED_BY(mutex_);
  std::uint64_t quarantined_ HBM_GUARDED_BY(mutex_) = 0;
  // Null: work is ordered by the caller, or always done when a block is freed.
  std::unique_ptr<StreamOrder> order_;
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_POOL_H_
