// SPDX-License-Identifier: Apache-2.0
#include "policy/nearest.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"

namespace hbm::policy {
namespace {

// Enough for any name, and bounds the work on a hostile text.
constexpr std::size_t kMaxLength = 64;

bool SameLetter(char a, char b) {
  return absl::ascii_tolower(static_cast<unsigned char>(a)) ==
         absl::ascii_tolower(static_cast<unsigned char>(b));
}

// Insertions, deletions and replacements that make one word of the other.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (SameLetter(a[i - 1], b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

bool IsStartOf(std::string_view word, std::string_view candidate) {
  return word.size() >= 3 && candidate.size() >= word.size() &&
         std::equal(word.begin(), word.end(), candidate.begin(), SameLetter);
}

}  // namespace

std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& known) {
  const std::string_view start = word.substr(0, kMaxLength);
  std::string_view nearest;
  std::size_t least = kMaxLength;
  for (const std::string_view candidate : known) {
    const std::size_t distance = Distance(start, candidate);
    const bool is_near = 2 * distance <= candidate.size() || IsStartOf(start, candidate);
    if (!is_near || distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace hbm::policy
