// SPDX-License-Identifier: Apache-2.0
//
// File: membership.h
//
// An allocator's membership among the processes that share a device: its account in
// the ledger, its memory source, and a thread that publishes what it holds and gives
// idle memory to those who lack it.
//
//   auto membership = Membership::Join(policy, device, memory.total, &limit);
//   context.source = (*membership)->Wrap(source);
//   absl::Status ready = (*membership)->AwaitStart(limit.start_bytes, granularity);
//   ... make the allocator on context.source ...
//   (*membership)->Begin(allocator.get());
//   ... and before the allocator's destruction starts: membership.reset();
//
// A fork leaves the membership with the parent: in the child every call that needs the
// ledger is FailedPrecondition or does nothing.
#ifndef HBMALLOC_SHARING_MEMBERSHIP_H_
#define HBMALLOC_SHARING_MEMBERSHIP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmalloc/allocator.h"
#include "policy/pool_limit.h"
#include "sharing/ledger.h"
#include "sharing/shared_source.h"

namespace hbm::sharing {

// How long an allocation, or a pool at its start, waits for other processes if the
// policy's max_wait is left at 0.
inline constexpr absl::Duration kDefaultWaitForOthers = absl::Seconds(30);
// A GPU's context, and what cuBLAS, cuDNN and NCCL take beside every pool.
inline constexpr std::uint64_t kContextBytes = std::uint64_t{768} << 20;
// Left to everybody of a device of `total` bytes if the policy says nothing.
std::uint64_t DefaultReserve(std::uint64_t total);

// What a policy with sharing lets stand in for fields that are left at their defaults:
// strategy and reserve. `total` is the device's memory.
Policy WithDefaults(Policy policy, std::uint64_t total);

class Membership {
 public:
  // Lowers `limit` to the policy's share and by what the process needs beside its pool.
  static absl::StatusOr<std::unique_ptr<Membership>> Join(const Policy& policy,
                                                          std::shared_ptr<Device> device,
                                                          std::uint64_t total,
                                                          std::uint64_t granularity,
                                                          policy::PoolLimit* limit);
  // Ends the thread. Waits until what it does is done.
  ~Membership();

  // Once.
  std::shared_ptr<MemorySource> Wrap(std::shared_ptr<MemorySource> source);

  // Waits until a pool of `bytes` can be had, and charges it. ResourceExhausted if that
  // takes longer than the policy waits and on_shortage is fail: the message names who
  // holds what. With on_shortage=shrink that is OK, and the pool takes what there is.
  absl::Status AwaitStart(std::uint64_t bytes);

  // From now on the allocator is asked for what it holds, and to trim.
  void Begin(Allocator* allocator);

  std::string DescribeHolders() { return ledger_->DescribeHolders(); }

 private:
  Membership(const Policy& policy, std::shared_ptr<Device> device, std::shared_ptr<Ledger> ledger);

  void Run();
  void Publish();
  void GiveBack(std::uint64_t wanted);

  const Policy policy_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Ledger> ledger_;
  const std::uint32_t made_in_;  // fork generation
  std::shared_ptr<SharedSource> source_;
  Allocator* allocator_ = nullptr;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace hbm::sharing

#endif  // HBMALLOC_SHARING_MEMBERSHIP_H_
