// SPDX-License-Identifier: Apache-2.0
//
// File: trace_reader.h
//
// Reads a trace from a file of any format the library knows, plain or gzip. What
// a file is, is told by its contents and not by its name.
//
//   absl::StatusOr<Trace> trace = ReadTraceFile("bench/traces/edges.csv.gz");
#ifndef HBMALLOC_OBSERVE_TRACE_READER_H_
#define HBMALLOC_OBSERVE_TRACE_READER_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "observe/trace.h"

namespace hbm::observe {

// NotFound or the like: the file cannot be opened or read. InvalidArgument: it is
// no trace, or a bad one; the message begins with the file and, where there are
// lines, the line. Unimplemented: it needs zlib and the library has none.
absl::StatusOr<Trace> ReadTraceFile(const std::string& file);

// The same of bytes already read; `file` is for messages and the trace's name.
absl::StatusOr<Trace> ReadTrace(std::string_view data, std::string_view file);

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_TRACE_READER_H_
