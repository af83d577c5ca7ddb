// SPDX-License-Identifier: Apache-2.0
#include "sharing/shares.h"

#include <algorithm>
#include <limits>

namespace hbm::sharing {
namespace {

std::uint64_t Less(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }

std::uint64_t Plus(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  return a > kMost - b ? kMost : a + b;
}

std::uint64_t Scaled(std::uint64_t bytes, double share) {
  return share >= 1
             ? bytes
             : static_cast<std::uint64_t>(static_cast<long double>(bytes) *
                                              static_cast<long double>(std::max(share, 0.0)) +
                                          0.5L);
}

// What process `i` may still take within its part.
std::uint64_t RoomInPart(const Books& books, std::size_t i) {
  const Claim& claim = books.claims[i];
  return Less(PartOf(books, i), Plus(claim.held, claim.overhead));
}

}  // namespace

std::uint64_t Available(const Books& books) {
  std::uint64_t held = 0;
  std::uint64_t charged = 0;
  for (const Claim& claim : books.claims) {
    held = Plus(held, Plus(claim.held, claim.overhead));
    charged = Plus(charged, claim.charged);
  }
  const std::uint64_t by_books = Less(books.capacity, held);
  const std::uint64_t by_device = Less(books.device_free, charged);
  return Less(std::min(by_books, by_device), books.reserve);
}

double SumOfShares(const Books& books) {
  double sum = 0;
  for (const Claim& claim : books.claims) sum += claim.share;
  return sum;
}

std::uint64_t PartOf(const Books& books, std::size_t i) {
  const std::uint64_t usable = Less(books.capacity, books.reserve);
  if (books.claims[i].share > 0) return Scaled(usable, books.claims[i].share);
  std::uint64_t given = 0;
  std::uint64_t equals = 0;
  for (const Claim& claim : books.claims) {
    if (claim.share > 0) {
      given = Plus(given, Scaled(usable, claim.share));
    } else {
      ++equals;
    }
  }
  return Less(usable, given) / std::max<std::uint64_t>(equals, 1);
}

std::uint64_t MayTake(const Books& books, std::size_t i, bool fair) {
  const std::uint64_t available = Available(books);
  if (!fair) return available;
  std::uint64_t kept_back = 0;
  for (std::size_t j = 0; j < books.claims.size(); ++j) {
    if (j == i || books.claims[j].wants == 0) continue;
    kept_back = Plus(kept_back, std::min(books.claims[j].wants, RoomInPart(books, j)));
  }
  const std::uint64_t within = std::min(available, RoomInPart(books, i));
  return std::max(within, Less(available, kept_back));
}

}  // namespace hbm::sharing
