// SPDX-License-Identifier: Apache-2.0
#include "policy/xla_variables.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "policy/fraction.h"
#include "policy/text.h"
#include "policy/values.h"
#include "policy/variables.h"

namespace hbm::policy {
namespace {

class XlaReader {
 public:
  explicit XlaReader(const Environment& environment) : environment_(environment) {}

  absl::StatusOr<EnvironmentPolicy> Read() {
    // Each step stands on what those before it found.
    for (const auto step :
         {&XlaReader::ReadAllocator, &XlaReader::ReadPreallocate, &XlaReader::ReadFraction,
          &XlaReader::ReadUnified, &XlaReader::CheckWhole}) {
      if (absl::Status status = (this->*step)(); !status.ok()) return status;
    }
    return std::move(result_);
  }

 private:
  absl::Status ReadAllocator();
  absl::Status ReadPreallocate();
  absl::Status ReadFraction();
  absl::Status ReadUnified();
  absl::Status CheckWhole();

  bool IsBfc() const { return strategy() == Strategy::kBfc; }
  Strategy strategy() const { return result_.policy.strategy.value_or(Strategy::kBfc); }

  void CameFrom(std::string_view field, std::string_view variable) {
    result_.origins[field] = Assignment(environment_, variable);
  }
  void NotInForce(std::string_view variable, std::string_view why) {
    result_.not_in_force.push_back(
        absl::StrCat(Assignment(environment_, variable), ": ", View(why)));
  }
  absl::Status Error(std::string_view variable, std::string_view problem) const {
    return absl::InvalidArgumentError(absl::StrCat(
        View(variable), ": \"", View(ValueOf(environment_, variable)), "\" ", View(problem)));
  }
  // Unset, a boolean, or an error: XLA would take some of these the other way.
  absl::StatusOr<std::optional<bool>> ReadBool(std::string_view variable) const {
    const std::string_view value = ValueOf(environment_, variable);
    if (value.empty()) return std::nullopt;
    const absl::StatusOr<bool> read = ParseBool(value);
    if (!read.ok()) {
      return Error(variable,
                   absl::StrCat(read.status().message(), "; allowed: ", Switch::Allowed()));
    }
    return *read;
  }

  const Environment& environment_;
  EnvironmentPolicy result_;
};

absl::Status XlaReader::ReadAllocator() {
  const std::string value = absl::AsciiStrToLower(View(ValueOf(environment_, kAllocatorVariable)));
  if (value.empty()) return absl::OkStatus();
  CameFrom("strategy", kAllocatorVariable);
  if (value == "default") return absl::OkStatus();
  if (value == "bfc") {
    result_.policy.strategy = Strategy::kBfc;
  } else if (value == "platform") {
    result_.policy.strategy = Strategy::kPlatform;
  } else if (value == "cuda_async") {
    result_.policy.strategy = Strategy::kCudaAsync;
  } else if (value == "vmm") {
    result_.policy.strategy = Strategy::kElastic;
  } else {
    return Error(kAllocatorVariable,
                 "is no allocator of XLA's; allowed: default, bfc, platform, cuda_async, vmm "
                 "(which is elastic); HBMALLOC_POLICY takes every strategy by its own name");
  }
  return absl::OkStatus();
}

absl::Status XlaReader::ReadPreallocate() {
  const absl::StatusOr<std::optional<bool>> value = ReadBool(kPreallocateVariable);
  if (!value.ok()) return value.status();
  if (strategy() == Strategy::kPlatform || strategy() == Strategy::kElastic) {
    if (value->has_value()) {
      NotInForce(kPreallocateVariable,
                 strategy() == Strategy::kPlatform
                     ? "platform has no pool to preallocate"
                     : "vmm never preallocates; HBMALLOC_POLICY=elastic:preallocate=true does");
    }
    return absl::OkStatus();
  }
  if (value->has_value()) {
    result_.policy.preallocate = **value;
    CameFrom("preallocate", kPreallocateVariable);
  } else if (strategy() == Strategy::kCudaAsync) {
    // XLA preallocates unless told not to; cuda_async alone differs here.
    result_.policy.preallocate = true;
    result_.origins["preallocate"] = "XLA's default for cuda_async";
  }
  return absl::OkStatus();
}

absl::Status XlaReader::ReadFraction() {
  const std::string_view current = ValueOf(environment_, kFractionVariable);
  const std::string_view old = ValueOf(environment_, kOldFractionVariable);
  if (current.empty() && old.empty()) return absl::OkStatus();
  const std::string_view variable = current.empty() ? kOldFractionVariable : kFractionVariable;
  const absl::StatusOr<MemoryFraction> read = ParseFraction(current.empty() ? old : current);
  if (!read.ok()) {
    return Error(variable, absl::StrCat(View(View(read.status())),
                                        "; allowed: 0.75 (fixed), 0.75+ (grows to 1) or "
                                        "0.75-0.85 (grows to 0.85), over 0"));
  }
  if (!current.empty() && !old.empty()) {
    const absl::StatusOr<MemoryFraction> other = ParseFraction(old);
    if (!other.ok() || !(*other == *read)) {
      return Error(variable, absl::StrCat("and ", Assignment(environment_, kOldFractionVariable),
                                          " contradict each other; unset the second, which is "
                                          "the older name"));
    }
  }
  result_.policy.memory_fraction = *read;
  CameFrom("memory_fraction", variable);
  const bool takes_pool = IsBfc() && result_.policy.preallocate != false;
  if (read->cap.has_value() && !takes_pool) {
    result_.policy.memory_fraction.cap.reset();
    NotInForce(variable,
               "only a preallocated bfc pool grows in XLA; its start is the limit of all others");
  }
  return absl::OkStatus();
}

absl::Status XlaReader::ReadUnified() {
  const absl::StatusOr<std::optional<bool>> value = ReadBool(kUnifiedVariable);
  if (!value.ok()) return value.status();
  if (!value->has_value()) return absl::OkStatus();
  if (!IsBfc()) {
    NotInForce(kUnifiedVariable, "XLA has unified memory with bfc only");
    return absl::OkStatus();
  }
  CameFrom("memory_kind", kUnifiedVariable);
  if (!**value) return absl::OkStatus();
  result_.policy.memory_kind = MemoryKind::kUnified;
  // XLA's pool of unified memory is never less than the whole device, and is fixed.
  const MemoryFraction given = result_.policy.memory_fraction;
  result_.policy.memory_fraction = MemoryFraction{std::max(1.0, given.start), std::nullopt};
  if (result_.policy.memory_fraction == given) return absl::OkStatus();
  const auto origin = result_.origins.find("memory_fraction");
  if (origin != result_.origins.end()) {
    result_.warnings.push_back(absl::StrCat(
        origin->second, " is taken as 1, because with ", Assignment(environment_, kUnifiedVariable),
        " a pool is at least the whole memory, as in XLA; HBMALLOC_POLICY can ask for less"));
  }
  CameFrom("memory_fraction", kUnifiedVariable);
  return absl::OkStatus();
}

absl::Status XlaReader::CheckWhole() {
  absl::Status valid = ValidatePolicy(result_.policy);
  if (valid.ok()) return valid;
  std::string variables;
  for (const auto& [field, origin] : result_.origins) {
    absl::StrAppend(&variables, variables.empty() ? "" : ", ", origin);
  }
  return absl::InvalidArgumentError(absl::StrCat(variables, ": ", valid.message(),
                                                 "; in the environment, memory_kind=unified is ",
                                                 View(kUnifiedVariable), "=1"));
}

}  // namespace

std::string_view ValueOf(const Environment& environment, std::string_view name) {
  const auto found = environment.find(std::string(name));
  return found == environment.end() ? std::string_view() : Trim(found->second);
}

std::string Assignment(const Environment& environment, std::string_view name) {
  return absl::StrCat(View(name), "=", View(ValueOf(environment, name)));
}

absl::StatusOr<EnvironmentPolicy> ReadXlaVariables(const Environment& environment) {
  return XlaReader(environment).Read();
}

}  // namespace hbm::policy
