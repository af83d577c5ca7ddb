// SPDX-License-Identifier: Apache-2.0
//
// File: sharing.h
//
// Who shares a device, and what each of them holds: what hbm-top shows, for programs.
// How a process joins is its policy's `sharing` (policy.h).
//
//   absl::StatusOr<hbm::SharingState> state = hbm::GetSharingState(device->Uuid());
//   for (const hbm::SharingProcess& process : state->processes) {
//     std::cout << process.pid << " holds " << process.held << "\n";
//   }
//
// Reads shared memory, takes the ledger's lock for microseconds, calls no driver.
// Sizes are bytes. Thread-safe.
#ifndef HBMALLOC_SHARING_H_
#define HBMALLOC_SHARING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "hbmalloc/policy.h"

namespace hbm {

struct SharingProcess {
  std::int32_t pid = 0;     // in its own pid namespace
  bool alive = true;        // false: it ended, and its slot was not used again yet
  bool is_command = false;  // started by hbm-run: what it uses within `held` is not known
  std::string name;
  std::string strategy;
  Sharing sharing = Sharing::kOff;
  double share = 0;          // 0: an equal part of what others' shares leave
  std::size_t part = 0;      // what that is now, context and libraries included
  std::size_t limit = 0;     // most that it may hold in its pool
  std::size_t held = 0;      // its pool, and what it is about to allocate
  std::size_t charged = 0;   // the latter
  std::size_t overhead = 0;  // counted for its context and libraries
  std::size_t in_use = 0;    // as in Stats::bytes_in_use, at most 100 ms old
  std::size_t largest_free = 0;
  double external = 0;      // fragmentation: 1 - largest free / all that is free of its pool
  std::size_t wants = 0;    // that it lacks at this moment
  std::uint64_t waits = 0;  // naps while it waited for its pool
  absl::Time joined;
};

struct SharingState {
  std::string uuid;
  std::string file;
  std::size_t capacity = 0;
  std::size_t reserve = 0;  // left to everybody
  std::size_t held = 0;     // by living processes, with their contexts and libraries
  std::vector<SharingProcess> processes;
};

// NotFound: no process has shared the device yet.
absl::StatusOr<SharingState> GetSharingState(std::string_view uuid);

// All devices that this user's processes share or shared.
absl::StatusOr<std::vector<SharingState>> ListSharedDevices();

}  // namespace hbm

#endif  // HBMALLOC_SHARING_H_
