// SPDX-License-Identifier: Apache-2.0
//
// File: variables.h
//
// The environment variables that say something about memory, as a table: those
// that the library obeys, and those that look as if they should matter and do
// not. A new variable is one line in variables.cc and its row in docs/policy.md
// (a test asks for it).
#ifndef HBMALLOC_POLICY_VARIABLES_H_
#define HBMALLOC_POLICY_VARIABLES_H_

#include <string_view>
#include <vector>

namespace hbm::policy {

enum class VariableRole {
  kPolicy,      // the library's own policy, wins over all others
  kXla,         // XLA's, obeyed when there is no policy
  kOwn,         // the library's own, read by another part of it
  kNotInForce,  // somebody else's
};

struct Variable {
  std::string_view name;
  VariableRole role;
  // What holds while it is unset; for kNotInForce, why it does nothing here.
  std::string_view note;
};

inline constexpr std::string_view kPolicyVariable = "HBMALLOC_POLICY";
inline constexpr std::string_view kAllocatorVariable = "XLA_PYTHON_CLIENT_ALLOCATOR";
inline constexpr std::string_view kPreallocateVariable = "XLA_PYTHON_CLIENT_PREALLOCATE";
inline constexpr std::string_view kFractionVariable = "XLA_CLIENT_MEM_FRACTION";
inline constexpr std::string_view kOldFractionVariable = "XLA_PYTHON_CLIENT_MEM_FRACTION";
inline constexpr std::string_view kUnifiedVariable = "TF_FORCE_UNIFIED_MEMORY";

const std::vector<Variable>& Variables();

// Null if the table does not have it.
const Variable* FindVariable(std::string_view name);

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_VARIABLES_H_
