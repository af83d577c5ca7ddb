// SPDX-License-Identifier: Apache-2.0
#include "sharing/ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "policy/text.h"

namespace hbm::sharing {
namespace {

using policy::FormatBytes;

constexpr double kShareUnit = 4294967296.0;  // 2^32
// What rounding may add to shares that make up the whole device.
constexpr double kShareTolerance = 1e-6;
constexpr absl::Duration kBetweenReaps = absl::Milliseconds(5);
constexpr absl::Duration kBetweenAnnouncements = absl::Milliseconds(10);
constexpr int kJoinTries = 4;
constexpr int kMostHoldersNamed = 8;

std::uint64_t Nanoseconds(absl::Duration duration) {
  return static_cast<std::uint64_t>(absl::ToInt64Nanoseconds(duration));
}

std::uint64_t WantsOf(const Slot& slot, std::uint64_t now) {
  return slot.wants_until.load(std::memory_order_relaxed) > now
             ? slot.wants.load(std::memory_order_relaxed)
             : 0;
}

}  // namespace

Books ReadBooks(const SlotFile& file, int own_index, std::size_t* self) {
  Books books;
  books.capacity = file.capacity();
  const std::uint64_t now = MonotonicNow();
  for (std::uint32_t i = 0; i < file.used_slots(); ++i) {
    const Slot& slot = file.slot(i);
    if (slot.taken.load(std::memory_order_acquire) == 0) continue;
    if (static_cast<int>(i) == own_index) *self = books.claims.size();
    Claim claim;
    // In this order: who commits or refunds meanwhile is counted twice, never missed.
    claim.charged = slot.charged.load(std::memory_order_acquire);
    claim.held = slot.held.load(std::memory_order_acquire);
    claim.overhead = slot.overhead.load(std::memory_order_relaxed);
    claim.share =
        static_cast<double>(slot.share_parts.load(std::memory_order_relaxed)) / kShareUnit;
    claim.wants = WantsOf(slot, now);
    claim.fair =
        slot.sharing.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(Sharing::kFair);
    books.claims.push_back(claim);
    books.reserve = std::max(books.reserve, slot.reserve.load(std::memory_order_relaxed));
  }
  books.reserve = std::min(books.reserve, books.capacity);
  return books;
}

std::string DescribeHolders(const SlotFile& file, int except_index) {
  struct Holder {
    std::uint64_t held;
    std::string text;
  };
  std::vector<Holder> holders;
  for (std::uint32_t i = 0; i < file.used_slots(); ++i) {
    const Slot& slot = file.slot(i);
    if (slot.taken.load(std::memory_order_acquire) == 0 || static_cast<int>(i) == except_index) {
      continue;
    }
    const std::uint64_t held = slot.held.load() + slot.overhead.load();
    const std::string name(slot.name, strnlen(slot.name, sizeof(slot.name)));
    const std::string strategy(slot.strategy, strnlen(slot.strategy, sizeof(slot.strategy)));
    holders.push_back(
        {held, absl::StrCat("process ", slot.pid.load(), " (", name, ", ", strategy, ") holds ",
                            FormatBytes(held), ", ", FormatBytes(slot.in_use.load()), " in use")});
  }
  std::sort(holders.begin(), holders.end(),
            [](const Holder& a, const Holder& b) { return a.held > b.held; });
  std::string text;
  for (std::size_t i = 0; i < holders.size() && i < kMostHoldersNamed; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", holders[i].text);
  }
  if (holders.size() > kMostHoldersNamed) {
    absl::StrAppend(&text, "; and ", holders.size() - kMostHoldersNamed, " more");
  }
  return text.empty() ? "no other process has a slot" : text;
}

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Join(const std::string& key, std::uint64_t capacity,
                                                     const Terms& terms) {
  SlotIdentity identity;
  identity.process = ThisProcess();
  identity.kind = terms.kind;
  identity.sharing = static_cast<std::uint32_t>(terms.sharing);
  identity.overhead = terms.overhead;
  identity.share_parts = static_cast<std::uint64_t>(terms.share * kShareUnit);
  identity.reserve = terms.reserve;
  identity.limit = terms.limit;
  identity.strategy = terms.strategy;
  identity.name = terms.name.empty() ? ProgramName() : terms.name;
  absl::Status claimed;
  for (int tries = 0; tries < kJoinTries; ++tries) {
    SlotFile::Options options;
    options.kind = "ledger";
    options.key = key;
    options.capacity = capacity;
    absl::StatusOr<std::unique_ptr<SlotFile>> file = SlotFile::Open(options);
    if (!file.ok()) return file.status();
    claimed = (*file)->Claim(identity);
    if (claimed.ok()) {
      auto ledger = std::unique_ptr<Ledger>(new Ledger(*std::move(file), terms));
      if (terms.share <= 0) return ledger;
      std::size_t self = 0;
      if (SumOfShares(ledger->ReadBooks(&self)) <= 1 + kShareTolerance) return ledger;
      ledger->file_->Reap();
      const double sum = SumOfShares(ledger->ReadBooks(&self));
      if (sum <= 1 + kShareTolerance) return ledger;
      return absl::ResourceExhaustedError(absl::StrCat(
          "share=", policy::FormatNumber(terms.share), ": the shares of those on the device are ",
          policy::FormatNumber(sum - terms.share), " of it already: ", ledger->DescribeHolders()));
    }
    if (!absl::IsAborted(claimed)) break;
  }
  return claimed;
}

Books Ledger::ReadBooks(std::size_t* self) const {
  return sharing::ReadBooks(*file_, file_->own_index(), self);
}

bool Ledger::Fits(std::uint64_t bytes, const FreeBytes& device_free, std::uint64_t* could,
                  absl::Status* device) const {
  std::size_t self = 0;
  Books books = ReadBooks(&self);
  // After the books: what is committed in between is counted twice, never missed.
  const absl::StatusOr<std::uint64_t> free = device_free();
  *device = free.status();
  if (!free.ok()) return false;
  books.device_free = *free;
  *could = MayTake(books, self, terms_.sharing == Sharing::kFair);
  return *could >= bytes;
}

absl::Status Ledger::Charge(std::uint64_t bytes, const FreeBytes& device_free,
                            std::uint64_t* could) {
  std::uint64_t room = 0;
  {
    SlotFile::Lock lock(file_.get());
    if (!lock.status().ok()) return lock.status();
    absl::Status device;
    bool fits = Fits(bytes, device_free, &room, &device);
    if (!fits && device.ok() && file_->ReapLocked(kBetweenReaps) > 0) {
      fits = Fits(bytes, device_free, &room, &device);
    }
    if (could != nullptr) *could = room;
    if (!device.ok()) return device;
    if (fits) {
      Slot& own = file_->own();
      // First what keeps others off.
      Step();
      own.held.fetch_add(bytes, std::memory_order_release);
      Step();
      own.charged.fetch_add(bytes, std::memory_order_release);
      Step();
      own.wants.store(0, std::memory_order_relaxed);
      return absl::OkStatus();
    }
  }
  Want(bytes - std::min(bytes, room));
  return absl::ResourceExhaustedError(absl::StrCat(
      FormatBytes(bytes), " asked for, ", FormatBytes(room), " can be had; ", DescribeHolders()));
}

void Ledger::Commit(std::uint64_t bytes) {
  if (!CheckProcess().ok()) return;
  Step();
  file_->own().charged.fetch_sub(bytes, std::memory_order_release);
}

void Ledger::Refund(std::uint64_t bytes) {
  Commit(bytes);
  Release(bytes);
}

void Ledger::Release(std::uint64_t bytes) {
  if (!CheckProcess().ok()) return;
  Step();
  file_->own().held.fetch_sub(bytes, std::memory_order_release);
}

void Ledger::AddHeld(std::uint64_t bytes) {
  if (!CheckProcess().ok()) return;
  Step();
  file_->own().held.fetch_add(bytes, std::memory_order_release);
}

void Ledger::Want(std::uint64_t bytes, absl::Duration lasts) {
  if (!CheckProcess().ok()) return;
  const std::uint64_t now = MonotonicNow();
  Slot& own = file_->own();
  own.wants.store(bytes, std::memory_order_relaxed);
  own.wants_until.store(now + Nanoseconds(lasts), std::memory_order_release);
  const std::uint64_t last = announced_at_.load(std::memory_order_relaxed);
  if (now - last < Nanoseconds(kBetweenAnnouncements)) return;
  announced_at_.store(now, std::memory_order_relaxed);
  file_->AnnounceWanted();
}

void Ledger::StopWanting() {
  if (CheckProcess().ok()) file_->own().wants.store(0, std::memory_order_relaxed);
}

std::uint64_t Ledger::WantedByOthers() {
  if (!CheckProcess().ok()) return 0;
  const std::uint64_t now = MonotonicNow();
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < file_->used_slots(); ++i) {
    const Slot& slot = file_->slot(i);
    if (static_cast<int>(i) == file_->own_index() ||
        slot.taken.load(std::memory_order_acquire) == 0) {
      continue;
    }
    sum += std::min(WantsOf(slot, now), file_->capacity());
  }
  return sum;
}

absl::StatusOr<std::uint64_t> Ledger::Room(const FreeBytes& device_free) {
  if (absl::Status process = CheckProcess(); !process.ok()) return process;
  std::uint64_t room = 0;
  absl::Status device;
  Fits(0, device_free, &room, &device);
  if (!device.ok()) return device;
  return room;
}

std::string Ledger::DescribeHolders() {
  if (!CheckProcess().ok()) return "";
  return sharing::DescribeHolders(*file_, file_->own_index());
}

std::uint64_t Ledger::held() const {
  return CheckProcess().ok() ? file_->own().held.load(std::memory_order_acquire) : 0;
}

void Ledger::Publish(std::uint64_t in_use, std::uint64_t largest_free) {
  if (!CheckProcess().ok()) return;
  Slot& own = file_->own();
  own.in_use.store(in_use, std::memory_order_relaxed);
  own.largest_free.store(largest_free, std::memory_order_relaxed);
  own.published_at.store(MonotonicNow(), std::memory_order_release);
}

void Ledger::SetLimit(std::uint64_t bytes) {
  if (CheckProcess().ok()) file_->own().limit.store(bytes, std::memory_order_relaxed);
}

void Ledger::CountWait() {
  if (CheckProcess().ok()) file_->own().waits.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace hbm::sharing
