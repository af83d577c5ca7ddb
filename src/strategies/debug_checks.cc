// SPDX-License-Identifier: Apache-2.0
#include "strategies/debug_checks.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/mutex.h"
#include "observe/log.h"
#include "observe/stack_trace.h"
#include "policy/text.h"
#include "strategies/debug_bytes.h"
#include "strategies/leak_report.h"

namespace hbm::strategies {
namespace {

constexpr std::size_t kZone = 256;
constexpr std::size_t kMaxReports = 20;  // of one call of CheckMemory

// One block as its caller and as the inner allocator know it.
struct Block {
  char* user = nullptr;
  std::size_t bytes = 0;
  char* inner = nullptr;
  std::size_t inner_bytes = 0;  // asked of the inner allocator
  std::size_t chunk_bytes = 0;  // known once it is held back
  bool guarded = false;         // the red zones are filled
  bool poisoned = false;        // freed, and its bytes are filled
  bool used_elsewhere = false;  // on other streams than its own
  TagId tag;
  std::uint64_t number = 0;  // of the allocation, from 1
  observe::StackTrace where;
};

std::string Name(const Block& block) {
  std::string text =
      absl::StrFormat("block %p of %d bytes, allocation number %d",
                      static_cast<const void*>(block.user), block.bytes, block.number);
  if (block.tag.value != 0) absl::StrAppend(&text, ", tag ", policy::View(TagName(block.tag)));
  return text;
}

std::string Where(const Block& block) {
  if (block.where.empty()) return "";
  return absl::StrCat("\n  allocated at\n", block.where.ToString("    "));
}

class DebugChecked final : public Allocator {
 public:
  DebugChecked(std::unique_ptr<Allocator> inner, std::shared_ptr<MemorySource> source,
               const Policy& policy)
      : Allocator(Effective(*inner, policy)),
        inner_(std::move(inner)),
        source_(std::move(source)),
        bytes_(source_.get()),
        checks_(policy.debug),
        quarantine_bytes_(TakesQuarantine(policy) ? policy.quarantine : 0) {}
  ~DebugChecked() override;

 private:
  static Policy Effective(const Allocator& inner, const Policy& policy) {
    Policy effective = inner.policy();
    effective.quarantine = policy.quarantine;
    return effective;
  }

  void* DoAllocate(const Request& request, AllocError* why) noexcept override;
  absl::Status DoDeallocate(void* ptr, StreamRef after) override;
  absl::Status DoRecordUse(void* ptr, StreamRef stream) override;
  absl::StatusOr<BlockInfo> DoDescribe(const void* ptr) const override;
  Stats DoGetStats() const override;
  void DoGetFigures(Figures* figures) const override { *figures = inner_->GetFigures(); }
  void DoResetPeakStats() override;
  Snapshot DoTakeSnapshot() const override;
  absl::StatusOr<TrimResult> DoTrim(const TrimOptions& options) override {
    FlushQuarantine();
    return inner_->Trim(options);
  }
  absl::Status DoSetMemoryLimit(std::size_t bytes) override {
    return inner_->SetMemoryLimit(bytes);
  }
  absl::Status DoAddPeer(int ordinal) override { return inner_->AddPeer(ordinal); }
  absl::Status DoSetRegionCallback(std::shared_ptr<const RegionCallback> callback) override {
    if (callback == nullptr) return inner_->SetRegionCallback(nullptr);
    return inner_->SetRegionCallback(
        [callback](const RegionChange& change) { return (*callback)(change); });
  }
  Timeline* DoGetTimeline() const override { return source_->timeline(); }
  absl::Status DoCheckMemory() const override;

  void* AllocateInner(std::size_t bytes, const AllocateOptions& options, bool may_wait,
                      AllocError* why);
  void FillNew(Block* block, StreamRef stream) const;
  // What is wrong with the red zones, or nothing.
  std::string CheckZones(const Block& block, StreamRef after) const;
  std::string CheckFreed(const Block& block) const;
  void Poison(Block* block, StreamRef after) const;
  absl::Status FreeInner(const Block& block, StreamRef after) {
    return inner_->Deallocate(block.inner, after);
  }
  // Holds the block back, and gives up the oldest ones beyond the policy's bytes.
  void HoldBack(Block block) HBM_EXCLUDES(mutex_);
  bool FlushQuarantine() HBM_EXCLUDES(mutex_) { return ShrinkQuarantine(0); }
  bool ShrinkQuarantine(std::size_t keep) HBM_EXCLUDES(mutex_);
  void Restore(const Block& block) HBM_EXCLUDES(mutex_);
  std::vector<LeakedBlock> Leaks() const HBM_EXCLUDES(mutex_);

  const std::unique_ptr<Allocator> inner_;
  const std::shared_ptr<MemorySource> source_;
  const DebugBytes bytes_;
  const DebugChecks checks_;
  const std::size_t quarantine_bytes_;

  mutable core::Mutex mutex_;
  // By the callers' addresses.
  std::map<std::uintptr_t, Block> live_ HBM_GUARDED_BY(mutex_);
  std::deque<Block> quarantine_ HBM_GUARDED_BY(mutex_);
  std::size_t quarantined_ HBM_GUARDED_BY(mutex_) = 0;         // bytes asked of the inner allocator
  std::size_t quarantined_chunks_ HBM_GUARDED_BY(mutex_) = 0;  // the chunks that hold them
  std::uint64_t next_number_ HBM_GUARDED_BY(mutex_) = 1;
  std::int64_t allocs_ HBM_GUARDED_BY(mutex_) = 0;
  std::int64_t frees_ HBM_GUARDED_BY(mutex_) = 0;
  std::int64_t failures_ HBM_GUARDED_BY(mutex_) = 0;
  std::int64_t requested_ HBM_GUARDED_BY(mutex_) = 0;
  std::int64_t peak_requested_ HBM_GUARDED_BY(mutex_) = 0;
};

std::uintptr_t AddressOf(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

// ---- Allocating -------------------------------------------------------------------------

void* DebugChecked::AllocateInner(std::size_t bytes, const AllocateOptions& options, bool may_wait,
                                  AllocError* why) {
  void* block = inner_->TryAllocate(bytes, options, why);
  if (block != nullptr || why->code != absl::StatusCode::kResourceExhausted) return block;
  if (FlushQuarantine()) block = inner_->TryAllocate(bytes, options, why);
  if (block != nullptr || !may_wait) return block;
  // Only Allocate may wait for work on freed memory.
  AllocateOptions at_once = options;
  at_once.max_wait = absl::ZeroDuration();
  const absl::StatusOr<void*> last = inner_->Allocate(bytes, at_once);
  if (last.ok()) return *last;
  *why = {last.status().code(), GetOomCause(last.status())};
  return nullptr;
}

void* DebugChecked::DoAllocate(const Request& request, AllocError* why) noexcept {
  const std::size_t front = checks_.guard ? request.alignment : 0;
  const std::size_t around = checks_.guard ? front + kZone : 0;
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  AllocateOptions options;
  options.alignment = request.alignment;
  options.stream = request.stream;
  options.tag = request.tag;
  options.contiguous = request.contiguous;
  Block block;
  block.bytes = request.bytes;
  block.inner_bytes = request.bytes > kMax - around ? kMax : request.bytes + around;
  block.inner =
      static_cast<char*>(AllocateInner(block.inner_bytes, options, request.may_wait, why));
  if (block.inner == nullptr) {
    core::MutexLock lock(mutex_);
    ++failures_;
    return nullptr;
  }
  block.user = block.inner + front;
  block.tag = request.tag;
  if (checks_.stacks) block.where = observe::StackTrace::Take(/*skip=*/1);
  FillNew(&block, request.stream);
  core::MutexLock lock(mutex_);
  block.number = next_number_++;
  ++allocs_;
  requested_ += static_cast<std::int64_t>(block.bytes);
  peak_requested_ = std::max(peak_requested_, requested_);
  char* const user = block.user;
  live_[AddressOf(user)] = std::move(block);
  return user;
}

// A stream that is being captured stays untouched, and its block unchecked.
void DebugChecked::FillNew(Block* block, StreamRef stream) const {
  if (checks_.guard) {
    const std::size_t behind =
        AddressOf(block->inner) + block->inner_bytes - (AddressOf(block->user) + block->bytes);
    block->guarded = bytes_.Fill(block->user - kZone, kRedZone, kZone, stream).ok() &&
                     bytes_.Fill(block->user + block->bytes, kRedZone, behind, stream).ok();
  }
  if (checks_.poison) bytes_.Fill(block->user, kFresh, block->bytes, stream).IgnoreError();
}

// ---- Freeing ----------------------------------------------------------------------------

absl::Status DebugChecked::DoDeallocate(void* ptr, StreamRef after) {
  Block block;
  {
    core::MutexLock lock(mutex_);
    const auto found = live_.find(AddressOf(ptr));
    if (found == live_.end()) return absl::CancelledError();
    block = found->second;
    live_.erase(found);
    ++frees_;
    requested_ -= static_cast<std::int64_t>(block.bytes);
  }
  // The block's own stream may be gone by now; all work is never wrong.
  const StreamRef known =
      after.is_handle() && !block.used_elsewhere ? after : StreamRef::Synchronized();
  const std::string damage = CheckZones(block, known);
  Poison(&block, known);
  if (quarantine_bytes_ != 0) {
    HoldBack(block);
  } else if (absl::Status freed = FreeInner(block, after); !freed.ok()) {
    Restore(block);
    return freed;
  }
  if (damage.empty()) return absl::OkStatus();
  observe::LogWarning(damage);
  NotifyFreed();
  return absl::DataLossError(absl::StrCat(damage, "; the block is freed all the same"));
}

void DebugChecked::Restore(const Block& block) {
  core::MutexLock lock(mutex_);
  live_[AddressOf(block.user)] = block;
  --frees_;
  requested_ += static_cast<std::int64_t>(block.bytes);
}

void DebugChecked::Poison(Block* block, StreamRef after) const {
  if (!checks_.poison) return;
  block->poisoned = bytes_.Fill(block->user, kFreed, block->bytes, after).ok();
}

void DebugChecked::HoldBack(Block block) {
  const absl::StatusOr<BlockInfo> info = inner_->Describe(block.inner);
  block.chunk_bytes = info.ok() ? info->chunk_bytes : block.inner_bytes;
  {
    core::MutexLock lock(mutex_);
    quarantined_ += block.inner_bytes;
    quarantined_chunks_ += block.chunk_bytes;
    quarantine_.push_back(std::move(block));
  }
  ShrinkQuarantine(quarantine_bytes_);
}

bool DebugChecked::ShrinkQuarantine(std::size_t keep) {
  bool any = false;
  for (;;) {
    Block block;
    {
      core::MutexLock lock(mutex_);
      if (quarantine_.empty() || quarantined_ <= keep) break;
      block = std::move(quarantine_.front());
      quarantine_.pop_front();
      quarantined_ -= block.inner_bytes;
      quarantined_chunks_ -= block.chunk_bytes;
    }
    const std::string damage = CheckFreed(block);
    if (!damage.empty()) observe::LogWarning(damage);
    // All work was waited for when the block was freed.
    any |= FreeInner(block, StreamRef::Synchronized()).ok();
  }
  if (any) NotifyFreed();
  return any;
}

// ---- Checking ---------------------------------------------------------------------------

std::string DebugChecked::CheckZones(const Block& block, StreamRef after) const {
  if (!block.guarded) return "";
  std::string problems;
  const auto look = [&](const char* from, std::size_t bytes, const char* place) {
    const absl::StatusOr<Damage> damage = bytes_.Compare(from, kRedZone, bytes, after);
    if (!damage.ok() || damage->count == 0) return;
    absl::StrAppend(&problems, problems.empty() ? "" : "; ", place, ToString(*damage));
  };
  // Offsets before a block are told from the red zone's start, 256 bytes before it.
  look(block.user - kZone, kZone, "in the 256 bytes before it ");
  const char* const end = block.user + block.bytes;
  look(end, static_cast<std::size_t>(block.inner + block.inner_bytes - end), "behind its end ");
  if (problems.empty()) return "";
  return absl::StrCat("debug: ", Name(block), ": ", problems, Where(block));
}

std::string DebugChecked::CheckFreed(const Block& block) const {
  if (!block.poisoned) return "";
  const absl::StatusOr<Damage> damage =
      bytes_.Compare(block.user, kFreed, block.bytes, StreamRef::Synchronized());
  if (!damage.ok() || damage->count == 0) return "";
  return absl::StrCat("debug: ", Name(block),
                      ": written to after it was freed: ", ToString(*damage), Where(block));
}

absl::Status DebugChecked::DoCheckMemory() const {
  std::vector<std::string> problems;
  {
    core::MutexLock lock(mutex_);
    const auto add = [&](std::string problem) {
      if (!problem.empty()) problems.push_back(std::move(problem));
    };
    for (const auto& [address, block] : live_) add(CheckZones(block, StreamRef::Synchronized()));
    for (const Block& block : quarantine_) add(CheckFreed(block));
  }
  if (problems.empty()) return absl::OkStatus();
  std::string text = absl::StrCat(problems.size(), " blocks are damaged");
  for (std::size_t i = 0; i < std::min(problems.size(), kMaxReports); ++i) {
    absl::StrAppend(&text, "\n", problems[i]);
  }
  return absl::DataLossError(text);
}

DebugChecked::~DebugChecked() {
  EndSharing();
  if (const absl::Status checked = DoCheckMemory(); !checked.ok()) {
    observe::LogWarning(policy::View(checked));
  }
  FlushQuarantine();
  if (!checks_.leaks) return;
  const std::vector<LeakedBlock> leaks = Leaks();
  if (!leaks.empty()) observe::LogWarning(LeakReport(leaks));
}

std::vector<LeakedBlock> DebugChecked::Leaks() const {
  std::vector<LeakedBlock> leaks;
  core::MutexLock lock(mutex_);
  for (const auto& [address, block] : live_) {
    leaks.push_back({block.user, block.bytes, block.tag, block.number, block.where});
  }
  return leaks;
}

// ---- What the caller sees ---------------------------------------------------------------

absl::Status DebugChecked::DoRecordUse(void* ptr, StreamRef stream) {
  void* inner = nullptr;
  {
    core::MutexLock lock(mutex_);
    const auto found = live_.find(AddressOf(ptr));
    if (found == live_.end()) return absl::CancelledError();
    found->second.used_elsewhere = true;
    inner = found->second.inner;
  }
  return inner_->RecordUse(inner, stream);
}

absl::StatusOr<BlockInfo> DebugChecked::DoDescribe(const void* ptr) const {
  Block block;
  {
    core::MutexLock lock(mutex_);
    auto found = live_.upper_bound(AddressOf(ptr));
    if (found == live_.begin() ||
        AddressOf(ptr) - std::prev(found)->first >= std::prev(found)->second.bytes) {
      return absl::NotFoundError(
          absl::StrFormat("%p lies in no live block of this allocator", ptr));
    }
    block = std::prev(found)->second;
  }
  absl::StatusOr<BlockInfo> info = inner_->Describe(block.inner);
  if (!info.ok()) return info;
  info->address = block.user;
  info->requested_bytes = block.bytes;
  return info;
}

Stats DebugChecked::DoGetStats() const {
  core::MutexLock lock(mutex_);
  Stats stats = inner_->GetStats();
  // Those that ShrinkQuarantine is just freeing are live below and nowhere here.
  const auto held = static_cast<std::int64_t>(quarantined_chunks_);
  stats.bytes_in_use = std::max<std::int64_t>(stats.bytes_in_use - held, 0);
  stats.pending_bytes += held;
  stats.num_allocs = allocs_;
  stats.num_frees = frees_;
  stats.num_failures = failures_;
  stats.requested_bytes = requested_;
  stats.peak_requested_bytes = peak_requested_;
  return stats;
}

void DebugChecked::DoResetPeakStats() {
  core::MutexLock lock(mutex_);
  inner_->ResetPeakStats();
  allocs_ = frees_ = failures_ = 0;
  peak_requested_ = requested_;
}

Snapshot DebugChecked::DoTakeSnapshot() const {
  core::MutexLock lock(mutex_);
  Snapshot snapshot = inner_->TakeSnapshot();
  // Chunks are the inner allocator's, so that they cover their regions; what was asked
  // for is the callers'.
  std::map<const void*, std::size_t> asked;
  for (const auto& [address, block] : live_) asked[block.inner] = block.bytes;
  for (Snapshot::Region& region : snapshot.regions) {
    for (Snapshot::Chunk& chunk : region.chunks) {
      if (chunk.state != ChunkState::kLive) continue;
      const auto found = asked.find(chunk.address);
      chunk.requested_bytes = found == asked.end() ? 0 : found->second;
    }
  }
  return snapshot;
}

}  // namespace

absl::Status CheckDebuggable(const Policy& policy, MemorySource* source) {
  if (!policy.debug.guard && !policy.debug.poison) return absl::OkStatus();
  if (DebugBytes(source).reachable()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "debug: ", policy.debug.guard ? "guard" : "poison",
      " needs memory whose bytes can be read, "
      "and ",
      policy::View(source->Name()),
      " has none; use a host or cuda device, or leave leaks and stacks alone in debug"));
}

absl::StatusOr<std::unique_ptr<Allocator>> MakeDebugChecked(std::unique_ptr<Allocator> inner,
                                                            std::shared_ptr<MemorySource> source,
                                                            const Policy& policy) {
  if (absl::Status able = CheckDebuggable(policy, source.get()); !able.ok()) return able;
  return std::unique_ptr<Allocator>(
      std::make_unique<DebugChecked>(std::move(inner), std::move(source), policy));
}

}  // namespace hbm::strategies
