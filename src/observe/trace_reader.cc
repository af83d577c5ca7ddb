// SPDX-License-Identifier: Apache-2.0
#include "observe/trace_reader.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "observe/gunzip.h"
#include "observe/pytorch_snapshot.h"
#include "observe/rmm_csv.h"

namespace hbm::observe {
namespace {

// Neither a large file nor a small one that unpacks to much may take the machine.
constexpr std::size_t kMaxBytes = std::size_t{4} << 30;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

absl::StatusOr<std::string> ReadWholeFile(const std::string& file) {
  const std::unique_ptr<std::FILE, CloseFile> opened(std::fopen(file.c_str(), "rb"));
  if (opened == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat(file, ": cannot be opened"));
  }
  std::string data;
  std::array<char, 1 << 16> piece;
  for (;;) {
    const std::size_t count = std::fread(piece.data(), 1, piece.size(), opened.get());
    data.append(piece.data(), count);
    if (data.size() > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": larger than ", kMaxBytes, " bytes"));
    }
    if (count == piece.size()) continue;
    if (std::ferror(opened.get()) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat(file, ": cannot be read"));
    }
    return data;
  }
}

// "bench/traces/edges.csv.gz" is the trace "edges".
std::string NameOf(std::string_view file) {
  const std::size_t slash = file.rfind('/');
  std::string_view name = slash == std::string_view::npos ? file : file.substr(slash + 1);
  for (const std::string_view extension : {".gz", ".csv", ".pickle", ".pkl"}) {
    if (name.size() > extension.size() &&
        name.substr(name.size() - extension.size()) == extension) {
      name.remove_suffix(extension.size());
    }
  }
  return std::string(name);
}

// The one place that tells formats apart.
absl::StatusOr<Trace> ParseByContent(std::string_view data, std::string_view file) {
  if (LooksLikeRmmCsv(data)) return ParseRmmCsv(data, file);
  if (LooksLikePyTorchSnapshot(data)) return ParsePyTorchSnapshot(data, file);
  if (data.empty()) return absl::InvalidArgumentError(absl::StrCat(View(file), ": is empty"));
  return absl::InvalidArgumentError(
      absl::StrCat(View(file),
                   ":1: not a trace that this program knows: RMM's log begins with a line such as "
                   "Thread,Time,Action,Pointer,Size,Stream, a PyTorch snapshot is a pickle of "
                   "protocol 2 to 5"));
}

}  // namespace

absl::StatusOr<Trace> ReadTrace(std::string_view data, std::string_view file) {
  std::string unpacked;
  if (LooksLikeGzip(data)) {
    absl::StatusOr<std::string> result = Gunzip(data, kMaxBytes);
    if (!result.ok()) {
      return absl::Status(result.status().code(),
                          absl::StrCat(View(file), ": ", result.status().message()));
    }
    unpacked = *std::move(result);
    data = unpacked;
  }
  absl::StatusOr<Trace> trace = ParseByContent(data, file);
  if (trace.ok()) {
    trace->name = NameOf(file);
    trace->file = std::string(file);
  }
  return trace;
}

absl::StatusOr<Trace> ReadTraceFile(const std::string& file) {
  const absl::StatusOr<std::string> data = ReadWholeFile(file);
  if (!data.ok()) return data.status();
  return ReadTrace(*data, file);
}

}  // namespace hbm::observe
