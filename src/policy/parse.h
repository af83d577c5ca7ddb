// SPDX-License-Identifier: Apache-2.0
//
// File: parse.h
//
// ParsePolicy that also says which fields the text gave, for those who show where
// a value came from.
#ifndef HBMALLOC_POLICY_PARSE_H_
#define HBMALLOC_POLICY_PARSE_H_

#include <set>
#include <string_view>

#include "absl/status/statusor.h"
#include "hbmalloc/policy.h"

namespace hbm::policy {

struct ParsedPolicy {
  Policy policy;
  std::set<std::string_view> given;  // names of fields
};

absl::StatusOr<ParsedPolicy> ParsePolicyText(std::string_view spec);

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_PARSE_H_
