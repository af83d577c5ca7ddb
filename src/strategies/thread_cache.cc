// SPDX-License-Identifier: Apache-2.0
#include "strategies/thread_cache.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "core/compiler.h"
#include "core/mutex.h"
#include "core/shared_blocks.h"
#include "strategies/magazine.h"
#include "strategies/pool.h"

namespace hbm::strategies {
namespace {

using core::SharedBlock;
using core::SharedUse;

// The depot's share of each thread, and of few threads.
constexpr std::size_t kDepotBytesPerThread = std::size_t{16} << 20;
constexpr std::size_t kLeastDepotBytes = std::size_t{64} << 20;

std::uint64_t AddressOf(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }
void* PointerTo(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// Written by one thread at a time, read by any.
class Count {
 public:
  void Add(std::int64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void RaiseTo(std::int64_t amount) {
    if (amount > Get()) Set(amount);
  }
  void Set(std::int64_t amount) { value_.store(amount, std::memory_order_relaxed); }
  std::int64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// One thread's magazines and counts. The lock is nearly always free: only its
// thread takes it, and those that drain all.
struct alignas(64) ThreadCache {
  struct Magazines {
    Chain loaded;
    Chain spare;
  };
  core::SpinLock lock;
  std::array<Magazines, kClasses> magazines HBM_GUARDED_BY(lock);
  Count allocs;
  Count frees;
  Count live_requested;  // negative for a thread that frees others' blocks
  Count live_bytes;
  Count largest;
  Count fills;  // since it last looked at all threads' counts
};

// What outlives the allocator as long as threads may still end.
class Shared {
 public:
  explicit Shared(std::unique_ptr<Pool> pool) : pool_(std::move(pool)) {}

  Allocator& pool() { return *pool_; }
  const Allocator& pool() const { return *pool_; }
  Snapshot TakeReportSnapshot() const { return pool_->TakeReportSnapshot(); }
  core::SharedBlocks& blocks() { return blocks_; }
  std::uint64_t id() const { return id_; }

  ThreadCache* NewCache() {
    core::MutexLock lock(mutex_);
    if (!idle_.empty()) {
      ThreadCache* const cache = idle_.back();
      idle_.pop_back();
      return cache;
    }
    ++num_caches_;
    return caches_.emplace_back(std::make_unique<ThreadCache>()).get();
  }

  // A thread ends: its blocks are for others now, and its cache for the next new
  // thread.
  void Retire(ThreadCache* cache) {
    core::MutexLock lock(mutex_);
    if (pool_ == nullptr) return;
    for (const Chain& chain : TakeAll(*cache)) Spill(chain, chain.head->size_class);
    idle_.push_back(cache);
  }

  // The allocator ends.
  void Close() {
    Drain();
    std::unique_ptr<Pool> pool;  // ends after the lock: it may warn
    core::MutexLock lock(mutex_);
    pool = std::move(pool_);
  }

  // Gives every cached block back to the pool; whether there was one.
  bool Drain() {
    core::MutexLock lock(mutex_);
    bool any = DrainCache(common_);
    for (const auto& cache : caches_) any |= DrainCache(*cache);
    for (std::uint32_t size_class = 0; size_class < kClasses; ++size_class) {
      for (;;) {
        const Chain chain = depot_[size_class].Take(&depot_bytes_, ClassBytes(size_class));
        if (chain.length == 0) break;
        GiveBack(chain);
        any = true;
      }
    }
    return any;
  }

  // A magazine for a thread, from the depot or else from the pool; empty if there is
  // nothing.
  Chain Fill(ThreadCache& cache, std::uint32_t size_class) {
    Chain chain = depot_[size_class].Take(&depot_bytes_, ClassBytes(size_class));
    const std::uint32_t wanted = (MagazineSize(size_class) + 1) / 2;
    if (chain.length < wanted) TakeFromPool(size_class, wanted - chain.length, &chain);
    cache.fills.Add(1);
    if (cache.fills.Get() >= num_caches_.load(std::memory_order_relaxed)) {
      cache.fills.Set(0);
      NotePeak();
    }
    return chain;
  }

  void Spill(Chain chain, std::uint32_t size_class) {
    if (chain.length == 0) return;
    const std::size_t bytes = chain.length * ClassBytes(size_class);
    const std::size_t most =
        std::max(kLeastDepotBytes, kDepotBytesPerThread * static_cast<std::size_t>(num_caches_));
    if (depot_bytes_.load(std::memory_order_relaxed) + bytes > most) {
      GiveBack(chain);
    } else {
      depot_[size_class].Put(chain, &depot_bytes_, ClassBytes(size_class));
    }
  }

  // Frees an address that the cache has no more; false, and nothing is done, if it has.
  absl::StatusOr<bool> FreeInPool(const SharedBlock& block, void* ptr, StreamRef after)
      HBM_EXCLUDES(return_mutex_) {
    core::MutexLock lock(return_mutex_);
    if (block.use.load(std::memory_order_acquire) != SharedUse::kGone) return false;
    absl::Status status = pool_->Deallocate(ptr, after);
    if (!status.ok()) return status;
    return true;
  }

  // For threads that are ending already, and have no cache of their own.
  ThreadCache& common() { return common_; }

  Stats GetStats() {
    Stats stats = pool_->GetStats();
    core::MutexLock lock(mutex_);
    AddCounts(stats);
    peak_bytes_ = std::max(peak_bytes_, stats.bytes_in_use);
    peak_requested_ = std::max(peak_requested_, stats.requested_bytes);
    stats.peak_bytes_in_use = stats.peak_allocated_bytes = peak_bytes_;
    stats.peak_requested_bytes = peak_requested_;
    return stats;
  }

  void ResetPeaks() {
    const Stats stats = GetStats();
    core::MutexLock lock(mutex_);
    pool_->ResetPeakStats();
    const auto reset = [](ThreadCache& cache) {
      core::MutexLock cache_lock(cache.lock);
      cache.allocs.Set(0);
      cache.frees.Set(0);
      cache.largest.Set(0);
    };
    reset(common_);
    for (const auto& cache : caches_) reset(*cache);
    fetched_ = returned_ = vain_ = 0;
    peak_bytes_ = stats.bytes_in_use;
    peak_requested_ = stats.requested_bytes;
  }

  // An attempt of the pool that failed for no caller.
  void CountVain() { ++vain_; }

 private:
  // Whole chains of one class.
  struct alignas(64) Depot {
    core::SpinLock lock{core::SpinLock::Use::kManyThreads};
    SharedBlock* first HBM_GUARDED_BY(lock) = nullptr;

    Chain Take(std::atomic<std::size_t>* total, std::size_t block_bytes) {
      Chain chain;
      {
        core::MutexLock hold(lock);
        if (first == nullptr) return chain;
        chain = {first, first->chain_length};
        first = first->next_chain;
      }
      total->fetch_sub(chain.length * block_bytes, std::memory_order_relaxed);
      return chain;
    }
    void Put(Chain chain, std::atomic<std::size_t>* total, std::size_t block_bytes) {
      total->fetch_add(chain.length * block_bytes, std::memory_order_relaxed);
      chain.head->chain_length = chain.length;
      core::MutexLock hold(lock);
      chain.head->next_chain = first;
      first = chain.head;
    }
  };

  // Adds at most `count` blocks to the chain.
  void TakeFromPool(std::uint32_t size_class, std::uint32_t count, Chain* chain)
      HBM_EXCLUDES(return_mutex_) {
    if (TakeWhatIsFree(size_class, count, chain) != 0) return;
    // The pool may grow, which must not be waited for under a lock; so what it gave
    // then goes back first.
    AllocError why;
    void* const ptr = pool_->TryAllocate(ClassBytes(size_class), {}, &why);
    if (ptr == nullptr) return CountVain();
    ++fetched_;
    ++returned_;
    pool_->Deallocate(ptr).IgnoreError();
    TakeWhatIsFree(size_class, count, chain);
  }

  // The same without a call of the driver; how many.
  std::uint32_t TakeWhatIsFree(std::uint32_t size_class, std::uint32_t count, Chain* chain)
      HBM_EXCLUDES(return_mutex_) {
    std::array<Pool::Pooled, kMostBlocks> taken;
    std::uint32_t kept = 0;
    std::int64_t bytes = 0;
    // Until the cache says that a block is its own, a caller's second free of it would
    // succeed in the pool.
    core::MutexLock lock(return_mutex_);
    const std::uint32_t got = pool_->TakeSeveral(ClassBytes(size_class), count, taken.data());
    for (std::uint32_t i = 0; i < got; ++i) {
      SharedBlock* const block = blocks_.Add(taken[i].address);
      if (block == nullptr) {  // too many different addresses
        pool_->FreeSeveral(&taken[i].address, 1);
        continue;
      }
      ++kept;
      bytes += static_cast<std::int64_t>(taken[i].chunk_bytes);
      block->size_class = size_class;
      block->chunk_bytes = taken[i].chunk_bytes;
      block->use.store(SharedUse::kCached, std::memory_order_release);
      chain->Push(block);
    }
    fetched_ += got;
    returned_ += got - kept;
    held_bytes_ += bytes;
    held_requested_ += static_cast<std::int64_t>(kept * ClassBytes(size_class));
    return kept;
  }

  void GiveBack(Chain chain) HBM_EXCLUDES(return_mutex_) {
    std::array<std::uint64_t, kMostBlocks> addresses;
    while (chain.length != 0) {
      std::uint32_t count = 0;
      std::int64_t bytes = 0;
      std::int64_t requested = 0;
      // Both at once: between them a second free of a block would find it gone from
      // the cache and still live in the pool, and succeed.
      core::MutexLock lock(return_mutex_);
      for (; count < kMostBlocks && chain.length != 0; ++count) {
        SharedBlock* const block = chain.Pop();
        addresses[count] = block->address.load(std::memory_order_relaxed);
        bytes += static_cast<std::int64_t>(block->chunk_bytes);
        requested += static_cast<std::int64_t>(ClassBytes(block->size_class));
        block->use.store(SharedUse::kGone, std::memory_order_release);
      }
      returned_ += count;
      held_bytes_ -= bytes;
      held_requested_ -= requested;
      pool_->FreeSeveral(addresses.data(), count);
    }
  }

  static std::vector<Chain> TakeAll(ThreadCache& cache) {
    std::vector<Chain> chains;
    core::MutexLock lock(cache.lock);
    for (ThreadCache::Magazines& magazines : cache.magazines) {
      for (Chain* chain : {&magazines.loaded, &magazines.spare}) {
        if (chain->length != 0) chains.push_back(std::exchange(*chain, Chain{}));
      }
    }
    return chains;
  }

  bool DrainCache(ThreadCache& cache) {
    const std::vector<Chain> chains = TakeAll(cache);
    for (const Chain& chain : chains) GiveBack(chain);
    return !chains.empty();
  }

  // The pool counts what is cached as live; callers do not.
  void AddCounts(Stats& stats) HBM_REQUIRES(mutex_) {
    stats.num_allocs -= fetched_;
    stats.num_frees -= returned_;
    stats.num_failures -= vain_;
    stats.bytes_in_use -= held_bytes_;
    stats.requested_bytes -= held_requested_;
    if (fetched_ != 0) stats.largest_alloc_size = 0;
    const auto add = [&stats](const ThreadCache& cache) {
      stats.num_allocs += cache.allocs.Get();
      stats.num_frees += cache.frees.Get();
      stats.bytes_in_use += cache.live_bytes.Get();
      stats.requested_bytes += cache.live_requested.Get();
      stats.largest_alloc_size = std::max(stats.largest_alloc_size, cache.largest.Get());
    };
    add(common_);
    for (const auto& cache : caches_) add(*cache);
  }

  void NotePeak() { GetStats(); }

  std::unique_ptr<Pool> pool_;
  core::SharedBlocks blocks_;
  const std::uint64_t id_ = ++last_id_;
  std::array<Depot, kClasses> depot_;
  std::atomic<std::size_t> depot_bytes_{0};
  std::atomic<std::int64_t> fetched_{0};   // blocks had from the pool
  std::atomic<std::int64_t> returned_{0};  // and given back
  std::atomic<std::int64_t> held_bytes_{0};
  std::atomic<std::int64_t> held_requested_{0};
  std::atomic<std::int64_t> vain_{0};
  std::atomic<std::int64_t> num_caches_{0};
  ThreadCache common_;

  core::Mutex return_mutex_;  // what is given back is gone from both books, or from neither

  core::Mutex mutex_;
  std::vector<std::unique_ptr<ThreadCache>> caches_ HBM_GUARDED_BY(mutex_);
  std::vector<ThreadCache*> idle_ HBM_GUARDED_BY(mutex_);
  std::int64_t peak_bytes_ HBM_GUARDED_BY(mutex_) = 0;
  std::int64_t peak_requested_ HBM_GUARDED_BY(mutex_) = 0;

  // Never used again, so that a thread's memory of a dead allocator misleads nobody.
  static inline std::atomic<std::uint64_t> last_id_{0};
};

// The caches that a thread has, of all allocators that it used.
class CachesOfThread {
 public:
  ~CachesOfThread();
  ThreadCache* Find(const std::shared_ptr<Shared>& shared) {
    for (Entry& entry : entries_) {
      if (entry.id == shared->id()) return entry.cache;
    }
    // Allocators that ended leave their entries behind.
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                  [](const Entry& entry) { return entry.shared.expired(); }),
                   entries_.end());
    entries_.push_back({shared->id(), shared, shared->NewCache()});
    return entries_.back().cache;
  }

 private:
  struct Entry {
    std::uint64_t id;
    std::weak_ptr<Shared> shared;
    ThreadCache* cache;
  };
  std::vector<Entry> entries_;
};

// The last one that this thread used, for a look without a call.
struct Latest {
  std::uint64_t id;
  ThreadCache* cache;
  bool thread_ends;
};
__thread Latest latest __attribute__((tls_model("initial-exec")));
thread_local CachesOfThread caches_of_thread;

CachesOfThread::~CachesOfThread() {
  latest = Latest{0, nullptr, true};
  for (const Entry& entry : entries_) {
    if (const std::shared_ptr<Shared> shared = entry.shared.lock()) shared->Retire(entry.cache);
  }
}

class ThreadCached final : public Allocator, public ReportWalk {
 public:
  ThreadCached(std::unique_ptr<Pool> pool, std::shared_ptr<MemorySource> source)
      : Allocator(pool->policy()),
        source_(std::move(source)),
        shared_(std::make_shared<Shared>(std::move(pool))) {}
  ~ThreadCached() override {
    EndSharing();
    shared_->Close();
  }

  Snapshot TakeReportSnapshot() const override {
    return SeenByCallers(shared_->TakeReportSnapshot());
  }

 private:
  void* DoAllocate(const Request& request, AllocError* why) noexcept override {
    if (HBM_UNLIKELY(request.bytes > kMaxCached || request.alignment > kUnit)) {
      return Direct(request, why);
    }
    const std::uint32_t size_class = ClassOf(request.bytes);
    ThreadCache& cache = Mine();
    if (void* const block = Pop(cache, size_class, request)) return block;
    const Chain chain = shared_->Fill(cache, size_class);
    if (chain.length == 0) return Direct(request, why);
    Chain left_over;
    {
      core::MutexLock lock(cache.lock);
      left_over = std::exchange(cache.magazines[size_class].loaded, chain);
    }
    shared_->Spill(left_over, size_class);
    if (void* const block = Pop(cache, size_class, request)) return block;
    return Direct(request, why);  // drained by another thread just now
  }

  void* Pop(ThreadCache& cache, std::uint32_t size_class, const Request& request) {
    core::MutexLock lock(cache.lock);
    ThreadCache::Magazines& magazines = cache.magazines[size_class];
    if (magazines.loaded.length == 0) {
      if (magazines.spare.length == 0) return nullptr;
      std::swap(magazines.loaded, magazines.spare);
    }
    SharedBlock* const block = magazines.loaded.Pop();
    block->requested.store(request.bytes, std::memory_order_relaxed);
    block->stream.store(request.stream.value(), std::memory_order_relaxed);
    block->tag.store(request.tag.value, std::memory_order_relaxed);
    cache.allocs.Add(1);
    cache.live_requested.Add(static_cast<std::int64_t>(request.bytes));
    cache.live_bytes.Add(static_cast<std::int64_t>(block->chunk_bytes));
    cache.largest.RaiseTo(static_cast<std::int64_t>(block->chunk_bytes));
    block->use.store(SharedUse::kLive, std::memory_order_release);
    return PointerTo(block->address.load(std::memory_order_relaxed));
  }

  absl::Status DoDeallocate(void* ptr, StreamRef after) override {
    SharedBlock* const block = shared_->blocks().Find(AddressOf(ptr));
    if (block == nullptr) return shared_->pool().Deallocate(ptr, after);
    SharedUse use = SharedUse::kLive;
    // Of two frees of one block only one passes here.
    while (
        !block->use.compare_exchange_strong(use, SharedUse::kCached, std::memory_order_acq_rel)) {
      if (use != SharedUse::kGone) return absl::CancelledError();
      const absl::StatusOr<bool> is_freed = shared_->FreeInPool(*block, ptr, after);
      if (!is_freed.ok()) return is_freed.status();
      if (*is_freed) return absl::OkStatus();
      use = SharedUse::kLive;  // it came back into the cache just now
    }
    const std::uint32_t size_class = block->size_class;
    Chain full;
    ThreadCache& cache = Mine();
    {
      core::MutexLock lock(cache.lock);
      cache.frees.Add(1);
      cache.live_requested.Add(
          -static_cast<std::int64_t>(block->requested.load(std::memory_order_relaxed)));
      cache.live_bytes.Add(-static_cast<std::int64_t>(block->chunk_bytes));
      ThreadCache::Magazines& magazines = cache.magazines[size_class];
      if (magazines.loaded.length >= MagazineSize(size_class)) {
        full = std::exchange(magazines.spare, magazines.loaded);
        magazines.loaded = Chain{};
      }
      magazines.loaded.Push(block);
    }
    if (HBM_UNLIKELY(full.length != 0)) shared_->Spill(full, size_class);
    return absl::OkStatus();
  }

  ThreadCache& Mine() {
    if (HBM_LIKELY(latest.id == shared_->id())) return *latest.cache;
    if (latest.thread_ends) return shared_->common();
    latest = Latest{shared_->id(), caches_of_thread.Find(shared_), false};
    return *latest.cache;
  }

  // By the pool itself; if it has none, with all that is cached given back.
  void* Direct(const Request& request, AllocError* why) {
    AllocateOptions options;
    options.alignment = request.alignment;
    options.stream = request.stream;
    options.tag = request.tag;
    void* block = shared_->pool().TryAllocate(request.bytes, options, why);
    if (block == nullptr && why->code == absl::StatusCode::kResourceExhausted && shared_->Drain()) {
      shared_->CountVain();
      block = shared_->pool().TryAllocate(request.bytes, options, why);
    }
    return block;
  }

  absl::Status DoRecordUse(void* ptr, StreamRef stream) override {
    const SharedBlock* const block = shared_->blocks().Find(AddressOf(ptr));
    const SharedUse use = block == nullptr ? SharedUse::kGone : block->use.load();
    if (use == SharedUse::kGone) return shared_->pool().RecordUse(ptr, stream);
    return use == SharedUse::kLive ? absl::OkStatus() : absl::CancelledError();
  }

  absl::StatusOr<BlockInfo> DoDescribe(const void* ptr) const override {
    absl::StatusOr<BlockInfo> info = shared_->pool().Describe(ptr);
    if (!info.ok()) return info;
    const SharedBlock* const block = shared_->blocks().Find(AddressOf(info->address));
    if (block == nullptr || block->use == SharedUse::kGone) return info;
    if (block->use == SharedUse::kCached) {
      return absl::NotFoundError("no live block of this allocator holds the address");
    }
    info->requested_bytes = block->requested;
    info->stream = StreamRef::FromHandle(PointerTo(block->stream));
    info->tag = TagId{block->tag};
    return info;
  }

  Stats DoGetStats() const override { return shared_->GetStats(); }
  void DoGetFigures(Figures* figures) const override {
    Figures pool = shared_->pool().GetFigures();
    figures->regions = std::move(pool.regions);
    figures->bins = std::move(pool.bins);
  }
  void DoResetPeakStats() override { shared_->ResetPeaks(); }

  Snapshot DoTakeSnapshot() const override { return SeenByCallers(shared_->pool().TakeSnapshot()); }
  // Of the pool's chunks, those that the cache holds are free.
  Snapshot SeenByCallers(Snapshot snapshot) const {
    for (Snapshot::Region& region : snapshot.regions) {
      for (Snapshot::Chunk& chunk : region.chunks) {
        if (chunk.state != ChunkState::kLive) continue;
        const SharedBlock* const block = shared_->blocks().Find(AddressOf(chunk.address));
        if (block == nullptr || block->use == SharedUse::kGone) continue;
        const bool is_live = block->use == SharedUse::kLive;
        chunk.state = is_live ? ChunkState::kLive : ChunkState::kFree;
        chunk.requested_bytes = is_live ? block->requested.load() : 0;
        chunk.tag = TagId{is_live ? block->tag.load() : 0};
      }
    }
    return snapshot;
  }

  absl::StatusOr<TrimResult> DoTrim(const TrimOptions& options) override {
    shared_->Drain();
    return shared_->pool().Trim(options);
  }
  absl::Status DoAddPeer(int ordinal) override { return shared_->pool().AddPeer(ordinal); }
  absl::Status DoSetRegionCallback(std::shared_ptr<const RegionCallback> callback) override {
    if (callback == nullptr) return shared_->pool().SetRegionCallback(nullptr);
    return shared_->pool().SetRegionCallback(
        [callback](const RegionChange& change) { return (*callback)(change); });
  }
  absl::Status DoSetMemoryLimit(std::size_t bytes) override {
    shared_->Drain();
    return shared_->pool().SetMemoryLimit(bytes);
  }
  Timeline* DoGetTimeline() const override { return source_->timeline(); }
  absl::StatusOr<MemoryInfo> DoGetDeviceMemory() const override { return source_->GetMemoryInfo(); }

  const std::shared_ptr<MemorySource> source_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<Allocator> MakeThreadCached(std::unique_ptr<Pool> pool,
                                            std::shared_ptr<MemorySource> source) {
  return std::make_unique<ThreadCached>(std::move(pool), std::move(source));
}

}  // namespace hbm::strategies
