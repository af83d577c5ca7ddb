// SPDX-License-Identifier: Apache-2.0
#include "observe/trace_recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/compiler.h"
#include "core/signals.h"
#include "observe/log.h"
#include "observe/trace_writer.h"

namespace hbm::observe {
namespace {

// How long the writer naps when there is nothing to do, and how old text may become
// before it is written.
constexpr auto kNap = std::chrono::milliseconds(20);
constexpr auto kOldest = std::chrono::milliseconds(200);
// Callers that find the ring full wait for so long, and then give the writer up. On a
// machine that has too much to do, it may get no turn for seconds.
constexpr auto kStall = std::chrono::seconds(10);
// The longest that the end of a program or allocator waits for the file system.
constexpr int kLongestStopSeconds = 10;
// A burst wakes the writer long before the ring is full.
constexpr std::uint64_t kWakeEvery = EventRing::kCapacity / 8;

std::uint32_t ThreadNumber() {
  static __thread std::uint32_t number __attribute__((tls_model("initial-exec")));
  if (HBM_UNLIKELY(number == 0)) number = static_cast<std::uint32_t>(syscall(SYS_gettid));
  return number;
}

std::int64_t NanosecondsSinceMidnight() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  return ((local.tm_hour * 60 + local.tm_min) * 60 + local.tm_sec) * std::int64_t{1000000000} +
         now.tv_nsec;
}

// All recorders, by file. Never destroyed: it is looked at during exit.
struct Registry {
  core::Mutex mutex;
  std::map<std::string, std::weak_ptr<TraceRecorder>> by_path HBM_GUARDED_BY(mutex);
  std::vector<TraceRecorder*> all HBM_GUARDED_BY(mutex);
  bool has_handlers HBM_GUARDED_BY(mutex) = false;
};
Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

void EventRing::Pause() { usleep(50); }

absl::StatusOr<std::shared_ptr<TraceRecorder>> TraceRecorder::Open(std::string_view name) {
  const std::string path = ExpandFileName(name);
  Registry& registry = TheRegistry();
  core::MutexLock lock(registry.mutex);
  std::weak_ptr<TraceRecorder>& known = registry.by_path[path];
  if (std::shared_ptr<TraceRecorder> shared = known.lock()) return shared;
  absl::StatusOr<std::unique_ptr<TraceFile>> file = TraceFile::Create(path);
  if (!file.ok()) return file.status();
  std::shared_ptr<TraceRecorder> made(new TraceRecorder(*std::move(file), path), &Close);
  if (absl::Status started = made->Start(); !started.ok()) return started;
  if (!registry.has_handlers) {
    registry.has_handlers = true;
    std::atexit(&TraceRecorder::AtExit);
    pthread_atfork(nullptr, nullptr, &TraceRecorder::AtForkInChild);
  }
  known = made;
  registry.all.push_back(made.get());
  return made;
}

TraceRecorder::TraceRecorder(std::unique_ptr<TraceFile> file, std::string path)
    : path_(std::move(path)),
      writer_(std::make_unique<TraceWriter>(std::move(file), NanosecondsSinceMidnight())) {}

void TraceRecorder::Close(TraceRecorder* recorder) {
  {
    Registry& registry = TheRegistry();
    core::MutexLock lock(registry.mutex);
    auto& all = registry.all;
    all.erase(std::remove(all.begin(), all.end(), recorder), all.end());
  }
  const bool stopped = recorder->Stop();
  recorder->CountLost();
  if (stopped) delete recorder;
}

absl::Status TraceRecorder::Start() {
  core::MutexLock lock(mutex_);
  const core::SignalsBlocked blocked;
  if (pthread_create(&thread_, nullptr, &TraceRecorder::RunThread, this) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("trace: ", path_, ": no thread could be started to write it"));
  }
  has_thread_ = true;
  return absl::OkStatus();
}

std::uint16_t TraceRecorder::AddDevice(const void* address_space, std::string_view name) {
  core::MutexLock lock(write_mutex_);
  return writer_->AddDevice(address_space, name);
}

void TraceRecorder::Record(std::uint16_t device, EventAction action, const void* block,
                           std::size_t bytes, std::size_t alignment, StreamRef stream, TagId tag) {
  if (HBM_UNLIKELY(discards_.load(std::memory_order_relaxed))) return;
  if (HBM_UNLIKELY(!ring_.HasRoom()) && !WaitForRoom()) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  EventRecord record;
  record.ticks = ReadTicks();
  record.address = reinterpret_cast<std::uintptr_t>(block);
  record.bytes = bytes;
  record.stream = stream.value();
  record.tag = tag.value;
  record.thread = ThreadNumber();
  record.device = device;
  record.action = action;
  record.log2_alignment = static_cast<std::uint8_t>(63 ^ __builtin_clzll(alignment | 1));
  const std::uint64_t number = ring_.Push(record);
  if (HBM_UNLIKELY(number % kWakeEvery == 0)) Wake();
  if (HBM_UNLIKELY(direct_.load(std::memory_order_relaxed))) DrainOnce(true);
}

bool TraceRecorder::WaitForRoom() {
  if (stalled_.load(std::memory_order_relaxed)) return false;
  Wake();
  auto deadline = std::chrono::steady_clock::now() + kStall;
  std::uint64_t left = ring_.size();
  while (!discards_.load(std::memory_order_relaxed)) {
    if (direct_.load(std::memory_order_relaxed)) DrainOnce(true);
    if (ring_.HasRoom()) return true;
    const std::uint64_t now_left = ring_.size();
    const auto now = std::chrono::steady_clock::now();
    if (now_left < left) deadline = now + kStall;
    left = now_left;
    if (now > deadline) {
      stalled_.store(true, std::memory_order_relaxed);
      return false;
    }
    usleep(100);
  }
  return false;
}

void TraceRecorder::Wake() {
  // The lock orders this after the writer's look at the ring.
  core::MutexLock lock(mutex_);
  wake_.notify_one();
}

void* TraceRecorder::RunThread(void* recorder) {
  static_cast<TraceRecorder*>(recorder)->Run();
  return nullptr;
}

void TraceRecorder::Run() {
  pthread_setname_np(pthread_self(), "hbm-trace");
  auto written = std::chrono::steady_clock::now();
  for (bool stops = false; !stops;) {
    std::uint64_t flushes;
    bool flush;
    {
      core::MutexLock lock(mutex_);
      if (!stops_ && flushes_wanted_ == flushes_done_ && ring_.size() < kWakeEvery / 2) {
        wake_.wait_for(mutex_, kNap);
      }
      stops = stops_;
      flushes = flushes_wanted_;
      flush = stops || flushes != flushes_done_;
    }
    const auto now = std::chrono::steady_clock::now();
    flush = flush || now - written > kOldest;
    DrainOnce(flush);
    if (flush) written = now;
    core::MutexLock lock(mutex_);
    if (flushes != flushes_done_) {
      flushes_done_ = flushes;
      flushed_.notify_all();
    }
  }
}

void TraceRecorder::DrainOnce(bool flush) {
  absl::Status failed;
  {
    core::MutexLock lock(write_mutex_);
    TraceWriter& writer = *writer_;
    writer.Anchor();
    ring_.Drain([&](std::uint64_t /*number*/, const EventRecord& event) {
      if (!failed.ok()) return;
      writer.Add(event);
      if (writer.IsFull()) failed = writer.Write();
    });
    if (flush && failed.ok()) failed = writer.Write();
  }
  stalled_.store(false, std::memory_order_relaxed);
  if (failed.ok() || discards_.exchange(true)) return;
  LogWarning(absl::StrCat("trace: ", failed.message(), "; recording ends here"));
}

void TraceRecorder::Flush() {
  {
    core::MutexLock lock(mutex_);
    if (has_thread_) {
      const std::uint64_t mine = ++flushes_wanted_;
      wake_.notify_one();
      while (flushes_done_ < mine && has_thread_) flushed_.wait(mutex_);
      return;
    }
  }
  DrainOnce(true);
}

bool TraceRecorder::Stop() {
  {
    core::MutexLock lock(mutex_);
    if (!has_thread_) return true;
    stops_ = true;
    wake_.notify_one();
  }
  timespec deadline{};
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += kLongestStopSeconds;
  if (pthread_timedjoin_np(thread_, nullptr, &deadline) != 0) {
    discards_.store(true);
    LogWarning(absl::StrCat("trace: ", path_, ": the file could not be written for ",
                            kLongestStopSeconds, " s; the end of the trace is lost"));
    return false;
  }
  {
    core::MutexLock lock(mutex_);
    has_thread_ = false;
    flushed_.notify_all();
  }
  direct_.store(true);
  DrainOnce(true);
  return true;
}

void TraceRecorder::CountLost() {
  if (lost() == 0 || discards_.load()) return;
  LogWarning(
      absl::StrCat("trace: ", path_, ": ", lost(),
                   " events were lost, because the file could not be written for ten seconds"));
}

void TraceRecorder::AtExit() {
  Registry& registry = TheRegistry();
  core::MutexLock lock(registry.mutex);
  for (TraceRecorder* const recorder : registry.all) recorder->Stop();
}

// The child has no writer thread, and the file is its parent's.
void TraceRecorder::AtForkInChild() {
  // Nobody else runs in the child. The lock may have been held by a thread that
  // does not exist here, so it is not taken.
  const auto stop = []() HBM_NO_THREAD_SAFETY_ANALYSIS {
    for (TraceRecorder* const recorder : TheRegistry().all) {
      recorder->discards_.store(true);
      recorder->has_thread_ = false;
    }
  };
  stop();
}

}  // namespace hbm::observe
