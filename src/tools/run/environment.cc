// SPDX-License-Identifier: Apache-2.0
#include "tools/run/environment.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

extern char** environ;

namespace hbm::run {
namespace {

// The first version of PyTorch whose allocator knows per_process_memory_fraction; an
// older one refuses to start with an option that it does not know.
constexpr int kTorchMajor = 2;
constexpr int kTorchMinor = 10;

bool IsPython(const std::string& program) {
  const std::size_t slash = program.rfind('/');
  return absl::StartsWith(slash == std::string::npos ? program : program.substr(slash + 1),
                          "python");
}

// What the program prints; empty if it fails.
std::string OutputOf(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  const bool spawned = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  char buffer[256];
  for (ssize_t got; spawned && (got = read(ends[0], buffer, sizeof(buffer))) != 0;) {
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  int status = 1;
  while (spawned && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0 ? text : "";
}

// Reads the version from the package's metadata, which does not load PyTorch.
bool HasTorchWithFraction(const std::string& python) {
  const std::string version =
      OutputOf({python, "-c", "from importlib.metadata import version; print(version('torch'))"});
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  int major = 0;
  int minor = 0;
  return parts.size() >= 2 && absl::SimpleAtoi(parts[0], &major) &&
         absl::SimpleAtoi(parts[1], &minor) &&
         (major > kTorchMajor || (major == kTorchMajor && minor >= kTorchMinor));
}

void SetTorchFraction(const std::string& fraction) {
  // Both names are read; the one that is set already is the one to add to.
  const char* const newer = std::getenv("PYTORCH_ALLOC_CONF");
  const char* const name = newer != nullptr ? "PYTORCH_ALLOC_CONF" : "PYTORCH_CUDA_ALLOC_CONF";
  const char* const before = newer != nullptr ? newer : std::getenv(name);
  const std::string own = absl::StrCat("per_process_memory_fraction:", fraction);
  if (before != nullptr && absl::StrContains(before, "per_process_memory_fraction")) return;
  const bool add = before != nullptr && *before != '\0';
  setenv(name, (add ? absl::StrCat(before, ",", own) : own).c_str(), 1);
}

}  // namespace

void SetEnvironment(const Probe& device, double fraction, const std::vector<std::string>& command) {
  // Rounded down: the sum of all must not pass the device.
  const std::string text = absl::StrFormat("%.4f", std::floor(fraction * 10000) / 10000);
  if (device.is_cuda) setenv("CUDA_VISIBLE_DEVICES", device.uuid.c_str(), 1);
  setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", text.c_str(), 1);
  // The newer name of the same; XLA refuses to start if both are set.
  unsetenv("XLA_CLIENT_MEM_FRACTION");
  if (IsPython(command[0]) && HasTorchWithFraction(command[0])) SetTorchFraction(text);
}

}  // namespace hbm::run
