// SPDX-License-Identifier: Apache-2.0
//
// File: bits.h
//
// Logarithms of whole numbers.
//
//   FloatBits<5>(48)   // 5 * 32 + 16: 2^5 and a half more
#ifndef HBMALLOC_CORE_BITS_H_
#define HBMALLOC_CORE_BITS_H_

#include <cstdint>
#include <cstring>

namespace hbm::core {

// The position of a number's highest bit, followed by the kBits bits after it, as a
// floating point number has them; never falls as the number grows. A conversion and
// a shift are quicker than to look for the bit. Requires 0 < number < 2^53.
template <int kBits>
inline std::uint32_t FloatBits(std::uint64_t number) {
  static_assert(sizeof(double) == sizeof(std::uint64_t));
  const auto value = static_cast<double>(static_cast<std::int64_t>(number));
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint32_t>(bits >> (52 - kBits)) - (1023u << kBits);
}

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_BITS_H_
