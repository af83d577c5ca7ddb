// SPDX-License-Identifier: Apache-2.0
#include "sharing/shared_source.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "hbmalloc/stream_ordered_pool.h"

namespace hbm::sharing {
namespace {

std::uint64_t RoundUp(std::uint64_t bytes, std::uint64_t unit) {
  const std::uint64_t over = unit <= 1 ? 0 : bytes % unit;
  return over == 0 || bytes > ~std::uint64_t{0} - unit ? bytes : bytes + (unit - over);
}

}  // namespace

// Physical memory is what is charged; addresses are free.
class SharedSource::Mapper final : public VirtualMemory {
 public:
  Mapper(SharedSource* owner, VirtualMemory* memory) : owner_(*owner), memory_(*memory) {}

  std::size_t Granularity() const override { return memory_.Granularity(); }
  absl::StatusOr<MemoryRange> Reserve(std::size_t bytes) override { return memory_.Reserve(bytes); }
  absl::Status FreeReservation(MemoryRange range) override {
    return memory_.FreeReservation(range);
  }

  absl::StatusOr<Handle> Create(std::size_t bytes) override {
    if (absl::Status charged = owner_.Charge(bytes); !charged.ok()) return charged;
    absl::StatusOr<Handle> handle = memory_.Create(bytes);
    if (!handle.ok()) {
      owner_.ledger_->Refund(bytes);
      return handle;
    }
    owner_.Commit(bytes);
    bytes_of_[*handle] = bytes;
    return handle;
  }

  absl::Status Release(Handle handle) override {
    absl::Status released = memory_.Release(handle);
    const auto found = bytes_of_.find(handle);
    if (!released.ok() || found == bytes_of_.end()) return released;
    owner_.ledger_->Release(found->second);
    bytes_of_.erase(found);
    return released;
  }

  absl::Status Map(void* address, Handle handle) override { return memory_.Map(address, handle); }
  absl::Status SetAccess(MemoryRange range) override { return memory_.SetAccess(range); }
  absl::Status Unmap(MemoryRange range) override { return memory_.Unmap(range); }

 private:
  SharedSource& owner_;
  VirtualMemory& memory_;
  std::unordered_map<Handle, std::uint64_t> bytes_of_;
};

// The driver takes memory for its pool by itself, so all that it may take is charged
// while the pool is there.
class SharedSource::PoolMaker final : public StreamOrderedMemory {
 public:
  PoolMaker(SharedSource* owner, StreamOrderedMemory* memory) : owner_(*owner), memory_(*memory) {}
  ~PoolMaker() override { owner_.ledger_->Release(pools_); }

  absl::StatusOr<std::unique_ptr<StreamOrderedPool>> MakePool(const PoolOptions& options) override {
    if (absl::Status charged = owner_.Charge(options.limit); !charged.ok()) return charged;
    absl::StatusOr<std::unique_ptr<StreamOrderedPool>> pool = memory_.MakePool(options);
    if (!pool.ok()) {
      owner_.ledger_->Refund(options.limit);
      return pool;
    }
    owner_.Commit(options.limit);
    pools_ += options.limit;
    return pool;
  }

 private:
  SharedSource& owner_;
  StreamOrderedMemory& memory_;
  std::uint64_t pools_ = 0;
};

std::shared_ptr<SharedSource> SharedSource::Wrap(std::shared_ptr<MemorySource> source,
                                                 std::shared_ptr<Ledger> ledger,
                                                 std::shared_ptr<Device> device) {
  return std::shared_ptr<SharedSource>(
      new SharedSource(std::move(source), std::move(ledger), std::move(device)));
}

SharedSource::SharedSource(std::shared_ptr<MemorySource> source, std::shared_ptr<Ledger> ledger,
                           std::shared_ptr<Device> device)
    : device_(std::move(device)), ledger_(std::move(ledger)), source_(std::move(source)) {
  if (VirtualMemory* const memory = source_->virtual_memory(); memory != nullptr) {
    mapper_ = std::make_unique<Mapper>(this, memory);
  }
  if (StreamOrderedMemory* const memory = source_->stream_ordered_memory(); memory != nullptr) {
    pool_maker_ = std::make_unique<PoolMaker>(this, memory);
  }
}

SharedSource::~SharedSource() { RefundAhead(); }

VirtualMemory* SharedSource::virtual_memory() { return mapper_.get(); }

StreamOrderedMemory* SharedSource::stream_ordered_memory() { return pool_maker_.get(); }

Ledger::FreeBytes SharedSource::DeviceFree() const {
  return [this]() -> absl::StatusOr<std::uint64_t> {
    const absl::StatusOr<MemoryInfo> memory = device_->GetMemoryInfo();
    if (!memory.ok()) return memory.status();
    return memory->free;
  };
}

absl::Status SharedSource::Charge(std::uint64_t bytes, std::uint64_t* could) {
  if (absl::Status process = ledger_->CheckProcess(); !process.ok()) return process;
  const std::uint64_t used = std::min(bytes, ahead_);
  if (used < bytes) {
    absl::Status charged = ledger_->Charge(bytes - used, DeviceFree(), could);
    if (!charged.ok()) return charged;
  }
  ahead_ -= used;
  return absl::OkStatus();
}

absl::Status SharedSource::ChargeAhead(std::uint64_t bytes, std::uint64_t* could) {
  absl::Status charged = ledger_->Charge(bytes, DeviceFree(), could);
  if (charged.ok()) ahead_ += bytes;
  return charged;
}

void SharedSource::RefundAhead() {
  if (ahead_ != 0) ledger_->Refund(std::exchange(ahead_, 0));
}

void SharedSource::Settle(std::uint64_t charged, std::uint64_t got) {
  if (got > charged) ledger_->AddHeld(got - charged);
  ledger_->Commit(charged);
  if (got < charged) ledger_->Release(charged - got);
}

absl::StatusOr<MemoryInfo> SharedSource::GetMemoryInfo() {
  absl::StatusOr<MemoryInfo> memory = source_->GetMemoryInfo();
  if (!memory.ok()) return memory;
  const std::uint64_t device_free = memory->free;
  const absl::StatusOr<std::uint64_t> room = ledger_->Room([&] { return device_free; });
  if (room.ok()) memory->free = std::min<std::size_t>(memory->free, *room);
  return memory;
}

absl::StatusOr<MemoryRange> SharedSource::AllocateRegion(std::size_t bytes) {
  const std::uint64_t charge = RoundUp(bytes, source_->Granularity());
  if (absl::Status charged = Charge(charge); !charged.ok()) return charged;
  absl::StatusOr<MemoryRange> region = source_->AllocateRegion(bytes);
  if (region.ok()) {
    Settle(charge, region->bytes);
  } else {
    ledger_->Refund(charge);
  }
  return region;
}

absl::Status SharedSource::ReleaseRegion(MemoryRange region) {
  absl::Status released = source_->ReleaseRegion(region);
  if (released.ok()) ledger_->Release(region.bytes);
  return released;
}

absl::StatusOr<MemoryRange> SharedSource::AllocateBlock(std::size_t bytes, std::size_t alignment) {
  // What a block adds to what is held only the source knows: sharing a granule, it may
  // be nothing. A whole granule is the most that rounding can add.
  const std::uint64_t charge = RoundUp(bytes, source_->Granularity());
  if (absl::Status charged = Charge(charge); !charged.ok()) return charged;
  const std::size_t before = source_->HeldBytes();
  absl::StatusOr<MemoryRange> block = source_->AllocateBlock(bytes, alignment);
  if (!block.ok()) {
    ledger_->Refund(charge);
    return block;
  }
  const std::size_t after = source_->HeldBytes();
  Settle(charge, after != 0 ? after - std::min(after, before) : block->bytes);
  return block;
}

absl::Status SharedSource::ReleaseBlock(MemoryRange block) {
  const std::size_t before = source_->HeldBytes();
  absl::Status released = source_->ReleaseBlock(block);
  if (!released.ok()) return released;
  const std::size_t after = source_->HeldBytes();
  ledger_->Release(before != 0 ? before - std::min(before, after) : block.bytes);
  return released;
}

}  // namespace hbm::sharing
