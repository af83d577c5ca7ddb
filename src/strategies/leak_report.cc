// SPDX-License-Identifier: Apache-2.0
#include "strategies/leak_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policy/text.h"

namespace hbm::strategies {
namespace {

constexpr std::size_t kMaxBlocks = 20;

std::string TagText(TagId tag) { return tag.value == 0 ? "(no tag)" : std::string(TagName(tag)); }

}  // namespace

std::string LeakReport(std::vector<LeakedBlock> leaks) {
  struct Sum {
    std::size_t blocks = 0;
    std::size_t bytes = 0;
  };
  std::map<std::string, Sum> by_tag;
  std::size_t total = 0;
  for (const LeakedBlock& leak : leaks) {
    Sum& sum = by_tag[TagText(leak.tag)];
    ++sum.blocks;
    sum.bytes += leak.bytes;
    total += leak.bytes;
  }
  std::string text = absl::StrCat("leaks: ", leaks.size(), " blocks of ",
                                  policy::FormatBytes(total), " are live at destruction");
  for (const auto& [tag, sum] : by_tag) {
    absl::StrAppend(&text, "\n  ", tag, ": ", sum.blocks, " blocks, ",
                    policy::FormatBytes(sum.bytes));
  }
  std::sort(leaks.begin(), leaks.end(),
            [](const LeakedBlock& a, const LeakedBlock& b) { return a.number < b.number; });
  for (std::size_t i = 0; i < std::min(leaks.size(), kMaxBlocks); ++i) {
    const LeakedBlock& leak = leaks[i];
    absl::StrAppendFormat(&text, "\n  %p: %d bytes, allocation number %d, %s", leak.address,
                          leak.bytes, leak.number, TagText(leak.tag));
    if (!leak.where.empty()) absl::StrAppend(&text, ", at\n", leak.where.ToString("    "));
  }
  if (leaks.size() > kMaxBlocks) {
    absl::StrAppend(&text, "\n  and ", leaks.size() - kMaxBlocks, " more");
  }
  return text;
}

}  // namespace hbm::strategies
