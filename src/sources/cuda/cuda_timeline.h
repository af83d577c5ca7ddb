// SPDX-License-Identifier: Apache-2.0
//
// File: cuda_timeline.h
//
// When the work on a GPU's streams is done, by events from a pool.
//
//   CudaTimeline timeline(&context);
//   absl::StatusOr<Timeline::Marker> marker = timeline.Record(stream);
//   absl::StatusOr<bool> done = timeline.IsDone(*marker);
//   timeline.Forget(*marker);
//
// A marker is the event itself. Making an event costs microseconds, so forgotten
// ones are kept and recorded again. After the driver's shutdown all work is done.
#ifndef HBMALLOC_SOURCES_CUDA_CUDA_TIMELINE_H_
#define HBMALLOC_SOURCES_CUDA_CUDA_TIMELINE_H_

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "hbmalloc/memory_source.h"
#include "sources/cuda/context.h"
#include "sources/driver_meter.h"

namespace hbm::sources::cuda {

class CudaTimeline final : public Timeline {
 public:
  explicit CudaTimeline(PrimaryContext* context) : context_(*context), driver_(context->driver()) {}
  // Every marker was forgotten.
  ~CudaTimeline() override;

  // Streams of other devices are known too: they may use this device's memory.
  // FailedPrecondition while the stream is being captured: the work of a capture is
  // not queued anywhere, so no event says when it is done. InvalidArgument: not a
  // living stream.
  absl::StatusOr<std::uint64_t> StreamId(StreamRef stream) override;
  absl::StatusOr<Marker> Record(StreamRef stream) override;
  absl::StatusOr<bool> IsDone(Marker marker) override;
  absl::StatusOr<bool> IsIdle(StreamRef stream) override;
  absl::Status WaitOnHost(Marker marker, absl::Duration timeout) override;
  absl::Status WaitOnStream(StreamRef stream, Marker marker) override;
  void Forget(Marker marker) override;
  absl::Status WaitForDevice() override;
  absl::StatusOr<bool> IsCapturing(StreamRef stream) override;
  absl::StatusOr<std::uint64_t> CaptureId(StreamRef stream) override;
  void BeginCapture(StreamRef stream) override;
  void EndCapture(StreamRef stream) override;

  DriverUse GetDriverUse() const { return meter_.Total(); }

 private:
  absl::StatusOr<CUevent> TakeEvent();
  // On a stream of another device, whose work may use this device's memory.
  absl::StatusOr<Marker> RecordForeign(StreamRef stream, CUresult why);
  // Within a scope.
  absl::StatusOr<std::uint64_t> AskForId(StreamRef stream) const;
  absl::StatusOr<std::uint64_t> IdInCapture(StreamRef stream) const;
  absl::StatusOr<bool> AskIfCapturing(StreamRef stream) const;
  absl::Status CheckNotCapturing(StreamRef stream, const char* what);
  absl::Status CheckNothingCaptured();

  PrimaryContext& context_;
  const Driver& driver_;
  DriverMeter meter_;
  core::Mutex mutex_;
  std::vector<CUevent> idle_ HBM_GUARDED_BY(mutex_);
  std::vector<CUevent> to_destroy_ HBM_GUARDED_BY(mutex_);
  // Events on streams of other devices, which can be recorded nowhere else.
  std::vector<CUevent> foreign_ HBM_GUARDED_BY(mutex_);
  std::vector<StreamRef> captured_ HBM_GUARDED_BY(mutex_);  // perhaps
};

}  // namespace hbm::sources::cuda

#endif  // HBMALLOC_SOURCES_CUDA_CUDA_TIMELINE_H_
