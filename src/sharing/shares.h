// SPDX-License-Identifier: Apache-2.0
//
// File: shares.h
//
// Who may take how much of a shared device: arithmetic over what the ledger says of
// everybody, with no shared memory in it, so that it can be tested by itself.
//
//   Books books = ...;                         // one Claim for each process
//   if (MayTake(books, self, /*fair=*/true) >= bytes) ...
//
// A process's part of the device is its share of what is usable (the capacity less
// the reserve). Those without a share of their own divide what the others leave,
// equally. Within its part a process takes whatever is free. Beyond it, fair lends it
// what is free, but for what others lack within their parts.
#ifndef HBMALLOC_SHARING_SHARES_H_
#define HBMALLOC_SHARING_SHARES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hbm::sharing {

// What one process has and wants. Sizes are bytes.
struct Claim {
  std::uint64_t held = 0;      // allocated, or charged and about to be
  std::uint64_t charged = 0;   // the part of it whose allocation is not done
  std::uint64_t overhead = 0;  // its context and libraries
  double share = 0;            // 0: an equal part of what shares leave
  std::uint64_t wants = 0;     // that it lacks now
  bool fair = false;
};

struct Books {
  std::uint64_t capacity = 0;
  std::uint64_t device_free = 0;  // what the device itself says
  std::uint64_t reserve = 0;
  std::vector<Claim> claims;
};

// What nobody holds: min(capacity - all that is held and charged, what the device has
// free - what is charged and not allocated yet) - reserve, or 0. The device knows of
// those who are not in the books, the books of what is only charged.
std::uint64_t Available(const Books& books);

// The part of process `i`, its overhead included.
std::uint64_t PartOf(const Books& books, std::size_t i);

// The sum of all shares that were asked for explicitly.
double SumOfShares(const Books& books);

// The most that process `i` may take now.
std::uint64_t MayTake(const Books& books, std::size_t i, bool fair);

}  // namespace hbm::sharing

#endif  // HBMALLOC_SHARING_SHARES_H_
