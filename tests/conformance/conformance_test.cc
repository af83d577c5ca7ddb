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
    "elastic:preallocate=true",
    "elastic:stream_mode=ordered",
};

const std::vector<Memory> kMemories = {
    {"sim:256MiB", false},
    {"host:256MiB", true},
};

INSTANTIATE_TEST_SUITE_P(Here, ConformanceTest, ::testing::ValuesIn(Subjects(kPolicies, kMemories)),
                         SubjectName);

}  // namespace
}  // namespace hbm::testing
