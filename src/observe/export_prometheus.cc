// SPDX-License-Identifier: Apache-2.0
//
// Figures in Prometheus' text format. Names carry their unit; times are seconds, and
// what only grows ends in _total, as is the custom there.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "hbmalloc/export.h"
#include "observe/json.h"
#include "observe/stats_fields.h"

namespace hbm {
namespace {

using observe::JsonNumber;
using observe::StatsField;

// A label's value: any text, of which three characters are written otherwise.
std::string LabelValue(std::string_view text) {
  std::string escaped;
  for (const char c : observe::ValidUtf8(text)) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

void Head(std::string& text, const std::string& name, const char* help, bool is_total) {
  absl::StrAppend(&text, "# HELP ", name, " ", help, "\n# TYPE ", name,
                  is_total ? " counter\n" : " gauge\n");
}

void Sample(std::string& text, const std::string& name, std::string_view device,
            const std::string& more_labels, const std::string& value) {
  absl::StrAppend(&text, name, "{device=\"", LabelValue(device), "\"", more_labels, "} ", value,
                  "\n");
}

// What is always 0, or another's double, only for XLA's sake.
bool IsForXlaAlone(const StatsField& field) {
  return absl::EndsWith(field.name, "reserved") || field.member == &Stats::peak_allocated_bytes;
}

// num_allocs -> hbmalloc_allocs_total, wait_nanoseconds -> hbmalloc_wait_seconds_total,
// peak_bytes_in_use -> hbmalloc_peak_in_use_bytes.
std::string NameOf(const StatsField& field) {
  absl::string_view name = field.name;
  absl::ConsumePrefix(&name, "num_");
  if (field.unit == StatsField::Unit::kNanoseconds) {
    absl::ConsumeSuffix(&name, "_nanoseconds");
    return absl::StrCat("hbmalloc_", name, "_seconds_total");
  }
  std::string full = absl::StrCat("hbmalloc_", name);
  if (field.unit == StatsField::Unit::kBytes) {
    full = absl::StrReplaceAll(full, {{"_bytes", ""}, {"_size", ""}}) + "_bytes";
  }
  return field.is_total ? full + "_total" : full;
}

void AppendStats(std::string& text, const std::vector<AllocatorState>& devices) {
  for (const StatsField& field : observe::kStatsFields) {
    if (IsForXlaAlone(field)) continue;
    const std::string name = NameOf(field);
    Head(text, name, field.help, field.is_total);
    for (const AllocatorState& state : devices) {
      const std::int64_t value = state.stats.*field.member;
      Sample(text, name, state.device, "",
             field.unit == StatsField::Unit::kNanoseconds
                 ? JsonNumber(static_cast<double>(value) * 1e-9)
                 : absl::StrCat(value));
    }
  }
}

struct Ratio {
  const char* name;
  double Fragmentation::*member;
  const char* help;
};
constexpr Ratio kRatios[] = {
    {"hbmalloc_external_fragmentation_ratio", &Fragmentation::external,
     "1 - largest free chunk / free bytes; 0 when nothing is free."},
    {"hbmalloc_rounding_waste_ratio", &Fragmentation::rounding_waste, "1 - requested / in use."},
    {"hbmalloc_utilization_ratio", &Fragmentation::utilization, "In use / pool."},
    {"hbmalloc_peak_utilization_ratio", &Fragmentation::peak_utilization,
     "Peak in use / peak pool."},
    {"hbmalloc_height_over_load_ratio", &Fragmentation::height_over_load,
     "Highest used offset / peak live bytes; 0 where there is no such offset."},
};

void AppendRatios(std::string& text, const std::vector<AllocatorState>& devices) {
  for (const Ratio& ratio : kRatios) {
    Head(text, ratio.name, ratio.help, false);
    for (const AllocatorState& state : devices) {
      Sample(text, ratio.name, state.device, "", JsonNumber(state.figures.device.*ratio.member));
    }
  }
  std::string means;
  const std::string name = "hbmalloc_mean_pool_over_live_ratio";
  for (const AllocatorState& state : devices) {
    const std::optional<double>& mean = state.figures.device.mean_pool_over_live;
    if (mean.has_value()) Sample(means, name, state.device, "", JsonNumber(*mean));
  }
  if (means.empty()) return;
  Head(text, name, "Integral of pool bytes over time / that of live bytes.", false);
  text += means;
}

struct BinField {
  const char* name;
  std::int64_t SizeBin::*member;
  const char* help;
};
constexpr BinField kBinFields[] = {
    {"hbmalloc_bin_live_chunks", &SizeBin::live_chunks,
     "Chunks that hold live blocks, of min_bytes to less than twice that."},
    {"hbmalloc_bin_live_bytes", &SizeBin::live_bytes, "Their sizes."},
    {"hbmalloc_bin_free_chunks", &SizeBin::free_chunks, "Free chunks of these sizes."},
    {"hbmalloc_bin_free_bytes", &SizeBin::free_bytes, "Their sizes."},
};

void AppendBins(std::string& text, const std::vector<AllocatorState>& devices) {
  for (const BinField& field : kBinFields) {
    Head(text, field.name, field.help, false);
    for (const AllocatorState& state : devices) {
      for (const SizeBin& bin : state.figures.bins) {
        Sample(text, field.name, state.device, absl::StrCat(",min_bytes=\"", bin.min_bytes, "\""),
               absl::StrCat(bin.*field.member));
      }
    }
  }
}

}  // namespace

std::string ToPrometheus(const std::vector<AllocatorState>& devices) {
  std::string text;
  AppendStats(text, devices);
  AppendRatios(text, devices);
  AppendBins(text, devices);
  return text;
}

}  // namespace hbm
