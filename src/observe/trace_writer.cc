// SPDX-License-Identifier: Apache-2.0
#include "observe/trace_writer.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "hbmalloc/stream.h"

namespace hbm::observe {
namespace {

constexpr std::int64_t kDay = std::int64_t{86400} * 1000000000;
// The longest line is far shorter.
constexpr std::size_t kMostNameBytes = 64;

// What may stand in a field without quotes, which not every reader understands.
std::string AsField(std::string_view name) {
  std::string field(name.substr(0, kMostNameBytes));
  for (char& c : field) {
    if (c == ',') c = ';';
    if (c == '"' || static_cast<unsigned char>(c) < 0x20) c = '_';
  }
  return field;
}

template <typename Number>
void AppendNumber(std::string& text, Number number, int base = 10) {
  char digits[24];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), number, base);
  text.append(digits, static_cast<std::size_t>(end - digits));
}
void AppendHex(std::string& text, std::uint64_t number) {
  text += "0x";
  AppendNumber(text, number, 16);
}
void AppendPadded(std::string& text, std::int64_t number, int width) {
  char digits[8];
  for (int i = width; i-- > 0; number /= 10) digits[i] = static_cast<char>('0' + number % 10);
  text.append(digits, static_cast<std::size_t>(width));
}

// Of no particular stream: shown as the default one, which all readers know.
std::uint64_t ShownStream(std::uint64_t value) {
  return value == StreamRef::OfAllocation().value() || value == StreamRef::Synchronized().value()
             ? 0
             : value;
}

}  // namespace

TraceWriter::TraceWriter(std::unique_ptr<TraceFile> file, std::int64_t wall_nanoseconds)
    : file_(std::move(file)), start_(scale_.start()), wall_start_(wall_nanoseconds) {
  text_ = "Thread,Time,Action,Pointer,Size,Stream,Device,Alignment,Nanoseconds,Tag\n";
}

std::uint16_t TraceWriter::AddDevice(const void* address_space, std::string_view name) {
  const std::string field = AsField(name);
  std::size_t same_name = 0;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].address_space == address_space) return static_cast<std::uint16_t>(i);
    if (devices_[i].name.substr(0, field.size()) == field) ++same_name;
  }
  if (devices_.size() == 0xffff) return 0xfffe;
  devices_.push_back(
      {address_space, same_name == 0 ? field : absl::StrCat(field, "#", same_name + 1)});
  return static_cast<std::uint16_t>(devices_.size() - 1);
}

const std::string& TraceWriter::TagText(std::uint32_t tag) {
  if (tag >= tags_.size()) tags_.resize(std::min<std::size_t>(tag, 65535) + 1);
  std::string& text = tags_[std::min<std::size_t>(tag, tags_.size() - 1)];
  if (text.empty() && tag != 0) text = AsField(TagName(TagId{tag}));
  return text;
}

void TraceWriter::Line(const EventRecord& event, std::string_view action, const Block& block) {
  // Threads read the time before they are given their number.
  last_ = std::max(last_, scale_.ToNanoseconds(event.ticks) - start_);
  const std::int64_t micros = (wall_start_ + last_) % kDay / 1000;
  AppendNumber(text_, event.thread);
  text_ += ',';
  AppendPadded(text_, micros / 3600000000, 2);
  text_ += ':';
  AppendPadded(text_, micros / 60000000 % 60, 2);
  text_ += ':';
  AppendPadded(text_, micros / 1000000 % 60, 2);
  text_ += '.';
  AppendPadded(text_, micros % 1000000, 6);
  text_ += ',';
  text_ += action;
  text_ += ',';
  AppendHex(text_, event.address);
  text_ += ',';
  AppendNumber(text_, block.bytes);
  text_ += ',';
  AppendHex(text_, ShownStream(block.stream));
  text_ += ',';
  if (event.device < devices_.size()) text_ += devices_[event.device].name;
  text_ += ',';
  AppendNumber(text_, std::uint64_t{1} << (block.log2_alignment & 63));
  text_ += ',';
  AppendNumber(text_, last_);
  text_ += ',';
  text_ += TagText(block.tag);
  text_ += '\n';
}

void TraceWriter::Add(const EventRecord& event) {
  const Key key{event.address, event.device};
  const Block block{event.bytes, event.stream, event.tag, event.log2_alignment};
  switch (event.action) {
    case EventAction::kFailure:
      Line(event, "allocate failure", block);
      return;
    case EventAction::kRefusedFree:
      // If it is live here too, the free was left out.
      if (event.bytes == 0 || live_.contains(key)) return;
      [[fallthrough]];
    case EventAction::kAllocate: {
      const auto [at, is_new] = live_.try_emplace(key, block);
      if (!is_new) {
        Line(event, "free", at->second);
        at->second = block;
      }
      Line(event, "allocate", block);
      return;
    }
    case EventAction::kFree: {
      const auto found = live_.find(key);
      if (found == live_.end()) return;
      Block freed = found->second;
      if (event.stream < StreamRef::Synchronized().value()) freed.stream = event.stream;
      Line(event, "free", freed);
      live_.erase(found);
      return;
    }
  }
}

absl::Status TraceWriter::Write() {
  absl::Status status = file_->Append(text_);
  text_.clear();
  return status;
}

}  // namespace hbm::observe
