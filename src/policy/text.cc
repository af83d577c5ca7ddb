// SPDX-License-Identifier: Apache-2.0
#include "policy/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/charconv.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hbm::policy {
namespace {

// Wide enough for any size times any power of ten used here.
__extension__ using Wide = unsigned __int128;

struct Unit {
  std::string_view name;
  std::uint64_t size;
};

// The order is the order of preference between texts of equal length.
constexpr std::array<Unit, 10> kByteUnits = {{{"TiB", std::uint64_t{1} << 40},
                                              {"GiB", std::uint64_t{1} << 30},
                                              {"MiB", std::uint64_t{1} << 20},
                                              {"KiB", std::uint64_t{1} << 10},
                                              {"TB", 1000'000'000'000},
                                              {"GB", 1000'000'000},
                                              {"MB", 1000'000},
                                              {"KB", 1000},
                                              {"", 1},
                                              {"B", 1}}};
constexpr std::string_view kByteUnitNames = "B, KiB, MiB, GiB, TiB, KB, MB, GB or TB";

constexpr int kMaxDecimals = 18;  // 10^18 units still fit in Wide

std::size_t CountDigits(std::string_view text) {
  return std::min(text.find_first_not_of("0123456789"), text.size());
}

Wide PowerOfTen(int exponent) {
  Wide power = 1;
  for (; exponent > 0; --exponent) power *= 10;
  return power;
}

absl::StatusOr<std::uint64_t> FindByteUnit(std::string_view name) {
  for (const Unit& unit : kByteUnits) {
    if (absl::EqualsIgnoreCase(View(name), View(unit.name))) return unit.size;
  }
  if (name.size() == 1 && std::string_view("kKmMgGtT").find(name[0]) != std::string_view::npos) {
    const char letter = absl::ascii_toupper(static_cast<unsigned char>(name[0]));
    return absl::InvalidArgumentError(
        absl::StrFormat("the unit \"%s\" means two things; write %ciB (binary) or %cB (decimal)",
                        View(name), letter, letter));
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", View(name), "\" is no unit of size; use ",
                                                 View(kByteUnitNames), ", or nothing for bytes"));
}

// Whole and fractional digits of an unsigned decimal number, and what follows.
struct Decimal {
  std::string_view whole;
  std::string_view fraction;
  std::string_view rest;
};

absl::StatusOr<Decimal> SplitDecimal(std::string_view text) {
  Decimal decimal;
  decimal.whole = text.substr(0, CountDigits(text));
  decimal.rest = text.substr(decimal.whole.size());
  if (!decimal.rest.empty() && decimal.rest[0] == '.') {
    const std::string_view after = decimal.rest.substr(1);
    decimal.fraction = after.substr(0, CountDigits(after));
    decimal.rest = after.substr(decimal.fraction.size());
  }
  if (!decimal.whole.empty() || !decimal.fraction.empty()) return decimal;
  if (!text.empty() && text[0] == '-') {
    return absl::InvalidArgumentError("a size cannot be negative");
  }
  return absl::InvalidArgumentError("is not a size; write a number with a unit, such as 1.5GiB");
}

// The shortest text NUMBER + UNIT, the number being 1 or more, that `reads_back`
// accepts as the same value, or `otherwise`. `value` and the units' sizes are counts of one
// smallest step.
std::string ShortestWithUnit(Wide value, const Unit* begin, const Unit* end, std::string otherwise,
                             const std::function<bool(std::string_view)>& reads_back) {
  std::string best = std::move(otherwise);
  for (const Unit* unit = begin; unit != end; ++unit) {
    for (int decimals = 0; decimals < kMaxDecimals; ++decimals) {
      const Wide scale = PowerOfTen(decimals);
      // Rounded up, because readers round down.
      const Wide scaled = (value * scale + unit->size - 1) / unit->size;
      const auto whole = static_cast<std::uint64_t>(scaled / scale);
      if (whole == 0 && value != 0) continue;  // 512MiB reads better than 0.5GiB
      std::string text = absl::StrCat(whole);
      if (decimals > 0) {
        const auto fraction = static_cast<std::uint64_t>(scaled % scale);
        absl::StrAppend(&text, ".", absl::StrFormat("%0*d", decimals, fraction));
      }
      absl::StrAppend(&text, View(unit->name));
      if (text.size() >= best.size()) break;  // more decimals only make it longer
      if (reads_back(text)) {
        best = std::move(text);
        break;
      }
    }
  }
  return best;
}

}  // namespace

std::string_view Trim(std::string_view text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(View(text));
  return {trimmed.data(), trimmed.size()};
}

absl::StatusOr<std::size_t> ParseBytes(std::string_view text) {
  const absl::StatusOr<Decimal> decimal = SplitDecimal(Trim(text));
  if (!decimal.ok()) return decimal.status();
  const absl::StatusOr<std::uint64_t> unit = FindByteUnit(Trim(decimal->rest));
  if (!unit.ok()) return unit.status();

  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  Wide bytes = 0;
  for (const char digit : decimal->whole) {
    bytes = bytes * 10 + static_cast<unsigned>(digit - '0');
    if (bytes > kMax) break;
  }
  bytes *= *unit;
  Wide fraction = 0;
  const std::string_view decimals = decimal->fraction.substr(0, kMaxDecimals);
  for (const char digit : decimals) fraction = fraction * 10 + static_cast<unsigned>(digit - '0');
  bytes += fraction * *unit / PowerOfTen(static_cast<int>(decimals.size()));
  if (bytes > kMax) {
    return absl::InvalidArgumentError(absl::StrCat("is more than ", kMax, " bytes"));
  }
  return static_cast<std::size_t>(bytes);
}

std::string FormatBytesExact(std::size_t bytes) {
  return ShortestWithUnit(bytes, kByteUnits.data(), kByteUnits.data() + kByteUnits.size(),
                          absl::StrCat(bytes, "B"), [bytes](std::string_view text) {
                            const absl::StatusOr<std::size_t> read = ParseBytes(text);
                            return read.ok() && *read == bytes;
                          });
}

std::string FormatBytes(std::size_t bytes) {
  constexpr std::array<const char*, 7> kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.5 and more would be shown as 1024.
  for (; value >= 1023.5 && unit + 1 < kNames.size(); ++unit) value /= 1024.0;
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::string number = absl::StrFormat("%.*f", decimals, value);
  if (decimals > 0) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
  }
  return absl::StrCat(number, " ", kNames[unit]);
}

absl::StatusOr<absl::Duration> ParseDuration(std::string_view text) {
  const std::string_view trimmed = Trim(text);
  absl::Duration duration;
  if (!absl::ParseDuration(View(trimmed), &duration)) {
    if (ParseNumber(trimmed).ok()) {
      return absl::InvalidArgumentError(absl::StrCat("is a time without a unit; write ",
                                                     View(trimmed), "s, or ms, us, ns, m or h"));
    }
    return absl::InvalidArgumentError(
        "is not a time; write a number with ns, us, ms, s, m or h, such as 1.5s, or inf");
  }
  if (duration < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("a time cannot be negative");
  }
  if (duration == absl::InfiniteDuration() && !absl::EndsWith(View(trimmed), "inf")) {
    return absl::InvalidArgumentError("is too long a time; write inf for no end");
  }
  // There is one zero; "-0" leaves no trace.
  return duration;
}

std::string FormatDurationExact(absl::Duration duration) {
  std::string otherwise = absl::FormatDuration(duration);
  if (duration <= absl::ZeroDuration() || duration == absl::InfiniteDuration()) return otherwise;
  // absl::Duration counts quarters of a nanosecond.
  constexpr std::uint64_t kPerSecond = 4'000'000'000;
  constexpr std::array<Unit, 6> kUnits = {{{"h", 3600 * kPerSecond},
                                           {"m", 60 * kPerSecond},
                                           {"s", kPerSecond},
                                           {"ms", kPerSecond / 1000},
                                           {"us", kPerSecond / 1000'000},
                                           {"ns", kPerSecond / 1000'000'000}}};
  absl::Duration below_one_second;
  const std::int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &below_one_second);
  const std::int64_t quarters = absl::ToInt64Nanoseconds(below_one_second * 4);
  const Wide ticks = static_cast<Wide>(seconds) * kPerSecond + static_cast<std::uint64_t>(quarters);
  const auto reads_back = [duration](std::string_view text) {
    const absl::StatusOr<absl::Duration> read = ParseDuration(text);
    return read.ok() && *read == duration;
  };
  return ShortestWithUnit(ticks, kUnits.data(), kUnits.data() + kUnits.size(), std::move(otherwise),
                          reads_back);
}

absl::StatusOr<double> ParseNumber(std::string_view text) {
  const std::string_view trimmed = Trim(text);
  // What absl::from_chars takes beyond this is words, signs and hexadecimal.
  const bool starts_well = !trimmed.empty() && (trimmed[0] == '.' || CountDigits(trimmed) > 0) &&
                           trimmed.find_first_not_of("0123456789.eE+-") == std::string_view::npos;
  double value = 0;
  const char* const end = trimmed.data() + trimmed.size();
  if (starts_well) {
    const absl::from_chars_result read = absl::from_chars(trimmed.data(), end, value);
    if (read.ec == std::errc() && read.ptr == end) return value;
    if (read.ec == std::errc::result_out_of_range && read.ptr == end) {
      return absl::InvalidArgumentError("is too large or too small a number");
    }
  }
  if (!trimmed.empty() && trimmed[0] == '-') {
    return absl::InvalidArgumentError("cannot be negative");
  }
  return absl::InvalidArgumentError("is not a number");
}

std::string FormatNumber(double value) {
  if (value == 0) return "0";  // without the sign of a negative zero
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer;
  const std::to_chars_result end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), end.ptr);
}

absl::StatusOr<bool> ParseBool(std::string_view text) {
  const absl::string_view trimmed = View(Trim(text));
  for (const char* yes : {"true", "1", "yes", "on"}) {
    if (absl::EqualsIgnoreCase(trimmed, yes)) return true;
  }
  for (const char* no : {"false", "0", "no", "off"}) {
    if (absl::EqualsIgnoreCase(trimmed, no)) return false;
  }
  return absl::InvalidArgumentError("is neither yes nor no");
}

}  // namespace hbm::policy
