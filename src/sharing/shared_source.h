// SPDX-License-Identifier: Apache-2.0
//
// File: shared_source.h
//
// A memory source on a shared device: it charges the ledger before the source behind
// it allocates, and refunds what it gives back. No strategy knows that it is there.
//
//   std::shared_ptr<SharedSource> source = SharedSource::Wrap(device_source, ledger, device);
//
// Called as every source is: by one allocator, never from two threads at once.
#ifndef HBMALLOC_SHARING_SHARED_SOURCE_H_
#define HBMALLOC_SHARING_SHARED_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/device.h"
#include "hbmalloc/memory_source.h"
#include "sharing/ledger.h"

namespace hbm::sharing {

class SharedSource final : public MemorySource {
 public:
  // The result offers what `source` does: virtual memory, a driver's own pool.
  static std::shared_ptr<SharedSource> Wrap(std::shared_ptr<MemorySource> source,
                                            std::shared_ptr<Ledger> ledger,
                                            std::shared_ptr<Device> device);
  ~SharedSource() override;

  // Charges `bytes` that the next allocations will use.
  absl::Status ChargeAhead(std::uint64_t bytes, std::uint64_t* could);
  // What of it was not used goes back.
  void RefundAhead();

  std::string_view Name() const override { return source_->Name(); }
  // What is free is at most what the ledger would let this process take.
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override;
  std::size_t Granularity() const override { return source_->Granularity(); }
  absl::StatusOr<MemoryRange> AllocateRegion(std::size_t bytes) override;
  absl::Status ReleaseRegion(MemoryRange region) override;
  absl::StatusOr<MemoryRange> AllocateBlock(std::size_t bytes, std::size_t alignment) override;
  absl::Status ReleaseBlock(MemoryRange block) override;
  absl::Status AddPeer(int ordinal) override { return source_->AddPeer(ordinal); }
  bool ReleaseBlockWaits() const override { return source_->ReleaseBlockWaits(); }
  std::size_t HeldBytes() const override { return source_->HeldBytes(); }
  VirtualMemory* virtual_memory() override;
  StreamOrderedMemory* stream_ordered_memory() override;
  Timeline* timeline() override { return source_->timeline(); }
  bool IsHostAccessible() const override { return source_->IsHostAccessible(); }
  DriverUse GetDriverUse() const override { return source_->GetDriverUse(); }

 private:
  class Mapper;
  class PoolMaker;

  SharedSource(std::shared_ptr<MemorySource> source, std::shared_ptr<Ledger> ledger,
               std::shared_ptr<Device> device);

  absl::Status Charge(std::uint64_t bytes, std::uint64_t* could = nullptr);
  void Commit(std::uint64_t bytes) { ledger_->Commit(bytes); }
  // Commits a charge for what was got.
  void Settle(std::uint64_t charged, std::uint64_t got);
  Ledger::FreeBytes DeviceFree() const;

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Ledger> ledger_;
  const std::shared_ptr<MemorySource> source_;
  std::uint64_t ahead_ = 0;  // charged, and not used yet
  std::unique_ptr<Mapper> mapper_;
  std::unique_ptr<PoolMaker> pool_maker_;
};

}  // namespace hbm::sharing

#endif  // HBMALLOC_SHARING_SHARED_SOURCE_H_
