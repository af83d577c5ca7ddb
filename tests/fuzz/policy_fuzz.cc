// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a policy, and as the values of the environment: accepted or refused, and
// what is accepted comes back from its own text.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "hbmalloc/policy.h"
#include "policy/environment.h"
#include "policy/variables.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

void CheckText(std::string_view text) {
  const absl::StatusOr<hbm::Policy> policy = hbm::ParsePolicy(text);
  if (!policy.ok()) {
    Require(absl::IsInvalidArgument(policy.status()) && policy.status().message().size() < 4000);
    return;
  }
  Require(hbm::ValidatePolicy(*policy).ok());
  const absl::StatusOr<hbm::Policy> again = hbm::ParsePolicy(hbm::ToString(*policy));
  Require(again.ok() && *again == *policy);
}

// Each line is the value of the variable whose turn it is.
void CheckEnvironment(std::string_view text) {
  hbm::policy::Environment environment;
  for (const hbm::policy::Variable& variable : hbm::policy::Variables()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (!line.empty()) environment[std::string(variable.name)] = std::string(line);
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  const auto read = hbm::policy::ReadEnvironment(environment);
  Require(!read.ok() || hbm::ValidatePolicy(read->policy).ok());
  Require(!hbm::policy::DescribeEnvironment(environment).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckText(text);
  CheckEnvironment(text);
  return 0;
}
