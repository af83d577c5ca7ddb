// SPDX-License-Identifier: Apache-2.0
//
// docs/policy.md has a row for every field and every variable, with what the code
// says of them.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policy/fields.h"
#include "policy/text.h"
#include "policy/variables.h"
#include "tests/support/paths.h"

namespace hbm::policy {
namespace {

using ::testing::HasSubstr;

std::string ReadPage() {
  std::ifstream file(testing::SourcePath("docs/policy.md"));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The cells of the table row that begins with `name`.
std::vector<std::string> FindRow(const std::string& page, std::string_view name) {
  const std::string start = absl::StrCat("\n| `", View(name), "` |");
  const std::size_t begin = page.find(start);
  if (begin == std::string::npos) return {};
  const std::string row = page.substr(begin + 1, page.find('\n', begin + 1) - begin - 1);
  std::vector<std::string> cells;
  for (const absl::string_view cell : absl::StrSplit(row, '|')) {
    cells.emplace_back(View(Trim({cell.data(), cell.size()})));
  }
  return cells;
}

TEST(PolicyPage, HasEveryFieldWithDefaultUnitAndRange) {
  const std::string page = ReadPage();
  for (const Field& field : Fields()) {
    const std::vector<std::string> row = FindRow(page, field.name);
    const std::string want =
        absl::StrCat("a row: | `", View(field.name), "` | `", field.default_value, "` | ",
                     View(field.unit), " | ", field.allowed, " | MEANING |");
    ASSERT_EQ(row.size(), 7U) << want;
    EXPECT_EQ(row[2], absl::StrCat("`", field.default_value, "`")) << want;
    EXPECT_EQ(row[3], field.unit) << want;
    EXPECT_EQ(row[4], field.allowed) << want;
    EXPECT_GT(row[5].size(), 20U) << field.name << " is not explained";
  }
}

TEST(PolicyPage, HasEveryVariable) {
  const std::string page = ReadPage();
  for (const Variable& variable : Variables()) {
    const std::vector<std::string> row = FindRow(page, variable.name);
    ASSERT_GE(row.size(), 4U) << "no row for " << variable.name;
    EXPECT_THAT(row[2], HasSubstr(std::string(variable.note))) << variable.name;
  }
}

}  // namespace
}  // namespace hbm::policy
