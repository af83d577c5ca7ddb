// SPDX-License-Identifier: Apache-2.0
#include "sources/device_spec.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "policy/text.h"

namespace hbm::sources {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status DeviceSpecError(std::string_view text, std::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("device \"", View(text), "\": ", View(problem)));
}

absl::Status DeviceSpec::Error(const Field& field, std::string_view problem) const {
  const std::string name = field.key.empty() ? "" : field.key + "=";
  return DeviceSpecError(text, absl::StrCat("\"", name, field.value, "\" at character ",
                                            field.position, ": ", View(problem)));
}

absl::StatusOr<std::size_t> DeviceSpec::Bytes(const Field& field) const {
  const absl::StatusOr<std::size_t> bytes = policy::ParseBytes(field.value);
  if (bytes.ok()) return bytes;
  const absl::string_view message = bytes.status().message();
  return Error(field, {message.data(), message.size()});
}

absl::Status ReadSharedName(const DeviceSpec& spec, const DeviceSpec::Field& field,
                            std::string* name) {
  constexpr std::size_t kMostCharacters = 64;
  bool good = field.value.size() <= kMostCharacters;
  for (const char c : field.value) {
    good = good && (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_');
  }
  if (!good) {
    return spec.Error(field, "a shared device's name is 1 to 64 letters, digits, \"-\" and \"_\"");
  }
  *name = field.value;
  return absl::OkStatus();
}

absl::StatusOr<DeviceSpec> DeviceSpec::Parse(std::string_view text) {
  DeviceSpec spec;
  spec.text = std::string(absl::StripAsciiWhitespace(View(text)));
  const std::string& whole = spec.text;
  const std::size_t kind_end = whole.find_first_of(":,");
  spec.kind = whole.substr(0, kind_end);
  if (spec.kind.empty()) return DeviceSpecError(whole, "names no kind of device");
  if (kind_end == std::string::npos) return spec;

  std::size_t begin = kind_end;
  if (whole[kind_end] == ':') {
    begin = std::min(whole.find(','), whole.size());
    spec.main.position = kind_end + 2;
    spec.main.value = whole.substr(kind_end + 1, begin - kind_end - 1);
    if (spec.main.value.empty()) {
      return DeviceSpecError(whole,
                             absl::StrCat("nothing follows \":\" at character ", kind_end + 1));
    }
  }
  while (begin < whole.size()) {
    const std::size_t end = std::min(whole.find(',', begin + 1), whole.size());
    Field option;
    option.position = begin + 2;
    option.key = whole.substr(begin + 1, end - begin - 1);
    const std::size_t equals = option.key.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == option.key.size()) {
      return DeviceSpecError(whole, absl::StrCat("\"", option.key, "\" at character ",
                                                 option.position, ": must be OPTION=VALUE"));
    }
    option.value = option.key.substr(equals + 1);
    option.key.resize(equals);
    for (const Field& other : spec.options) {
      if (other.key == option.key) return spec.Error(option, "is given twice");
    }
    spec.options.push_back(std::move(option));
    begin = end;
  }
  return spec;
}

}  // namespace hbm::sources
