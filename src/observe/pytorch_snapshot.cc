// SPDX-License-Identifier: Apache-2.0
#include "observe/pytorch_snapshot.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "observe/pickle.h"
#include "observe/trace_builder.h"

namespace hbm::observe {
namespace {

using Kind = PickleValue::Kind;
using Row = TraceBuilder::Row;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::optional<std::uint64_t> Unsigned(const PickleValue* value) {
  if (value == nullptr || value->kind != Kind::kInt || value->negative) return std::nullopt;
  return value->magnitude;
}

std::optional<std::string_view> Text(const PickleValue* value) {
  if (value == nullptr || value->kind != Kind::kText) return std::nullopt;
  return value->text;
}

bool IsList(const PickleValue* value) { return value != nullptr && value->kind == Kind::kList; }

class Reader {
 public:
  Reader(const Pickle& pickle, std::string_view file)
      : pickle_(pickle), file_(file), visits_left_(pickle.size()) {}

  absl::StatusOr<Trace> Run() {
    absl::Status status = FindHistory();
    if (status.ok()) status = FindInitialBlocks();
    if (status.ok()) status = AddInitialBlocks();
    if (status.ok()) status = AddEvents();
    if (!status.ok()) return status;
    Trace trace = std::move(builder_).Build();
    trace.notes = std::move(notes_);
    return trace;
  }

 private:
  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(View(file_), ": ", View(what)));
  }

  absl::Status EventError(std::size_t index, std::string_view what) const {
    return Error(absl::StrCat("device_traces[", device_, "][", index, "]: ", View(what)));
  }

  // A shared value may stand in many places of a pickle. In a real snapshot each
  // is met once; without a bound, a small file could make a reader walk for ever.
  bool Visit() { return visits_left_ != 0 && visits_left_-- != 0; }
  absl::Status Repeats() const { return Error("the same entries are referred to over and over"); }

  absl::Status FindHistory() {
    const PickleValue* const devices = Pickle::Find(pickle_.root(), "device_traces");
    if (!IsList(devices)) {
      return Error(
          "a pickle, but not a PyTorch memory snapshot with a history (device_traces); record one "
          "with torch.cuda.memory._record_memory_history()");
    }
    std::size_t with_history = 0;
    for (std::size_t i = 0; i < devices->items.size(); ++i) {
      const PickleValue* const events = devices->items[i];
      if (!IsList(events)) return Error(absl::StrCat("device_traces[", i, "] is not a list"));
      if (!events->items.empty()) ++with_history;
      if (events_ == nullptr || events->items.size() > events_->items.size()) {
        events_ = events;
        device_ = i;
      }
    }
    if (with_history == 0) {
      return Error(
          "the snapshot's history is empty (device_traces); record one with "
          "torch.cuda.memory._record_memory_history()");
    }
    if (with_history > 1) {
      notes_.push_back(absl::StrCat(with_history, " devices have a history; this is device ",
                                    device_, "'s, the longest"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadEvent(std::size_t index, std::string_view* action, Row* row) {
    if (!Visit()) return Repeats();
    const PickleValue& event = *events_->items[index];
    const std::optional<std::string_view> name = Text(Pickle::Find(event, "action"));
    if (!name) return EventError(index, "no action");
    *action = *name;
    if (const std::optional<std::uint64_t> stream = Unsigned(Pickle::Find(event, "stream"))) {
      row->stream = *stream;
    }
    // Snapshots of older versions have no times.
    constexpr std::uint64_t kMaxMicroseconds = std::uint64_t{1} << 60;
    if (const std::optional<std::uint64_t> time = Unsigned(Pickle::Find(event, "time_us"))) {
      if (*time > kMaxMicroseconds) return EventError(index, "time_us is out of range");
      row->time_us = static_cast<std::int64_t>(*time);
    }
    if (*action != "alloc" && *action != "free_completed") return absl::OkStatus();
    const std::optional<std::uint64_t> address = Unsigned(Pickle::Find(event, "addr"));
    const std::optional<std::uint64_t> size = Unsigned(Pickle::Find(event, "size"));
    if (!address || *address == 0) return EventError(index, "addr is not an address");
    if (!size) return EventError(index, "size is not a number of bytes");
    row->pointer = *address;
    row->bytes = *size;
    return absl::OkStatus();
  }

  // Frees of blocks that the history did not allocate, and blocks that are live at
  // the end although it did not allocate them.
  absl::Status FindInitialBlocks() {
    absl::flat_hash_set<std::uint64_t> live;
    absl::flat_hash_set<std::uint64_t> seen;
    for (std::size_t i = 0; i < events_->items.size(); ++i) {
      std::string_view action;
      Row row;
      if (absl::Status status = ReadEvent(i, &action, &row); !status.ok()) return status;
      if (i == 0) start_us_ = row.time_us;
      start_us_ = std::min(start_us_, row.time_us);
      if (action == "alloc") {
        live.insert(row.pointer);
        seen.insert(row.pointer);
      } else if (action == "free_completed" && live.erase(row.pointer) == 0 &&
                 seen.insert(row.pointer).second) {
        initial_[row.pointer] = row;
      }
    }
    visits_left_ = pickle_.size();
    return FindLiveAtEnd(seen);
  }

  absl::Status FindLiveAtEnd(const absl::flat_hash_set<std::uint64_t>& seen) {
    const PickleValue* const segments = Pickle::Find(pickle_.root(), "segments");
    if (!IsList(segments)) return absl::OkStatus();
    for (std::size_t i = 0; i < segments->items.size(); ++i) {
      if (!Visit()) return Repeats();
      const PickleValue& segment = *segments->items[i];
      if (Unsigned(Pickle::Find(segment, "device")).value_or(device_) != device_) continue;
      const PickleValue* const blocks = Pickle::Find(segment, "blocks");
      const std::optional<std::uint64_t> start = Unsigned(Pickle::Find(segment, "address"));
      if (!IsList(blocks) || !start) {
        return Error(absl::StrCat("segments[", i, "]: no address, or no blocks"));
      }
      const std::uint64_t stream = Unsigned(Pickle::Find(segment, "stream")).value_or(0);
      std::uint64_t address = *start;
      for (const PickleValue* const block : blocks->items) {
        if (!Visit()) return Repeats();
        if (absl::Status status = FindLiveBlock(*block, i, stream, seen, &address); !status.ok()) {
          return status;
        }
      }
    }
    visits_left_ = pickle_.size();
    return absl::OkStatus();
  }

  // `address` is where the block lies if it does not say so itself, and where the
  // next one lies afterwards.
  absl::Status FindLiveBlock(const PickleValue& block, std::size_t segment, std::uint64_t stream,
                             const absl::flat_hash_set<std::uint64_t>& seen,
                             std::uint64_t* address) {
    const std::optional<std::uint64_t> size = Unsigned(Pickle::Find(block, "size"));
    const std::optional<std::string_view> state = Text(Pickle::Find(block, "state"));
    if (!size || !state) {
      return Error(absl::StrCat("segments[", segment, "]: a block without size or state"));
    }
    Row row;
    row.pointer = Unsigned(Pickle::Find(block, "address")).value_or(*address);
    row.bytes = Unsigned(Pickle::Find(block, "requested_size")).value_or(*size);
    row.stream = stream;
    *address = row.pointer + *size;
    // What the history knows of the address is newer than its beginning.
    if (*state == "inactive" || row.pointer == 0 || seen.contains(row.pointer)) {
      return absl::OkStatus();
    }
    initial_[row.pointer] = row;
    return absl::OkStatus();
  }

  absl::Status AddInitialBlocks() {
    for (auto& [address, row] : initial_) {
      row.time_us = start_us_;
      if (absl::Status status = builder_.Allocate(row); !status.ok()) {
        return Error(absl::StrFormat("block 0x%x, live before the history: %s", address,
                                     std::string(status.message())));
      }
    }
    if (!initial_.empty()) {
      notes_.push_back(absl::StrCat(
          initial_.size(), " blocks were live before the history and are allocated first"));
    }
    return absl::OkStatus();
  }

  absl::Status AddEvents() {
    for (std::size_t i = 0; i < events_->items.size(); ++i) {
      std::string_view action;
      Row row;
      absl::Status status = ReadEvent(i, &action, &row);
      if (!status.ok()) return status;
      if (action == "alloc") {
        status = builder_.Allocate(row);
      } else if (action == "free_completed") {
        bool known = false;
        status = builder_.Free(row, &known);
        if (!known && builder_.WantsExample()) {
          builder_.AddExample(
              absl::StrFormat("device_traces[%d][%d]: 0x%x", device_, i, row.pointer));
        }
      } else if (action == "oom") {
        builder_.CountAllocateFailure();
      }
      if (!status.ok()) return EventError(i, std::string(status.message()));
    }
    return absl::OkStatus();
  }

  const Pickle& pickle_;
  const std::string_view file_;
  std::size_t visits_left_;
  const PickleValue* events_ = nullptr;
  std::size_t device_ = 0;
  std::int64_t start_us_ = 0;
  std::map<std::uint64_t, Row> initial_;  // by address
  TraceBuilder builder_;
  std::vector<std::string> notes_;
};

}  // namespace

bool LooksLikePyTorchSnapshot(std::string_view data) { return Pickle::LooksLikePickle(data); }

absl::StatusOr<Trace> ParsePyTorchSnapshot(std::string_view data, std::string_view file) {
  const absl::StatusOr<Pickle> pickle = Pickle::Parse(data);
  if (!pickle.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(View(file), ": ", pickle.status().message()));
  }
  return Reader(*pickle, file).Run();
}

}  // namespace hbm::observe
