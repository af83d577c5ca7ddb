// SPDX-License-Identifier: Apache-2.0
#include "hbmalloc/stats.h"

#include "absl/strings/str_cat.h"
#include "observe/stats_fields.h"

namespace hbm {

std::string_view ToString(LimitSource source) {
  switch (source) {
    case LimitSource::kMemoryFraction:
      return "memory_fraction";
    case LimitSource::kMemoryLimit:
      return "memory_limit";
    case LimitSource::kReserve:
      return "reserve";
    case LimitSource::kSetMemoryLimit:
      return "SetMemoryLimit";
    case LimitSource::kShortage:
      return "shortage";
    case LimitSource::kShare:
      return "share";
  }
  return "unknown";
}

std::string ToString(const Stats& stats) {
  std::string text;
  observe::VisitStats(stats, [&text](const observe::StatsField& field, std::int64_t value) {
    absl::StrAppend(&text, field.name, ": ", value, "\n");
  });
  const std::string_view source = ToString(stats.limit_source);
  absl::StrAppend(&text, "limit_source: ", absl::string_view(source.data(), source.size()), "\n");
  return text;
}

}  // namespace hbm
