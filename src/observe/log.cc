// SPDX-License-Identifier: Apache-2.0
#include "observe/log.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "core/mutex.h"

namespace hbm {
namespace {

void StderrSink(LogSeverity severity, std::string_view message) {
  std::fprintf(stderr, "hbmalloc: %s%.*s\n", severity == LogSeverity::kWarning ? "warning: " : "",
               static_cast<int>(message.size()), message.data());
}

struct Sink {
  core::Mutex mutex;
  std::shared_ptr<const LogSink> sink HBM_GUARDED_BY(mutex) =
      std::make_shared<const LogSink>(StderrSink);
};

// Never destroyed: allocators in static objects may log during exit.
Sink& TheSink() {
  static Sink* const sink = new Sink;
  return *sink;
}

}  // namespace

LogSink SetLogSink(LogSink sink) {
  auto next = std::make_shared<const LogSink>(std::move(sink));
  Sink& current = TheSink();
  core::MutexLock lock(current.mutex);
  current.sink.swap(next);
  return *next;
}

namespace observe {

void Log(LogSeverity severity, std::string_view message) {
  std::shared_ptr<const LogSink> sink;
  {
    Sink& current = TheSink();
    core::MutexLock lock(current.mutex);
    sink = current.sink;
  }
  if (*sink) (*sink)(severity, message);
}

}  // namespace observe
}  // namespace hbm
