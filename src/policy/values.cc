// SPDX-License-Identifier: Apache-2.0
#include "policy/values.h"

#include <array>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace hbm::policy {
namespace {

constexpr int kMaxOrdinal = 1023;

}  // namespace

absl::StatusOr<FileName::Value> FileName::Parse(std::string_view text) {
  text = Trim(text);
  if (absl::EqualsIgnoreCase(View(text), "none")) return Value();
  return Value(text);
}

// What could not be read back from a policy's text is refused. A file called "none"
// can be named ./none.
bool FileName::Contains(const Value& value) {
  if (value.size() > 4096 || Trim(value) != std::string_view(value)) return false;
  for (const char c : value) {
    if (c == ',' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  return !absl::EqualsIgnoreCase(value, "none");
}

absl::StatusOr<Ordinals::Value> Ordinals::Parse(std::string_view text) {
  Value ordinals;
  if (absl::EqualsIgnoreCase(View(Trim(text)), "none")) return ordinals;
  for (const absl::string_view part : absl::StrSplit(View(Trim(text)), ';')) {
    const std::string_view word = Trim({part.data(), part.size()});
    int ordinal = -1;
    const bool digits = word.find_first_not_of("0123456789") == std::string_view::npos;
    if (!digits || !absl::SimpleAtoi(View(word), &ordinal)) {
      return absl::InvalidArgumentError(
          absl::StrCat("has \"", View(Excerpt(word)), "\", which is no ordinal of a device"));
    }
    ordinals.push_back(ordinal);
  }
  return ordinals;
}

std::string Ordinals::Print(const Value& value) {
  return value.empty() ? "none" : absl::StrJoin(value, ";");
}

bool Ordinals::Contains(const Value& value) {
  std::set<int> seen;
  for (const int ordinal : value) {
    if (ordinal < 0 || ordinal > kMaxOrdinal || !seen.insert(ordinal).second) return false;
  }
  return true;
}

namespace {

struct NamedCheck {
  std::string_view name;
  bool DebugChecks::*member;
};
constexpr std::array<NamedCheck, 4> kChecks = {{{"guard", &DebugChecks::guard},
                                                {"poison", &DebugChecks::poison},
                                                {"leaks", &DebugChecks::leaks},
                                                {"stacks", &DebugChecks::stacks}}};

}  // namespace

absl::StatusOr<Checks::Value> Checks::Parse(std::string_view text) {
  Value checks;
  if (absl::EqualsIgnoreCase(View(Trim(text)), "none")) return checks;
  for (const absl::string_view part : absl::StrSplit(View(Trim(text)), absl::ByAnyChar("+;"))) {
    const std::string_view word = Trim({part.data(), part.size()});
    bool known = false;
    for (const NamedCheck& check : kChecks) {
      if (!absl::EqualsIgnoreCase(View(word), View(check.name))) continue;
      checks.*check.member = known = true;
    }
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrCat("has \"", View(Excerpt(word)), "\", which is no check"));
    }
  }
  return checks;
}

std::string Checks::Print(const Value& value) {
  std::string text;
  for (const NamedCheck& check : kChecks) {
    if (value.*check.member) absl::StrAppend(&text, text.empty() ? "" : "+", View(check.name));
  }
  return text.empty() ? "none" : text;
}

const std::vector<Named<Strategy>>& Names(Strategy /*unused*/) {
  static const auto* const names =
      new std::vector<Named<Strategy>>{{Strategy::kBfc, "bfc"},
                                       {Strategy::kOnDemand, "on_demand"},
                                       {Strategy::kPlatform, "platform"},
                                       {Strategy::kCudaAsync, "cuda_async"},
                                       {Strategy::kElastic, "elastic"}};
  return *names;
}

const std::vector<Named<FractionOf>>& Names(FractionOf /*unused*/) {
  static const auto* const names = new std::vector<Named<FractionOf>>{{FractionOf::kTotal, "total"},
                                                                      {FractionOf::kFree, "free"}};
  return *names;
}

const std::vector<Named<OnShortage>>& Names(OnShortage /*unused*/) {
  static const auto* const names = new std::vector<Named<OnShortage>>{
      {OnShortage::kShrink, "shrink"}, {OnShortage::kFail, "fail"}};
  return *names;
}

const std::vector<Named<MemoryKind>>& Names(MemoryKind /*unused*/) {
  static const auto* const names =
      new std::vector<Named<MemoryKind>>{{MemoryKind::kDevice, "device"},
                                         {MemoryKind::kUnified, "unified"},
                                         {MemoryKind::kPinnedHost, "pinned_host"}};
  return *names;
}

const std::vector<Named<StreamMode>>& Names(StreamMode /*unused*/) {
  static const auto* const names = new std::vector<Named<StreamMode>>{
      {StreamMode::kSingle, "single"}, {StreamMode::kOrdered, "ordered"}};
  return *names;
}

const std::vector<Named<Sharing>>& Names(Sharing /*unused*/) {
  static const auto* const names = new std::vector<Named<Sharing>>{
      {Sharing::kOff, "off"}, {Sharing::kFair, "fair"}, {Sharing::kFirstCome, "first_come"}};
  return *names;
}

}  // namespace hbm::policy
