// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/report.h"

#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "observe/json.h"
#include "tools/replay/table.h"

namespace hbm::replay {
namespace {

using observe::JsonString;

// A figure that is not known is null.
struct Value {
  enum class Kind { kNull, kText, kNumber };
  Kind kind = Kind::kNull;
  std::string text;
};

struct Field {
  const char* name;
  Value value;
};

Value Text(const std::string& text) { return {Value::Kind::kText, text}; }
Value Whole(std::uint64_t value) { return {Value::Kind::kNumber, absl::StrCat(value)}; }
Value Real(double value) { return {Value::Kind::kNumber, absl::StrFormat("%.9g", value)}; }
Value Real(const std::optional<double>& value) { return value ? Real(*value) : Value(); }

Value Ratio(std::uint64_t over, std::uint64_t under) {
  if (under == 0) return {};
  return Real(static_cast<double>(over) / static_cast<double>(under));
}

Value Microseconds(std::uint64_t nanoseconds) {
  return Real(static_cast<double>(nanoseconds) / 1e3);
}

// The one list of what is reported: JSON and CSV have the same fields.
std::vector<Field> FieldsOf(const Result& result) {
  const observe::MemoryFigures& memory = result.memory;
  std::vector<Field> fields = {
      {"trace", Text(result.trace)},
      {"file", Text(result.file)},
      {"strategy", Text(result.strategy)},
      {"policy", Text(result.policy)},
      {"device", Text(result.device)},
      {"events", Whole(result.events)},
      {"failures", Whole(memory.failures)},
      {"peak_live_bytes", Whole(memory.peak_live_bytes)},
      {"peak_bytes_in_use", Whole(memory.peak_bytes_in_use)},
      {"peak_pool_bytes", Whole(memory.peak_pool_bytes)},
      {"pool_over_live", Ratio(memory.peak_pool_bytes, memory.peak_live_bytes)},
      {"mean_pool_over_live", Real(memory.mean_pool_over_live)},
      {"first_ns_per_event", Real(result.speed.first_ns_per_event)},
      {"warm_ns_per_event", Real(result.speed.warm_ns_per_event)},
      {"driver_calls", Whole(memory.driver_calls)},
      {"driver_us", Microseconds(memory.driver_nanoseconds)},
      {"setup_driver_calls", Whole(memory.setup_driver_calls)},
      {"setup_driver_us", Microseconds(memory.setup_driver_nanoseconds)},
      {"waits", Whole(memory.waits)},
      {"wait_us", Microseconds(memory.wait_nanoseconds)},
      {"external_fragmentation", Real(memory.external_fragmentation)},
      {"rounding_waste", Real(memory.rounding_waste)},
      {"utilization_at_peak", Real(memory.utilization_at_peak)},
      {"height_over_load", Real(memory.height_over_load)},
      {"trace_duration_us", Whole(static_cast<std::uint64_t>(result.duration_us))},
      {"streams", Whole(result.streams)},
      {"recorded_failures", Whole(result.recorded_failures)},
      {"unknown_frees", Whole(result.unknown_frees)},
      {"passes", Whole(static_cast<std::uint64_t>(result.passes))},
  };
  if (result.searched) {
    const std::optional<std::uint64_t>& needs = result.needs_bytes;
    fields.push_back({"needs_bytes", needs ? Whole(*needs) : Value()});
    fields.push_back({"needs_over_live", needs ? Ratio(*needs, memory.peak_live_bytes) : Value()});
  }
  return fields;
}

std::string CsvString(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string JsonValue(const Value& value) {
  if (value.kind == Value::Kind::kNull) return "null";
  return value.kind == Value::Kind::kText ? JsonString(value.text) : value.text;
}

std::string CsvValue(const Value& value) {
  return value.kind == Value::Kind::kText ? CsvString(value.text) : value.text;
}

std::string RenderJson(const std::vector<Result>& results) {
  std::string text = "[";
  for (const Result& result : results) {
    absl::StrAppend(&text, text.size() == 1 ? "\n  {" : ",\n  {");
    bool first = true;
    for (const Field& field : FieldsOf(result)) {
      absl::StrAppend(&text, first ? "\n    \"" : ",\n    \"", field.name,
                      "\": ", JsonValue(field.value));
      first = false;
    }
    text += "\n  }";
  }
  return text + "\n]\n";
}

std::string RenderCsv(const std::vector<Result>& results) {
  std::string text;
  for (const Result& result : results) {
    const std::vector<Field> fields = FieldsOf(result);
    if (text.empty()) {
      for (const Field& field : fields) absl::StrAppend(&text, text.empty() ? "" : ",", field.name);
      text += "\n";
    }
    bool first = true;
    for (const Field& field : fields) {
      absl::StrAppend(&text, first ? "" : ",", CsvValue(field.value));
      first = false;
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string Render(const std::vector<Result>& results, Format format) {
  switch (format) {
    case Format::kJson:
      return RenderJson(results);
    case Format::kCsv:
      return RenderCsv(results);
    case Format::kTable:
      break;
  }
  return RenderTable(results);
}

std::string RenderPlacements(const std::vector<std::int64_t>& offsets) {
  std::string text = "id,offset\n";
  for (std::size_t id = 0; id < offsets.size(); ++id) {
    absl::StrAppend(&text, id, ",", offsets[id], "\n");
  }
  return text;
}

}  // namespace hbm::replay
