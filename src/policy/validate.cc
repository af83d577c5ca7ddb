// SPDX-License-Identifier: Apache-2.0
//
// Ranges come from the table of fields; what is here are the rules that tie two
// fields together.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "hbmalloc/policy.h"
#include "policy/fields.h"
#include "policy/fraction.h"
#include "policy/text.h"

namespace hbm {
namespace {

using policy::Field;

absl::Status CheckRanges(const Policy& policy) {
  // Its message says more than that the value is out of range.
  const absl::Status fraction = policy::CheckFraction(policy.memory_fraction);
  for (const Field& field : policy::Fields()) {
    if (field.in_range(policy)) continue;
    const bool is_fraction = field.name == "memory_fraction";
    return FieldError(field, field.print(policy),
                      is_fraction ? policy::View(fraction) : "is out of range");
  }
  return absl::OkStatus();
}

absl::Status Conflict(std::string_view field, std::string_view value, std::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat(policy::View(field), "=", policy::View(value), ": ", policy::View(problem)));
}

absl::Status CheckPreallocate(const Policy& policy) {
  if (policy.preallocate != true) return absl::OkStatus();
  if (policy.strategy == Strategy::kOnDemand) {
    return Conflict("preallocate", "true",
                    "on_demand takes memory only when it is needed; use bfc, which preallocates, "
                    "or leave preallocate out");
  }
  if (policy.strategy == Strategy::kPlatform) {
    return Conflict("preallocate", "true",
                    "platform has no pool, every request is a device allocation; use bfc, which "
                    "preallocates, or leave preallocate out");
  }
  return absl::OkStatus();
}

absl::Status CheckOversubscription(const Policy& policy) {
  const double fraction = policy.memory_fraction.start;
  if (fraction <= 1.0) return absl::OkStatus();
  const std::string text = policy::FormatFraction(policy.memory_fraction);
  if (policy.memory_kind != MemoryKind::kUnified) {
    return Conflict(
        "memory_fraction", text,
        absl::StrCat("more than all of the memory can only be had with memory_kind=unified; if ",
                     text, "% of it was meant, write ", policy::FormatNumber(fraction / 100)));
  }
  if (policy.fraction_of == FractionOf::kFree) {
    return Conflict("memory_fraction", text,
                    "over 1 it is a fraction of the total memory; leave fraction_of=free out");
  }
  return absl::OkStatus();
}

absl::Status CheckMemoryKind(const Policy& policy) {
  if (policy.memory_kind == MemoryKind::kDevice) return absl::OkStatus();
  const std::string_view kind =
      policy.memory_kind == MemoryKind::kUnified ? "unified" : "pinned_host";
  if (policy.strategy == Strategy::kCudaAsync || policy.strategy == Strategy::kElastic) {
    return Conflict("memory_kind", kind,
                    absl::StrCat(policy::View(ToString(*policy.strategy)),
                                 " has device memory only; use bfc, on_demand or platform, or "
                                 "memory_kind=device"));
  }
  if (policy.exportable) {
    return Conflict("memory_kind", kind,
                    "only device memory can be exported to other processes; leave exportable out");
  }
  return absl::OkStatus();
}

absl::Status CheckSharing(const Policy& policy) {
  if (policy.sharing == Sharing::kOff) {
    if (!policy.share.has_value()) return absl::OkStatus();
    return Conflict("share", policy::FormatNumber(*policy.share),
                    "has no meaning with sharing=off; add sharing=fair or sharing=first_come, or "
                    "limit the pool with memory_fraction");
  }
  const std::string_view sharing = policy.sharing == Sharing::kFair ? "fair" : "first_come";
  if (policy.memory_kind != MemoryKind::kDevice) {
    return Conflict("sharing", sharing,
                    "only device memory is shared between processes; use memory_kind=device, or "
                    "sharing=off");
  }
  const bool is_fixed = (policy.strategy == Strategy::kBfc && policy.preallocate != false) ||
                        policy.strategy == Strategy::kCudaAsync;
  if (policy.sharing == Sharing::kFair && is_fixed && !policy.share.has_value()) {
    return Conflict("sharing", sharing,
                    absl::StrCat(policy::View(ToString(*policy.strategy)),
                                 " cannot give memory back when others come; say how much it "
                                 "gets, such as share=0.25, or use elastic"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidatePolicy(const Policy& policy) {
  for (const auto check :
       {CheckRanges, CheckPreallocate, CheckOversubscription, CheckMemoryKind, CheckSharing}) {
    if (absl::Status checked = check(policy); !checked.ok()) return checked;
  }
  return absl::OkStatus();
}

}  // namespace hbm
