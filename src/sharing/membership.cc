// SPDX-License-Identifier: Apache-2.0
#include "sharing/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/forked.h"
#include "core/signals.h"
#include "observe/log.h"
#include "policy/text.h"

namespace hbm::sharing {
namespace {

using policy::FormatBytes;

// Left to everybody if the policy says nothing: 1/64 of the device, to 1 GiB.
constexpr std::uint64_t kReserveDivisor = 64;
constexpr std::uint64_t kMostReserve = std::uint64_t{1} << 30;
constexpr std::uint64_t kReserveUnit = std::uint64_t{2} << 20;

constexpr absl::Duration kBetweenPublications = absl::Milliseconds(100);
// While somebody lacks memory, freed memory is looked for this often.
constexpr absl::Duration kBetweenTrims = absl::Milliseconds(5);
constexpr absl::Duration kFirstNap = absl::Milliseconds(1);
constexpr absl::Duration kLongestNap = absl::Milliseconds(50);

std::string_view View(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace

Policy WithDefaults(Policy policy, std::uint64_t total) {
  if (!policy.strategy.has_value() && policy.sharing == Sharing::kFair) {
    policy.strategy = Strategy::kElastic;
  }
  if (policy.reserve == 0) policy.reserve = DefaultReserve(total);
  return policy;
}

std::uint64_t DefaultReserve(std::uint64_t total) {
  const std::uint64_t reserve = std::min(total / kReserveDivisor, kMostReserve);
  return reserve / kReserveUnit * kReserveUnit;
}

absl::StatusOr<std::unique_ptr<Membership>> Membership::Join(const Policy& policy,
                                                             std::shared_ptr<Device> device,
                                                             std::uint64_t total,
                                                             std::uint64_t granularity,
                                                             policy::PoolLimit* limit) {
  Terms terms;
  terms.sharing = policy.sharing;
  terms.share = policy.share.value_or(0);
  terms.reserve = policy.reserve;
  terms.overhead = device->IsCuda() ? kContextBytes : 0;
  // A share of the device pays for the context too; so does the whole device.
  const std::uint64_t usable = total - std::min<std::uint64_t>(total, terms.reserve);
  const bool is_cap = policy.share.has_value() && policy.strategy != Strategy::kElastic;
  const auto part =
      static_cast<std::uint64_t>(static_cast<double>(usable) * (is_cap ? *policy.share : 1.0));
  const std::uint64_t most = (part - std::min(part, terms.overhead)) / granularity * granularity;
  if (most == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("share: of the device's ", FormatBytes(total), ", ", FormatBytes(part),
                     " are this process's part, and its context and libraries take ",
                     FormatBytes(terms.overhead), " of that; ask for a larger share"));
  }
  if (most < limit->bytes) {
    limit->bytes = most;
    limit->source = is_cap ? LimitSource::kShare : LimitSource::kReserve;
    limit->start_bytes = std::min<std::uint64_t>(limit->start_bytes, most);
  }
  terms.limit = limit->bytes;
  terms.strategy = std::string(ToString(*policy.strategy));
  absl::StatusOr<std::unique_ptr<Ledger>> ledger =
      Ledger::Join(std::string(device->Uuid()), total, terms);
  if (!ledger.ok()) return ledger.status();
  return std::unique_ptr<Membership>(
      new Membership(policy, std::move(device), std::shared_ptr<Ledger>(*std::move(ledger))));
}

Membership::Membership(const Policy& policy, std::shared_ptr<Device> device,
                       std::shared_ptr<Ledger> ledger)
    : policy_(policy),
      device_(std::move(device)),
      ledger_(std::move(ledger)),
      made_in_(core::ForkGeneration()) {}

Membership::~Membership() {
  if (!thread_.joinable()) return;
  if (made_in_ != core::ForkGeneration()) {
    // The thread stayed with the parent; there is nobody to wait for.
    thread_.detach();
    return;
  }
  ends_.store(true);
  ledger_->file().AnnounceWanted();  // ends its wait
  thread_.join();
}

std::shared_ptr<MemorySource> Membership::Wrap(std::shared_ptr<MemorySource> source) {
  source_ = SharedSource::Wrap(std::move(source), ledger_, device_);
  return source_;
}

absl::Status Membership::AwaitStart(std::uint64_t bytes) {
  const absl::Duration max_wait =
      policy_.max_wait > absl::ZeroDuration() ? policy_.max_wait : kDefaultWaitForOthers;
  const absl::Time start = absl::Now();
  absl::Duration nap = kFirstNap;
  std::uint64_t could = 0;
  absl::Status charged = source_->ChargeAhead(bytes, &could);
  while (absl::IsResourceExhausted(charged)) {
    const absl::Duration left = max_wait - (absl::Now() - start);
    if (left <= absl::ZeroDuration()) break;
    ledger_->CountWait();
    // Naps of unlike lengths, so that those who started together do not stay in step.
    const double jitter = 0.5 + static_cast<double>(MonotonicNow() % 1024) / 1024;
    absl::SleepFor(std::min(left, nap * jitter));
    nap = std::min(nap * 1.5, kLongestNap);
    charged = source_->ChargeAhead(bytes, &could);
  }
  ledger_->StopWanting();
  if (!absl::IsResourceExhausted(charged)) return charged;
  const std::string waited =
      absl::StrCat("a pool of ", FormatBytes(bytes), " could not be had within ",
                   absl::FormatDuration(absl::Now() - start), ": ", charged.message());
  if (policy_.on_shortage == OnShortage::kFail || could == 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        waited, "; wait longer (max_wait), ask for less (share, memory_fraction, memory_limit)",
        could == 0 ? "" : ", or take what there is (on_shortage=shrink)"));
  }
  observe::LogWarning(View(waited));
  return absl::OkStatus();
}

void Membership::Begin(Allocator* allocator) {
  source_->RefundAhead();
  allocator_ = allocator;
  Publish();
  const core::SignalsBlocked blocked;
  thread_ = std::thread([this] { Run(); });
}

void Membership::Publish() {
  const Stats stats = allocator_->GetStats();
  ledger_->Publish(
      static_cast<std::uint64_t>(std::max<std::int64_t>(stats.bytes_in_use, 0)),
      static_cast<std::uint64_t>(std::max<std::int64_t>(stats.largest_free_block_bytes, 0)));
  ledger_->SetLimit(static_cast<std::uint64_t>(std::max<std::int64_t>(stats.bytes_limit, 0)));
}

void Membership::GiveBack(std::uint64_t wanted) {
  const auto pool =
      static_cast<std::uint64_t>(std::max<std::int64_t>(allocator_->GetStats().pool_bytes, 0));
  if (pool == 0) return;
  TrimOptions options;
  options.keep_pool_bytes = pool - std::min(pool, wanted);
  const absl::StatusOr<TrimResult> trimmed = allocator_->Trim(options);
  if (!trimmed.ok() || trimmed->released >= wanted || options.keep_pool_bytes == 0) return;
  // Memory comes in pieces: those that are larger than what is wanted.
  allocator_->Trim(TrimOptions()).IgnoreError();
}

void Membership::Run() {
  pthread_setname_np(pthread_self(), "hbm-sharing");
  SlotFile& file = ledger_->file();
  std::uint64_t published_at = 0;
  while (!ends_.load()) {
    const std::uint32_t seen = file.wanted_sequence();
    const std::uint64_t wanted = policy_.sharing == Sharing::kFair ? ledger_->WantedByOthers() : 0;
    if (wanted != 0) GiveBack(wanted);
    const std::uint64_t now = MonotonicNow();
    if (now - published_at >=
        static_cast<std::uint64_t>(absl::ToInt64Nanoseconds(kBetweenPublications))) {
      Publish();
      published_at = now;
    }
    if (ends_.load()) break;
    file.WaitForWanted(seen, wanted != 0 ? kBetweenTrims : kBetweenPublications);
  }
}

}  // namespace hbm::sharing
