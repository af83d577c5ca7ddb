// SPDX-License-Identifier: Apache-2.0
//
// Which variables decide, and which are set and do not.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "policy/environment.h"
#include "policy/parse.h"
#include "policy/text.h"
#include "policy/variables.h"
#include "policy/xla_variables.h"

namespace hbm::policy {
namespace {

absl::StatusOr<EnvironmentPolicy> ReadOwnPolicy(const Environment& environment) {
  absl::StatusOr<ParsedPolicy> parsed = ParsePolicyText(ValueOf(environment, kPolicyVariable));
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(View(kPolicyVariable), ": ", parsed.status().message()));
  }
  EnvironmentPolicy result;
  result.policy = parsed->policy;
  for (const std::string_view field : parsed->given) {
    result.origins[field] = std::string(kPolicyVariable);
  }
  return result;
}

// Flags of XLA's that would decide over memory if this were XLA.
void NoteXlaFlags(const Environment& environment, EnvironmentPolicy& result) {
  const std::string_view flags = ValueOf(environment, "XLA_FLAGS");
  for (const char* flag :
       {"xla_gpu_memory_fraction_policy", "xla_gpu_enable_allocator_spatial_partitioning"}) {
    if (!absl::StrContains(View(flags), flag)) continue;
    result.not_in_force.push_back(absl::StrCat("XLA_FLAGS with ", flag, ": only XLA reads it"));
  }
}

void NoteIdleVariables(const Environment& environment, bool own_policy, EnvironmentPolicy& result) {
  for (const Variable& variable : Variables()) {
    if (ValueOf(environment, variable.name).empty()) continue;
    std::string why;
    if (variable.role == VariableRole::kNotInForce) {
      why = std::string(variable.note);
    } else if (variable.role == VariableRole::kXla && own_policy) {
      why = absl::StrCat(View(kPolicyVariable), " is set and wins");
    } else {
      continue;
    }
    result.not_in_force.push_back(absl::StrCat(Assignment(environment, variable.name), ": ", why));
  }
}

}  // namespace

absl::StatusOr<EnvironmentPolicy> ReadEnvironment(const Environment& environment) {
  const bool own_policy = !ValueOf(environment, kPolicyVariable).empty();
  absl::StatusOr<EnvironmentPolicy> result =
      own_policy ? ReadOwnPolicy(environment) : ReadXlaVariables(environment);
  if (!result.ok()) return result;
  NoteIdleVariables(environment, own_policy, *result);
  NoteXlaFlags(environment, *result);
  return result;
}

}  // namespace hbm::policy
