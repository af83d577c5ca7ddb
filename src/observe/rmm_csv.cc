// SPDX-License-Identifier: Apache-2.0
#include "observe/rmm_csv.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "observe/trace_builder.h"

namespace hbm::observe {
namespace {

// A header with more columns than this is not a header.
constexpr std::size_t kMaxColumns = 64;
constexpr std::size_t kNone = kMaxColumns;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::string_view Trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// For messages: a field may be long, and hold anything.
std::string Quoted(std::string_view field) {
  constexpr std::size_t kShown = 40;
  if (field.size() <= kShown) return absl::StrCat("\"", absl::CHexEscape(View(field)), "\"");
  return absl::StrCat("\"", absl::CHexEscape(View(field.substr(0, kShown))), "...\"");
}

std::optional<std::uint64_t> ParseDecimal(std::string_view text) {
  if (text.empty()) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (value > (std::numeric_limits<std::uint64_t>::max() - digit) / 10) return std::nullopt;
    value = value * 10 + digit;
  }
  return value;
}

std::optional<std::uint64_t> ParseHex(std::string_view text) {
  if (text.empty() || text.size() > 16) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text) {
    std::uint64_t digit;
    if (c >= '0' && c <= '9') {
      digit = static_cast<std::uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<std::uint64_t>(c - 'a') + 10;
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<std::uint64_t>(c - 'A') + 10;
    } else {
      return std::nullopt;
    }
    value = value << 4 | digit;
  }
  return value;
}

// A pointer or a stream: 0x7f00, 12, or how printf writes null.
std::optional<std::uint64_t> ParseHandle(std::string_view text) {
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
    return ParseHex(text.substr(2));
  }
  if (text == "(nil)" || text == "nullptr") return 0;
  return ParseDecimal(text);
}

// "10:02:03.000417" as microseconds; digits beyond the sixth are dropped.
std::optional<std::int64_t> ParseTimeOfDay(std::string_view text) {
  std::array<std::uint64_t, 3> parts{};
  std::uint64_t micros = 0;
  const std::size_t point = text.find('.');
  if (point != std::string_view::npos) {
    std::string_view fraction = text.substr(point + 1);
    if (fraction.empty() || fraction.size() > 9 || !ParseDecimal(fraction)) return std::nullopt;
    std::uint64_t unit = 100000;
    for (const char c : fraction.substr(0, 6)) {
      micros += static_cast<std::uint64_t>(c - '0') * unit;
      unit /= 10;
    }
    text = text.substr(0, point);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t colon = text.find(':');
    if ((colon == std::string_view::npos) != (i == 2)) return std::nullopt;
    const std::optional<std::uint64_t> value = ParseDecimal(text.substr(0, colon));
    if (!value || *value > (i == 0 ? 23 : i == 1 ? 59 : 60)) return std::nullopt;
    parts[i] = *value;
    if (i < 2) text = text.substr(colon + 1);
  }
  return static_cast<std::int64_t>(((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1000000 + micros);
}

struct Columns {
  std::size_t time = kNone;
  std::size_t action = kNone;
  std::size_t pointer = kNone;
  std::size_t size = kNone;
  std::size_t stream = kNone;
  std::size_t alignment = kNone;
  std::size_t tag = kNone;
  std::size_t device = kNone;
  std::size_t count = 0;
};

using Fields = std::array<std::string_view, kMaxColumns>;

// Splits at commas; returns the number of fields, or kMaxColumns + 1 for more
// than fit.
std::size_t Split(std::string_view line, Fields& fields) {
  std::size_t count = 0;
  for (;;) {
    if (count == kMaxColumns) return kMaxColumns + 1;
    const std::size_t comma = line.find(',');
    fields[count++] = Trim(line.substr(0, comma));
    if (comma == std::string_view::npos) return count;
    line.remove_prefix(comma + 1);
  }
}

std::string_view TakeLine(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view file) : text_(text), file_(file) {
    if (text_.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
      text_.remove_prefix(kByteOrderMark.size());
    }
  }

  absl::StatusOr<Trace> Run() {
    while (!text_.empty()) {
      ++line_;
      const std::string_view line = TakeLine(text_);
      if (Trim(line).empty()) continue;
      absl::Status status = columns_.count == 0 ? ReadHeader(line) : ReadRow(line);
      if (!status.ok()) return status;
    }
    if (columns_.count == 0) return Error("the file is empty; it needs RMM's header line");
    if (devices_.empty()) SelectDevice("");
    return BuildBusiest();
  }

 private:
  static constexpr std::size_t kMaxDevices = 256;

  // False if there are too many.
  bool SelectDevice(std::string_view name) {
    if (builder_ != nullptr && device_ == name) return true;
    for (auto& [known, builder] : devices_) {
      if (known != name) continue;
      builder_ = &builder;
      device_ = known;
      return true;
    }
    if (devices_.size() == kMaxDevices) return false;
    devices_.emplace_back(name, TraceBuilder());
    builder_ = &devices_.back().second;
    device_ = devices_.back().first;
    // A row of a real log is 30 to 60 bytes long.
    builder_->Reserve(std::min(text_.size() / 32, std::size_t{1} << 22) / devices_.size());
    return true;
  }

  // The trace of the device with the most events: memories cannot be played as one.
  Trace BuildBusiest() {
    std::vector<Trace> traces;
    std::size_t busiest = 0;
    std::size_t with_events = 0;
    for (auto& [name, builder] : devices_) {
      traces.push_back(std::move(builder).Build());
      if (!traces.back().events.empty()) ++with_events;
      if (traces.back().events.size() > traces[busiest].events.size()) busiest = traces.size() - 1;
    }
    Trace& trace = traces[busiest];
    if (with_events > 1) {
      trace.notes.push_back(absl::StrCat(with_events, " devices are in the trace; ",
                                         devices_[busiest].first, ", which has the most events, ",
                                         "is replayed"));
    }
    return std::move(trace);
  }

  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(View(file_), ":", line_ == 0 ? 1 : line_, ": ", View(what)));
  }

  absl::Status ReadHeader(std::string_view line) {
    Fields names;
    const std::size_t count = Split(line, names);
    if (count > kMaxColumns) return Error(absl::StrCat("more than ", kMaxColumns, " columns"));
    const std::array<std::pair<std::string_view, std::size_t*>, 8> wanted = {{
        {"Time", &columns_.time},
        {"Action", &columns_.action},
        {"Pointer", &columns_.pointer},
        {"Size", &columns_.size},
        {"Stream", &columns_.stream},
        {"Alignment", &columns_.alignment},
        {"Tag", &columns_.tag},
        {"Device", &columns_.device},
    }};
    for (const auto& [name, column] : wanted) {
      for (std::size_t i = 0; i < count; ++i) {
        if (names[i] != name) continue;
        if (*column != kNone) return Error(absl::StrCat("column ", View(name), " appears twice"));
        *column = i;
      }
      const bool is_own =
          column == &columns_.alignment || column == &columns_.tag || column == &columns_.device;
      if (*column == kNone && !is_own) {
        return Error(absl::StrCat("column ", View(name), " is missing; the header is ",
                                  Quoted(Trim(line)),
                                  " and must name Time, Action, Pointer, Size and Stream"));
      }
    }
    columns_.count = count;
    return absl::OkStatus();
  }

  absl::Status BadField(std::string_view column, std::string_view value,
                        std::string_view allowed) const {
    return Error(
        absl::StrCat("column ", View(column), ": ", Quoted(value), " is not ", View(allowed)));
  }

  absl::Status ReadRow(std::string_view line) {
    Fields fields;
    const std::size_t count = Split(line, fields);
    if (count != columns_.count) {
      return Error(absl::StrCat("the row has ", count, " fields, the header ", columns_.count, ": ",
                                Quoted(Trim(line))));
    }
    const std::string_view device =
        columns_.device == kNone ? std::string_view() : fields[columns_.device];
    if (!SelectDevice(device)) {
      return Error(absl::StrCat("column Device: more than ", kMaxDevices, " devices"));
    }
    const std::string_view action = fields[columns_.action];
    if (action == "allocate failure") {
      builder_->CountAllocateFailure();
      return absl::OkStatus();
    }
    const bool allocates = action == "allocate";
    if (!allocates && action != "free") {
      return BadField("Action", action, "allocate, allocate failure or free");
    }
    TraceBuilder::Row row;
    absl::Status status = ReadNumbers(fields, &row);
    if (!status.ok()) return status;
    if (allocates) {
      status = builder_->Allocate(row);
    } else {
      bool known = false;
      status = builder_->Free(row, &known);
      if (!known && builder_->WantsExample()) {
        builder_->AddExample(absl::StrFormat("line %d: 0x%x", line_, row.pointer));
      }
    }
    return status.ok() ? status : Error(std::string(status.message()));
  }

  absl::Status ReadNumbers(const Fields& fields, TraceBuilder::Row* row) {
    const std::optional<std::uint64_t> pointer = ParseHandle(fields[columns_.pointer]);
    if (!pointer) {
      return BadField("Pointer", fields[columns_.pointer], "an address such as 0x7f0000000000");
    }
    row->pointer = *pointer;
    const std::optional<std::uint64_t> size = ParseDecimal(fields[columns_.size]);
    if (!size) return BadField("Size", fields[columns_.size], "a whole number of bytes");
    row->bytes = *size;
    const std::optional<std::uint64_t> stream = ParseHandle(fields[columns_.stream]);
    if (!stream) return BadField("Stream", fields[columns_.stream], "a stream's number or handle");
    row->stream = *stream;
    if (columns_.tag != kNone) row->tag = fields[columns_.tag];
    if (absl::Status status = ReadTime(fields[columns_.time], &row->time_us); !status.ok()) {
      return status;
    }
    return columns_.alignment == kNone
               ? absl::OkStatus()
               : ReadAlignment(fields[columns_.alignment], &row->log2_alignment);
  }

  absl::Status ReadTime(std::string_view field, std::int64_t* time_us) {
    constexpr std::int64_t kDay = std::int64_t{24} * 3600 * 1000000;
    // Far beyond any clock, and sums of a few such times still fit.
    constexpr std::uint64_t kMaxMicroseconds = std::uint64_t{1} << 60;
    if (field.find(':') == std::string_view::npos) {
      const std::optional<std::uint64_t> value = ParseDecimal(field);
      if (!value || *value > kMaxMicroseconds) {
        return BadField("Time", field, "whole microseconds or HH:MM:SS.ffffff");
      }
      *time_us = static_cast<std::int64_t>(*value);
      return absl::OkStatus();
    }
    const std::optional<std::int64_t> value = ParseTimeOfDay(field);
    if (!value) return BadField("Time", field, "whole microseconds or HH:MM:SS.ffffff");
    // Half a day back is midnight; less is two threads' rows out of order.
    if (*value < last_time_of_day_ - kDay / 2) midnights_ += kDay;
    last_time_of_day_ = *value;
    *time_us = midnights_ + *value;
    return absl::OkStatus();
  }

  // Empty or 0: not recorded.
  absl::Status ReadAlignment(std::string_view field, std::uint8_t* log2_alignment) const {
    if (field.empty()) return absl::OkStatus();
    const std::optional<std::uint64_t> value = ParseDecimal(field);
    constexpr std::uint64_t kMax = std::uint64_t{2} << 20;
    if (!value || *value > kMax || (*value & (*value - 1)) != 0) {
      return BadField("Alignment", field, "a power of two up to 2097152");
    }
    while ((std::uint64_t{1} << *log2_alignment) < *value) ++*log2_alignment;
    return absl::OkStatus();
  }

  std::string_view text_;
  std::string_view file_;
  std::size_t line_ = 0;
  Columns columns_;
  // One for each device that is named: addresses of two may be the same.
  std::deque<std::pair<std::string, TraceBuilder>> devices_;
  TraceBuilder* builder_ = nullptr;  // the current row's
  std::string_view device_;
  std::int64_t last_time_of_day_ = 0;
  std::int64_t midnights_ = 0;
};

}  // namespace

bool LooksLikeRmmCsv(std::string_view text) {
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    text.remove_prefix(kByteOrderMark.size());
  }
  while (!text.empty()) {
    const std::string_view line = Trim(TakeLine(text));
    if (line.empty()) continue;
    Fields names;
    const std::size_t count = std::min(Split(line, names), kMaxColumns);
    const auto end = names.begin() + static_cast<std::ptrdiff_t>(count);
    const auto names_one = [&](std::string_view name) {
      return std::find(names.begin(), end, name) != end;
    };
    return count > 1 && (names_one("Action") || names_one("Pointer") || names_one("Size"));
  }
  return false;
}

absl::StatusOr<Trace> ParseRmmCsv(std::string_view text, std::string_view file) {
  return Parser(text, file).Run();
}

}  // namespace hbm::observe
