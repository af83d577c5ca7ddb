// SPDX-License-Identifier: Apache-2.0
//
// Policies as text, both ways.
#include "policy/parse.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "hbmalloc/policy.h"
#include "policy/fields.h"
#include "policy/nearest.h"
#include "policy/text.h"
#include "policy/values.h"

namespace hbm::policy {
namespace {

absl::Status UnknownField(std::string_view name) {
  std::vector<std::string_view> names;
  std::string allowed;
  for (const Field& field : Fields()) {
    names.push_back(field.name);
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", View(field.name));
  }
  const std::string_view meant = Nearest(name, names);
  return absl::InvalidArgumentError(
      absl::StrCat("\"", View(Excerpt(name)), "\" is no field of a policy. ",
                   meant.empty() ? "" : absl::StrCat("Did you mean ", View(meant), "? "),
                   "The fields are: ", allowed));
}

class Parser {
 public:
  absl::Status Assign(std::string_view name, std::string_view value) {
    const Field* const field = FindField(name);
    if (field == nullptr) return UnknownField(name);
    if (!result_.given.insert(field->name).second) {
      return FieldError(*field, value, "is a second value; give each field once");
    }
    if (value.empty()) return FieldError(*field, value, "is no value");
    const absl::Status parsed = field->parse(value, result_.policy);
    if (!parsed.ok()) return FieldError(*field, value, View(parsed));
    // Here, where the text is at hand as it was written. The fraction's range depends
    // on other fields too, and its own check knows better words.
    if (field->name != "memory_fraction" && !field->in_range(result_.policy)) {
      return FieldError(*field, value, "is out of range");
    }
    return absl::OkStatus();
  }

  // "NAME=VALUE", the number'th of the text.
  absl::Status Read(std::string_view assignment, int number) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", View(Excerpt(assignment)), "\", part ", number,
                       ", is not FIELD=VALUE; the form is STRATEGY:FIELD=VALUE,FIELD=VALUE"));
    }
    return Assign(Trim(assignment.substr(0, equals)), Trim(assignment.substr(equals + 1)));
  }

  const ParsedPolicy& result() const { return result_; }

 private:
  ParsedPolicy result_;
};

}  // namespace

absl::StatusOr<ParsedPolicy> ParsePolicyText(std::string_view spec) {
  std::string_view text = Trim(spec);
  Parser parser;
  // What stands before the first colon, or alone, is the strategy.
  const std::size_t mark = text.find_first_of(":=,");
  if (!text.empty() && (mark == std::string_view::npos || text[mark] == ':')) {
    const absl::Status named = parser.Assign("strategy", Trim(text.substr(0, mark)));
    if (!named.ok()) return named;
    if (mark == std::string_view::npos) return parser.result();
    text = text.substr(mark + 1);
    if (text.empty()) return absl::InvalidArgumentError("no fields follow the colon; leave it out");
  }
  if (!text.empty()) {
    int number = 0;
    for (const absl::string_view part : absl::StrSplit(View(text), ',')) {
      const absl::Status read = parser.Read(Trim({part.data(), part.size()}), ++number);
      if (!read.ok()) return read;
    }
  }
  if (absl::Status valid = ValidatePolicy(parser.result().policy); !valid.ok()) return valid;
  return parser.result();
}

}  // namespace hbm::policy

namespace hbm {

using policy::Field;
using policy::View;

absl::StatusOr<Policy> ParsePolicy(std::string_view spec) {
  absl::StatusOr<policy::ParsedPolicy> parsed = policy::ParsePolicyText(spec);
  if (!parsed.ok()) return parsed.status();
  return std::move(parsed->policy);
}

std::string ToString(const Policy& policy) {
  const Policy defaults;
  std::string text;
  if (policy.strategy.has_value()) text = std::string(ToString(*policy.strategy));
  bool first = true;
  for (const Field& field : policy::Fields()) {
    if (field.name == "strategy" || field.equal(policy, defaults)) continue;
    absl::StrAppend(&text,
                    !first         ? ","
                    : text.empty() ? ""
                                   : ":",
                    View(field.name), "=", field.print(policy));
    first = false;
  }
  return text;
}

std::string_view ToString(Strategy strategy) {
  for (const policy::Named<Strategy>& named : policy::Names(strategy)) {
    if (named.value == strategy) return named.name;
  }
  return "unknown";
}

}  // namespace hbm
