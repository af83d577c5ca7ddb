// SPDX-License-Identifier: Apache-2.0
//
// File: trace_recorder.h
//
// Records what callers ask for into a file that hbm-replay, and RMM's own replay
// benchmark, can play. The calling thread fills in 64 bytes of a ring; a thread of
// the recorder's own does the formatting, compressing and writing.
//
//   absl::StatusOr<std::shared_ptr<TraceRecorder>> recorder = TraceRecorder::Open("run.csv.gz");
//   const std::uint16_t device = (*recorder)->AddDevice(allocator, "cuda:0");
//   (*recorder)->Allocated(device, block, bytes, alignment, stream, tag);
//
// One recorder a file, shared by all allocators of the process that name it. When
// the ring is full, callers wait for the writer, so nothing is lost; if the writer
// makes no progress for ten seconds (a file system that hangs) events are dropped
// until it does, and the number lost is logged. At exit everything is written; a
// crash loses what came in the last fraction of a second. A child after fork
// records nothing.
#ifndef HBMALLOC_OBSERVE_TRACE_RECORDER_H_
#define HBMALLOC_OBSERVE_TRACE_RECORDER_H_

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "hbmalloc/stream.h"
#include "hbmalloc/tag.h"
#include "observe/event_ring.h"
#include "observe/trace_file.h"

namespace hbm::observe {

class TraceWriter;

class TraceRecorder {
 public:
  // The recorder of a file, new or shared. `name` as the policy's trace field has
  // it. InvalidArgument if the file cannot be made.
  static absl::StatusOr<std::shared_ptr<TraceRecorder>> Open(std::string_view name);
  ~TraceRecorder() = default;
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // A number for whatever `address_space` stands for: blocks of one are told apart
  // by address.
  std::uint16_t AddDevice(const void* address_space, std::string_view name);

  // After a request was met, or not (a null block).
  void Allocated(std::uint16_t device, const void* block, std::size_t bytes, std::size_t alignment,
                 StreamRef stream, TagId tag) {
    Record(device, block != nullptr ? EventAction::kAllocate : EventAction::kFailure, block, bytes,
           alignment, stream, tag);
  }
  // Before a block is freed, whether or not it is one.
  void Freeing(std::uint16_t device, const void* block, StreamRef after) {
    Record(device, EventAction::kFree, block, 0, 1, after, TagId{});
  }
  // The free was refused, and the block is what it was: 0 bytes if it is none.
  void FreeRefused(std::uint16_t device, const void* block, std::size_t bytes, StreamRef stream,
                   TagId tag) {
    Record(device, EventAction::kRefusedFree, block, bytes, 256, stream, tag);
  }

  // Waits until all that was recorded before the call is in the file.
  void Flush() HBM_EXCLUDES(mutex_);
  std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  explicit TraceRecorder(std::unique_ptr<TraceFile> file, std::string path);
  absl::Status Start();
  void Record(std::uint16_t device, EventAction action, const void* block, std::size_t bytes,
              std::size_t alignment, StreamRef stream, TagId tag);
  bool WaitForRoom();
  void Wake() HBM_EXCLUDES(mutex_);
  static void* RunThread(void* recorder);
  void Run() HBM_EXCLUDES(mutex_, write_mutex_);
  // Moves what is in the ring to the file.
  void DrainOnce(bool flush) HBM_EXCLUDES(write_mutex_);
  // Ends the thread; what comes later is written by the callers themselves. False if
  // it hangs in the file system: then it, and the recorder, are left alone.
  bool Stop() HBM_EXCLUDES(mutex_, write_mutex_);
  void CountLost();
  // When the last owner is gone.
  static void Close(TraceRecorder* recorder);

  static void AtExit();
  static void AtForkInChild();

  const std::string path_;
  EventRing ring_;
  std::atomic<bool> discards_{false};  // an error, or a child after fork
  std::atomic<bool> direct_{false};    // no thread any more
  std::atomic<bool> stalled_{false};   // the writer makes no progress
  std::atomic<std::uint64_t> lost_{0};

  core::Mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable_any flushed_;
  bool stops_ HBM_GUARDED_BY(mutex_) = false;
  bool has_thread_ HBM_GUARDED_BY(mutex_) = false;
  std::uint64_t flushes_wanted_ HBM_GUARDED_BY(mutex_) = 0;
  std::uint64_t flushes_done_ HBM_GUARDED_BY(mutex_) = 0;
  pthread_t thread_{};

  core::Mutex write_mutex_;
  std::unique_ptr<TraceWriter> writer_ HBM_GUARDED_BY(write_mutex_);
};

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_TRACE_RECORDER_H_
