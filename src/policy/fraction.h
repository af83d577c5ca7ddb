// SPDX-License-Identifier: Apache-2.0
//
// File: fraction.h
//
// XLA's grammar of memory fractions: "0.75" is fixed, "0.75+" grows to 1,
// "0.75-0.85" grows to 0.85. Equal ends are fixed. A dash in an exponent is no
// separator: "1e-3-2e-3".
#ifndef HBMALLOC_POLICY_FRACTION_H_
#define HBMALLOC_POLICY_FRACTION_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "hbmalloc/policy.h"

namespace hbm::policy {

// The largest fraction of memory that unified memory may be oversubscribed to.
inline constexpr double kMaxFraction = 16.0;

// The grammar, and that the ends are in order. What the rest of the policy allows
// is ValidatePolicy's to say.
absl::StatusOr<MemoryFraction> ParseFraction(std::string_view text);
std::string FormatFraction(const MemoryFraction& fraction);

// The range of a fraction, whatever the rest of the policy says: positive, in
// order, growing to 1 at most, fixed at kMaxFraction at most. The message says
// what was probably meant.
absl::Status CheckFraction(const MemoryFraction& fraction);

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_FRACTION_H_
