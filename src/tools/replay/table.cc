// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policy/text.h"

namespace hbm::replay {
namespace {

// One column: its name and what it means, how a cell reads, and the number by
// which less is better.
struct Column {
  std::string_view name;
  std::string_view meaning;
  std::string (*text)(const Result& result);
  std::optional<double> (*rank)(const Result& result);
};

std::string Grouped(std::uint64_t value) {
  std::string digits = absl::StrCat(value);
  for (std::ptrdiff_t i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
  }
  return digits;
}

std::string FormatTime(double nanoseconds) {
  constexpr std::array<std::pair<double, std::string_view>, 4> kUnits = {
      {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}}};
  if (nanoseconds <= 0) return "0";
  for (const auto& [size, unit] : kUnits) {
    const double value = nanoseconds / size;
    // A little under one would be rounded up to it.
    if (value < 0.9995 && size > 1) continue;
    return absl::StrFormat("%.*f %s",
                           value < 9.995   ? 2
                           : value < 99.95 ? 1
                                           : 0,
                           value, std::string(unit));
  }
  return "0";
}

std::optional<double> Over(std::optional<std::uint64_t> over, std::uint64_t under) {
  if (!over.has_value() || under == 0) return std::nullopt;
  return static_cast<double>(*over) / static_cast<double>(under);
}

std::string Decimals(const std::optional<double>& value, int decimals) {
  return value.has_value() ? absl::StrFormat("%.*f", decimals, *value) : "-";
}

std::string Percent(const std::optional<double>& value) {
  return value.has_value() ? absl::StrFormat("%.1f%%", *value * 100) : "-";
}

// A pool of gigabytes over a trace of a few bytes: digits behind the point, and all
// those before it, say nothing.
std::string FormatRatio(const std::optional<double>& value, int decimals) {
  if (!value.has_value() || *value < 999.95) return Decimals(value, decimals);
  return *value < 99999.5 ? Grouped(static_cast<std::uint64_t>(*value + 0.5)) : ">99,999";
}

std::optional<double> PoolOverLive(const Result& result) {
  return Over(result.memory.peak_pool_bytes, result.memory.peak_live_bytes);
}

std::optional<double> NeedsOverLive(const Result& result) {
  return Over(result.needs_bytes, result.memory.peak_live_bytes);
}

std::vector<Column> ColumnsFor(const std::vector<Result>& results) {
  using R = const Result&;
  const auto any = [&results](bool (*has)(R)) {
    return std::any_of(results.begin(), results.end(), has);
  };
  std::vector<Column> columns = {
      {"strategy", "", [](R r) { return r.strategy; }, nullptr},
      {"pool", "peak bytes held from the device",
       [](R r) { return policy::FormatBytes(r.memory.peak_pool_bytes); }, nullptr},
      {"pool/live", "that over the live peak", [](R r) { return FormatRatio(PoolOverLive(r), 3); },
       PoolOverLive},
      {"mean", "the same of the means over the trace's time",
       [](R r) { return FormatRatio(r.memory.mean_pool_over_live, 2); },
       [](R r) { return r.memory.mean_pool_over_live; }},
  };
  if (any([](R r) { return r.searched; })) {
    columns.push_back({"needs", "smallest device that serves every request, over the live peak",
                       [](R r) { return FormatRatio(NeedsOverLive(r), 3); }, NeedsOverLive});
  }
  columns.insert(columns.end(),
                 {{"frag", "1 - largest free chunk / free bytes, at the live peak",
                   [](R r) { return Percent(r.memory.external_fragmentation); }, nullptr},
                  {"waste", "1 - requested / in use, there too",
                   [](R r) { return Percent(r.memory.rounding_waste); },
                   [](R r) { return std::optional<double>(r.memory.rounding_waste); }},
                  {"cold ns", "per event, first pass",
                   [](R r) { return Decimals(r.speed.first_ns_per_event, 1); },
                   [](R r) { return std::optional<double>(r.speed.first_ns_per_event); }}});
  if (any([](R r) { return r.speed.warm_ns_per_event.has_value(); })) {
    columns.push_back({"warm ns", "per event, median of the later passes",
                       [](R r) { return Decimals(r.speed.warm_ns_per_event, 1); },
                       [](R r) { return r.speed.warm_ns_per_event; }});
  }
  columns.insert(
      columns.end(),
      {{"calls", "to the driver, first pass", [](R r) { return Grouped(r.memory.driver_calls); },
        [](R r) { return std::optional<double>(r.memory.driver_calls); }},
       {"driver", "their time",
        [](R r) { return FormatTime(static_cast<double>(r.memory.driver_nanoseconds)); },
        [](R r) { return std::optional<double>(r.memory.driver_nanoseconds); }}});
  if (any([](R r) { return r.memory.waits != 0; })) {
    columns.push_back(
        {"waited", "time that callers were blocked",
         [](R r) { return FormatTime(static_cast<double>(r.memory.wait_nanoseconds)); },
         [](R r) { return std::optional<double>(r.memory.wait_nanoseconds); }});
  }
  if (any([](R r) { return r.memory.failures != 0; })) {
    columns.push_back({"failed", "requests", [](R r) { return Grouped(r.memory.failures); },
                       [](R r) { return std::optional<double>(r.memory.failures); }});
  }
  return columns;
}

using Group = std::pair<std::size_t, std::size_t>;  // first and one past the last

std::vector<Group> GroupsOf(const std::vector<Result>& results) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (i == 0 || results[i].file != results[i - 1].file) groups.emplace_back(i, i);
    groups.back().second = i + 1;
  }
  return groups;
}

// Stars go to the lowest of a column as it is printed, unless all are the same.
std::vector<std::string> CellsOf(const std::vector<Result>& results, Group group,
                                 const Column& column) {
  std::vector<std::string> cells;
  double best = std::numeric_limits<double>::infinity();
  std::string best_text;
  bool differ = false;
  for (std::size_t i = group.first; i < group.second; ++i) {
    cells.push_back(column.text(results[i]));
    differ = differ || cells.back() != cells.front();
    const std::optional<double> rank =
        column.rank == nullptr ? std::nullopt : column.rank(results[i]);
    if (rank.has_value() && *rank < best) {
      best = *rank;
      best_text = cells.back();
    }
  }
  if (column.rank == nullptr) return cells;
  for (std::string& cell : cells) cell += differ && cell == best_text ? "*" : " ";
  return cells;
}

std::string Heading(const Result& result) {
  return absl::StrCat(result.trace, ": ", Grouped(result.events), " events in ",
                      FormatTime(static_cast<double>(result.duration_us) * 1e3), ", ",
                      policy::FormatBytes(result.memory.peak_live_bytes), " live at the peak, on ",
                      result.device, "\n");
}

void AppendPadded(std::string* line, const std::string& cell, std::size_t width, bool left) {
  const std::string padding(width > cell.size() ? width - cell.size() : 0, ' ');
  absl::StrAppend(line, "  ", left ? cell : padding, left ? padding : cell);
}

void AppendLine(std::string* text, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  absl::StrAppend(text, line, "\n");
}

// Breaks lines at spaces so that they fit a page.
std::string Wrapped(std::string_view text) {
  constexpr std::size_t kWidth = 100;
  std::string result;
  while (text.size() > kWidth) {
    std::size_t end = text.rfind(' ', kWidth);
    if (end == std::string_view::npos) end = kWidth;
    absl::StrAppend(&result, absl::string_view(text.data(), end), "\n");
    text.remove_prefix(end + 1);
  }
  return absl::StrCat(result, absl::string_view(text.data(), text.size()), "\n");
}

std::string Legend(const std::vector<Column>& columns) {
  std::string text = "* best of its column.";
  for (const Column& column : columns) {
    if (column.meaning.empty()) continue;
    absl::StrAppend(&text, " ", absl::string_view(column.name.data(), column.name.size()), ": ",
                    absl::string_view(column.meaning.data(), column.meaning.size()), ";");
  }
  return Wrapped(text + " --help defines them all.");
}

}  // namespace

std::string RenderTable(const std::vector<Result>& results) {
  const std::vector<Column> columns = ColumnsFor(results);
  const std::vector<Group> groups = GroupsOf(results);
  // cells[column][row]: widths are common to all traces, so that eyes can go down.
  std::vector<std::vector<std::string>> cells(columns.size());
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    for (const Group& group : groups) {
      for (std::string& cell : CellsOf(results, group, columns[c])) {
        cells[c].push_back(std::move(cell));
      }
    }
    widths.push_back(columns[c].name.size() + (columns[c].rank == nullptr ? 0 : 1));
    for (const std::string& cell : cells[c]) widths[c] = std::max(widths[c], cell.size());
  }
  std::string text;
  for (const Group& group : groups) {
    if (!text.empty()) text += "\n";
    text += Heading(results[group.first]);
    std::string names;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::string name(columns[c].name);
      AppendPadded(&names, columns[c].rank == nullptr ? name : name + " ", widths[c], c == 0);
    }
    AppendLine(&text, std::move(names));
    for (std::size_t row = group.first; row < group.second; ++row) {
      std::string line;
      for (std::size_t c = 0; c < columns.size(); ++c) {
        AppendPadded(&line, cells[c][row], widths[c], c == 0);
      }
      AppendLine(&text, std::move(line));
    }
  }
  return results.empty() ? text : text + "\n" + Legend(columns);
}

}  // namespace hbm::replay
