// SPDX-License-Identifier: Apache-2.0
//
// File: paths.h
//
// Where this checkout lies, for tests that read its files.
//
//   std::ifstream page(SourcePath("docs/policy.md"));
#ifndef HBMALLOC_TESTS_SUPPORT_PATHS_H_
#define HBMALLOC_TESTS_SUPPORT_PATHS_H_

#include <string>
#include <string_view>

namespace hbm::testing {

// The absolute path of a file of the source tree.
std::string SourcePath(std::string_view relative);

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_SUPPORT_PATHS_H_
