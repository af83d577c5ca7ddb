// SPDX-License-Identifier: Apache-2.0
//
// Capture pools: what every strategy does for the memory of captured graphs. A block
// of a pool is a live one for the strategy until the pool is released, so there is
// nothing that a strategy could do wrong with it. Without pools, none of this is
// reached.
#include "strategies/capture.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "hbmalloc/allocator.h"
#include "strategies/observation.h"

namespace hbm {
namespace {

using strategies::CapturePools;

std::uintptr_t AddressOf(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }
void* PointerTo(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

absl::Status NoSuchPool(std::string_view operation, CapturePool pool) {
  return absl::InvalidArgumentError(
      absl::StrCat(absl::string_view(operation.data(), operation.size()), ": ", pool.id,
                   " names no capture pool of this allocator, or one that was released"));
}

}  // namespace

absl::StatusOr<CapturePool> Allocator::BeginCapturePool(StreamRef stream, CapturePool pool) {
  if (!stream.is_handle()) {
    return absl::InvalidArgumentError("BeginCapturePool: give the stream that will be captured");
  }
  Timeline* const timeline = DoGetTimeline();
  std::uint64_t id = stream.value();
  if (timeline != nullptr) {
    const absl::StatusOr<std::uint64_t> asked = timeline->StreamId(stream);
    if (!asked.ok()) return asked.status();
    id = *asked;
    // Memory on which no work is in flight is what a capture is given. What must be
    // waited for to have some is done now, because in the capture it is forbidden.
    AllocError why;
    const Request request{1, kMinAlignment, StreamRef::Synchronized(), TagId{}, false};
    void* const block = DoAllocate(request, &why);
    if (block != nullptr) DoDeallocate(block, StreamRef::Synchronized()).IgnoreError();
  }
  {
    core::MutexLock lock(captures_->mutex);
    if (!captures_->pools.Open(&pool, stream, id)) {
      if (!captures_->pools.IsKnown(pool)) return NoSuchPool("BeginCapturePool", pool);
      return absl::InvalidArgumentError(
          absl::StrCat("BeginCapturePool: pool ", pool.id, " is open already; end it first"));
    }
    captures_->any.store(true);
    observation_->NoteCaptures(*this, true);
  }
  if (timeline != nullptr) timeline->BeginCapture(stream);
  return pool;
}

absl::Status Allocator::EndCapturePool(CapturePool pool) {
  StreamRef stream;
  {
    core::MutexLock lock(captures_->mutex);
    for (const CapturePools::OpenPool& open : captures_->pools.open()) {
      if (open.pool.id == pool.id) stream = open.stream;
    }
    if (!captures_->pools.Close(pool)) {
      return captures_->pools.IsKnown(pool)
                 ? absl::InvalidArgumentError(absl::StrCat("EndCapturePool: pool ", pool.id,
                                                           " is not open; it was ended already"))
                 : NoSuchPool("EndCapturePool", pool);
    }
  }
  if (Timeline* const timeline = DoGetTimeline(); timeline != nullptr) timeline->EndCapture(stream);
  return absl::OkStatus();
}

absl::Status Allocator::ReleaseCapturePool(CapturePool pool, StreamRef after) {
  if (after.is_of_allocation()) {
    return absl::InvalidArgumentError(
        "ReleaseCapturePool: give the stream of the graph's last launch, or Synchronized()");
  }
  Timeline* const timeline = DoGetTimeline();
  if (timeline != nullptr && after.is_handle()) {
    const absl::StatusOr<bool> capturing = timeline->IsCapturing(after);
    if (!capturing.ok()) return capturing.status();
    if (*capturing) {
      return absl::FailedPreconditionError(
          "ReleaseCapturePool: the stream is being captured; release before or after that");
    }
  }
  std::vector<CapturePools::Block> blocks;
  {
    core::MutexLock lock(captures_->mutex);
    if (!captures_->pools.IsKnown(pool)) return NoSuchPool("ReleaseCapturePool", pool);
    if (captures_->pools.IsOpen(pool)) {
      return absl::FailedPreconditionError(absl::StrCat("ReleaseCapturePool: pool ", pool.id,
                                                        " is open; call EndCapturePool first"));
    }
    captures_->pools.Leave(pool);
    blocks = captures_->pools.BlocksOnlyOf(pool);
  }
  absl::Status failed;
  for (const CapturePools::Block& block : blocks) {
    failed.Update(LeaveCapture(pool, block.address, after));
  }
  core::MutexLock lock(captures_->mutex);
  if (captures_->pools.BlocksOnlyOf(pool).empty()) captures_->pools.Forget(pool);
  if (captures_->pools.empty()) {
    captures_->any.store(false);
    observation_->NoteCaptures(*this, false);
  }
  return failed;
}

// One block becomes the strategy's again.
absl::Status Allocator::LeaveCapture(CapturePool pool, std::uintptr_t address, StreamRef after) {
  void* const ptr = PointerTo(address);
  CapturePools::Block block;
  {
    core::MutexLock lock(captures_->mutex);
    const CapturePools::Block* const found = captures_->pools.Find(address);
    if (found == nullptr || found->pools.size() != 1 || found->pools.front() != pool.id) {
      return absl::OkStatus();
    }
    block = *found;
    // Its owner may free it from now on, and it is the strategy that is told so.
    if (!block.kept) captures_->pools.Remove(address);
  }
  if (!block.kept) {
    if (block.taken_in_capture) UseOutsideOfCapture(ptr, block.stream);
    if (after.is_handle()) UseOutsideOfCapture(ptr, after);
    return absl::OkStatus();
  }
  absl::Status freed = DoDeallocate(ptr, after);
  if (!freed.ok()) return freed;
  {
    core::MutexLock lock(captures_->mutex);
    captures_->pools.Remove(address);
  }
  NotifyFreed();
  return freed;
}

// The open pool that requests on this stream belong to.
CapturePool Allocator::CaptureOf(StreamRef stream) const {
  std::vector<CapturePools::OpenPool> open;
  {
    core::MutexLock lock(captures_->mutex);
    open = captures_->pools.open();
  }
  if (open.empty() || !stream.is_handle()) return {};
  Timeline* const timeline = DoGetTimeline();
  std::uint64_t id = stream.value();
  std::uint64_t capture = 0;
  if (timeline != nullptr) {
    const absl::StatusOr<std::uint64_t> asked = timeline->StreamId(stream);
    if (!asked.ok()) return {};
    id = *asked;
    capture = timeline->CaptureId(stream).value_or(0);
  }
  for (const CapturePools::OpenPool& each : open) {
    if (each.stream_id == id) return each.pool;
    if (capture != 0 && timeline->CaptureId(each.stream).value_or(0) == capture) return each.pool;
  }
  return {};
}

bool Allocator::IsInCapture(StreamRef stream) const {
  if (CaptureOf(stream).id == 0) return false;
  Timeline* const timeline = DoGetTimeline();
  return timeline == nullptr || timeline->IsCapturing(stream).value_or(false);
}

void* Allocator::AllocateBesideCaptures(const Request& request, AllocError* why) noexcept {
  if (!captures_->any.load()) return DoAllocate(request, why);
  const CapturePool pool = CaptureOf(request.stream);
  if (pool.id == 0) return DoAllocate(request, why);
  {
    core::MutexLock lock(captures_->mutex);
    const std::uintptr_t kept = captures_->pools.TakeKept(pool, request.stream, request.bytes,
                                                          request.alignment, request.tag);
    if (kept != 0) return PointerTo(kept);
  }
  // A launch of the graph is ordered after nothing that was freed before, so the block
  // must be one that no work touches any more.
  Request quiet = request;
  quiet.stream = StreamRef::Synchronized();
  quiet.may_wait = false;
  void* const block = DoAllocate(quiet, why);
  if (block == nullptr) {
    // What is missing is free but for work that cannot be waited for here.
    if (why->cause == OomCause::kPending) *why = {absl::StatusCode::kFailedPrecondition, {}};
    return nullptr;
  }
  const absl::Status added = AddToCapture(pool, block, &request);
  if (added.ok()) return block;
  DoDeallocate(block, StreamRef::Synchronized()).IgnoreError();
  *why = {added.code(), OomCause::kNone};
  return nullptr;
}

// With a request, the block was just taken for it.
absl::Status Allocator::AddToCapture(CapturePool pool, void* ptr, const Request* request) {
  const absl::StatusOr<BlockInfo> info = DoDescribe(ptr);
  if (!info.ok() || info->address != ptr) return absl::CancelledError();
  CapturePools::Block block;
  block.address = AddressOf(ptr);
  block.capacity = info->requested_bytes;
  block.chunk_bytes = info->chunk_bytes;
  block.requested = block.counted = info->requested_bytes;
  block.stream = request != nullptr ? request->stream : info->stream;
  block.tag = request != nullptr ? request->tag : info->tag;
  block.taken_in_capture = request != nullptr;
  core::MutexLock lock(captures_->mutex);
  return captures_->pools.Add(pool, block) ? absl::OkStatus() : absl::CancelledError();
}

// Work on the block that is queued and no part of a graph. A stream that is gone, or
// one that is captured, has none that could be recorded.
void Allocator::UseOutsideOfCapture(void* ptr, StreamRef stream) {
  Timeline* const timeline = DoGetTimeline();
  if (timeline == nullptr || !stream.is_handle()) return;
  if (timeline->IsCapturing(stream).value_or(true)) return;
  DoRecordUse(ptr, stream).IgnoreError();
}

absl::Status Allocator::KeepForCapture(void* ptr, StreamRef last, bool is_reusable) {
  UseOutsideOfCapture(ptr, last);
  core::MutexLock lock(captures_->mutex);
  return captures_->pools.Keep(AddressOf(ptr), is_reusable) ? absl::OkStatus()
                                                            : absl::CancelledError();
}

// As DoDeallocate: Cancelled for what is no live block's base.
absl::Status Allocator::DeallocateBesideCaptures(void* ptr, StreamRef after) {
  if (!captures_->any.load()) return DoDeallocate(ptr, after);
  StreamRef own;
  bool is_ours = false;
  bool is_kept = false;
  bool any_open;
  {
    core::MutexLock lock(captures_->mutex);
    any_open = !captures_->pools.open().empty();
    if (const CapturePools::Block* const block = captures_->pools.Find(AddressOf(ptr))) {
      is_ours = true;
      is_kept = block->kept;
      own = block->stream;
    }
  }
  if (is_kept) return absl::CancelledError();
  if (!is_ours && any_open) {
    if (after.is_of_allocation()) {
      const absl::StatusOr<BlockInfo> info = DoDescribe(ptr);
      if (!info.ok() || info->address != ptr) return absl::CancelledError();
      own = info->stream;
    }
    const CapturePool pool = CaptureOf(after.is_of_allocation() ? own : after);
    // Work of the capture is what the free is ordered after.
    if (pool.id != 0) {
      if (!AddToCapture(pool, ptr, nullptr).ok()) return absl::CancelledError();
      is_ours = true;
    }
  }
  if (!is_ours) return DoDeallocate(ptr, after);
  const StreamRef last = after.is_of_allocation() ? own : after;
  // What was freed outside of a capture may have work that launches are not ordered
  // after.
  const bool is_reusable = after.is_synchronized() || (last == own && IsInCapture(last));
  return KeepForCapture(ptr, last, is_reusable);
}

absl::Status Allocator::RecordUseBesideCaptures(void* ptr, StreamRef stream) {
  {
    core::MutexLock lock(captures_->mutex);
    const CapturePools::Block* const block = captures_->pools.Find(AddressOf(ptr));
    if (block != nullptr && block->kept) return absl::CancelledError();
  }
  const CapturePool pool = CaptureOf(stream);
  if (pool.id == 0) return DoRecordUse(ptr, stream);
  if (absl::Status added = AddToCapture(pool, ptr, nullptr); !added.ok()) return added;
  UseOutsideOfCapture(ptr, stream);
  return absl::OkStatus();
}

absl::StatusOr<BlockInfo> Allocator::DescribeBesideCaptures(absl::StatusOr<BlockInfo> info) const {
  if (!info.ok()) return info;
  core::MutexLock lock(captures_->mutex);
  const CapturePools::Block* const block = captures_->pools.Find(AddressOf(info->address));
  if (block == nullptr) return info;
  if (block->kept) {
    return absl::NotFoundError(
        "no live block of this allocator holds the address; it is kept for a captured graph");
  }
  info->requested_bytes = block->requested;
  info->stream = block->stream;
  info->tag = block->tag;
  return info;
}

void Allocator::MarkKept(Snapshot* snapshot) const {
  core::MutexLock lock(captures_->mutex);
  for (Snapshot::Region& region : snapshot->regions) {
    for (Snapshot::Chunk& chunk : region.chunks) {
      if (chunk.state != ChunkState::kLive) continue;
      const CapturePools::Block* const block = captures_->pools.Find(AddressOf(chunk.address));
      if (block == nullptr) continue;
      chunk.state = block->kept ? ChunkState::kPending : ChunkState::kLive;
      chunk.requested_bytes = block->kept ? 0 : block->requested;
      chunk.stream = block->stream;
      chunk.tag = block->tag;
    }
  }
}

}  // namespace hbm
