// SPDX-License-Identifier: Apache-2.0
//
// Programs that end while allocators and blocks live, on the real driver: no crash,
// no hang, not a word.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/gpu/gpu_fixture.h"

namespace hbm::testing {
namespace {

// What the program beside this one prints, and its exit code.
std::string RunExitCheck(const std::string& how, int* code) {
  char path[4096] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  const std::string self(path, length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::string command = self.substr(0, self.rfind('/')) + "/exit_check " + how + " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "cannot be started";
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    text.push_back(static_cast<char>(c));
  }
  *code = pclose(pipe);
  return text;
}

using GpuExitTest = GpuTest;

TEST_F(GpuExitTest, ProgramsEndQuietly) {
  for (const char* how : {"return", "exit", "thread"}) {
    int code = -1;
    EXPECT_EQ(RunExitCheck(how, &code), "") << how;
    EXPECT_EQ(code, 0) << how;
  }
}

}  // namespace
}  // namespace hbm::testing
