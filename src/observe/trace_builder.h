// SPDX-License-Identifier: Apache-2.0
//
// File: trace_builder.h
//
// Turns pointers into dense block ids, and refuses what no allocator could have
// done. Every trace format is read into one of these, so that the rules are the
// same for all:
//
//   TraceBuilder builder;
//   absl::Status status = builder.Allocate(row);
//   builder.Free(row, &known);
//   Trace trace = std::move(builder).Build();
#ifndef HBMALLOC_OBSERVE_TRACE_BUILDER_H_
#define HBMALLOC_OBSERVE_TRACE_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "observe/trace.h"

namespace hbm::observe {

class TraceBuilder {
 public:
  struct Row {
    std::uint64_t pointer = 0;
    std::uint64_t bytes = 0;  // of a free: ignored, the block's own counts
    std::uint64_t stream = 0;
    std::int64_t time_us = 0;  // on any clock that starts anywhere
    std::uint8_t log2_alignment = 0;
    std::string_view tag;  // empty: none
  };

  void Reserve(std::size_t events);

  // InvalidArgument, without a place: the pointer is live already, is null
  // although bytes were asked for, or the sums leave 63 bits.
  absl::Status Allocate(const Row& row);

  // False if no such block is live: then it is counted and nothing else happens.
  // Null is the free that does nothing, as everywhere, and is passed over.
  absl::Status Free(const Row& row, bool* known);

  // Names one of the first few unknown frees: "line 7: 0x1000".
  bool WantsExample() const;
  void AddExample(std::string text);

  void CountAllocateFailure() { ++trace_.allocate_failures; }

  Trace Build() &&;

 private:
  struct Live {
    std::uint32_t block;
    std::uint64_t bytes;
  };

  absl::Status Append(const Row& row, std::uint64_t bytes, std::uint32_t block,
                      TraceEvent::Kind kind);

  void AppendTag(std::string_view tag);

  Trace trace_;
  absl::flat_hash_map<std::string, std::uint16_t> tag_index_;
  absl::flat_hash_map<std::uint64_t, Live> live_;
  absl::flat_hash_map<std::uint64_t, std::uint16_t> stream_index_;
  std::uint64_t live_bytes_ = 0;
  std::int64_t first_time_us_ = 0;
  std::int64_t last_time_us_ = 0;
};

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_TRACE_BUILDER_H_
