// SPDX-License-Identifier: Apache-2.0
#include "tools/run/probe.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "hbmalloc/device.h"

namespace hbm::run {
namespace {

// "ok TAB uuid TAB total TAB free TAB is_cuda", or "CODE TAB message".
std::string Look(const std::string& spec) {
  const auto error = [](const absl::Status& status) {
    return absl::StrCat(static_cast<int>(status.code()), "\t", status.message());
  };
  const absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(spec);
  if (!device.ok()) return error(device.status());
  const absl::StatusOr<MemoryInfo> memory = (*device)->GetMemoryInfo();
  if (!memory.ok()) return error(memory.status());
  return absl::StrCat("ok\t", std::string((*device)->Uuid()), "\t", memory->total, "\t",
                      memory->free, "\t", (*device)->IsCuda() ? 1 : 0);
}

absl::StatusOr<std::string> ReadAll(int pipe) {
  std::string text;
  char buffer[1024];
  for (;;) {
    const ssize_t got = read(pipe, buffer, sizeof(buffer));
    if (got == 0) return text;
    if (got > 0) {
      text.append(buffer, static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      return absl::ErrnoToStatus(errno, "reading what the device said");
    }
  }
}

absl::StatusOr<Probe> Understand(const std::string& spec, const std::string& text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\t');
  Probe probe;
  if (fields.size() == 5 && fields[0] == "ok" && absl::SimpleAtoi(fields[2], &probe.total) &&
      absl::SimpleAtoi(fields[3], &probe.free)) {
    probe.uuid = fields[1];
    probe.is_cuda = fields[4] == "1";
    return probe;
  }
  int code = 0;
  if (fields.size() >= 2 && absl::SimpleAtoi(fields[0], &code)) {
    return absl::Status(static_cast<absl::StatusCode>(code), fields[1]);
  }
  return absl::UnavailableError(
      absl::StrCat("device \"", spec, "\": looking at it ended without an answer"));
}

}  // namespace

absl::StatusOr<Probe> ProbeDevice(const std::string& spec) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "fork");
  if (child == 0) {
    const std::string text = Look(spec);
    const ssize_t written = write(ends[1], text.data(), text.size());
    // No destructors: what was opened ends with the process.
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  const absl::StatusOr<std::string> text = ReadAll(ends[0]);
  close(ends[0]);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!text.ok()) return text.status();
  return Understand(spec, *text);
}

}  // namespace hbm::run
