// SPDX-License-Identifier: Apache-2.0
//
// hbm-run: an unmodified program in its place among those that share a GPU. It does
// not stay beside the program, it becomes it: so the program's pid is the one in the
// books, its signals and its exit code are its own, and nothing is left if it is
// killed. docs/multi-process.md is its page.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "hbmalloc/version.h"
#include "policy/text.h"
#include "sharing/ledger.h"
#include "sharing/membership.h"
#include "tools/run/environment.h"
#include "tools/run/flags.h"
#include "tools/run/probe.h"

namespace hbm::run {
namespace {

using sharing::Ledger;

enum ExitCode { kOk = 0, kWaitedInVain = 124, kFailed = 125, kCannotRun = 126, kNotFound = 127 };

constexpr absl::Duration kFirstNap = absl::Milliseconds(10);
constexpr absl::Duration kLongestNap = absl::Milliseconds(500);
// Longer than a nap and a look at a GPU.
constexpr absl::Duration kWishLasts = absl::Seconds(3);

void Say(std::string_view message) {
  std::fprintf(stderr, "hbm-run: %.*s\n", static_cast<int>(message.size()), message.data());
}

struct Grant {
  Probe device;
  std::uint64_t pool_bytes = 0;
  std::unique_ptr<Ledger> ledger;
};

absl::StatusOr<sharing::Terms> TermsFor(const Flags& flags, const Probe& device) {
  sharing::Terms terms;
  terms.kind = sharing::OwnerKind::kCommand;
  terms.sharing = Sharing::kFair;
  terms.share = flags.share;
  terms.reserve = sharing::DefaultReserve(device.total);
  terms.overhead = device.is_cuda ? sharing::kContextBytes : 0;
  const auto part =
      static_cast<std::uint64_t>(flags.share * static_cast<double>(device.total - terms.reserve));
  if (part <= terms.overhead) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--share=", policy::FormatNumber(flags.share), ": that is ", policy::FormatBytes(part),
        ", and a context with its libraries takes ", policy::FormatBytes(terms.overhead)));
  }
  terms.limit = part - terms.overhead;
  terms.strategy = "command";
  const std::string& program = flags.command[0];
  terms.name = program.substr(program.rfind('/') + 1);
  return terms;
}

// One try. ResourceExhausted: it is not its turn. The place among those who wait is
// kept in `grant`.
absl::Status TryToBook(const Flags& flags, Grant* grant) {
  const absl::StatusOr<Probe> device = ProbeDevice(flags.device);
  if (!device.ok()) return device.status();
  grant->device = *device;
  if (grant->ledger == nullptr) {
    const absl::StatusOr<sharing::Terms> terms = TermsFor(flags, *device);
    if (!terms.ok()) return terms.status();
    absl::StatusOr<std::unique_ptr<Ledger>> ledger =
        Ledger::Join(device->uuid, device->total, *terms);
    if (!ledger.ok()) return ledger.status();
    grant->ledger = *std::move(ledger);
    grant->pool_bytes = terms->limit;
  }
  const std::uint64_t free = device->free;
  std::uint64_t could = 0;
  absl::Status charged = grant->ledger->Charge(
      grant->pool_bytes, [free]() -> absl::StatusOr<std::uint64_t> { return free; }, &could);
  if (charged.ok()) {
    // When the command allocates is not known: the books alone keep it free for it.
    grant->ledger->Commit(grant->pool_bytes);
  } else if (absl::IsResourceExhausted(charged)) {
    grant->ledger->Want(grant->pool_bytes - std::min(could, grant->pool_bytes), kWishLasts);
  }
  return charged;
}

absl::Status Book(const Flags& flags, Grant* grant) {
  const absl::Time start = absl::Now();
  absl::Duration nap = kFirstNap;
  for (;;) {
    absl::Status booked = TryToBook(flags, grant);
    if (!absl::IsResourceExhausted(booked)) return booked;
    const absl::Duration left = flags.wait - (absl::Now() - start);
    if (left <= absl::ZeroDuration()) return booked;
    if (flags.verbose) Say(absl::StrCat("waiting: ", booked.message()));
    if (grant->ledger != nullptr) grant->ledger->CountWait();
    const double jitter = 0.5 + static_cast<double>(sharing::MonotonicNow() % 1024) / 1024;
    absl::SleepFor(std::min(left, nap * jitter));
    nap = std::min(nap * 2, kLongestNap);
  }
}

int BecomeCommand(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  Say(absl::StrCat(command[0], ": ", std::strerror(error)));
  return error == ENOENT ? kNotFound : kCannotRun;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<Flags> flags = ReadFlags(argc, argv);
  if (!flags.ok()) {
    Say(policy::View(flags.status()));
    return kFailed;
  }
  if (flags->help || flags->version) {
    std::fputs(flags->help ? kHelp : "hbm-run " HBMALLOC_VERSION "\n", stdout);
    return kOk;
  }
  Grant grant;
  if (absl::Status booked = Book(*flags, &grant); !booked.ok()) {
    const bool in_vain = absl::IsResourceExhausted(booked);
    const std::string how =
        in_vain ? absl::StrCat("no room within ", absl::FormatDuration(flags->wait), ": ") : "";
    Say(absl::StrCat(how, booked.message()));
    return in_vain ? kWaitedInVain : kFailed;
  }
  const double fraction =
      static_cast<double>(grant.pool_bytes) / static_cast<double>(grant.device.total);
  SetEnvironment(grant.device, fraction, flags->command);
  if (flags->verbose) {
    Say(absl::StrFormat("%s: %s for the pool, a fraction of %.4f", grant.device.uuid,
                        policy::FormatBytes(grant.pool_bytes), fraction));
  }
  if (absl::Status kept = grant.ledger->file().KeepOverExec(); !kept.ok()) {
    Say(policy::View(kept));
    return kFailed;
  }
  return BecomeCommand(flags->command);
}

}  // namespace
}  // namespace hbm::run

int main(int argc, char** argv) { return hbm::run::Main(argc, argv); }
