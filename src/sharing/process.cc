// SPDX-License-Identifier: Apache-2.0
#include "sharing/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace hbm::sharing {
namespace {

// The start of a small file, as a C string; false if it cannot be read.
template <std::size_t kBytes>
bool ReadStart(const char* path, char (&text)[kBytes]) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  ssize_t got;
  do {
    got = read(file, text, kBytes - 1);
  } while (got < 0 && errno == EINTR);
  close(file);
  if (got <= 0) return false;
  text[got] = '\0';
  return true;
}

struct ProcStat {
  char state = '?';
  long threads = 0;
  std::uint64_t start_time = 0;
};

bool ReadProcStat(std::int32_t pid, ProcStat* stat) {
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  char text[1024];
  if (!ReadStart(path, text)) return false;
  // The name in front may hold blanks and brackets; the last one ends it.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ') return false;
  at += 2;
  // Fields are counted from 1 in proc(5); the state is the third.
  for (int field = 3; *at != '\0'; ++field) {
    if (field == 3) stat->state = *at;
    if (field == 20) stat->threads = std::strtol(at, nullptr, 10);
    if (field == 22) {
      stat->start_time = std::strtoull(at, nullptr, 10);
      return true;
    }
    at = std::strchr(at, ' ');
    if (at == nullptr) return false;
    ++at;
  }
  return false;
}

std::uint64_t OwnPidNamespace() {
  struct stat info;
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace

ProcessId ProcessOf(std::int32_t pid) {
  ProcStat stat;
  ReadProcStat(pid, &stat);
  return {pid, stat.start_time, OwnPidNamespace()};
}

ProcessId ThisProcess() { return ProcessOf(getpid()); }

Presence LookUpQuickly(const ProcessId& process) {
  static const std::uint64_t own_namespace = OwnPidNamespace();
  if (process.pid_namespace == 0 || process.pid_namespace != own_namespace) {
    return Presence::kUnknown;
  }
  if (process.pid <= 0) return Presence::kDead;
  return kill(process.pid, 0) != 0 && errno == ESRCH ? Presence::kDead : Presence::kRunning;
}

Presence LookUp(const ProcessId& process) {
  const Presence quick = LookUpQuickly(process);
  if (quick != Presence::kRunning) return quick;
  ProcStat stat;
  if (!ReadProcStat(process.pid, &stat)) {
    // It ended just now, or /proc hides other users' processes.
    return kill(process.pid, 0) != 0 && errno == ESRCH ? Presence::kDead : Presence::kUnknown;
  }
  if (process.start_time != 0 && stat.start_time != process.start_time) return Presence::kDead;
  // A first thread may have ended before the others.
  const bool ended = stat.state == 'Z' || stat.state == 'X';
  return ended && stat.threads <= 1 ? Presence::kDead : Presence::kRunning;
}

std::string ProgramName() {
  char text[32];
  if (!ReadStart("/proc/self/comm", text)) return "unknown";
  text[std::strcspn(text, "\n")] = '\0';
  return text;
}

}  // namespace hbm::sharing
