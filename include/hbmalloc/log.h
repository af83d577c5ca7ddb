// SPDX-License-Identifier: Apache-2.0
//
// File: log.h
//
// Where the library's few warnings go. By default each is one line on stderr; a
// runtime routes them into its own log:
//
//   hbm::SetLogSink([](hbm::LogSeverity severity, std::string_view message) {
//     MyLog(severity == hbm::LogSeverity::kWarning, message);
//   });
#ifndef HBMALLOC_LOG_H_
#define HBMALLOC_LOG_H_

#include <functional>
#include <string_view>

namespace hbm {

enum class LogSeverity { kInfo, kWarning };

// Called with one message without a trailing newline, never under one of the
// library's locks, possibly from several threads at once. Must not throw.
using LogSink = std::function<void(LogSeverity, std::string_view)>;

// Replaces the sink and returns the one before. A null sink silences the
// library. Thread-safe.
LogSink SetLogSink(LogSink sink);

}  // namespace hbm

#endif  // HBMALLOC_LOG_H_
