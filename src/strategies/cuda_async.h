// SPDX-License-Identifier: Apache-2.0
//
// File: cuda_async.h
//
// The strategy cuda_async: the driver's own stream-ordered pool, one of the
// allocator's own, with a limit that holds and statistics.
//
//   absl::StatusOr<std::unique_ptr<Allocator>> pool = MakeCudaAsync(std::move(context));
#ifndef HBMALLOC_STRATEGIES_CUDA_ASYNC_H_
#define HBMALLOC_STRATEGIES_CUDA_ASYNC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/container/btree_map.h"
#include "core/mutex.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/stream_ordered_pool.h"
#include "strategies/counters.h"
#include "strategies/registry.h"

namespace hbm::strategies {

// Unimplemented: the device has no such pools.
absl::StatusOr<std::unique_ptr<Allocator>> MakeCudaAsync(StrategyContext context);

class CudaAsync final : public Allocator {
 public:
  CudaAsync(StrategyContext context, std::unique_ptr<StreamOrderedPool> pool,
            std::size_t release_threshold);
  ~CudaAsync() override;

 private:
  struct Block {
    void* base = nullptr;   // what the pool gave
    std::size_t bytes = 0;  // asked of the pool
    std::size_t requested = 0;
    StreamRef stream;
    TagId tag;
  };
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
  absl::StatusOr<MemoryInfo> DoGetDeviceMemory() const override { return source_->GetMemoryInfo(); }

  absl::StatusOr<void*> Take(std::size_t bytes, StreamRef stream, OomCause* cause);
  absl::StatusOr<void*> TakeAfterWaiting(std::size_t bytes, StreamRef stream, OomCause* cause);
  absl::Status JoinUsers(const std::vector<StreamRef>& users, StreamRef last);
  void GiveBackBytes(std::size_t bytes);
  absl::Status WaitForFrees(const TrimOptions& options);

  const std::shared_ptr<Device> device_;  // kept alive, and before the source
  const std::shared_ptr<MemorySource> source_;
  const std::unique_ptr<StreamOrderedPool> pool_;
  const std::size_t release_threshold_;
  const std::size_t granularity_;

  mutable core::SpinLock mutex_;
  Blocks blocks_ HBM_GUARDED_BY(mutex_);
  // Streams beside its own that a live block is used on, by address.
  std::unordered_map<std::uintptr_t, std::vector<StreamRef>> used_on_ HBM_GUARDED_BY(mutex_);
  BlockCounters counters_ HBM_GUARDED_BY(mutex_);
  std::size_t limit_ HBM_GUARDED_BY(mutex_);
  LimitSource limit_source_ HBM_GUARDED_BY(mutex_);
  std::size_t taken_ HBM_GUARDED_BY(mutex_) = 0;  // asked of the pool and not freed
  std::int64_t waits_ HBM_GUARDED_BY(mutex_) = 0;
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_CUDA_ASYNC_H_
