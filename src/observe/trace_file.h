// SPDX-License-Identifier: Apache-2.0
//
// File: trace_file.h
//
// A file that grows by whole pieces. Compressed, each piece is a gzip member of its
// own, so that the file can be unpacked after a crash too.
//
//   absl::StatusOr<std::unique_ptr<TraceFile>> file = TraceFile::Create("run-%p.csv.gz");
//   absl::Status written = (*file)->Append("Thread,Time,...\n");
#ifndef HBMALLOC_OBSERVE_TRACE_FILE_H_
#define HBMALLOC_OBSERVE_TRACE_FILE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hbm::observe {

// "%p" becomes the process's number, "%%" a percent sign.
std::string ExpandFileName(std::string_view name);

class TraceFile {
 public:
  // Compressed if the name ends in .gz. InvalidArgument if it cannot be made, or if
  // this library was built without zlib and it would be compressed.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // On an error nothing more should be appended.
  absl::Status Append(std::string_view text);

 private:
  TraceFile(std::string path, int descriptor, bool compressed)
      : path_(std::move(path)), descriptor_(descriptor), compressed_(compressed) {}
  absl::Status Write(std::string_view bytes);

  const std::string path_;
  const int descriptor_;
  const bool compressed_;
  std::string packed_;
};

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_TRACE_FILE_H_
