// SPDX-License-Identifier: Apache-2.0
#include "sources/gpu_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sources/device_spec.h"

namespace hbm::sources {
namespace {

// 0000:65:00.0, with or without the domain.
bool LooksLikeBusId(absl::string_view text) {
  int colons = 0;
  int dots = 0;
  for (const char c : text) {
    if (c == ':') {
      ++colons;
    } else if (c == '.') {
      ++dots;
    } else if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) {
      return false;
    }
  }
  return (colons == 1 || colons == 2) && dots == 1 && text.back() != '.';
}

bool LooksLikeUuid(absl::string_view text) {
  const bool has_kind =
      absl::StartsWithIgnoreCase(text, "GPU-") || absl::StartsWithIgnoreCase(text, "MIG-");
  if (!has_kind) return false;
  const absl::string_view rest = text.substr(4);
  for (const char c : rest) {
    if (c != '-' && !absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
  }
  return std::count_if(rest.begin(), rest.end(), [](char c) { return c != '-'; }) == 32;
}

// What is no name of a GPU is the caller's mistake, with a driver or without.
absl::Status CheckSpelling(std::string_view spec, absl::string_view which) {
  int ordinal = 0;
  if (absl::SimpleAtoi(which, &ordinal) || LooksLikeUuid(which) || LooksLikeBusId(which)) {
    return absl::OkStatus();
  }
  return DeviceSpecError(
      spec, absl::StrCat("\"", which,
                         "\" is no ordinal (0), UUID (GPU- or MIG- and 32 hexadecimal digits) or "
                         "PCI bus id (0000:65:00.0)"));
}

}  // namespace

absl::StatusOr<std::string> ParseGpuName(std::string_view spec) {
  const absl::string_view text{spec.data(), spec.size()};
  std::string which(spec);
  if (!absl::StartsWith(text, "GPU-") && !absl::StartsWith(text, "MIG-")) {
    const absl::StatusOr<DeviceSpec> parsed = DeviceSpec::Parse(spec);
    if (!parsed.ok()) return parsed.status();
    if (!parsed->options.empty()) {
      return parsed->Error(parsed->options.front(), "no such option; cuda takes none");
    }
    which = parsed->main.value.empty() ? "0" : parsed->main.value;
  }
  if (absl::Status spelled = CheckSpelling(spec, which); !spelled.ok()) return spelled;
  return which;
}

}  // namespace hbm::sources
