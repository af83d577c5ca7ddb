// SPDX-License-Identifier: Apache-2.0
//
// File: page_data.h
//
// What the page draws, small: numbers as base-128 varints (lowest bits first; signed
// ones zigzag), the whole as base64. page/decode.js reads it.
//
//   std::string text = EncodeTrace(trace);  // for a <script> element
#ifndef HBMALLOC_TOOLS_REPLAY_PAGE_DATA_H_
#define HBMALLOC_TOOLS_REPLAY_PAGE_DATA_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "observe/trace.h"
#include "tools/replay/timeline.h"

namespace hbm::replay {

std::string Base64(std::string_view bytes);

// For each event: microseconds since the one before; then 0, bytes and tag (the
// stream, if there are no tags) of an allocation, or of a free how many blocks ago its
// block was allocated.
std::string EncodeTrace(const observe::Trace& trace);

// The largest step of which all offsets are multiples; 1 if there are none.
std::uint64_t OffsetStep(const std::vector<std::int64_t>& offsets);

// For each block: 0 where the request failed, else 1 + its offset in steps.
std::string EncodePlacements(const std::vector<std::int64_t>& offsets, std::uint64_t step);

// For each sample: events since the one before, change of in use and of pool, and 0
// or 1 + its fragmentation in parts of 10000.
std::string EncodeTimeline(const Timeline& timeline);

}  // namespace hbm::replay

#endif  // HBMALLOC_TOOLS_REPLAY_PAGE_DATA_H_
