// SPDX-License-Identifier: Apache-2.0
//
// File: values.h
//
// The kinds of value that a policy's fields hold. Each kind is a type with
//
//   using Value = ...;                              what the field holds
//   absl::StatusOr<Value> Parse(std::string_view)   the text may be out of range
//   std::string Print(const Value&)                 what Parse reads back
//   bool Contains(const Value&)                     whether it is in range
//   std::string Allowed()                           the range, in words
//   std::string_view Unit()                         for the documentation
//
// and fields.cc names one for each field.
#ifndef HBMALLOC_POLICY_VALUES_H_
#define HBMALLOC_POLICY_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "hbmalloc/policy.h"
#include "policy/fraction.h"
#include "policy/text.h"

namespace hbm::policy {

inline constexpr std::size_t kNoMaximum = std::numeric_limits<std::size_t>::max();
inline constexpr std::size_t kTiB = std::size_t{1} << 40;

// A size from kMin to kMax bytes.
template <std::size_t kMin, std::size_t kMax>
struct Bytes {
  using Value = std::size_t;
  static absl::StatusOr<Value> Parse(std::string_view text) { return ParseBytes(text); }
  static std::string Print(Value value) { return FormatBytesExact(value); }
  static bool Contains(Value value) { return value >= kMin && value <= kMax; }
  static std::string Allowed() {
    const std::string from = absl::StrCat("a size such as 512MiB, ", FormatBytesExact(kMin));
    return kMax == kNoMaximum ? absl::StrCat(from, " or more")
                              : absl::StrCat(from, " to ", FormatBytesExact(kMax));
  }
  static std::string_view Unit() { return "bytes"; }
};

// A number from 0 to kMax; a kMax of 0 stands for infinity, "inf".
template <int kMax>
struct Number {
  using Value = double;
  static absl::StatusOr<Value> Parse(std::string_view text) {
    if (kMax == 0 && absl::EqualsIgnoreCase(View(Trim(text)), "inf")) {
      return std::numeric_limits<double>::infinity();
    }
    return ParseNumber(text);
  }
  static std::string Print(Value value) { return FormatNumber(value); }
  static bool Contains(Value value) { return value >= 0 && (kMax == 0 || value <= kMax); }
  static std::string Allowed() {
    return kMax == 0 ? "a number, 0 or more, or inf" : absl::StrCat("a number, 0 to ", kMax);
  }
  static std::string_view Unit() { return "a ratio"; }
};

// A part of something: over 0, at most all of it.
struct Share {
  using Value = double;
  static absl::StatusOr<Value> Parse(std::string_view text) { return ParseNumber(text); }
  static std::string Print(Value value) { return FormatNumber(value); }
  static bool Contains(Value value) { return value > 0 && value <= 1; }
  static std::string Allowed() { return "a number such as 0.25, over 0 to 1"; }
  static std::string_view Unit() { return "a share of memory"; }
};

// A time from zero to infinity.
struct Time {
  using Value = absl::Duration;
  static absl::StatusOr<Value> Parse(std::string_view text) { return ParseDuration(text); }
  static std::string Print(Value value) { return FormatDurationExact(value); }
  static bool Contains(Value value) { return value >= absl::ZeroDuration(); }
  static std::string Allowed() { return "a time such as 1.5s, 0 or more, or inf"; }
  static std::string_view Unit() { return "time"; }
};

struct Switch {
  using Value = bool;
  static absl::StatusOr<Value> Parse(std::string_view text) { return ParseBool(text); }
  static std::string Print(Value value) { return value ? "true" : "false"; }
  static bool Contains(Value /*value*/) { return true; }
  static std::string Allowed() { return "true, false, 1, 0, yes, no, on, off"; }
  static std::string_view Unit() { return "yes or no"; }
};

struct Fraction {
  using Value = MemoryFraction;
  static absl::StatusOr<Value> Parse(std::string_view text) { return ParseFraction(text); }
  static std::string Print(const Value& value) { return FormatFraction(value); }
  static bool Contains(const Value& value) { return CheckFraction(value).ok(); }
  static std::string Allowed() {
    return absl::StrCat(
        "0.75 (fixed), 0.75+ (grows to 1) or 0.75-0.85 (grows to 0.85), over 0 to 1; fixed to ",
        kMaxFraction, " with memory_kind=unified");
  }
  static std::string_view Unit() { return "a share of memory"; }
};

// A file's name; empty, printed as "none", is none.
struct FileName {
  using Value = std::string;
  static absl::StatusOr<Value> Parse(std::string_view text);
  static std::string Print(const Value& value) { return value.empty() ? "none" : value; }
  static bool Contains(const Value& value);
  static std::string Allowed() {
    return "a file's name of at most 4096 bytes, without commas and control characters";
  }
  static std::string_view Unit() { return "a file"; }
};

// Ordinals of devices, separated by semicolons.
struct Ordinals {
  using Value = std::vector<int>;
  static absl::StatusOr<Value> Parse(std::string_view text);
  static std::string Print(const Value& value);
  static bool Contains(const Value& value);  // no ordinal twice
  static std::string Allowed() {
    return "none, or ordinals of devices such as 1;2, 0 to 1023, each once";
  }
  static std::string_view Unit() { return "device ordinals"; }
};

// Names of debug checks, joined by plus signs or semicolons.
struct Checks {
  using Value = DebugChecks;
  static absl::StatusOr<Value> Parse(std::string_view text);
  static std::string Print(const Value& value);
  static bool Contains(const Value& /*value*/) { return true; }
  static std::string Allowed() {
    return "none, or any of guard, poison, leaks, stacks joined by +";
  }
  static std::string_view Unit() { return "checks"; }
};

template <typename Enum>
struct Named {
  Enum value;
  std::string_view name;
};

// The words for an enumeration's values, in values.cc.
const std::vector<Named<Strategy>>& Names(Strategy);
const std::vector<Named<FractionOf>>& Names(FractionOf);
const std::vector<Named<OnShortage>>& Names(OnShortage);
const std::vector<Named<MemoryKind>>& Names(MemoryKind);
const std::vector<Named<StreamMode>>& Names(StreamMode);
const std::vector<Named<Sharing>>& Names(Sharing);

// One of an enumeration's words, in any case.
template <typename Enum>
struct OneOf {
  using Value = Enum;
  static absl::StatusOr<Value> Parse(std::string_view text) {
    for (const Named<Enum>& named : Names(Enum())) {
      if (absl::EqualsIgnoreCase(View(Trim(text)), View(named.name))) return named.value;
    }
    return absl::InvalidArgumentError("is not one of its values");
  }
  static std::string Print(Value value) {
    for (const Named<Enum>& named : Names(Enum())) {
      if (named.value == value) return std::string(named.name);
    }
    return absl::StrCat(static_cast<int>(value));
  }
  static bool Contains(Value value) {
    for (const Named<Enum>& named : Names(Enum())) {
      if (named.value == value) return true;
    }
    return false;
  }
  static std::string Allowed() {
    std::string words;
    for (const Named<Enum>& named : Names(Enum())) {
      absl::StrAppend(&words, words.empty() ? "" : ", ", View(named.name));
    }
    return words;
  }
  static std::string_view Unit() { return "a word"; }
};

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_VALUES_H_
