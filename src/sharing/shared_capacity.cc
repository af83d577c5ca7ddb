// SPDX-License-Identifier: Apache-2.0
#include "sharing/shared_capacity.h"

#include <algorithm>

namespace hbm::sharing {
namespace {

// The dead are looked for when memory is short, and now and then.
constexpr absl::Duration kBetweenReaps = absl::Milliseconds(5);
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(20);
constexpr int kOpenTries = 4;

}  // namespace

absl::StatusOr<std::shared_ptr<SharedCapacity>> SharedCapacity::Open(const std::string& key,
                                                                     std::uint64_t total) {
  absl::Status claimed;
  for (int tries = 0; tries < kOpenTries; ++tries) {
    SlotFile::Options options;
    options.kind = "capacity";
    options.key = key;
    options.capacity = total;
    absl::StatusOr<std::unique_ptr<SlotFile>> file = SlotFile::Open(options);
    if (!file.ok()) return file.status();
    SlotIdentity identity;
    identity.process = ThisProcess();
    identity.name = ProgramName();
    claimed = (*file)->Claim(identity);
    if (claimed.ok()) {
      return std::shared_ptr<SharedCapacity>(new SharedCapacity(*std::move(file)));
    }
    if (!absl::IsAborted(claimed)) break;
  }
  return claimed;
}

bool SharedCapacity::TryTake(std::uint64_t bytes) {
  SlotFile::Lock lock(file_.get());
  if (!lock.status().ok()) return false;
  const auto has_room = [&] {
    const std::uint64_t held = file_->Sum(false);
    return held <= file_->capacity() && bytes <= file_->capacity() - held;
  };
  if (!has_room() && (file_->ReapLocked(kBetweenReaps) == 0 || !has_room())) return false;
  file_->own().held.fetch_add(bytes, std::memory_order_release);
  Step();
  return true;
}

void SharedCapacity::Return(std::uint64_t bytes) {
  if (!file_->CheckProcess().ok()) return;
  file_->own().held.fetch_sub(bytes, std::memory_order_release);
  Step();
}

std::uint64_t SharedCapacity::available() {
  SlotFile::Lock lock(file_.get());
  if (!lock.status().ok()) return 0;
  file_->ReapLocked(kBetweenLooks);
  return file_->capacity() - std::min(file_->capacity(), file_->Sum(false));
}

}  // namespace hbm::sharing
