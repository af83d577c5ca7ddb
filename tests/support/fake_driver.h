// SPDX-License-Identifier: Apache-2.0
//
// File: fake_driver.h
//
// A CUDA driver that is only a model, behind the same table as the real one: it
// counts what is outstanding, fails when it is told to, and has streams whose work
// ends when the test says so.
//
//   FakeDriver fake;
//   auto device = sources::OpenCudaDevice("cuda:0", fake.table());
//   fake.FailCall("MemAlloc", 3, CUDA_ERROR_OUT_OF_MEMORY);   // the third from now
//
// One lives at a time; for one thread at a time.
#ifndef HBMALLOC_TESTS_SUPPORT_FAKE_DRIVER_H_
#define HBMALLOC_TESTS_SUPPORT_FAKE_DRIVER_H_

#if defined(HBMALLOC_HAVE_CUDA)

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hbmalloc/stream.h"
#include "sources/cuda/driver.h"

namespace hbm::testing {

class FakeDriver {
 public:
  explicit FakeDriver(std::size_t total_bytes = std::size_t{1} << 30);
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  const sources::cuda::Driver& table() const;
  static const std::vector<std::string>& CallNames();

  // The k-th call (from 1) of this name from now on fails, once.
  void FailCall(const std::string& name, int k, CUresult result);
  // Every call fails from now on, as after shutdown or a crash.
  void FailEverything(CUresult result) { fail_all_ = result; }
  int calls(const std::string& name) const;
  int total_calls() const { return total_calls_; }

  // Everything that was made and not given back, the primary context included.
  int Outstanding() const;
  std::size_t bytes_in_use() const { return used_; }
  // Whether every byte of the range is memory that the driver has given.
  bool IsBacked(const void* address, std::size_t bytes) const;
  // Work of others on the device: memory that comes and goes.
  void SetUsedByOthers(std::size_t bytes) { others_ = bytes; }

  // The steps in which what a pool reserves grows.
  void SetPoolStep(std::size_t bytes) { pool_step_ = bytes; }

  // Where the next plain allocation lies; it must be free.
  void SetNextAllocation(std::uintptr_t address) { next_allocation_ = address; }

  // Bytes of the model's memory, of which those that were filled are kept.
  void WriteByte(const void* address, unsigned char value) {
    bytes_[reinterpret_cast<std::uintptr_t>(address)] = value;
  }

  // Streams. A handle that was destroyed may be created again, with another id, while
  // work of the old one still runs. With a blocking stream the legacy stream is ordered,
  // and cannot be touched while that is captured.
  StreamRef CreateStream(int device = 0, bool blocking = false);
  void DestroyStream(StreamRef stream);
  // Queues one piece of work; its number on that stream.
  std::uint64_t Launch(StreamRef stream);
  // All work queued so far on the stream, and what it waits for, is done.
  void Finish(StreamRef stream);
  // Whether work queued on `next` from now on comes after the work `position` on
  // `previous`.
  bool IsOrdered(StreamRef previous, std::uint64_t position, StreamRef next);
  bool IsDone(StreamRef stream, std::uint64_t position) { return done_[IdOf(stream)] >= position; }
  // As IsOrdered, for a stream that may be gone, by its id.
  bool IsDoneOrWaited(std::uint64_t id, std::uint64_t position, StreamRef next);
  std::uint64_t IdOf(StreamRef stream);
  void SetCapturing(StreamRef stream, bool capturing);
  // The stream is captured too, into the graph of the other.
  void JoinCapture(StreamRef stream, StreamRef other);
  // Calls that would have spoiled a capture.
  int spoilt_captures() const { return spoilt_captures_; }
  // Calls with the handle of a destroyed stream, in which a driver may crash.
  int dead_streams_touched() const { return dead_streams_touched_; }
  CUcontext current() const { return current_; }
  void SetCurrent(CUcontext context) { current_ = context; }
  // There are two devices, each with a context. Streams and events are of one.
  CUcontext ContextOfDevice(int device) const;
  // Of memory at this address; -1: there is none.
  int DeviceOf(const void* address) const;
  // Whether the device may touch mapped memory.
  bool HasAccess(const void* address, int device) const;

 private:
  friend struct FakeCalls;
  using Clock = std::map<std::uint64_t, std::uint64_t>;  // of stream ids
  struct Stream {
    std::uint64_t id = 0;
    int device = 0;
    bool blocking = false;
    bool capturing = false;
    std::uint64_t capture = 0;  // which one
    Clock clock;                // its own entry: work queued
  };
  CUresult Enter(const char* name);
  Stream* Find(CUstream handle);
  bool IsLegacyBesideACapture(const Stream& stream) const;
  // What a driver answers to a call that needs the stream's queue, in a capture.
  CUresult Refuse(const Stream& stream);
  bool Take(std::size_t bytes);
  int CurrentDevice() const;

  std::size_t total_;
  std::size_t used_ = 0;
  std::size_t others_ = 0;
  std::uintptr_t next_address_ = std::uintptr_t{1} << 40;
  std::uintptr_t next_allocation_ = 0;
  std::uintptr_t next_handle_ = 1;
  std::map<std::uintptr_t, std::size_t> allocations_, reservations_, mappings_, pool_blocks_;
  std::map<std::uintptr_t, std::uintptr_t> mapped_handle_;
  std::map<unsigned long long, std::size_t> handles_;
  std::map<std::uintptr_t, Clock> events_;
  std::map<std::uintptr_t, int> event_device_;
  std::map<std::uintptr_t, int> device_of_;
  std::map<unsigned long long, int> handle_device_;
  std::map<std::uintptr_t, std::set<int>> access_;
  std::map<std::uint64_t, int> stream_device_;  // by id, of all that ever were
  std::map<std::uintptr_t, unsigned char> bytes_;
  std::set<std::uintptr_t> pools_;
  std::size_t pool_limit_ = 0, pool_used_ = 0, pool_step_ = 1;
  int contexts_ = 0;
  CUcontext current_ = nullptr;
  std::vector<CUcontext> pushed_;
  std::map<std::uintptr_t, Stream> streams_;
  std::set<std::uintptr_t> driver_streams_;  // made through the table
  std::uint64_t next_stream_id_ = 1;
  std::uint64_t last_capture_ = 0;
  Clock done_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_GLOBAL;
  int spoilt_captures_ = 0;
  int dead_streams_touched_ = 0;
  std::map<std::string, int> calls_;
  int total_calls_ = 0;
  std::string fail_name_;
  int fail_at_ = 0;
  CUresult fail_result_ = CUDA_SUCCESS;
  CUresult fail_all_ = CUDA_SUCCESS;
};

}  // namespace hbm::testing

#endif  // HBMALLOC_HAVE_CUDA

#endif  // HBMALLOC_TESTS_SUPPORT_FAKE_DRIVER_H_
