// SPDX-License-Identifier: Apache-2.0
//
// File: text.h
//
// Sizes, durations and booleans as people write them.
#ifndef HBMALLOC_POLICY_TEXT_H_
#define HBMALLOC_POLICY_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace hbm::policy {

// "512MiB", "1.5GiB", "8GB", "4096", "0": bytes. Fractions of a byte are floored.
absl::StatusOr<std::size_t> ParseBytes(std::string_view text);
// Exact and shortest: "512MiB", "1537B" as "1537".
std::string FormatBytesExact(std::size_t bytes);
// For people, three digits: "1.25 GiB".
std::string FormatBytes(std::size_t bytes);

// "10s", "1.5ms", "inf", "0".
absl::StatusOr<absl::Duration> ParseDuration(std::string_view text);

// true/false, 1/0, yes/no, on/off in any case.
absl::StatusOr<bool> ParseBool(std::string_view text);

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_TEXT_H_
