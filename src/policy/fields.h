// SPDX-License-Identifier: Apache-2.0
//
// File: fields.h
//
// The fields of a policy, as a table: reading, printing, comparing, checking and
// documenting them all go through it. A new field is a member of Policy, one line
// in fields.cc, and its row in docs/policy.md (a test asks for it).
#ifndef HBMALLOC_POLICY_FIELDS_H_
#define HBMALLOC_POLICY_FIELDS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "hbmalloc/policy.h"

namespace hbm::policy {

struct Field {
  std::string_view name;
  std::string_view unit;
  std::string allowed;        // the range, in words
  std::string default_value;  // as text; "unset" if the field has none of its own

  // Reads a value into the policy. The error says what is wrong, not of what.
  absl::Status (*parse)(std::string_view text, Policy& policy);
  std::string (*print)(const Policy& policy);  // "unset" if unset
  bool (*equal)(const Policy& a, const Policy& b);
  bool (*in_range)(const Policy& policy);  // unset is in range
};

// In the order of Policy's members.
const std::vector<Field>& Fields();

// Null if there is no such field.
const Field* FindField(std::string_view name);

// "memory_fraction: "90%" is a percentage ...; allowed: ...".
absl::Status FieldError(const Field& field, std::string_view value, std::string_view problem);

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_FIELDS_H_
