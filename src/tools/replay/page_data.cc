// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/page_data.h"

#include <cmath>
#include <numeric>

namespace hbm::replay {
namespace {

// As replay.h gives the offset of a request that failed.
constexpr std::int64_t kNotPlaced = -1;

void AppendNumber(std::string* bytes, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) *bytes += static_cast<char>(value | 0x80);
  *bytes += static_cast<char>(value);
}

std::uint64_t Zigzag(std::int64_t value) {
  const auto doubled = static_cast<std::uint64_t>(value) << 1;
  return value < 0 ? ~doubled : doubled;
}

}  // namespace

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += k <= count ? kDigits[group >> (18 - 6 * k) & 0x3f] : '=';
    }
  }
  return text;
}

std::string EncodeTrace(const observe::Trace& trace) {
  std::string bytes;
  bytes.reserve(trace.events.size() * 5);
  std::int64_t time_us = 0;
  std::uint32_t next_block = 0;
  const bool tagged = !trace.block_tags.empty();
  for (const observe::TraceEvent& event : trace.events) {
    AppendNumber(&bytes, static_cast<std::uint64_t>(event.time_us - time_us));
    time_us = event.time_us;
    if (event.kind == observe::TraceEvent::Kind::kAllocate) {
      ++next_block;
      AppendNumber(&bytes, 0);
      AppendNumber(&bytes, event.bytes);
      AppendNumber(&bytes, tagged ? trace.block_tags[event.block] : event.stream);
    } else {
      AppendNumber(&bytes, next_block - event.block);
    }
  }
  return Base64(bytes);
}

std::uint64_t OffsetStep(const std::vector<std::int64_t>& offsets) {
  std::uint64_t step = 0;
  for (const std::int64_t offset : offsets) {
    if (offset == kNotPlaced) continue;
    step = std::gcd(step, static_cast<std::uint64_t>(offset < 0 ? -offset : offset));
  }
  return step == 0 ? 1 : step;
}

std::string EncodePlacements(const std::vector<std::int64_t>& offsets, std::uint64_t step) {
  std::string bytes;
  bytes.reserve(offsets.size() * 4);
  for (const std::int64_t offset : offsets) {
    AppendNumber(&bytes,
                 offset == kNotPlaced ? 0 : Zigzag(offset / static_cast<std::int64_t>(step)) + 1);
  }
  return Base64(bytes);
}

std::string EncodeTimeline(const Timeline& timeline) {
  std::string bytes;
  Timeline::Sample before;
  for (const Timeline::Sample& sample : timeline.samples()) {
    AppendNumber(&bytes, sample.event - before.event);
    AppendNumber(&bytes, Zigzag(sample.in_use - before.in_use));
    AppendNumber(&bytes, Zigzag(sample.pool - before.pool));
    AppendNumber(&bytes,
                 sample.fragmentation < 0
                     ? 0
                     : 1 + static_cast<std::uint64_t>(std::lround(sample.fragmentation * 10000)));
    before = sample;
  }
  return Base64(bytes);
}

}  // namespace hbm::replay
