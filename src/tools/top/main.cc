// SPDX-License-Identifier: Apache-2.0
//
// hbm-top: who holds what on each shared device. docs/multi-process.md explains the
// columns.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "hbmalloc/sharing.h"
#include "hbmalloc/version.h"
#include "policy/text.h"
#include "sharing/state.h"

namespace hbm::top {
namespace {

enum ExitCode { kOk = 0, kUsage = 1, kUnavailable = 2, kViolation = 3 };

constexpr char kHelp[] =
    "usage: hbm-top [--once] [--format=table|json] [--interval=1s] [--gc] [--verify]\n"
    "\n"
    "Shows who holds what on each device that processes share, again and again.\n"
    "\n"
    "  --once         once; the default where standard output is no terminal\n"
    "  --format=json  one JSON object: {\"devices\": [...]}; once\n"
    "  --interval=1s  time between two looks\n"
    "  --gc           frees slots of processes that ended, removes files that nobody uses\n"
    "  --verify       looks once, and fails if a process holds more than its limit or a\n"
    "                 device's processes together more than it has\n"
    "  --version, --help\n"
    "\n"
    "Exit codes: 0; 1 usage; 2 the files cannot be read; 3 --verify found something.\n";

struct Flags {
  bool once = false;
  bool json = false;
  bool gc = false;
  bool verify = false;
  absl::Duration interval = absl::Seconds(1);
};

void Say(std::string_view message) {
  std::fprintf(stderr, "hbm-top: %.*s\n", static_cast<int>(message.size()), message.data());
}

std::string_view WordFor(Sharing sharing) {
  switch (sharing) {
    case Sharing::kOff:
      return "off";
    case Sharing::kFair:
      return "fair";
    case Sharing::kFirstCome:
      return "first_come";
  }
  return "unknown";
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<unsigned>(c));
    } else {
      // Bytes beyond ASCII may be cut characters; a name's are not worth invalid JSON.
      quoted += static_cast<unsigned char>(c) < 0x80 ? c : '?';
    }
  }
  return quoted + "\"";
}

std::string Json(const SharingProcess& process) {
  return absl::StrCat(
      "{\"pid\": ", process.pid, ", \"alive\": ", process.alive ? "true" : "false",
      ", \"kind\": ", process.is_command ? "\"command\"" : "\"program\"",
      ", \"name\": ", Quoted(process.name), ", \"strategy\": ", Quoted(process.strategy),
      ", \"sharing\": ", Quoted(WordFor(process.sharing)), ", \"share\": ", process.share,
      ", \"part\": ", process.part, ", \"limit\": ", process.limit, ", \"held\": ", process.held,
      ", \"charged\": ", process.charged, ", \"overhead\": ", process.overhead,
      ", \"in_use\": ", process.in_use, ", \"largest_free\": ", process.largest_free,
      ", \"external\": ", process.external, ", \"wants\": ", process.wants,
      ", \"waits\": ", process.waits, ", \"joined_unix\": ", absl::ToUnixSeconds(process.joined),
      "}");
}

std::string Json(const std::vector<SharingState>& states) {
  std::string text = "{\"devices\": [";
  for (std::size_t i = 0; i < states.size(); ++i) {
    const SharingState& state = states[i];
    absl::StrAppend(&text, i == 0 ? "\n" : ",\n", " {\"uuid\": ", Quoted(state.uuid),
                    ", \"file\": ", Quoted(state.file), ", \"capacity\": ", state.capacity,
                    ", \"reserve\": ", state.reserve, ", \"held\": ", state.held,
                    ", \"processes\": [");
    for (std::size_t j = 0; j < state.processes.size(); ++j) {
      absl::StrAppend(&text, j == 0 ? "\n  " : ",\n  ", Json(state.processes[j]));
    }
    absl::StrAppend(&text, "]}");
  }
  return text + "]}\n";
}

std::string Row(const SharingProcess& process) {
  const auto bytes = [](std::size_t size) { return policy::FormatBytes(size); };
  return absl::StrFormat(
      "%8d %-16s %-10s %-10s %5s %10s %10s %10s %10s %5s %10s %6d\n", process.pid,
      absl::StrCat(process.name.substr(0, 14), process.alive ? "" : " +"), process.strategy,
      absl::string_view(WordFor(process.sharing).data(), WordFor(process.sharing).size()),
      process.share > 0 ? absl::StrFormat("%.2f", process.share) : "-", bytes(process.part),
      bytes(process.limit), bytes(process.held), process.is_command ? "?" : bytes(process.in_use),
      process.is_command ? "?" : absl::StrFormat("%.2f", process.external),
      process.wants == 0 ? "-" : bytes(process.wants), process.waits);
}

std::string Table(const std::vector<SharingState>& states) {
  if (states.empty()) return "no device is shared\n";
  std::string text;
  for (const SharingState& state : states) {
    absl::StrAppend(&text, state.uuid, ": ", policy::FormatBytes(state.held), " of ",
                    policy::FormatBytes(state.capacity), " held, ",
                    policy::FormatBytes(state.reserve), " in reserve\n");
    absl::StrAppendFormat(&text, "%8s %-16s %-10s %-10s %5s %10s %10s %10s %10s %5s %10s %6s\n",
                          "PID", "NAME", "STRATEGY", "SHARING", "SHARE", "PART", "LIMIT", "HELD",
                          "IN USE", "FRAG", "WANTS", "WAITS");
    for (const SharingProcess& process : state.processes) text += Row(process);
  }
  return text;
}

// Says what is wrong; whether anything is.
bool FindViolations(const std::vector<SharingState>& states) {
  bool found = false;
  for (const SharingState& state : states) {
    if (state.held > state.capacity) {
      Say(absl::StrCat(state.uuid, ": ", state.held, " bytes are held of ", state.capacity));
      found = true;
    }
    for (const SharingProcess& process : state.processes) {
      if (!process.alive || process.held <= process.limit) continue;
      Say(absl::StrCat(state.uuid, ": process ", process.pid, " (", process.name, ") holds ",
                       process.held, " bytes, its policy allows ", process.limit));
      found = true;
    }
  }
  return found;
}

bool ReadFlags(int argc, char** argv, Flags* flags, int* exit_code) {
  *exit_code = kUsage;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view flag = argv[i];
    if (flag == "--help") {
      std::fputs(kHelp, stdout);
      *exit_code = kOk;
      return false;
    }
    if (flag == "--version") {
      std::puts("hbm-top " HBMALLOC_VERSION);
      *exit_code = kOk;
      return false;
    }
    if (flag == "--once") {
      flags->once = true;
    } else if (flag == "--gc") {
      flags->gc = true;
    } else if (flag == "--verify") {
      flags->verify = true;
    } else if (flag == "--format=json") {
      flags->json = true;
    } else if (absl::StartsWith(flag, "--interval=")) {
      const absl::StatusOr<absl::Duration> interval = policy::ParseDuration(argv[i] + 11);
      if (!interval.ok() || *interval < absl::Milliseconds(10) || *interval > absl::Hours(1)) {
        Say(absl::StrCat(argv[i], ": allowed: a time from 10ms to 1h"));
        return false;
      }
      flags->interval = *interval;
    } else if (flag != "--format=table") {
      Say(absl::StrCat("\"", flag, "\" is no flag; --help lists them"));
      return false;
    }
  }
  return true;
}

int Clean() {
  const absl::StatusOr<sharing::CleanUp> done = sharing::RemoveDead();
  if (!done.ok()) {
    Say(policy::View(done.status()));
    return kUnavailable;
  }
  std::printf("freed %d slots\n", done->slots);
  for (const std::string& path : done->removed) std::printf("removed %s\n", path.c_str());
  return kOk;
}

int Main(int argc, char** argv) {
  Flags flags;
  int exit_code;
  if (!ReadFlags(argc, argv, &flags, &exit_code)) return exit_code;
  if (flags.gc) return Clean();
  const bool again = !flags.once && !flags.json && !flags.verify && isatty(STDOUT_FILENO) != 0;
  for (;;) {
    const absl::StatusOr<std::vector<SharingState>> states = ListSharedDevices();
    if (!states.ok()) {
      Say(policy::View(states.status()));
      return kUnavailable;
    }
    if (flags.verify && FindViolations(*states)) return kViolation;
    const std::string text = flags.json ? Json(*states) : Table(*states);
    if (again) std::fputs("\033[H\033[J", stdout);
    if (!flags.verify || flags.once || flags.json) std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    if (!again) return kOk;
    absl::SleepFor(flags.interval);
  }
}

}  // namespace
}  // namespace hbm::top

int main(int argc, char** argv) { return hbm::top::Main(argc, argv); }
