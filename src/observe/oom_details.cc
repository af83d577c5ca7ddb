// SPDX-License-Identifier: Apache-2.0
#include "observe/oom_details.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hbm {
namespace {

constexpr OomCause kCauses[] = {OomCause::kLimit, OomCause::kFragmentation, OomCause::kPending,
                                OomCause::kOtherProcess, OomCause::kDevice};
constexpr LimitSource kLimitSources[] = {LimitSource::kMemoryFraction, LimitSource::kMemoryLimit,
                                         LimitSource::kReserve, LimitSource::kSetMemoryLimit,
                                         LimitSource::kShortage};

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Calls visit(name, member) for each number, in the order of the text.
template <typename Details, typename Visit>
void VisitNumbers(Details& details, Visit visit) {
  visit("requested_bytes", details.requested_bytes);
  visit("alignment", details.alignment);
  visit("limit_bytes", details.limit_bytes);
  visit("pool_bytes", details.pool_bytes);
  visit("in_use_bytes", details.in_use_bytes);
  visit("free_bytes", details.free_bytes);
  visit("largest_free_bytes", details.largest_free_bytes);
  visit("pending_bytes", details.pending_bytes);
  visit("device_total_bytes", details.device_total_bytes);
  visit("device_free_bytes", details.device_free_bytes);
}

struct Printer {
  std::string& text;
  template <typename Number>
  void operator()(const char* name, const Number& value) const {
    absl::StrAppend(&text, name, "=", value, "\n");
  }
  template <typename Number>
  void operator()(const char* name, const std::optional<Number>& value) const {
    if (value.has_value()) (*this)(name, *value);
  }
};

struct Reader {
  absl::string_view name;
  absl::string_view value;
  template <typename Number>
  void operator()(const char* member, Number& number) const {
    if (name == member && !absl::SimpleAtoi(value, &number)) number = 0;
  }
  template <typename Number>
  void operator()(const char* member, std::optional<Number>& number) const {
    Number read = 0;
    if (name == member && absl::SimpleAtoi(value, &read)) number = read;
  }
};

}  // namespace

std::string_view ToString(OomCause cause) {
  switch (cause) {
    case OomCause::kNone:
      return "none";
    case OomCause::kLimit:
      return "limit";
    case OomCause::kFragmentation:
      return "fragmentation";
    case OomCause::kPending:
      return "pending";
    case OomCause::kOtherProcess:
      return "other_process";
    case OomCause::kDevice:
      return "device";
  }
  return "unknown";
}

OomCause GetOomCause(const absl::Status& status) {
  const std::optional<OomDetails> details = GetOomDetails(status);
  return details.has_value() ? details->cause : OomCause::kNone;
}

std::optional<OomDetails> GetOomDetails(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kOomDetailsPayload);
  if (!payload.has_value()) return std::nullopt;
  const std::string text(*payload);
  OomDetails details;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    for (const OomCause cause : kCauses) {
      if (field.first == "cause" && field.second == View(ToString(cause))) details.cause = cause;
    }
    for (const LimitSource source : kLimitSources) {
      if (field.first == "limit_source" && field.second == View(ToString(source))) {
        details.limit_source = source;
      }
    }
    VisitNumbers(details, Reader{field.first, field.second});
  }
  return details;
}

namespace observe {

OomDetails DetailsOf(const OomReportInput& input) {
  OomDetails details;
  details.cause = input.cause;
  details.requested_bytes = input.bytes;
  details.alignment = input.alignment;
  details.limit_bytes = input.stats.bytes_limit;
  details.limit_source = input.stats.limit_source;
  details.pool_bytes = input.stats.pool_bytes;
  details.in_use_bytes = input.stats.bytes_in_use;
  details.free_bytes = input.stats.pool_bytes - input.stats.bytes_in_use;
  details.largest_free_bytes = input.stats.largest_free_block_bytes;
  details.pending_bytes = input.stats.pending_bytes;
  if (input.device.has_value()) {
    details.device_total_bytes = input.device->total;
    details.device_free_bytes = input.device->free;
  }
  return details;
}

void SetOomDetails(const OomDetails& details, absl::Status* status) {
  std::string text = absl::StrCat("cause=", View(ToString(details.cause)),
                                  "\nlimit_source=", View(ToString(details.limit_source)), "\n");
  VisitNumbers(details, Printer{text});
  status->SetPayload(kOomDetailsPayload, absl::Cord(text));
}

}  // namespace observe
}  // namespace hbm
