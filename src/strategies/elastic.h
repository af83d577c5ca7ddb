// SPDX-License-Identifier: Apache-2.0
//
// File: elastic.h
//
// The strategy `elastic`: best fit over one large range of addresses, with
// physical memory only behind what needs it. Pages of free ranges move to where a
// request needs them; the pool stays close to what is live.
//
//   absl::StatusOr<std::unique_ptr<Allocator>> elastic = MakeElastic(std::move(context));
//
// A request is met, in this order, from
//   1. a free chunk that is backed from end to end: no driver call;
//   2. a place that is partly or not backed, whose holes are filled with idle
//      handles, with new ones (up to the budget that the slack sets), or with
//      handles stolen from free ranges elsewhere: unmapped there, mapped here;
//   3. the same after work that still uses free ranges has ended, for as long as the
//      policy's reuse_wait allows, and then with new handles beyond the budget;
//   4. after such work has ended, however long that takes: the last resort.
//
// The rule that no driver enforces: a page leaves a free range only when all work
// that used the range is done. cuMemUnmap does not wait for kernels. The proof is
// kept in work_log.h: every free is noted with its stream, and only a marker in
// that stream's work, seen done, takes the note away. A handle is idle if it lies
// wholly in a free chunk and no note overlaps it; only idle handles are unmapped
// (GatherIdle is the one place that says so). Nothing is lost if the chunk was
// used again in between: then it is not free, or its newer free has a newer note.
//
// Whose free chunks. One stream owns the free chunks of order kSafe: at most its work,
// which the notes know, may still touch them. It is given them at once, so they
// coalesce and serve it as if no work was in flight. What another stream frees has that
// stream's order until its work is done. Other streams are given chunks of their own
// order, and of order kSafe what no note overlaps; or a place among the holes. The first
// stream that frees is the owner; another one that asks often becomes it once all notes
// of the owner are done (MayOwnLocked).
//
// Two locks. mutex_ guards the books and is held for tens of nanoseconds;
// growth_mutex_ is held around calls of the source and while waiting, and never
// taken while mutex_ is held. What a plan is going to change is held back in the
// books first, so that hits elsewhere go on meanwhile. A region callback, if there is
// one, runs under neither: what the plan adds is promised, what it takes is held.
#ifndef HBMALLOC_STRATEGIES_ELASTIC_H_
#define HBMALLOC_STRATEGIES_ELASTIC_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/backed_space.h"
#include "core/mutex.h"
#include "core/page_map.h"
#include "hbmalloc/allocator.h"
#include "strategies/counters.h"
#include "strategies/elastic_growth.h"
#include "strategies/idle_timer.h"
#include "strategies/region_watch.h"
#include "strategies/registry.h"
#include "strategies/work_log.h"

namespace hbm::strategies {

absl::StatusOr<std::unique_ptr<Allocator>> MakeElastic(StrategyContext context);

class Elastic final : public Allocator {
 public:
  explicit Elastic(StrategyContext context);
  ~Elastic() override;

  // Reserves the addresses and takes what the policy wants at the start.
  absl::Status Start();

 private:
  using FitRequest = core::BestFit::Request;

  // The address range is in two parts, so that small blocks, which live in the
  // first, do not pin the pages of large ones.
  static constexpr int kSmall = 0;
  static constexpr int kLarge = 1;

  // Physical memory that could be used elsewhere.
  struct IdleHandle {
    core::Mapping mapping;          // address 0: it is not mapped
    std::uint64_t chunk_bytes = 0;  // of the free chunk that it lies in
    std::uint64_t chunk_address = 0;
    core::ChunkId chunk = core::kNoChunk;
    int part = kLarge;
  };

  // One call or two of the driver.
  struct Step {
    enum class Kind {
      kCreate,   // new memory, mapped at `to`
      kMove,     // an idle handle, mapped at `to`
      kRelease,  // an idle handle goes back to the device
    };
    Kind kind = Kind::kCreate;
    std::uint64_t to = 0;
    std::uint64_t bytes = 0;
    std::size_t victim = 0;  // of the plan, for kMove and kRelease
  };
  struct Victim {
    IdleHandle idle;
    core::ChunkId held = core::kNoChunk;  // its addresses, if it was mapped
    bool left = false;                    // it is not there any more
    bool agreed = false;                  // the region callback was told that it goes
  };
  struct NewMapping {
    core::Mapping mapping;
    bool is_new = false;  // made for this, not moved
  };
  // What is to be done to back the range [begin, end). Its books are held back from
  // the moment it is made until Commit.
  struct Plan {
    int part = kLarge;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    core::ChunkId held = core::kNoChunk;
    std::vector<Step> steps;
    std::vector<Victim> victims;
    // Filled in by Execute.
    std::vector<NewMapping> mapped;
    std::vector<core::Mapping> stuck;  // mapped, but neither usable nor unmappable
    std::int64_t pool_change = 0;
    std::int64_t pool_peak = 0;
    std::uint64_t promised = 0;  // new bytes, counted from HoldPlan to Commit
    std::uint64_t missing = 0;   // with kBusy: bytes that would be beyond the budget
    RegionWatch::Change change;
  };
  // Handles that a region callback wants to stay, by address.
  using Vetoed = std::vector<std::uint64_t>;
  enum class Planned {
    kReady,       // the plan's books are held back
    kBusy,        // new memory would be beyond the budget, and waiting may do
    kNoPlace,     // no addresses
    kShort,       // not enough memory, whatever is idle
    kHostMemory,  // the host has no memory for the books
  };

  // How a plan may be made.
  struct Terms {
    bool contiguous = false;  // in one handle
    bool in_hole = false;     // where no free chunk is
    bool all = false;         // in wholly backed places too
    bool may_wait = false;    // before new memory is made beyond the budget
    std::uint64_t limit = 0;
  };

  // What earlier tries of the same request have shown.
  struct Known {
    bool device_is_full = false;
    bool may_wait = false;
    Vetoed vetoed;
  };
  // A block, or a plan and where the block will be.
  struct Found {
    void* block = nullptr;
    core::BackedSpace::Placement at;
    Plan plan;
  };

  // Memory that could not be unmapped after a failure; its addresses stay held.
  struct Stuck {
    int part = kLarge;
    core::ChunkId held = core::kNoChunk;
    std::vector<core::Mapping> mappings;
  };

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
  Timeline* DoGetTimeline() const override { return timeline_; }
  absl::Status DoAddPeer(int ordinal) override;
  absl::Status DoSetRegionCallback(std::shared_ptr<const RegionCallback> callback) override;

  int PartOf(std::uint64_t address) const { return address < large_begin_ ? kSmall : kLarge; }
  // Counts a block that was just made of a chunk; its address.
  void* TakenLocked(int part, core::ChunkId id) HBM_REQUIRES(mutex_) {
    const core::Chunk& chunk = spaces_[part].chunk(id);
    counters_.Allocated(chunk.size, chunk.requested());
    growth_.Allocated(chunk.requested());
    return reinterpret_cast<void*>(chunk.address);  // NOLINT(performance-no-int-to-ptr)
  }
  // A block from what is backed already; null if there is none. The first is the
  // second's text, for the one place where a call would show.
  void* AllocateHit(int part, const FitRequest& request, bool foreign) HBM_REQUIRES(mutex_);
  void* AllocateLocked(int part, const FitRequest& request, bool foreign) HBM_REQUIRES(mutex_);
  void* AllocateForeign(int part, const FitRequest& request) HBM_REQUIRES(mutex_);
  // A piece of a free chunk that no note overlaps.
  void* AllocateQuiet(int part, const FitRequest& request) HBM_REQUIRES(growth_mutex_, mutex_);
  // Sets the order of the chunks that a request of the stream may have at once. True:
  // it is foreign, not the owner's, and may have other chunks only if they are quiet.
  bool IsForeignLocked(StreamRef stream, FitRequest* request) HBM_REQUIRES(mutex_);
  // Makes a foreign request's stream the owner, if it may be.
  bool MayOwnLocked(FitRequest* request) HBM_REQUIRES(mutex_);
  // Whether the range may be handed out as safe for every stream.
  bool IsQuietLocked(std::uint64_t begin, std::uint64_t end) HBM_REQUIRES(mutex_);
  void* AllocateSlow(int part, FitRequest request, const Request& asked, AllocError* why)
      HBM_EXCLUDES(mutex_, growth_mutex_);
  Planned FindOrPlan(int part, const Request& asked, const Known& known, FitRequest* request,
                     Found* found) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  void* AllocateContiguous(const FitRequest& request, bool foreign)
      HBM_REQUIRES(growth_mutex_, mutex_);
  // A block that another stream freed, with this one made to wait for that.
  void* AllocateAcrossStreams(int part, const FitRequest& request, StreamRef stream)
      HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);

  // Everything that may leave its place now.
  // `busy`, if not null: bytes of handles that only wait for work to end.
  std::vector<IdleHandle> GatherIdle(std::uint64_t except_begin, std::uint64_t except_end,
                                     const Vetoed& vetoed, std::uint64_t* busy = nullptr)
      HBM_REQUIRES(growth_mutex_, mutex_);
  Planned MakePlan(int part, const FitRequest& request, const Terms& terms, const Vetoed& vetoed,
                   Found* found) HBM_REQUIRES(growth_mutex_, mutex_);
  Planned FillHoles(const Terms& terms, const core::BackedSpace::Placement& at,
                    const Vetoed& vetoed, Plan* plan) HBM_REQUIRES(growth_mutex_, mutex_);
  bool FillPiece(std::uint64_t begin, std::uint64_t end, bool contiguous, std::uint64_t limit,
                 std::vector<IdleHandle>* idle, std::uint64_t* pool, Plan* plan)
      HBM_REQUIRES(growth_mutex_, mutex_);
  std::uint64_t LargestPinned(const std::vector<IdleHandle>& idle) HBM_REQUIRES(mutex_);
  void SortVictims(std::vector<IdleHandle>* idle) HBM_REQUIRES(mutex_);
  std::size_t BestVictim(const std::vector<IdleHandle>& idle, std::uint64_t wanted,
                         std::uint64_t room, std::uint64_t spare) HBM_REQUIRES(mutex_);
  // False if the host has no memory for the books.
  bool HoldVictims(Plan* plan) HBM_REQUIRES(growth_mutex_, mutex_);
  bool HoldPlan(const core::BackedSpace::Placement& at, Plan* plan)
      HBM_REQUIRES(growth_mutex_, mutex_);
  // The region callback's part, without locks. False if a handle must stay: then the
  // plan is off.
  bool AskToLeave(Plan* plan, Vetoed* vetoed) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  void TellMapped(const Plan& plan, bool done) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  // Calls the driver. On an error everything is as before, but for memory that was
  // on its way: that is idle and not mapped.
  absl::Status Execute(Plan* plan) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  absl::Status ExecuteSteps(Plan* plan) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  absl::Status Detach(Victim* victim) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  absl::Status Attach(std::uint64_t to, std::uint64_t bytes, VirtualMemory::Handle handle,
                      Plan* plan) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  absl::Status GiveAccess(const Plan& plan) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  void UndoMapped(Plan* plan) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  void ReleaseHandle(const core::Mapping& memory, Plan* plan) HBM_REQUIRES(growth_mutex_)
      HBM_EXCLUDES(mutex_);
  // The books follow what Execute did. With `block`, that becomes live.
  core::ChunkId Commit(Plan* plan, bool done, const FitRequest* block, std::uint64_t address)
      HBM_REQUIRES(growth_mutex_, mutex_);
  void RetryStuck() HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);

  // Frees what was held back for other streams' work, if that is done; makes
  // free chunks safe for everyone.
  void PollWorkLocked() HBM_REQUIRES(mutex_);
  void FreeLocked(int part, core::ChunkId id, WorkLog::Entry entry) HBM_REQUIRES(mutex_);
  bool HasPendingLocked() const HBM_REQUIRES(mutex_) {
    return work_.has_pending() || !held_back_.empty();
  }
  // The same for requests that are under way without the lock, inside callbacks.
  bool WaitForOtherPlans(absl::Duration* left) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  // Waits for some work to end, at most until the time left is used up. Returns
  // whether any did.
  bool WaitForWork(StreamRef stream, absl::Duration* left) HBM_REQUIRES(growth_mutex_)
      HBM_EXCLUDES(mutex_);
  // The same for the owner's work on that many freed bytes, if a marker tells of it.
  bool WaitForOwner(StreamRef stream, std::uint64_t bytes, absl::Duration* left)
      HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  bool WaitForMarker(Timeline::Marker marker, const std::vector<std::uint64_t>& noted,
                     absl::Duration* left) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  AllocError Exhausted(const FitRequest& request, Planned why, bool device_is_full,
                       const absl::Status& driver) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);

  // Gives idle handles back, the largest first, while the pool stays at or above
  // `keep` bytes, and one more if it is over `enough` still. With `only`, those that
  // overlap it; with `except`, those that do not. Returns bytes.
  std::uint64_t ReleaseIdle(std::uint64_t keep, std::uint64_t enough, const BusySet* only,
                            const BusySet* except, Vetoed* vetoed = nullptr)
      HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  // What the pool holds over the limit, as far as it is idle.
  std::uint64_t PoolWithPromisesLocked() const HBM_REQUIRES(mutex_) {
    return pool_bytes_ + promised_bytes_;
  }
  void ReleaseExcess() HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  void KeepVetoed(Plan* plan, Vetoed* vetoed) HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  std::uint64_t PendingPageBytes() HBM_REQUIRES(growth_mutex_, mutex_);
  // What has been idle for idle_release.
  void ReleaseExpired() HBM_EXCLUDES(mutex_, growth_mutex_);
  // The same if anything is; the time until more will be.
  absl::Duration ReleaseDue() HBM_EXCLUDES(mutex_, growth_mutex_);
  absl::Duration Now() const;
  absl::Status Preallocate() HBM_EXCLUDES(mutex_, growth_mutex_);
  absl::Status CreateRun(std::uint64_t begin, std::uint64_t end, bool may_be_less, Plan* plan)
      HBM_REQUIRES(growth_mutex_) HBM_EXCLUDES(mutex_);
  void FlushQuarantineLocked(std::uint64_t keep) HBM_REQUIRES(mutex_);

  const std::shared_ptr<Device> device_;  // kept alive, and before the source
  const std::shared_ptr<MemorySource> source_;
  VirtualMemory& memory_;
  Timeline* const timeline_;  // null: work is done when a block is freed
  SimulatedClock* const clock_;
  const std::uint64_t granule_;
  const bool ordered_;
  const absl::Duration reuse_wait_;
  const absl::Duration idle_release_;
  const bool frees_plainly_;  // a free is in no stream's order and no queue
  const std::uint64_t start_bytes_;
  const std::uint64_t quarantine_bytes_;

  MemoryRange reservation_;
  std::uint64_t large_begin_ = 0;

  mutable core::Mutex growth_mutex_;
  core::PageMap pages_ HBM_GUARDED_BY(growth_mutex_);
  // Handles that are not mapped anywhere: a failure left them. First to be used.
  std::vector<core::Mapping> loose_ HBM_GUARDED_BY(growth_mutex_);
  std::vector<Stuck> stuck_ HBM_GUARDED_BY(growth_mutex_);
  RegionWatch watch_;

  mutable core::SpinLock mutex_;
  mutable core::BackedSpace spaces_[2] HBM_GUARDED_BY(mutex_);
  BlockCounters counters_ HBM_GUARDED_BY(mutex_);
  ElasticGrowth growth_ HBM_GUARDED_BY(mutex_);
  WorkLog work_ HBM_GUARDED_BY(mutex_);
  std::uint64_t limit_ HBM_GUARDED_BY(mutex_);
  LimitSource limit_source_ HBM_GUARDED_BY(mutex_);
  std::uint64_t pool_bytes_ HBM_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_pool_bytes_ HBM_GUARDED_BY(mutex_) = 0;
  std::uint64_t promised_bytes_ HBM_GUARDED_BY(mutex_) = 0;  // of plans under way
  std::uint64_t num_mappings_ HBM_GUARDED_BY(mutex_) = 0;
  std::uint64_t waits_ HBM_GUARDED_BY(mutex_) = 0;
  std::int64_t wait_nanoseconds_ HBM_GUARDED_BY(mutex_) = 0;

  // Whose work may still touch chunks of order kSafe; kSafe: nobody freed yet.
  core::OrderId owner_ HBM_GUARDED_BY(mutex_) = core::kSafe;
  int foreign_run_ HBM_GUARDED_BY(mutex_) = 0;  // requests since the owner's last
  // Streams beside its own that a live block is used on, by address.
  std::unordered_map<std::uint64_t, std::vector<StreamRef>> uses_ HBM_GUARDED_BY(mutex_);
  // Freed blocks that other streams' work may still use.
  struct HeldBack {
    int part;
    core::ChunkId id;
    std::vector<WorkLog::Entry> until;
  };
  std::deque<HeldBack> held_back_ HBM_GUARDED_BY(mutex_);
  std::uint64_t held_back_bytes_ HBM_GUARDED_BY(mutex_) = 0;
  struct Quarantined {
    int part;
    core::ChunkId id;
    WorkLog::Entry entry;
  };
  std::deque<Quarantined> quarantine_ HBM_GUARDED_BY(mutex_);
  std::uint64_t quarantined_ HBM_GUARDED_BY(mutex_) = 0;
  // Ranges that were freed, oldest first, for idle_release.
  struct FreedAt {
    absl::Duration when;
    AddressRange range;
  };
  std::deque<FreedAt> freed_at_ HBM_GUARDED_BY(mutex_);
  std::unique_ptr<IdleTimer> idle_timer_;  // if idle_release is not inf
};

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_ELASTIC_H_
