// SPDX-License-Identifier: Apache-2.0
#include "observe/trace_file.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#ifdef HBMALLOC_HAVE_ZLIB
#include <zlib.h>
#endif

namespace hbm::observe {
namespace {

#ifdef HBMALLOC_HAVE_ZLIB
// Window bits of 15, plus 16 for the gzip wrapper.
constexpr int kGzipWindowBits = 31;
// The fastest: the text is so regular that higher levels gain little.
constexpr int kLevel = 1;
constexpr int kMemoryLevel = 8;

absl::Status Pack(std::string_view text, std::string* packed) {
  z_stream stream{};
  if (deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindowBits, kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return absl::ResourceExhaustedError("no memory to compress");
  }
  packed->resize(deflateBound(&stream, static_cast<uLong>(text.size())));
  // zlib's interface predates const; it only reads.
  stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed->data());
  stream.avail_out = static_cast<uInt>(packed->size());
  const int result = deflate(&stream, Z_FINISH);
  packed->resize(packed->size() - stream.avail_out);
  deflateEnd(&stream);
  return result == Z_STREAM_END ? absl::OkStatus() : absl::InternalError("compressing failed");
}
#endif

// A reader that leaves is an error of the write, not the end of the program.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutPipeSignal() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{};
    sigtimedwait(&pipe_, nullptr, &now);  // what a write may have left
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutPipeSignal(const WithoutPipeSignal&) = delete;
  WithoutPipeSignal& operator=(const WithoutPipeSignal&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
};

}  // namespace

std::string ExpandFileName(std::string_view name) {
  std::string expanded;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char next = name[i] == '%' && i + 1 < name.size() ? name[i + 1] : '\0';
    if (next == 'p') {
      absl::StrAppend(&expanded, getpid());
    } else {
      expanded += name[i];
    }
    if (next == 'p' || next == '%') ++i;
  }
  return expanded;
}

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path) {
  const bool compressed = absl::EndsWith(path, ".gz");
#ifndef HBMALLOC_HAVE_ZLIB
  if (compressed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "trace: ", path, ": this library was built without zlib; use a name without .gz"));
  }
#endif
  // Without waiting, where the file is a pipe that nobody reads.
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
  if (descriptor >= 0) fcntl(descriptor, F_SETFL, 0);
  if (descriptor < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("trace: ", path, ": cannot be written: ", std::strerror(errno)));
  }
  return std::unique_ptr<TraceFile>(new TraceFile(path, descriptor, compressed));
}

TraceFile::~TraceFile() { close(descriptor_); }

absl::Status TraceFile::Append(std::string_view text) {
  if (text.empty()) return absl::OkStatus();
#ifdef HBMALLOC_HAVE_ZLIB
  if (compressed_) {
    if (absl::Status status = Pack(text, &packed_); !status.ok()) return status;
    return Write(packed_);
  }
#endif
  return Write(text);
}

absl::Status TraceFile::Write(std::string_view bytes) {
  const WithoutPipeSignal without_signal;
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return absl::DataLossError(absl::StrCat(path_, ": ", std::strerror(errno)));
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace hbm::observe
