// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "observe/gunzip.h"
#include "observe/trace_reader.h"
#include "tests/support/paths.h"

namespace hbm::testing {
namespace {

const std::string& GoldenFolder() {
  static const auto* const folder = new std::string(SourcePath("tests/golden/"));
  return *folder;
}

[[noreturn]] void Die(const std::string& file, const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", file.c_str(), what.c_str());
  std::abort();
}

std::int64_t Number(absl::string_view text, const std::string& file) {
  std::int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) Die(file, "not a number: " + std::string(text));
  return value;
}

std::string ReadGzip(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream packed;
  packed << in.rdbuf();
  absl::StatusOr<std::string> text = observe::Gunzip(packed.str(), std::size_t{1} << 30);
  if (!text.ok()) Die(file, text.status().ToString());
  return *std::move(text);
}

struct PoolRow {
  std::vector<std::string> names;  // trace, strategy
  std::vector<std::int64_t> numbers;
};

std::vector<PoolRow> PoolRows() {
  const std::string file = GoldenFolder() + "pools.csv";
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  if (line != "trace,strategy,limit,capacity,peak_pool_bytes,peak_bytes_in_use,failures") {
    Die(file, "unexpected header");
  }
  std::vector<PoolRow> rows;
  while (std::getline(in, line)) {
    const std::vector<std::string> cells = absl::StrSplit(line, ',');
    if (cells.size() != 7) Die(file, "a row without 7 cells: " + line);
    PoolRow row{{cells[0], cells[1]}, {}};
    for (std::size_t i = 2; i < 7; ++i) row.numbers.push_back(Number(cells[i], file));
    rows.push_back(row);
  }
  return rows;
}

GoldenCase CaseOf(absl::string_view stem, const std::vector<PoolRow>& rows) {
  GoldenCase golden;
  golden.pressed = absl::ConsumeSuffix(&stem, "_pressed");
  const std::vector<std::string> parts = absl::StrSplit(stem, '.');
  golden.trace = parts[0];
  golden.strategy = parts[1];
  // The pool that the recording JAX process had.
  golden.limit = golden.capacity = 112'583'507'968;
  for (const PoolRow& row : rows) {
    const bool row_is_pressed = row.numbers[1] < row.numbers[0];
    if (row.names[0] != golden.trace || row.names[1] != golden.strategy ||
        row_is_pressed != golden.pressed) {
      continue;
    }
    golden.limit = static_cast<std::uint64_t>(row.numbers[0]);
    golden.capacity = static_cast<std::uint64_t>(row.numbers[1]);
    golden.pool = GoldenPool{row.numbers[2], row.numbers[3], row.numbers[4]};
  }
  return golden;
}

}  // namespace

std::string GoldenCase::File() const {
  return GoldenFolder() + trace + "." + strategy + (pressed ? "_pressed" : "") + ".csv.gz";
}

const std::vector<GoldenCase>& GoldenCases() {
  static const auto* const cases = [] {
    const std::vector<PoolRow> rows = PoolRows();
    auto* const all = new std::vector<GoldenCase>;
    for (const auto& entry : std::filesystem::directory_iterator(GoldenFolder())) {
      const std::string name = entry.path().filename().string();
      absl::string_view stem = name;
      if (absl::ConsumeSuffix(&stem, ".csv.gz")) all->push_back(CaseOf(stem, rows));
    }
    std::sort(all->begin(), all->end(),
              [](const GoldenCase& a, const GoldenCase& b) { return a.Name() < b.Name(); });
    return all;
  }();
  return *cases;
}

observe::Trace LoadTrace(const std::string& name) {
  const std::string file = SourcePath("bench/traces/" + name + ".csv.gz");
  absl::StatusOr<observe::Trace> trace = observe::ReadTraceFile(file);
  if (!trace.ok()) Die(file, trace.status().ToString());
  return *std::move(trace);
}

std::vector<std::int64_t> LoadOffsets(const GoldenCase& golden) {
  const std::string file = golden.File();
  const std::string text = ReadGzip(file);
  std::vector<std::int64_t> offsets;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line == "id,offset") continue;
    const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
    if (cells.size() != 2 || Number(cells[0], file) != static_cast<std::int64_t>(offsets.size())) {
      Die(file, "unexpected row: " + std::string(line));
    }
    offsets.push_back(Number(cells[1], file));
  }
  return offsets;
}

}  // namespace hbm::testing
