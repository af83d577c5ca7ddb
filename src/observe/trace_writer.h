// SPDX-License-Identifier: Apache-2.0
//
// File: trace_writer.h
//
// From recorded events to the lines of a trace, in RMM's columns and our own after
// them:
//
//   Thread,Time,Action,Pointer,Size,Stream,Device,Alignment,Nanoseconds,Tag
//   140,10:02:03.000417,allocate,0x7f0000000000,1048576,0x0,cuda:0,256,417000,weights
//   140,10:02:03.000600,free,0x7f0000000000,1048576,0x0,cuda:0,256,600000,weights
//
// A free's size, stream and tag are those of its block: they are looked up among
// the blocks that live. So that every trace makes sense by itself, a free of no
// live block is left out, and a block whose free was lost is freed before its
// address is given out again. Thread-compatible.
#ifndef HBMALLOC_OBSERVE_TRACE_WRITER_H_
#define HBMALLOC_OBSERVE_TRACE_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "hbmalloc/tag.h"
#include "observe/event_ring.h"
#include "observe/ticks.h"
#include "observe/trace_file.h"

namespace hbm::observe {

class TraceWriter {
 public:
  // `wall_nanoseconds`: the time of day, since midnight, at the moment of the call.
  TraceWriter(std::unique_ptr<TraceFile> file, std::int64_t wall_nanoseconds);

  std::uint16_t AddDevice(const void* address_space, std::string_view name);

  // Before the events that were recorded until now are added.
  void Anchor() { scale_.Anchor(); }
  void Add(const EventRecord& event);
  // Whether enough is there for a piece of the file.
  bool IsFull() const { return text_.size() >= kPieceBytes; }
  bool empty() const { return text_.empty(); }
  // Moves what was added to the file.
  absl::Status Write();

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

  struct Block {
    std::uint64_t bytes;
    std::uint64_t stream;
    std::uint32_t tag;
    std::uint8_t log2_alignment;
  };
  struct Device {
    const void* address_space;
    std::string name;
  };
  using Key = std::pair<std::uint64_t, std::uint16_t>;  // address and device

  void Line(const EventRecord& event, std::string_view action, const Block& block);
  const std::string& TagText(std::uint32_t tag);

  const std::unique_ptr<TraceFile> file_;
  TickScale scale_;
  const std::int64_t start_;
  const std::int64_t wall_start_;
  std::int64_t last_ = 0;
  std::vector<Device> devices_;
  absl::flat_hash_map<Key, Block> live_;
  std::vector<std::string> tags_;  // by id, as far as they were seen
  std::string text_;
};

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_TRACE_WRITER_H_
