// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite over every strategy and every memory that needs no GPU. A
// new strategy or device is one line here.
#include "tests/conformance/conformance_suite.h"

namespace hbm::testing {
namespace {

const std::vector<std::string> kPolicies = {
    "bfc",
    "on_demand",
    "platform",
    "bfc:memory_fraction=0.1-0.75",
    "on_demand:garbage_collection=true",
    "on_demand:stream_mode=ordered",
    "bfc:thread_cache=true",
    "on_demand:thread_cache=true",
    "elastic",
    "elastic:slack=0",
    "elastic:idle_release=0",
    "elastic:reuse_wait=1ms",
    "elastic:preallocate=true",
    "elastic:stream_mode=ordered",
};

const std::vector<Memory> kMemories = {
    {"sim:256MiB", false},
    {"host:256MiB", true},
};

// The checks for debugging stand in front of any strategy, and need bytes.
const std::vector<std::string> kDebugPolicies = {
    "bfc:debug=guard+poison+leaks",      "on_demand:debug=guard+poison+leaks+stacks",
    "platform:debug=guard+poison",       "elastic:debug=guard+poison+leaks",
    "bfc:thread_cache=true,debug=guard",
};
INSTANTIATE_TEST_SUITE_P(Debug, ConformanceTest,
                         ::testing::ValuesIn(Subjects(kDebugPolicies, {{"host:256MiB", true}})),
                         SubjectName);

INSTANTIATE_TEST_SUITE_P(Here, ConformanceTest, ::testing::ValuesIn(Subjects(kPolicies, kMemories)),
                         SubjectName);

}  // namespace
}  // namespace hbm::testing
