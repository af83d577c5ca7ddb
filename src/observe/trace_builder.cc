// SPDX-License-Identifier: Apache-2.0
#include "observe/trace_builder.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hbm::observe {
namespace {

// Live bytes stay in the range of the library's signed counters.
constexpr std::uint64_t kMaxLiveBytes = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMaxStreams = 65535;
constexpr std::size_t kMaxTags = 65536;  // blocks of further ones count as without
constexpr std::size_t kMaxExamples = 5;

}  // namespace

void TraceBuilder::Reserve(std::size_t events) { trace_.events.reserve(events); }

absl::Status TraceBuilder::Append(const Row& row, std::uint64_t bytes, std::uint32_t block,
                                  TraceEvent::Kind kind) {
  std::uint16_t stream = 0;
  const auto found = stream_index_.find(row.stream);
  if (found != stream_index_.end()) {
    stream = found->second;
  } else {
    if (trace_.streams.size() == kMaxStreams) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMaxStreams, " different streams"));
    }
    stream = static_cast<std::uint16_t>(trace_.streams.size());
    stream_index_.emplace(row.stream, stream);
    trace_.streams.push_back(row.stream);
  }
  if (trace_.events.empty()) first_time_us_ = last_time_us_ = row.time_us;
  // Rows of several threads may be written a little out of order.
  if (row.time_us < last_time_us_) ++trace_.times_out_of_order;
  last_time_us_ = std::max(last_time_us_, row.time_us);
  TraceEvent event;
  event.bytes = bytes;
  event.time_us = last_time_us_ - first_time_us_;
  event.block = block;
  event.stream = stream;
  event.kind = kind;
  event.log2_alignment = row.log2_alignment;
  trace_.events.push_back(event);
  return absl::OkStatus();
}

absl::Status TraceBuilder::Allocate(const Row& row) {
  if (row.bytes > kMaxLiveBytes - live_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("size ", row.bytes, ": live bytes come to more than ", kMaxLiveBytes));
  }
  if (trace_.block_count == std::numeric_limits<std::uint32_t>::max()) {
    return absl::InvalidArgumentError("more than 4294967295 allocations");
  }
  if (row.pointer == 0 && row.bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pointer: null for an allocation of ", row.bytes, " bytes"));
  }
  const std::uint32_t block = trace_.block_count;
  // Blocks of no bytes may share an address: they are told apart by nothing.
  if (row.pointer != 0) {
    const auto [found, inserted] = live_.try_emplace(row.pointer, Live{block, row.bytes});
    if (!inserted) {
      if (row.bytes != 0 || found->second.bytes != 0) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "pointer 0x%x: allocated again while still live (%d bytes, allocation %d)", row.pointer,
            found->second.bytes, found->second.block));
      }
      found->second.block = block;
    }
  }
  absl::Status status = Append(row, row.bytes, block, TraceEvent::Kind::kAllocate);
  if (!status.ok()) return status;
  live_bytes_ += row.bytes;
  ++trace_.block_count;
  AppendTag(row.tag);
  return absl::OkStatus();
}

// Of the block that was counted last.
void TraceBuilder::AppendTag(std::string_view tag) {
  if (trace_.tags.empty() && tag.empty()) return;
  if (trace_.tags.empty()) {
    trace_.tags.emplace_back();
    tag_index_.emplace("", 0);
  }
  const auto found = tag_index_.find(absl::string_view(tag.data(), tag.size()));
  std::uint16_t index = 0;
  if (found != tag_index_.end()) {
    index = found->second;
  } else if (trace_.tags.size() < kMaxTags) {
    index = static_cast<std::uint16_t>(trace_.tags.size());
    tag_index_.emplace(tag, index);
    trace_.tags.emplace_back(tag);
  }
  // Blocks before the first tag have none.
  trace_.block_tags.resize(trace_.block_count - 1, 0);
  trace_.block_tags.push_back(index);
}

absl::Status TraceBuilder::Free(const Row& row, bool* known) {
  *known = true;
  if (row.pointer == 0) return absl::OkStatus();
  const auto found = live_.find(row.pointer);
  if (found == live_.end()) {
    *known = false;
    ++trace_.unknown_frees;
    return absl::OkStatus();
  }
  const Live block = found->second;
  live_.erase(found);
  live_bytes_ -= block.bytes;
  return Append(row, block.bytes, block.block, TraceEvent::Kind::kFree);
}

bool TraceBuilder::WantsExample() const {
  return trace_.unknown_free_examples.size() < kMaxExamples;
}

void TraceBuilder::AddExample(std::string text) {
  trace_.unknown_free_examples.push_back(std::move(text));
}

Trace TraceBuilder::Build() && { return std::move(trace_); }

}  // namespace hbm::observe
