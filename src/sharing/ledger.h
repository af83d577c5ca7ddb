// SPDX-License-Identifier: Apache-2.0
//
// File: ledger.h
//
// One process's account on a shared device. Memory is charged before it is allocated,
// so that two processes can never both count the same free bytes:
//
//   absl::StatusOr<std::unique_ptr<Ledger>> ledger = Ledger::Join(uuid, total, terms);
//   absl::Status charged = (*ledger)->Charge(bytes, ask_device_for_free_bytes);
//   if (!charged.ok()) return charged;                // others have it
//   if (allocate(bytes)) {
//     (*ledger)->Commit(bytes);                       // it is the device's matter now
//   } else {
//     (*ledger)->Refund(bytes);
//   }
//   ...
//   (*ledger)->Release(bytes);                        // after it was given back
//
// Charge takes the ledger's lock and asks the device under it. The others take no
// lock: they make what is held smaller, or move it from one figure to the other.
#ifndef HBMALLOC_SHARING_LEDGER_H_
#define HBMALLOC_SHARING_LEDGER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "hbmalloc/policy.h"
#include "sharing/shares.h"
#include "sharing/slot_file.h"

namespace hbm::sharing {

// What a process joins with. Sizes are bytes.
struct Terms {
  Sharing sharing = Sharing::kFair;
  double share = 0;  // 0: an equal part
  std::uint64_t reserve = 0;
  std::uint64_t overhead = 0;
  std::uint64_t limit = 0;
  std::string strategy;
  std::string name;  // empty: the program's
  OwnerKind kind = OwnerKind::kProgram;
};

// Thread-safe.
class Ledger {
 public:
  using FreeBytes = std::function<absl::StatusOr<std::uint64_t>()>;

  // ResourceExhausted: the shares of those present leave no room for this one's; the
  // message names them.
  static absl::StatusOr<std::unique_ptr<Ledger>> Join(const std::string& key,
                                                      std::uint64_t capacity, const Terms& terms);

  // `could`, if given, becomes what could have been had.
  //   ResourceExhausted   others hold it, or may take it before this process does.
  //   FailedPrecondition  in a child of fork.
  //   others              the device's own, or of the ledger's file.
  absl::Status Charge(std::uint64_t bytes, const FreeBytes& device_free,
                      std::uint64_t* could = nullptr);
  void Commit(std::uint64_t bytes);
  void Refund(std::uint64_t bytes);
  void Release(std::uint64_t bytes);
  // Held memory that was never charged: a source gave more than it was asked for.
  void AddHeld(std::uint64_t bytes);

  // Says that `bytes` more are lacking, for the next moments: who still lacks them then
  // says so again. Wakes those who could give some back.
  void Want(std::uint64_t bytes, absl::Duration lasts = absl::Milliseconds(200));
  void StopWanting();
  // What others lack now.
  std::uint64_t WantedByOthers();

  // What this process could take now.
  absl::StatusOr<std::uint64_t> Room(const FreeBytes& device_free);
  // "process 71 (python3, elastic): 12 GiB held, 3 GiB in use; ..."
  std::string DescribeHolders();

  std::uint64_t held() const;
  // For people: what hbm-top shows.
  void Publish(std::uint64_t in_use, std::uint64_t largest_free);
  void SetLimit(std::uint64_t bytes);
  void CountWait();

  absl::Status CheckProcess() const { return file_->CheckProcess(); }
  SlotFile& file() { return *file_; }
  const Terms& terms() const { return terms_; }

 private:
  Ledger(std::unique_ptr<SlotFile> file, Terms terms)
      : file_(std::move(file)), terms_(std::move(terms)) {}

  // This process's place in the books is `self`.
  Books ReadBooks(std::size_t* self) const;
  bool Fits(std::uint64_t bytes, const FreeBytes& device_free, std::uint64_t* could,
            absl::Status* device) const;

  const std::unique_ptr<SlotFile> file_;
  const Terms terms_;
  std::atomic<std::uint64_t> announced_at_{0};
};

// Everybody in a ledger's file. Takes no lock. `self` becomes the place of `own_index`.
Books ReadBooks(const SlotFile& file, int own_index, std::size_t* self);
std::string DescribeHolders(const SlotFile& file, int except_index);

}  // namespace hbm::sharing

#endif  // HBMALLOC_SHARING_LEDGER_H_
