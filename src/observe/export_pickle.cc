// SPDX-License-Identifier: Apache-2.0
//
// The state of allocators as PyTorch's memory snapshot, with the keys that its
// viewer, torch.cuda._memory_viz and this library's own reader look for.
#include <algorithm>

#include "hbmalloc/export.h"
#include "observe/pickle_writer.h"

namespace hbm {
namespace {

class SnapshotPickle {
 public:
  explicit SnapshotPickle(int protocol) : out_(protocol) {}

  std::string Render(const std::vector<AllocatorState>& devices) {
    out_.BeginDict();
    out_.Text("segments");
    out_.BeginList();
    for (std::size_t i = 0; i < devices.size(); ++i) {
      for (const Snapshot::Region& region : devices[i].snapshot.regions) AddSegment(i, region);
    }
    out_.EndList();
    out_.Text("device_traces");
    out_.BeginList();
    for (const AllocatorState& state : devices) {
      out_.BeginList();
      for (const EventHistory::Entry& entry : state.events) AddEvent(entry);
      out_.EndList();
    }
    out_.EndList();
    AddSettings();
    out_.Text("external_annotations");
    out_.BeginList();
    out_.EndList();
    out_.EndDict();
    return std::move(out_).Finish();
  }

 private:
  void Int(const char* key, std::int64_t value) { out_.Text(key), out_.Int(value); }
  void Unsigned(const char* key, std::uint64_t value) { out_.Text(key), out_.Unsigned(value); }
  void Text(const char* key, std::string_view value) { out_.Text(key), out_.Text(value); }
  void Bool(const char* key, bool value) { out_.Text(key), out_.Bool(value); }
  void Address(const char* key, const void* address) {
    Unsigned(key, reinterpret_cast<std::uintptr_t>(address));
  }

  // A tag stands where Python's stack would.
  void Frames(TagId tag) {
    out_.Text("frames");
    out_.BeginList();
    const std::string_view name = TagName(tag);
    if (!name.empty()) {
      out_.BeginDict();
      Text("filename", "tag");
      Int("line", 0);
      Text("name", name.substr(0, 1000));
      out_.EndDict();
    }
    out_.EndList();
  }

  static std::uint64_t StreamNumber(StreamRef stream) {
    return stream.is_handle() ? stream.value() : 0;
  }

  void AddSegment(std::size_t device, const Snapshot::Region& region) {
    std::size_t live = 0, pending = 0, requested = 0;
    for (const Snapshot::Chunk& chunk : region.chunks) {
      if (chunk.state == ChunkState::kLive) live += chunk.bytes;
      if (chunk.state == ChunkState::kPending) pending += chunk.bytes;
      requested += chunk.requested_bytes;
    }
    out_.BeginDict();
    Unsigned("device", device);
    Address("address", region.range.address);
    Unsigned("total_size", region.range.bytes);
    Unsigned("allocated_size", live);
    Unsigned("active_size", live + pending);
    Unsigned("requested_size", requested);
    Int("stream", 0);
    Text("segment_type", "large");
    out_.Text("segment_pool_id");
    out_.Int(0), out_.Int(0), out_.Pair();
    Bool("is_expandable", false);
    Frames(TagId{});
    out_.Text("blocks");
    out_.BeginList();
    for (const Snapshot::Chunk& chunk : region.chunks) AddBlock(chunk);
    out_.EndList();
    out_.EndDict();
  }

  void AddBlock(const Snapshot::Chunk& chunk) {
    out_.BeginDict();
    Address("address", chunk.address);
    Unsigned("size", chunk.bytes);
    Unsigned("requested_size", chunk.requested_bytes);
    Text("state", chunk.state == ChunkState::kLive      ? "active_allocated"
                  : chunk.state == ChunkState::kPending ? "active_pending_free"
                                                        : "inactive");
    Frames(chunk.tag);
    out_.EndDict();
  }

  void AddEvent(const EventHistory::Entry& entry) {
    switch (entry.kind) {
      case Event::Kind::kAllocate:
        return AddAction("alloc", entry);
      case Event::Kind::kFree:
        AddAction("free_requested", entry);
        return AddAction("free_completed", entry);
      case Event::Kind::kAllocateFailure:
        return AddAction("oom", entry);
      case Event::Kind::kTrim:
      case Event::Kind::kSetMemoryLimit:
        return;
    }
  }

  void AddAction(const char* action, const EventHistory::Entry& entry) {
    out_.BeginDict();
    Text("action", action);
    if (entry.kind == Event::Kind::kAllocateFailure) {
      Int("device_free", std::max<std::int64_t>(entry.pool - entry.in_use, 0));
    } else {
      Unsigned("addr", entry.address);
    }
    Unsigned("size", entry.bytes);
    Unsigned("stream", StreamNumber(entry.stream));
    Int("time_us", entry.time_nanoseconds / 1000);
    Frames(entry.tag);
    out_.EndDict();
  }

  // What PyTorch's own allocator could be told; none of it means anything here.
  void AddSettings() {
    out_.Text("allocator_settings");
    out_.BeginDict();
    Text("PYTORCH_CUDA_ALLOC_CONF", "");
    Int("max_split_size", -1);
    Int("garbage_collection_threshold", 0);
    Bool("expandable_segments", false);
    Int("pinned_num_register_threads", 1);
    Bool("release_lock_on_cudamalloc", false);
    Bool("pinned_use_cuda_host_register", false);
    out_.Text("roundup_power2_divisions");
    out_.BeginDict();
    out_.EndDict();
    Bool("graph_capture_record_stream_reuse", false);
    out_.EndDict();
  }

  observe::PickleWriter out_;
};

}  // namespace

std::string ToPyTorchPickle(const std::vector<AllocatorState>& devices, int protocol) {
  return SnapshotPickle(protocol).Render(devices);
}

}  // namespace hbm
