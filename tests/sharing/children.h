// SPDX-License-Identifier: Apache-2.0
//
// File: children.h
//
// Real processes for the tests of sharing: this test program again, started afresh
// with a role, spoken to through pipes line by line.
//
//   Child child = Child::Start({"hold", "sim:8GiB,shared=x", "fair", "1GiB"});
//   EXPECT_EQ(child.ReadLine(), "ok");
//   child.Kill();
#ifndef HBMALLOC_TESTS_SHARING_CHILDREN_H_
#define HBMALLOC_TESTS_SHARING_CHILDREN_H_

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

extern char** environ;

namespace hbm::testing {

class Child {
 public:
  // The words become its arguments, after "--role".
  static Child Start(const std::vector<std::string>& words,
                     const std::string& program = "/proc/self/exe") {
    int in[2];
    int out[2];
    Child child;
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return child;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::vector<char*> argv = {const_cast<char*>(program.c_str()), const_cast<char*>("--role")};
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    if (posix_spawn(&child.pid_, program.c_str(), &actions, nullptr, argv.data(), environ) != 0) {
      child.pid_ = -1;
    }
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    child.in_ = in[1];
    child.out_ = out[0];
    return child;
  }

  Child() = default;
  Child(Child&& other) noexcept { *this = std::move(other); }
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(in_, other.in_);
    std::swap(out_, other.out_);
    std::swap(text_, other.text_);
    return *this;
  }
  ~Child() {
    if (pid_ > 0) Kill();
    if (in_ >= 0) close(in_);
    if (out_ >= 0) close(out_);
  }

  pid_t pid() const { return pid_; }

  // What it prints next, without the newline; "timeout" or "end" instead.
  std::string ReadLine(absl::Duration timeout = absl::Seconds(60)) {
    const absl::Time deadline = absl::Now() + timeout;
    for (;;) {
      const std::size_t end = text_.find('\n');
      if (end != std::string::npos) {
        std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      pollfd wait{out_, POLLIN, 0};
      const auto left = absl::ToInt64Milliseconds(deadline - absl::Now());
      if (left < 0) return "timeout";
      if (poll(&wait, 1, static_cast<int>(left) + 1) <= 0) continue;
      char buffer[256];
      const ssize_t got = read(out_, buffer, sizeof(buffer));
      if (got == 0) return "end";
      if (got > 0) text_.append(buffer, static_cast<std::size_t>(got));
    }
  }

  void Send(const std::string& line) {
    const std::string text = line + "\n";
    const ssize_t written = write(in_, text.data(), text.size());
    static_cast<void>(written);
  }
  // Its standard input ends: roles take that as the word to go.
  void CloseInput() {
    if (in_ >= 0) close(in_);
    in_ = -1;
  }
  // Ends it without warning, and collects it.
  void Kill() {
    kill(pid_, SIGKILL);
    Wait();
  }
  // Its exit code, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string text_;
};

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_SHARING_CHILDREN_H_
