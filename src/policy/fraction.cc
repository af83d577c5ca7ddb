// SPDX-License-Identifier: Apache-2.0
#include "policy/fraction.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "policy/text.h"

namespace hbm::policy {
namespace {

// The dash between two ends: not the first character, not an exponent's sign.
std::size_t FindSeparator(std::string_view text) {
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '-' && text[i - 1] != 'e' && text[i - 1] != 'E') return i;
  }
  return std::string_view::npos;
}

absl::StatusOr<double> ParseEnd(std::string_view text) {
  // Blanks are allowed around the whole, not inside.
  if (Trim(text).size() != text.size()) return absl::InvalidArgumentError("is not a number");
  return ParseNumber(text);
}

absl::Status PercentMeant(std::string_view text) {
  const absl::StatusOr<double> percent = ParseNumber(text.substr(0, text.size() - 1));
  if (!percent.ok()) return percent.status();
  return absl::InvalidArgumentError(absl::StrCat("is a percentage, not a fraction; if ", View(text),
                                                 " of the memory was meant, write ",
                                                 FormatNumber(*percent / 100)));
}

}  // namespace

absl::StatusOr<MemoryFraction> ParseFraction(std::string_view text) {
  const std::string_view trimmed = Trim(text);
  if (!trimmed.empty() && trimmed.back() == '%') return PercentMeant(trimmed);

  MemoryFraction fraction;
  std::string_view start = trimmed;
  if (!trimmed.empty() && trimmed.back() == '+') {
    start = trimmed.substr(0, trimmed.size() - 1);
    fraction.cap = 1.0;
  } else if (const std::size_t dash = FindSeparator(trimmed); dash != std::string_view::npos) {
    start = trimmed.substr(0, dash);
    const absl::StatusOr<double> cap = ParseEnd(trimmed.substr(dash + 1));
    if (!cap.ok()) return cap.status();
    fraction.cap = *cap;
  }
  const absl::StatusOr<double> parsed = ParseEnd(start);
  if (!parsed.ok()) return parsed.status();
  fraction.start = *parsed;
  if (fraction.cap == fraction.start) fraction.cap.reset();
  if (absl::Status checked = CheckFraction(fraction); !checked.ok()) return checked;
  return fraction;
}

std::string FormatFraction(const MemoryFraction& fraction) {
  const std::string start = FormatNumber(fraction.start);
  if (!fraction.cap.has_value() || *fraction.cap == fraction.start) return start;
  if (*fraction.cap == 1.0) return absl::StrCat(start, "+");
  return absl::StrCat(start, "-", FormatNumber(*fraction.cap));
}

absl::Status CheckFraction(const MemoryFraction& fraction) {
  if (!(fraction.start > 0) || !std::isfinite(fraction.start)) {
    return absl::InvalidArgumentError("must be a number over 0");
  }
  if (fraction.cap.has_value() && *fraction.cap != fraction.start) {
    if (fraction.start > 1.0 || !(*fraction.cap <= 1.0)) {
      return absl::InvalidArgumentError("grows beyond 1; only a fixed fraction may be over 1");
    }
    if (*fraction.cap < fraction.start) {
      return absl::InvalidArgumentError("ends below its start");
    }
    return absl::OkStatus();
  }
  if (fraction.start <= kMaxFraction) return absl::OkStatus();
  std::string message = absl::StrCat("is more than ", kMaxFraction, " times the memory");
  if (fraction.start <= 100) {
    absl::StrAppend(&message, "; if ", FormatNumber(fraction.start),
                    "% of the memory was meant, write ", FormatNumber(fraction.start / 100));
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace hbm::policy
