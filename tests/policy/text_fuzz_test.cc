// SPDX-License-Identifier: Apache-2.0
//
// Whatever bytes come in as a policy: no crash, and what is accepted is valid and
// comes back from its own text.
#include <array>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "hbmalloc/policy.h"
#include "policy/environment.h"
#include "policy/fields.h"
#include "policy/text.h"
#include "policy/variables.h"

namespace hbm::policy {
namespace {

// Random bytes alone would seldom get past the first character; so a text is made
// of words of the grammar, numbers and noise.
class RandomTexts {
 public:
  explicit RandomTexts(std::uint64_t seed) : random_(seed) {
    for (const Field& field : Fields()) names_.push_back(field.name);
  }

  std::string Noise() {
    std::string text(Below(40), '\0');
    for (char& c : text) c = static_cast<char>(Below(256));
    return text;
  }

  std::string Spec() {
    std::string text;
    if (Below(2) == 0) text += Word() + (Below(8) == 0 ? "" : ":");
    for (std::uint64_t i = Below(4); i-- > 0;) {
      text += std::string(names_[Below(names_.size())]) + "=" + Value() + (i > 0 ? "," : "");
    }
    return Mutated(std::move(text));
  }

  std::string Value() {
    switch (Below(4)) {
      case 0:
        return Word();
      case 1:
        return Number() + Word();
      case 2:
        return Number() + (Below(2) == 0 ? "-" + Number() : "+");
      default:
        return Number();
    }
  }

  std::uint64_t Below(std::uint64_t n) { return random_() % n; }

 private:
  std::string Word() {
    static constexpr std::array<std::string_view, 32> kWords = {"bfc",
                                                                "on_demand",
                                                                "platform",
                                                                "cuda_async",
                                                                "elastic",
                                                                "true",
                                                                "false",
                                                                "total",
                                                                "free",
                                                                "unified",
                                                                "device",
                                                                "pinned_host",
                                                                "shrink",
                                                                "fail",
                                                                "inf",
                                                                "nan",
                                                                "GiB",
                                                                "MB",
                                                                "ms",
                                                                "s",
                                                                "h",
                                                                "%",
                                                                "1;2",
                                                                "ordered",
                                                                "guard+poison",
                                                                "leaks;stacks",
                                                                "single",
                                                                "yes",
                                                                "off",
                                                                "ns",
                                                                "",
                                                                " "};
    return std::string(kWords[Below(kWords.size())]);
  }

  std::string Number() {
    std::string text = std::to_string(random_() >> Below(64));
    if (Below(2) == 0) text.insert(Below(text.size() + 1), ".");
    if (Below(6) == 0) text += (Below(2) == 0 ? "e-" : "E") + std::to_string(Below(400));
    return Below(3) == 0 ? "0." + std::to_string(Below(1000)) : text;
  }

  std::string Mutated(std::string text) {
    for (std::uint64_t i = Below(3) == 0 ? Below(4) : 0; i-- > 0 && !text.empty();) {
      const std::size_t at = Below(text.size());
      if (Below(2) == 0) {
        text[at] = static_cast<char>(Below(256));
      } else {
        text.erase(at, 1);
      }
    }
    return text;
  }

  std::mt19937_64 random_;
  std::vector<std::string_view> names_;
};

// True if it was accepted.
bool Check(const std::string& text) {
  const absl::StatusOr<Policy> policy = ParsePolicy(text);
  if (!policy.ok()) {
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_LT(policy.status().message().size(), 2000U) << text;
    return false;
  }
  EXPECT_TRUE(ValidatePolicy(*policy).ok()) << text;
  const std::string printed = ToString(*policy);
  const absl::StatusOr<Policy> again = ParsePolicy(printed);
  EXPECT_TRUE(again.ok() && *again == *policy) << text << " printed as " << printed;
  return true;
}

TEST(PolicyTextFuzz, AcceptsNothingThatDoesNotComeBack) {
  RandomTexts texts(4711);
  int accepted = 0;
  for (int i = 0; i < 200000; ++i) {
    if (Check(i % 4 == 0 ? texts.Noise() : texts.Spec())) ++accepted;
    ASSERT_FALSE(HasFailure()) << "input " << i;
  }
  EXPECT_GT(accepted, 10000);
}

TEST(PolicyTextFuzz, AnyEnvironmentIsReadOrRefused) {
  RandomTexts texts(42);
  for (int i = 0; i < 20000; ++i) {
    Environment environment;
    for (const Variable& variable : Variables()) {
      if (texts.Below(6) != 0) continue;
      environment[std::string(variable.name)] = texts.Below(2) == 0 ? texts.Value() : texts.Spec();
    }
    const absl::StatusOr<EnvironmentPolicy> read = ReadEnvironment(environment);
    ASSERT_TRUE(!read.ok() || ValidatePolicy(read->policy).ok()) << ToString(read->policy);
    ASSERT_FALSE(DescribeEnvironment(environment).empty());
  }
}

}  // namespace
}  // namespace hbm::policy
