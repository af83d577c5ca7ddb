// SPDX-License-Identifier: Apache-2.0
#include "policy/fields.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "policy/values.h"

namespace hbm::policy {
namespace {

constexpr char kUnset[] = "unset";

// A field that may be unset and one that may not, seen alike.
template <typename T>
const T* ValueOf(const std::optional<T>& member) {
  return member.has_value() ? &*member : nullptr;
}
template <typename T>
const T* ValueOf(const T& member) {
  return &member;
}

template <auto kMember, typename Kind>
absl::Status ParseMember(std::string_view text, Policy& policy) {
  absl::StatusOr<typename Kind::Value> value = Kind::Parse(text);
  if (!value.ok()) return value.status();
  policy.*kMember = *std::move(value);
  return absl::OkStatus();
}

template <auto kMember, typename Kind>
std::string PrintMember(const Policy& policy) {
  const typename Kind::Value* const value = ValueOf(policy.*kMember);
  return value == nullptr ? kUnset : Kind::Print(*value);
}

template <auto kMember>
bool EqualMembers(const Policy& a, const Policy& b) {
  return a.*kMember == b.*kMember;
}

template <auto kMember, typename Kind>
bool MemberInRange(const Policy& policy) {
  const typename Kind::Value* const value = ValueOf(policy.*kMember);
  return value == nullptr || Kind::Contains(*value);
}

template <auto kMember, typename Kind>
Field Make(std::string_view name) {
  return {name,
          Kind::Unit(),
          Kind::Allowed(),
          PrintMember<kMember, Kind>(Policy()),
          ParseMember<kMember, Kind>,
          PrintMember<kMember, Kind>,
          EqualMembers<kMember>,
          MemberInRange<kMember, Kind>};
}

std::vector<Field> MakeFields() {
  return {
      Make<&Policy::strategy, OneOf<Strategy>>("strategy"),
      Make<&Policy::memory_fraction, Fraction>("memory_fraction"),
      Make<&Policy::preallocate, Switch>("preallocate"),
      Make<&Policy::memory_limit, Bytes<1, kNoMaximum>>("memory_limit"),
      Make<&Policy::reserve, Bytes<0, kNoMaximum>>("reserve"),
      Make<&Policy::fraction_of, OneOf<FractionOf>>("fraction_of"),
      Make<&Policy::growth, Bytes<256, kTiB>>("growth"),
      Make<&Policy::fragmentation_fraction, Number<1>>("fragmentation_fraction"),
      Make<&Policy::garbage_collection, Switch>("garbage_collection"),
      Make<&Policy::max_wait, Time>("max_wait"),
      Make<&Policy::on_shortage, OneOf<OnShortage>>("on_shortage"),
      Make<&Policy::memory_kind, OneOf<MemoryKind>>("memory_kind"),
      Make<&Policy::stream_mode, OneOf<StreamMode>>("stream_mode"),
      Make<&Policy::slack, Number<0>>("slack"),
      Make<&Policy::reuse_wait, Time>("reuse_wait"),
      Make<&Policy::idle_release, Time>("idle_release"),
      Make<&Policy::release_threshold, Bytes<0, kNoMaximum>>("release_threshold"),
      Make<&Policy::exportable, Switch>("exportable"),
      Make<&Policy::peers, Ordinals>("peers"),
      Make<&Policy::thread_cache, Switch>("thread_cache"),
      Make<&Policy::quarantine, Bytes<0, kTiB>>("quarantine"),
      Make<&Policy::trace, FileName>("trace"),
      Make<&Policy::means, Switch>("means"),
      Make<&Policy::debug, Checks>("debug"),
      Make<&Policy::sharing, OneOf<Sharing>>("sharing"),
      Make<&Policy::share, Share>("share"),
  };
}

}  // namespace

const std::vector<Field>& Fields() {
  static const auto* const fields = new std::vector<Field>(MakeFields());
  return *fields;
}

const Field* FindField(std::string_view name) {
  for (const Field& field : Fields()) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

absl::Status FieldError(const Field& field, std::string_view value, std::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(View(field.name), ": \"", View(Excerpt(value)),
                                                 "\" ", View(problem),
                                                 "; allowed: ", field.allowed));
}

}  // namespace hbm::policy

namespace hbm {

bool operator==(const Policy& a, const Policy& b) {
  for (const policy::Field& field : policy::Fields()) {
    if (!field.equal(a, b)) return false;
  }
  return true;
}

}  // namespace hbm
