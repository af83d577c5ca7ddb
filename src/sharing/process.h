// SPDX-License-Identifier: Apache-2.0
//
// File: process.h
//
// Which process something belongs to, and whether that process still runs. A pid
// alone does not tell: it is used again, and means nothing in another pid namespace
// (a container's).
//
//   const ProcessId me = ThisProcess();
//   if (LookUp(other) == Presence::kDead) ...
#ifndef HBMALLOC_SHARING_PROCESS_H_
#define HBMALLOC_SHARING_PROCESS_H_

#include <cstdint>
#include <string>

namespace hbm::sharing {

struct ProcessId {
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;     // in the kernel's ticks since it started
  std::uint64_t pid_namespace = 0;  // 0: not known
};

enum class Presence {
  kRunning,
  kDead,     // ended, also if nobody has collected its exit status yet
  kUnknown,  // in another pid namespace, or /proc cannot be read
};

// Reads /proc.
ProcessId ThisProcess();
ProcessId ProcessOf(std::int32_t pid);
Presence LookUp(const ProcessId& process);
// The same by the pid alone, a hundred times as fast: kDead is certain, kRunning may be
// another process with the same pid, or one that ended and was not collected.
Presence LookUpQuickly(const ProcessId& process);

// The program's name, as the kernel has it (15 characters).
std::string ProgramName();

}  // namespace hbm::sharing

#endif  // HBMALLOC_SHARING_PROCESS_H_
