// SPDX-License-Identifier: Apache-2.0
#include "policy/environment.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "observe/log.h"
#include "policy/fields.h"
#include "policy/nearest.h"
#include "policy/text.h"
#include "policy/variables.h"
#include "policy/xla_variables.h"

namespace hbm::policy {
namespace {

constexpr std::string_view kOwnPrefix = "HBMALLOC_";

std::string Canonical(std::string_view name) { return absl::AsciiStrToUpper(View(Trim(name))); }

bool MayConcernUs(std::string_view name) {
  const std::string canonical = Canonical(name);
  return absl::StartsWith(canonical, View(kOwnPrefix)) || absl::StartsWith(canonical, "XLA_") ||
         absl::StartsWith(canonical, "TF_");
}

std::vector<std::string_view> OwnNames() {
  std::vector<std::string_view> names;
  for (const Variable& variable : Variables()) {
    if (absl::StartsWith(View(variable.name), View(kOwnPrefix))) names.push_back(variable.name);
  }
  return names;
}

std::string Quote(std::string_view text) { return absl::StrCat("\"", View(text), "\""); }

std::string Shown(const std::optional<std::string>& value) {
  return value.has_value() ? Quote(*value) : "unset";
}

std::optional<std::string> Find(const Environment& environment, std::string_view name) {
  const auto found = environment.find(std::string(name));
  if (found == environment.end()) return std::nullopt;
  return found->second;
}

}  // namespace

Environment CurrentEnvironment() {
  Environment environment;
  // Null after clearenv.
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || !MayConcernUs(text.substr(0, equals))) continue;
    // Of two entries with one name, getenv sees the first.
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::vector<std::string> FindMisspelt(const Environment& environment) {
  std::vector<std::string> warnings;
  for (const auto& [name, value] : environment) {
    if (FindVariable(name) != nullptr) continue;
    const std::string canonical = Canonical(name);
    std::string_view meant;
    if (FindVariable(canonical) != nullptr) {
      meant = canonical;  // blanks around it, or small letters
    } else if (absl::StartsWith(canonical, View(kOwnPrefix))) {
      meant = Nearest(canonical, OwnNames());
    } else {
      continue;
    }
    warnings.push_back(
        absl::StrCat("the environment variable ", Quote(name), " is not known and does nothing",
                     meant.empty() ? "" : absl::StrCat("; did you mean ", View(meant), "?")));
  }
  return warnings;
}

std::string DescribeEnvironment(const Environment& environment) {
  std::string text;
  const absl::StatusOr<EnvironmentPolicy> read = ReadEnvironment(environment);
  if (!read.ok()) {
    absl::StrAppend(&text, "error: ", read.status().message(), "\n");
  } else {
    absl::StrAppend(&text, "policy: ", Quote(ToString(read->policy)), "\n");
    for (const Field& field : Fields()) {
      const auto origin = read->origins.find(field.name);
      absl::StrAppendFormat(
          &text, "  %-22s  %-14s  %s\n", View(field.name),
          field.equal(read->policy, Policy()) ? field.default_value : field.print(read->policy),
          origin == read->origins.end() ? "default" : origin->second);
    }
    for (const std::string& note : read->not_in_force) {
      absl::StrAppend(&text, "not in force: ", note, "\n");
    }
    for (const std::string& warning : read->warnings) {
      absl::StrAppend(&text, "note: ", warning, "\n");
    }
  }
  for (const std::string& warning : FindMisspelt(environment)) {
    absl::StrAppend(&text, "unknown: ", warning, "\n");
  }
  return text;
}

std::vector<std::string> EnvironmentWatch::Fresh(const Environment& environment,
                                                 const std::vector<std::string>& warnings) {
  std::vector<std::string> fresh;
  const core::MutexLock lock(mutex_);
  if (!first_seen_) {
    first_seen_ = true;
    first_ = environment;
  }
  for (const std::string& warning : warnings) {
    if (said_.insert(warning).second) fresh.push_back(warning);
  }
  for (const Variable& variable : Variables()) {
    if (variable.role == VariableRole::kNotInForce) continue;
    const std::optional<std::string> before = Find(first_, variable.name);
    const std::optional<std::string> now = Find(environment, variable.name);
    if (before == now || !said_.insert(std::string(variable.name)).second) continue;
    fresh.push_back(absl::StrCat("the environment variable ", View(variable.name), " changed from ",
                                 Shown(before), " to ", Shown(now),
                                 " after it was first read; allocators made before keep the "
                                 "old value"));
  }
  return fresh;
}

}  // namespace hbm::policy

namespace hbm {
namespace {

// Never destroyed: static objects may read the environment during exit.
policy::EnvironmentWatch& TheWatch() {
  static auto* const watch = new policy::EnvironmentWatch;
  return *watch;
}

}  // namespace

absl::StatusOr<Policy> PolicyFromEnv() {
  const policy::Environment environment = policy::CurrentEnvironment();
  absl::StatusOr<policy::EnvironmentPolicy> read = policy::ReadEnvironment(environment);
  std::vector<std::string> warnings = policy::FindMisspelt(environment);
  if (read.ok()) {
    warnings.insert(warnings.end(), read->warnings.begin(), read->warnings.end());
  }
  for (const std::string& warning : TheWatch().Fresh(environment, warnings)) {
    observe::LogWarning(warning);
  }
  if (!read.ok()) return read.status();
  return std::move(read->policy);
}

std::string DescribePolicyFromEnv() {
  return policy::DescribeEnvironment(policy::CurrentEnvironment());
}

}  // namespace hbm
