// SPDX-License-Identifier: Apache-2.0
//
// Every test that docs/reliability.md and docs/bug-classes.md name exists.
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/paths.h"

namespace hbm {
namespace {

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// All of the tests' source text, and their CMake files.
std::string AllTests() {
  std::string all;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(testing::SourcePath("tests"))) {
    const std::string kind = entry.path().extension().string();
    if (kind == ".cc" || kind == ".h" || kind == ".txt") all += Read(entry.path());
  }
  return all;
}

// The tests that a page names, each of which must exist; how many there are.
int CheckNames(const char* path) {
  const std::string page = Read(testing::SourcePath(path));
  const std::string tests = AllTests();
  int named = 0;
  const std::regex gtest_name("`([A-Za-z]+)\\.([A-Za-z0-9]+)`");
  for (std::sregex_iterator name(page.begin(), page.end(), gtest_name), end; name != end; ++name) {
    const std::string suite = (*name)[1];
    const std::string test = (*name)[2];
    bool exists = false;
    for (const char* kind : {"TEST(", "TEST_F(", "TEST_P("}) {
      exists |= tests.find(kind + suite + ", " + test + ")") != std::string::npos;
    }
    EXPECT_TRUE(exists) << path << ": " << suite << "." << test;
    ++named;
  }
  return named;
}

TEST(ReliabilityPage, EveryPromiseNamesATestThatExists) {
  EXPECT_GT(CheckNames("docs/reliability.md"), 40);
  EXPECT_NE(AllTests().find("NAME fuzz_${target}_corpus"), std::string::npos);
}

TEST(BugClassesPage, EveryClassNamesATestThatExists) {
  EXPECT_GT(CheckNames("docs/bug-classes.md"), 40);
}

TEST(ReliabilityPage, EveryRowHasOne) {
  std::istringstream page(Read(testing::SourcePath("docs/reliability.md")));
  std::string line;
  while (std::getline(page, line) && line != "## Counts") {
    if (line.rfind("| ", 0) != 0 || line == "| promise | kept by |") continue;
    EXPECT_NE(line.find("| `"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace hbm
