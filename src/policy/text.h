// SPDX-License-Identifier: Apache-2.0
//
// File: text.h
//
// Sizes, durations, numbers and booleans as people write them. Blanks around a
// text are ignored; an error says what is wrong with it and what is allowed, but
// not where it stood: the caller knows.
//
//   absl::StatusOr<std::size_t> bytes = policy::ParseBytes("1.5GiB");
#ifndef HBMALLOC_POLICY_TEXT_H_
#define HBMALLOC_POLICY_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace hbm::policy {

// Abseil's string_view is a type of its own in some builds of it.
inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view View(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

std::string_view Trim(std::string_view text);
// A text as it goes into an error: never a screenful.
inline std::string_view Excerpt(std::string_view text) { return text.substr(0, 80); }

// "512MiB", "1.5GiB", "8GB", "4096", "0": bytes. Fractions of a byte are floored.
// Units in any case; a bare K, M, G or T is refused, because it means two things.
absl::StatusOr<std::size_t> ParseBytes(std::string_view text);
// The shortest text that ParseBytes turns into the same number, its number being 1
// or more: "512MiB", "1537".
std::string FormatBytesExact(std::size_t bytes);
// For people, three digits: "1.25 GiB".
std::string FormatBytes(std::size_t bytes);

// "10s", "1.5ms", "1h30m", "inf", "0". Not negative.
absl::StatusOr<absl::Duration> ParseDuration(std::string_view text);
// The same for ParseDuration: "90s".
std::string FormatDurationExact(absl::Duration duration);

// A decimal number, not negative: "0.05", ".5", "1e-3". No "nan", no "inf", no
// hexadecimal.
absl::StatusOr<double> ParseNumber(std::string_view text);
// The shortest text that ParseNumber turns into the same number.
std::string FormatNumber(double value);

// true/false, 1/0, yes/no, on/off in any case.
absl::StatusOr<bool> ParseBool(std::string_view text);

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_TEXT_H_
