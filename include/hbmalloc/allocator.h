// SPDX-License-Identifier: Apache-2.0
//
// File: allocator.h
//
// The one interface behind which every strategy stands.
//
//   absl::StatusOr<std::shared_ptr<hbm::Device>> device = hbm::OpenDevice("cuda:0");
//   absl::StatusOr<hbm::Policy> policy = hbm::ParsePolicy("bfc:memory_fraction=0.5");
//   auto allocator = hbm::MakeAllocator(*policy, *device);
//   absl::StatusOr<void*> block = (*allocator)->Allocate(1 << 20);
//   absl::Status freed = (*allocator)->Deallocate(*block);
#ifndef HBMALLOC_ALLOCATOR_H_
#define HBMALLOC_ALLOCATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "hbmalloc/device.h"
#include "hbmalloc/event.h"
#include "hbmalloc/memory_source.h"
#include "hbmalloc/out_of_memory.h"
#include "hbmalloc/policy.h"
#include "hbmalloc/region_change.h"
#include "hbmalloc/stats.h"
#include "hbmalloc/stream.h"
#include "hbmalloc/tag.h"

namespace hbm {

namespace internal {
class Observation;
}
namespace sharing {
class Membership;
}
namespace strategies {
class AllocatorMaker;
}

// The largest alignment that can be asked for, in bytes.
inline constexpr std::size_t kMaxAlignment = std::size_t{2} << 20;
// Every block is aligned to at least this many bytes.
inline constexpr std::size_t kMinAlignment = 256;

struct AllocateOptions {
  // Bytes; a power of two up to kMaxAlignment. Less than 256 means 256.
  std::size_t alignment = kMinAlignment;
  // The stream whose work will use the block.
  StreamRef stream;
  // Unset: the thread's current tag.
  TagId tag;
  // How long Allocate may wait for memory; negative: the policy's max_wait.
  absl::Duration max_wait = -absl::InfiniteDuration();
  // elastic: backed by one physical handle that never moves while the block is
  // live, as NCCL, RDMA and IPC registration want it. Other strategies' blocks are
  // always so.
  bool contiguous = false;
};

// Names the memory that captured graphs use. Zero names none.
struct CapturePool {
  std::uint64_t id = 0;
};

// What TryAllocate says of a failure, without building text.
struct AllocError {
  absl::StatusCode code = absl::StatusCode::kOk;
  OomCause cause = OomCause::kNone;
};

// What is known of the block that an address lies in.
struct BlockInfo {
  void* address = nullptr;          // the block's base
  std::size_t requested_bytes = 0;  // as asked for
  std::size_t chunk_bytes = 0;      // with rounding
  StreamRef stream;                 // that it was allocated on
  TagId tag;
  MemoryRange region;  // the contiguous run from the source that holds it
};

enum class ChunkState { kFree, kLive, kPending };

// The layout of a pool at one moment, in address order.
struct Snapshot {
  struct Chunk {
    void* address = nullptr;
    std::size_t bytes = 0;
    std::size_t requested_bytes = 0;  // 0 unless live
    ChunkState state = ChunkState::kFree;
    StreamRef stream;
    TagId tag;
  };
  struct Region {
    MemoryRange range;
    std::vector<Chunk> chunks;
  };
  std::vector<Region> regions;
};

struct TrimOptions {
  // The pool is not brought below this many bytes.
  std::size_t keep_pool_bytes = 0;
  // How long to wait for work on freed memory to end.
  absl::Duration max_wait = absl::ZeroDuration();
};

// All in bytes.
struct TrimResult {
  std::size_t released = 0;  // given back to the device by this call
  std::size_t pending = 0;   // free, but work on it is still in flight
  // Free, but in one piece with memory that is in use, or kept by a region callback.
  std::size_t pinned = 0;
};

// All functions are thread-safe unless they say otherwise; none throws. A
// pointer stays valid until it is given to Deallocate or the allocator is
// destroyed. Destroying an allocator with live blocks warns, and gives all memory
// back once the device's work is done.
class Allocator {
 public:
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  virtual ~Allocator();

  // A block of at least `bytes` bytes. Zero bytes: a null pointer and OK.
  //   ResourceExhausted  no memory; the message is a report, GetOomCause tells
  //                      the cause.
  //   InvalidArgument    a bad alignment or stream.
  //   Internal           the driver is in a state that it does not recover from.
  // Cost: a hit calls no driver and blocks on nothing but a short lock; a miss
  // may call the driver; waits at most max_wait for others to free memory, and not
  // at all for more than the limit. elastic may also wait for work on freed memory to
  // end, as its last resort.
  absl::StatusOr<void*> Allocate(std::size_t bytes, const AllocateOptions& options = {});

  // The same, but never waits and builds no report: null on failure, and `why`
  // (if given) says so. Null with why->code == kOk is a request of zero bytes.
  void* TryAllocate(std::size_t bytes, const AllocateOptions& options = {},
                    AllocError* why = nullptr) noexcept;

  // Frees a block once the work queued so far on `after` is done. Null is OK.
  // InvalidArgument, and nothing changes: a pointer that was never given out, that
  // lies inside a block, or that is freed already.
  absl::Status Deallocate(void* ptr, StreamRef after = StreamRef::OfAllocation());

  // Says that the block is used on `stream` too: it is held back after its free
  // until the work queued there by then is done, so the stream must live until then.
  // Null is OK. InvalidArgument as above, and for a stream that is no handle.
  absl::Status RecordUse(void* ptr, StreamRef stream);

  // The live block that an address lies in. NotFound if there is none. The first
  // call for an address inside a block (not its base) builds an index, in time
  // proportional to the chunks; later ones take logarithmic time.
  absl::StatusOr<BlockInfo> Describe(const void* ptr) const;

  // Memory for CUDA graphs. A graph is launched with the addresses of its capture,
  // so what a capture used must stay in place, mapped and unused by others for as long
  // as the graph may run:
  //
  //   CapturePool pool = *allocator->BeginCapturePool(stream);
  //   cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  //   ...allocate, launch and free on the stream...
  //   cudaStreamEndCapture(stream, &graph);
  //   allocator->EndCapturePool(pool);
  //   ...launch the graph, as often as you like...
  //   allocator->ReleaseCapturePool(pool, launch_stream);
  //
  // Between Begin and End a block belongs to the pool if it is allocated on `stream`,
  // or on a stream that joined its capture; if it is freed there; or if RecordUse says
  // that it is used there. Its owner may free it as usual: it is then kept, for later
  // requests of the same pool and stream alone, until every pool it belongs to is
  // released. No strategy moves, unmaps or gives back the memory below it meanwhile.
  // What was allocated before and is freed after the capture, and is only read or
  // written in between, is known by RecordUse alone.
  //
  // Begin comes before the capture: it may wait for work on freed memory, and call the
  // driver. With a `pool` that was ended, its kept blocks are used again: its graphs
  // are then launched in the order of their captures and not at once. A request in a
  // capture that needs what the driver forbids there (waiting for work) is
  // FailedPrecondition, and the capture goes on.
  //   InvalidArgument    no living stream, no such pool, or it is open already.
  absl::StatusOr<CapturePool> BeginCapturePool(StreamRef stream, CapturePool pool = {});
  // Blocks are added no more. InvalidArgument: the pool is not open.
  absl::Status EndCapturePool(CapturePool pool);
  // The graphs are launched no more, and their last launch was queued on `after` (or is
  // done: Synchronized()). Kept blocks become free in that order; live ones are their
  // owners' as any other. On an error, what could not be freed stays, and the call can
  // be made again.
  //   InvalidArgument    no such pool, or no stream.
  //   FailedPrecondition the pool is open still, or `after` is being captured.
  absl::Status ReleaseCapturePool(CapturePool pool, StreamRef after);

  Stats GetStats() const;
  // Peaks become the current values; num_allocs, num_frees, num_failures and
  // largest_alloc_size start again.
  void ResetPeakStats();
  Fragmentation GetFragmentation() const;
  // The same, and by region and by bin. Takes a short lock for a time in the number
  // of bins and regions; each part is consistent in itself. Calls no driver.
  Figures GetFigures() const;
  // Walks every chunk: for people and tools, not for hot paths.
  Snapshot TakeSnapshot() const;

  // Gives idle memory back to the device. Calls the driver.
  absl::StatusOr<TrimResult> Trim(const TrimOptions& options = {});

  // Changes the limit. Below what is held, nothing is taken from live blocks;
  // new memory waits until the pool is under the limit again.
  absl::Status SetMemoryLimit(std::size_t bytes);

  // Replace what is called when a request finds no memory, and after every event; null
  // is none. A call that is under way in another thread may still end after this
  // returns. An event callback makes every call several times slower.
  void SetLowMemoryCallback(LowMemoryCallback callback);
  void SetEventCallback(EventCallback callback);

  // With debug=guard or poison: looks at every red zone and every block that is held
  // back, and lists in DataLoss what was overwritten. Blocks that are being written to
  // by right are no trouble. OK where nothing is checked. Slow: reads the device.
  absl::Status CheckMemory() const;

  // Lets another device read and write all memory of this allocator directly, as the
  // policy's `peers` does from the start: what is mapped now, before this returns, and
  // what will be. Once given it stays. Calls the driver for every mapping.
  //   InvalidArgument     no such device, or it cannot access this one's memory.
  //   Unimplemented       not with memory of cudaMalloc that is held already, nor with
  //                       cuda_async: name the peer in the policy.
  // If the driver fails for a mapping, no access is left that was not there before.
  absl::Status AddPeer(int ordinal);

  // Tells `callback` of every range of memory that comes and goes: of those held now
  // before this returns. It replaces the one before, which is not called any more once
  // this returns; null is none. Waits for calls of the one before to end.
  //   FailedPrecondition  from inside the callback.
  //   Unimplemented       cuda_async: the driver maps its memory and does not say.
  absl::Status SetRegionCallback(RegionCallback callback);

  // The effective policy: every optional field set, after clamping.
  const Policy& policy() const { return policy_; }

 protected:
  // What a strategy is asked for, checked already: bytes is not 0 and alignment
  // is a power of two from 256 to kMaxAlignment.
  struct Request {
    std::size_t bytes;
    std::size_t alignment;
    StreamRef stream;
    TagId tag;
    bool contiguous;
    // Whether the caller may be blocked until work on freed memory is done.
    bool may_wait = false;
  };

  explicit Allocator(Policy effective_policy);

  // For strategies: freed memory became available, so callers that wait for
  // memory look again. Cheap when nobody waits. Not called under a strategy's lock.
  void NotifyFreed() {
    if (waiters_.load(std::memory_order_seq_cst) != 0) WakeWaiters();
  }
  void SetEffectivePolicy(Policy policy) { policy_ = std::move(policy); }
  // A strategy's destructor begins with this: with sharing, a thread that calls the
  // allocator ends here.
  void EndSharing();

 private:
  friend class strategies::AllocatorMaker;

  virtual void* DoAllocate(const Request& request, AllocError* why) noexcept = 0;
  // Cancelled: the pointer is no live block's base (the base class words the error).
  virtual absl::Status DoDeallocate(void* ptr, StreamRef after) = 0;
  virtual absl::Status DoRecordUse(void* ptr, StreamRef stream) = 0;
  virtual absl::StatusOr<BlockInfo> DoDescribe(const void* ptr) const = 0;
  virtual Stats DoGetStats() const = 0;
  // Fills in regions and bins.
  virtual void DoGetFigures(Figures* figures) const = 0;
  virtual void DoResetPeakStats() = 0;
  virtual Snapshot DoTakeSnapshot() const = 0;
  virtual absl::StatusOr<TrimResult> DoTrim(const TrimOptions& options) = 0;
  virtual absl::Status DoSetMemoryLimit(std::size_t bytes) = 0;
  // Null if work on the memory is always done when a block is freed.
  virtual Timeline* DoGetTimeline() const { return nullptr; }
  virtual absl::Status DoCheckMemory() const { return absl::OkStatus(); }
  virtual absl::Status DoAddPeer(int ordinal);
  // Null is none.
  virtual absl::Status DoSetRegionCallback(std::shared_ptr<const RegionCallback> callback);
  // What the device has now, for reports. Unavailable if it cannot be asked.
  virtual absl::StatusOr<MemoryInfo> DoGetDeviceMemory() const {
    return absl::UnavailableError("the strategy does not ask its device");
  }

  // The same three for an allocator that is watched: see strategies/observation.h.
  absl::StatusOr<void*> AllocateWatched(std::size_t bytes, const AllocateOptions& options);
  void* TryAllocateWatched(std::size_t bytes, const AllocateOptions& options,
                           AllocError* why) noexcept;
  absl::Status DeallocateWatched(void* ptr, StreamRef after);
  bool is_watched() const { return __builtin_expect(watched_.load(std::memory_order_relaxed), 0); }
  struct Tried;
  bool TryAgainAfterCallback(std::size_t bytes, const AllocateOptions& options, AllocError* why,
                             void** block, Tried* tried);

  // While there are capture pools, the allocator is watched.
  template <bool kMayCapture>
  void* Attempt(std::size_t bytes, const AllocateOptions& options, bool may_wait,
                AllocError* why) noexcept;
  absl::StatusOr<void*> AllocateSlow(std::size_t bytes, const AllocateOptions& options,
                                     AllocError why);
  bool IsImpossible(std::size_t bytes) const;
  absl::Status FailedAllocation(std::size_t bytes, const AllocateOptions& options,
                                const AllocError& why, const Tried& tried) const;
  absl::Status FailedDeallocation(const void* ptr, absl::Status why) const;
  absl::Status BadPointer(const void* ptr, std::string_view operation) const;
  void WakeWaiters();

  // Beside capture pools: see strategies/capture.cc.
  void* AllocateBesideCaptures(const Request& request, AllocError* why) noexcept;
  absl::Status DeallocateBesideCaptures(void* ptr, StreamRef after);
  absl::Status RecordUseBesideCaptures(void* ptr, StreamRef stream);
  CapturePool CaptureOf(StreamRef stream) const;
  bool IsInCapture(StreamRef stream) const;
  absl::Status AddToCapture(CapturePool pool, void* ptr, const Request* request);
  absl::Status KeepForCapture(void* ptr, StreamRef last, bool is_reusable);
  absl::Status LeaveCapture(CapturePool pool, std::uintptr_t address, StreamRef after);
  void UseOutsideOfCapture(void* ptr, StreamRef stream);
  absl::StatusOr<BlockInfo> DescribeBesideCaptures(absl::StatusOr<BlockInfo> info) const;
  void MarkKept(Snapshot* snapshot) const;
  void BeginSharing(std::unique_ptr<sharing::Membership> membership);
  // From now on children of fork get FailedPrecondition.
  void RefuseInChildren();
  absl::Status CheckProcess() const;

  struct Waiting;
  struct Captures;
  Policy policy_;
  std::atomic<int> waiters_{0};
  std::atomic<bool> watched_{false};  // beside waiters_: one cache line for both
  std::unique_ptr<internal::Observation> observation_;
  friend class internal::Observation;
  std::unique_ptr<Waiting> waiting_;
  std::unique_ptr<Captures> captures_;
};

// In the header so that checks of options which the compiler can see cost nothing.
template <bool kMayCapture>
inline void* Allocator::Attempt(std::size_t bytes, const AllocateOptions& options, bool may_wait,
                                AllocError* why) noexcept {
  *why = AllocError{};
  if (bytes == 0) return nullptr;
  const std::size_t alignment = options.alignment;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kMaxAlignment ||
      options.stream.is_of_allocation()) {
    why->code = absl::StatusCode::kInvalidArgument;
    return nullptr;
  }
  const Request request{bytes,
                        alignment < kMinAlignment ? kMinAlignment : alignment,
                        options.stream,
                        options.tag.value != 0 ? options.tag : CurrentTag(),
                        options.contiguous,
                        may_wait};
  if constexpr (kMayCapture) {
    return AllocateBesideCaptures(request, why);
  } else {
    return DoAllocate(request, why);
  }
}

inline void* Allocator::TryAllocate(std::size_t bytes, const AllocateOptions& options,
                                    AllocError* why) noexcept {
  AllocError unused;
  if (why == nullptr) why = &unused;
  if (is_watched()) return TryAllocateWatched(bytes, AllocateOptions(options), why);
  return Attempt<false>(bytes, options, false, why);
}

inline absl::StatusOr<void*> Allocator::Allocate(std::size_t bytes,
                                                 const AllocateOptions& options) {
  // Copies, so that the options' own address goes nowhere and the compiler knows them
  // still after reading the flag.
  if (is_watched()) return AllocateWatched(bytes, AllocateOptions(options));
  AllocError why;
  void* const block = Attempt<false>(bytes, options, true, &why);
  if (block != nullptr || why.code == absl::StatusCode::kOk) return block;
  return AllocateSlow(bytes, AllocateOptions(options), why);
}

inline absl::Status Allocator::Deallocate(void* ptr, StreamRef after) {
  if (ptr == nullptr) return absl::OkStatus();
  if (is_watched()) return DeallocateWatched(ptr, after);
  absl::Status status = DoDeallocate(ptr, after);
  if (!status.ok()) return FailedDeallocation(ptr, std::move(status));
  NotifyFreed();
  return status;
}

// Makes the allocator that `policy` describes. `bfc` takes its pool here.
//   InvalidArgument    a field, its value, and what is allowed; also a strategy that
//                      the source cannot serve (elastic without virtual memory), or
//                      a limit that leaves less than one granule of memory.
//   ResourceExhausted  the pool does not fit and on_shortage=fail, or nothing of
//                      it is free.
//   Unimplemented      cuda_async on a device without a driver pool.
//   Unavailable        no driver.
absl::StatusOr<std::unique_ptr<Allocator>> MakeAllocator(const Policy& policy,
                                                         std::shared_ptr<Device> device);
// The same over a runtime's own memory. The policy's fraction applies to the
// source's total.
absl::StatusOr<std::unique_ptr<Allocator>> MakeAllocator(const Policy& policy,
                                                         std::shared_ptr<MemorySource> source);

}  // namespace hbm

#endif  // HBMALLOC_ALLOCATOR_H_
