// SPDX-License-Identifier: Apache-2.0
#include "sources/cuda/cuda_timeline.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/compiler.h"
#include "sources/cuda/driver_status.h"

namespace hbm::sources::cuda {
namespace {

static_assert(sizeof(CUevent) == sizeof(Timeline::Marker), "a marker holds an event's handle");

// CUDA's name for the default stream of the calling thread; the names below it are the
// legacy one's.
constexpr std::uintptr_t kPerThreadHandle = 2;

// Events beyond this many are destroyed when they are forgotten.
constexpr std::size_t kMaxIdleEvents = 4096;

CUevent EventOf(Timeline::Marker marker) {
  return reinterpret_cast<CUevent>(marker);  // NOLINT(performance-no-int-to-ptr)
}
Timeline::Marker MarkerOf(CUevent event) { return reinterpret_cast<Timeline::Marker>(event); }

CUstream HandleOf(StreamRef stream) { return static_cast<CUstream>(stream.handle()); }

std::string NameOf(StreamRef stream) { return absl::StrFormat("stream %#x", stream.value()); }

}  // namespace

CudaTimeline::~CudaTimeline() {
  if (idle_.empty() && to_destroy_.empty()) return;
  const DriverScope scope(&context_);
  idle_.insert(idle_.end(), to_destroy_.begin(), to_destroy_.end());
  for (CUevent event : idle_) {
    // Once more, in case the first failure was a passing one.
    if (driver_.EventDestroy(event) != CUDA_SUCCESS) driver_.EventDestroy(event);
  }
}

// On the path of every request that names a stream, so it makes as few calls as it can:
// a stream that was created knows its context, and none has to be current.
absl::StatusOr<std::uint64_t> CudaTimeline::StreamId(StreamRef stream) {
  if (stream.value() > kPerThreadHandle && !context_.IsInChild()) return AskForId(stream);
  const DriverScope scope(&context_, DriverScope::CaptureMode::kAsItIs);
  if (!scope.status().ok()) return scope.status();
  return AskForId(stream);
}

absl::StatusOr<std::uint64_t> CudaTimeline::AskForId(StreamRef stream) const {
  // To ask a stream that is being captured for its id spoils the capture.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = driver_.StreamIsCapturing(HandleOf(stream), &status);
  if (HBM_UNLIKELY(result != CUDA_SUCCESS)) {
    return ToStatus(driver_, result, "cuStreamIsCapturing", NameOf(stream));
  }
  if (HBM_UNLIKELY(status != CU_STREAM_CAPTURE_STATUS_NONE)) return IdInCapture(stream);
  unsigned long long id = 0;
  result = driver_.StreamGetId(HandleOf(stream), &id);
  if (result != CUDA_SUCCESS) return ToStatus(driver_, result, "cuStreamGetId", NameOf(stream));
  return static_cast<std::uint64_t>(id);
}

// In a capture a stream is another one: its work is queued by the launches of the graph,
// wherever those are, and not after what it was given before. A handle cannot be
// destroyed while it is captured, so it tells the streams of one capture apart.
absl::StatusOr<std::uint64_t> CudaTimeline::IdInCapture(StreamRef stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t capture = 0;
  const CUresult result =
      driver_.StreamGetCaptureInfo(HandleOf(stream), &status, &capture, nullptr, nullptr, nullptr);
  if (result != CUDA_SUCCESS) {
    return ToStatus(driver_, result, "cuStreamGetCaptureInfo", NameOf(stream));
  }
  constexpr int kHandleBits = 48;
  constexpr std::uint64_t kHandleMask = (std::uint64_t{1} << kHandleBits) - 1;
  return kCaptured | std::uint64_t{capture} << kHandleBits | (stream.value() & kHandleMask);
}

absl::StatusOr<bool> CudaTimeline::IsCapturing(StreamRef stream) {
  if (stream.value() > kPerThreadHandle && !context_.IsInChild()) return AskIfCapturing(stream);
  const DriverScope scope(&context_, DriverScope::CaptureMode::kAsItIs);
  if (!scope.status().ok()) return scope.status();
  return AskIfCapturing(stream);
}

absl::StatusOr<bool> CudaTimeline::AskIfCapturing(StreamRef stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver_.StreamIsCapturing(HandleOf(stream), &status);
  // The legacy stream cannot be touched while another stream is captured; asking
  // whether it is leaves that capture alone.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  if (result != CUDA_SUCCESS) {
    return ToStatus(driver_, result, "cuStreamIsCapturing", NameOf(stream));
  }
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

absl::Status CudaTimeline::CheckNotCapturing(StreamRef stream, const char* what) {
  const absl::StatusOr<bool> capturing = AskIfCapturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (!*capturing) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " ", NameOf(stream),
                   ": a CUDA graph is being captured on it; the work of a capture is not queued "
                   "yet, so nothing can be ordered after it"));
}

absl::StatusOr<std::uint64_t> CudaTimeline::CaptureId(StreamRef stream) {
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  const CUresult result =
      driver_.StreamGetCaptureInfo(HandleOf(stream), &status, &id, nullptr, nullptr, nullptr);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return std::uint64_t{0};
  if (result != CUDA_SUCCESS) {
    return ToStatus(driver_, result, "cuStreamGetCaptureInfo", NameOf(stream));
  }
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? std::uint64_t{0} : std::uint64_t{id};
}

void CudaTimeline::BeginCapture(StreamRef stream) {
  core::MutexLock lock(mutex_);
  captured_.push_back(stream);
}

void CudaTimeline::EndCapture(StreamRef stream) {
  core::MutexLock lock(mutex_);
  const auto found = std::find(captured_.begin(), captured_.end(), stream);
  if (found != captured_.end()) captured_.erase(found);
}

// As far as it can be known: captures that were announced, and those of streams that
// the legacy default stream is ordered with.
absl::Status CudaTimeline::CheckNothingCaptured() {
  std::vector<StreamRef> perhaps;
  {
    core::MutexLock lock(mutex_);
    perhaps = captured_;
  }
  perhaps.push_back(StreamRef());
  for (const StreamRef stream : perhaps) {
    if (!IsCapturing(stream).value_or(false)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("waiting for the device: a CUDA graph is being captured on ", NameOf(stream),
                     ", which that would spoil; try again after the capture"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CUevent> CudaTimeline::TakeEvent() {
  {
    core::MutexLock lock(mutex_);
    if (!idle_.empty()) {
      CUevent event = idle_.back();
      idle_.pop_back();
      return event;
    }
  }
  CUevent event = nullptr;
  const DriverMeter::Timer timer(meter_);
  const CUresult result = driver_.EventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return ToStatus(driver_, result, "cuEventCreate", "an event");
  return event;
}

absl::StatusOr<Timeline::Marker> CudaTimeline::Record(StreamRef stream) {
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  if (absl::Status free = CheckNotCapturing(stream, "recording on"); !free.ok()) return free;
  const absl::StatusOr<CUevent> event = TakeEvent();
  if (!event.ok()) return event.status();
  CUresult result;
  {
    const DriverMeter::Timer timer(meter_);
    result = driver_.EventRecord(*event, HandleOf(stream));
  }
  if (result == CUDA_SUCCESS) return MarkerOf(*event);
  Forget(MarkerOf(*event));
  return RecordForeign(stream, result);
}

absl::StatusOr<Timeline::Marker> CudaTimeline::RecordForeign(StreamRef stream, CUresult why) {
  absl::Status failed = ToStatus(driver_, why, "cuEventRecord", NameOf(stream));
  if (why != CUDA_ERROR_INVALID_HANDLE || stream.handle() == nullptr) return failed;
  const absl::StatusOr<CUcontext> own = context_.Get();
  CUcontext context = nullptr;
  if (!own.ok() || driver_.StreamGetCtx(HandleOf(stream), &context) != CUDA_SUCCESS ||
      context == *own || driver_.CtxPushCurrent(context) != CUDA_SUCCESS) {
    return failed;
  }
  CUevent event = nullptr;
  CUresult result = driver_.EventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (result == CUDA_SUCCESS) {
    const DriverMeter::Timer timer(meter_);
    result = driver_.EventRecord(event, HandleOf(stream));
    if (result != CUDA_SUCCESS) driver_.EventDestroy(event);
  }
  if (driver_.CtxPopCurrent(&context) != CUDA_SUCCESS) driver_.CtxPopCurrent(&context);
  if (result != CUDA_SUCCESS) return failed;
  core::MutexLock lock(mutex_);
  foreign_.push_back(event);
  return MarkerOf(event);
}

absl::StatusOr<bool> CudaTimeline::IsDone(Marker marker) {
  if (marker == 0) return true;
  const DriverScope scope(&context_);
  if (!scope.status().ok()) {
    if (absl::IsUnavailable(scope.status())) return true;  // nothing runs any more
    return scope.status();
  }
  const DriverMeter::Timer timer(meter_);
  const CUresult result = driver_.EventQuery(EventOf(marker));
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result == CUDA_SUCCESS || Classify(result) == ResultKind::kShutDown) return true;
  return ToStatus(driver_, result, "cuEventQuery", "an event");
}

absl::StatusOr<bool> CudaTimeline::IsIdle(StreamRef stream) {
  const DriverScope scope(&context_);
  if (!scope.status().ok()) {
    if (absl::IsUnavailable(scope.status())) return true;  // nothing runs any more
    return scope.status();
  }
  if (absl::Status free = CheckNotCapturing(stream, "asking"); !free.ok()) return free;
  const DriverMeter::Timer timer(meter_);
  const CUresult result = driver_.StreamQuery(HandleOf(stream));
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result == CUDA_SUCCESS || Classify(result) == ResultKind::kShutDown) return true;
  return ToStatus(driver_, result, "cuStreamQuery", NameOf(stream));
}

absl::Status CudaTimeline::WaitOnHost(Marker marker, absl::Duration timeout) {
  if (marker == 0) return absl::OkStatus();
  if (timeout == absl::InfiniteDuration()) {
    const DriverScope scope(&context_);
    if (!scope.status().ok()) return scope.status();
    const DriverMeter::Timer timer(meter_);
    return ReleaseStatus(driver_, driver_.EventSynchronize(EventOf(marker)), "cuEventSynchronize",
                         "an event");
  }
  // The driver has no wait with a limit: look often at first, then less often.
  const absl::Time deadline = absl::Now() + timeout;
  absl::Duration pause = absl::Microseconds(5);
  for (;;) {
    const absl::StatusOr<bool> done = IsDone(marker);
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the stream's work was not done after ", absl::FormatDuration(timeout)));
    }
    absl::SleepFor(std::min(left, pause));
    pause = std::min(pause * 2, absl::Microseconds(200));
  }
}

absl::Status CudaTimeline::WaitOnStream(StreamRef stream, Marker marker) {
  if (marker == 0) return absl::OkStatus();
  const DriverScope scope(&context_);
  if (!scope.status().ok()) return scope.status();
  // A wait for an event from outside would spoil the capture.
  if (absl::Status free = CheckNotCapturing(stream, "making wait"); !free.ok()) return free;
  const DriverMeter::Timer timer(meter_);
  return ToStatus(driver_, driver_.StreamWaitEvent(HandleOf(stream), EventOf(marker), 0),
                  "cuStreamWaitEvent", NameOf(stream));
}

void CudaTimeline::Forget(Marker marker) {
  if (marker == 0) return;
  {
    core::MutexLock lock(mutex_);
    const auto foreign = std::find(foreign_.begin(), foreign_.end(), EventOf(marker));
    if (foreign != foreign_.end()) {
      foreign_.erase(foreign);
    } else if (idle_.size() < kMaxIdleEvents) {
      idle_.push_back(EventOf(marker));
      return;
    }
  }
  const DriverScope scope(&context_);
  if (driver_.EventDestroy(EventOf(marker)) != CUDA_SUCCESS) {
    core::MutexLock lock(mutex_);
    to_destroy_.push_back(EventOf(marker));  // the destructor tries again
  }
}

absl::Status CudaTimeline::WaitForDevice() {
  const DriverScope scope(&context_);
  if (!scope.status().ok()) {
    return absl::IsUnavailable(scope.status()) ? absl::OkStatus() : scope.status();
  }
  if (absl::Status free = CheckNothingCaptured(); !free.ok()) return free;
  const DriverMeter::Timer timer(meter_);
  return ReleaseStatus(driver_, driver_.CtxSynchronize(), "cuCtxSynchronize", "the device");
}

}  // namespace hbm::sources::cuda
