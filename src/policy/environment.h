// SPDX-License-Identifier: Apache-2.0
//
// File: environment.h
//
// What PolicyFromEnv does, as functions of an environment that is a plain value:
// tests hand in their own.
//
//   auto read = policy::ReadEnvironment({{"XLA_CLIENT_MEM_FRACTION", "0.5"}});
#ifndef HBMALLOC_POLICY_ENVIRONMENT_H_
#define HBMALLOC_POLICY_ENVIRONMENT_H_

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "hbmalloc/policy.h"

namespace hbm::policy {

using Environment = std::map<std::string, std::string>;

// The process's variables that may concern the library.
Environment CurrentEnvironment();

struct EnvironmentPolicy {
  Policy policy;
  // For fields that some variable gave: which.
  std::map<std::string_view, std::string> origins;
  // Variables that are set and do nothing: "NAME=VALUE: why".
  std::vector<std::string> not_in_force;
  // What people should know although it is no error.
  std::vector<std::string> warnings;
};

// InvalidArgument names the variable, its value and what is allowed.
absl::StatusOr<EnvironmentPolicy> ReadEnvironment(const Environment& environment);

// Names that look like the library's variables, or one that it knows, but are not:
// one warning each.
std::vector<std::string> FindMisspelt(const Environment& environment);

// One line a field, then what is set and not in force. For humans.
std::string DescribeEnvironment(const Environment& environment);

// Remembers what was said and what the variables were at first. Thread-safe.
class EnvironmentWatch {
 public:
  // Those of `warnings`, and of changes since the first call, not returned before.
  std::vector<std::string> Fresh(const Environment& environment,
                                 const std::vector<std::string>& warnings);

 private:
  core::Mutex mutex_;
  bool first_seen_ HBM_GUARDED_BY(mutex_) = false;
  Environment first_ HBM_GUARDED_BY(mutex_);
  std::set<std::string> said_ HBM_GUARDED_BY(mutex_);
};

}  // namespace hbm::policy

#endif  // HBMALLOC_POLICY_ENVIRONMENT_H_
