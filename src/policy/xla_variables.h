// SPDX-License-Identifier: Apache-2.0
//
// File: xla_variables.h
//
// What XLA's variables mean here. docs/policy.md has every rule in words.
#ifndef HBMALLOC_POLICY_XLA_VARIABLES_H_
#define HBMALLOC_POLICY_XLA_VARIABLES_H_

#include "absl/status/statusor.h"
#include "policy/environment.h"

namespace hbm::policy {

// The policy that XLA's variables describe, HBMALLOC_POLICY aside.
absl::StatusOr<EnvironmentPolicy> ReadXlaVariables(const Environment& environment);

// The value of a variable without the blanks around it; empty counts as unset.
std::string_view ValueOf(const Environment& environment, std::string_view name);

// "NAME=VALUE".
std::string Assignment(const Environment& environment, std::string_view name);

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_XLA_VARIABLES_H_
