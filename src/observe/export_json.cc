// SPDX-License-Identifier: Apache-2.0
//
// The state of an allocator as JSON: docs/snapshot.schema.json is its description.
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "hbmalloc/export.h"
#include "observe/json.h"
#include "observe/stats_fields.h"

namespace hbm {
namespace {

using observe::JsonNumber;
using observe::JsonString;

std::string Address(std::uintptr_t address) { return absl::StrFormat("\"0x%x\"", address); }
std::string Address(const void* address) {
  return Address(reinterpret_cast<std::uintptr_t>(address));
}

// The members of one object, one after another.
class Object {
 public:
  explicit Object(std::string* text) : text_(*text) { text_ += "{"; }
  ~Object() { text_ += "}"; }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  std::string& Member(absl::string_view name) {
    absl::StrAppend(&text_, first_ ? "\"" : ", \"", name, "\": ");
    first_ = false;
    return text_;
  }
  void Add(absl::string_view name, absl::AlphaNum value) { absl::StrAppend(&Member(name), value); }

 private:
  std::string& text_;
  bool first_ = true;
};

template <typename Items, typename Print>
void AppendList(std::string& text, const Items& items, const char* separator, Print print) {
  text += "[";
  bool first = true;
  for (const auto& item : items) {
    text += first ? "" : ",";
    text += separator;
    first = false;
    print(item);
  }
  text += "]";
}

void AppendStats(std::string& text, const Stats& stats) {
  Object object(&text);
  observe::VisitStats(stats, [&](const observe::StatsField& field, std::int64_t value) {
    object.Add(field.name, value);
  });
  object.Add("limit_source", JsonString(ToString(stats.limit_source)));
}

void AppendFragmentation(std::string& text, const Fragmentation& device) {
  Object object(&text);
  object.Add("free_bytes", device.free_bytes);
  object.Add("largest_free_bytes", device.largest_free_bytes);
  object.Add("external", JsonNumber(device.external));
  object.Add("rounding_waste", JsonNumber(device.rounding_waste));
  object.Add("utilization", JsonNumber(device.utilization));
  object.Add("peak_utilization", JsonNumber(device.peak_utilization));
  object.Add("height_over_load", JsonNumber(device.height_over_load));
  object.Add("mean_pool_over_live", device.mean_pool_over_live.has_value()
                                        ? JsonNumber(*device.mean_pool_over_live)
                                        : "null");
}

void AppendFigures(std::string& text, const Figures& figures) {
  Object object(&text);
  AppendFragmentation(object.Member("device"), figures.device);
  AppendList(object.Member("regions"), figures.regions, "\n  ", [&](const RegionFigures& region) {
    Object out(&text);
    out.Add("address", Address(region.address));
    out.Add("bytes", region.bytes);
    out.Add("in_use_bytes", region.in_use_bytes);
    out.Add("free_bytes", region.free_bytes);
    out.Add("largest_free_bytes", region.largest_free_bytes);
    out.Add("highest_used_bytes", region.highest_used_bytes);
    out.Add("external", JsonNumber(region.external));
    out.Add("utilization", JsonNumber(region.utilization));
  });
  AppendList(object.Member("bins"), figures.bins, "\n  ", [&](const SizeBin& bin) {
    Object out(&text);
    out.Add("min_bytes", bin.min_bytes);
    out.Add("live_chunks", bin.live_chunks);
    out.Add("live_bytes", bin.live_bytes);
    out.Add("free_chunks", bin.free_chunks);
    out.Add("free_bytes", bin.free_bytes);
  });
}

const char* StateName(ChunkState state) {
  switch (state) {
    case ChunkState::kFree:
      return "free";
    case ChunkState::kLive:
      return "live";
    case ChunkState::kPending:
      return "pending";
  }
  return "unknown";
}

void AppendChunk(std::string& text, const Snapshot::Chunk& chunk) {
  Object object(&text);
  object.Add("address", Address(chunk.address));
  object.Add("bytes", chunk.bytes);
  object.Add("state", JsonString(StateName(chunk.state)));
  if (chunk.state != ChunkState::kLive) return;
  object.Add("requested_bytes", chunk.requested_bytes);
  if (chunk.stream.is_handle()) object.Add("stream", Address(chunk.stream.value()));
  if (chunk.tag.value != 0) object.Add("tag", JsonString(TagName(chunk.tag)));
}

}  // namespace

AllocatorState CaptureFigures(const Allocator& allocator, std::string_view device) {
  AllocatorState state;
  state.device = std::string(device);
  state.policy = ToString(allocator.policy());
  state.unix_nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  state.stats = allocator.GetStats();
  state.figures = allocator.GetFigures();
  return state;
}

AllocatorState CaptureState(const Allocator& allocator, std::string_view device) {
  AllocatorState state = CaptureFigures(allocator, device);
  state.snapshot = allocator.TakeSnapshot();
  return state;
}

std::string ToJson(const AllocatorState& state) {
  std::string text;
  {
    Object object(&text);
    object.Add("schema", "\"hbmalloc-snapshot-1\"");
    object.Add("device", JsonString(state.device));
    object.Add("policy", JsonString(state.policy));
    object.Add("unix_nanoseconds", state.unix_nanoseconds);
    AppendStats(object.Member("stats"), state.stats);
    AppendFigures(object.Member("figures"), state.figures);
    AppendList(object.Member("regions"), state.snapshot.regions, "\n",
               [&](const Snapshot::Region& region) {
                 Object out(&text);
                 out.Add("address", Address(region.range.address));
                 out.Add("bytes", region.range.bytes);
                 AppendList(out.Member("chunks"), region.chunks, "\n  ",
                            [&](const Snapshot::Chunk& chunk) { AppendChunk(text, chunk); });
               });
  }
  return text + "\n";
}

}  // namespace hbm
