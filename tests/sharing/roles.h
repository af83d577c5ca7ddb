// SPDX-License-Identifier: Apache-2.0
//
// File: roles.h
//
// What the test program does when it is started with a role (children.h).
#ifndef HBMALLOC_TESTS_SHARING_ROLES_H_
#define HBMALLOC_TESTS_SHARING_ROLES_H_

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "hbmalloc/allocator.h"
#include "policy/text.h"

namespace hbm::testing {

inline void Print(const std::string& line) {
  std::cout << line << std::endl;  // flushed: somebody waits for it
}

inline std::string FirstLine(const absl::Status& status) {
  const std::string text = status.ToString();
  return text.substr(0, text.find('\n'));
}

inline std::unique_ptr<Allocator> Open(const std::string& device_spec, const std::string& policy) {
  const absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(device_spec);
  if (!device.ok()) {
    Print("fail " + FirstLine(device.status()));
    return nullptr;
  }
  const absl::StatusOr<Policy> parsed = ParsePolicy(policy);
  absl::StatusOr<std::unique_ptr<Allocator>> made = MakeAllocator(*parsed, *device);
  if (!made.ok()) {
    Print("fail " + FirstLine(made.status()));
    return nullptr;
  }
  return *std::move(made);
}

// Blocks of 64 MiB, or 1/128 of `bytes` if that is more; says how it went.
inline bool Fill(Allocator& allocator, std::size_t bytes, std::vector<void*>* blocks) {
  const std::size_t most = std::max(std::size_t{64} << 20, bytes / 128);
  while (bytes > 0) {
    const std::size_t next = std::min(bytes, most);
    const absl::StatusOr<void*> block = allocator.Allocate(next);
    if (!block.ok()) {
      Print("fail " + FirstLine(block.status()));
      return false;
    }
    blocks->push_back(*block);
    bytes -= next;
  }
  return true;
}

inline void WaitForEndOfInput() {
  std::string line;
  while (std::getline(std::cin, line)) {
  }
}

// hold DEVICE POLICY BYTES: allocates, says "ok", and keeps it until its input ends.
inline int Hold(const std::vector<std::string>& words) {
  const std::unique_ptr<Allocator> allocator = Open(words[1], words[2]);
  if (allocator == nullptr) return 1;
  std::vector<void*> blocks;
  if (!Fill(*allocator, *policy::ParseBytes(words[3]), &blocks)) return 1;
  Print("ok");
  WaitForEndOfInput();
  for (void* const block : blocks) {
    if (!allocator->Deallocate(block).ok()) return 1;
  }
  return 0;
}

// phases DEVICE POLICY BYTES: at each line "go" allocates, says "ok", at the next line
// frees, says "freed".
inline int Phases(const std::vector<std::string>& words) {
  const std::unique_ptr<Allocator> allocator = Open(words[1], words[2]);
  if (allocator == nullptr) return 1;
  Print("ready");
  std::string line;
  std::vector<void*> blocks;
  while (std::getline(std::cin, line)) {
    if (blocks.empty()) {
      const absl::Time start = absl::Now();
      if (!Fill(*allocator, *policy::ParseBytes(words[3]), &blocks)) return 1;
      Print(absl::StrCat("ok ", absl::ToInt64Microseconds(absl::Now() - start)));
    } else {
      for (void* const block : blocks) allocator->Deallocate(block).IgnoreError();
      blocks.clear();
      Print("freed");
    }
  }
  return 0;
}

// busy DEVICE POLICY MOST SEED [fork]: allocates and frees at random, up to MOST bytes,
// until its input ends. With "fork", first leaves a child behind that does nothing, and
// says its pid.
inline int Busy(const std::vector<std::string>& words) {
  const std::unique_ptr<Allocator> allocator = Open(words[1], words[2]);
  if (allocator == nullptr) return 1;
  const std::size_t most = *policy::ParseBytes(words[3]);
  std::mt19937 random(static_cast<unsigned>(std::atoi(words[4].c_str())));
  std::string first = "0";
  if (words.size() > 5) {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    first = absl::StrCat(child);
  }
  Print(first);
  std::vector<void*> blocks;
  std::vector<std::size_t> sizes;
  std::size_t live = 0;
  const auto free_one = [&] {
    const std::size_t i = random() % blocks.size();
    allocator->Deallocate(blocks[i]).IgnoreError();
    live -= sizes[i];
    blocks[i] = blocks.back();
    sizes[i] = sizes.back();
    blocks.pop_back();
    sizes.pop_back();
  };
  for (;;) {
    if (!blocks.empty() && (random() % 2 == 0 || live > most)) {
      free_one();
    } else {
      const std::size_t bytes = (1 + random() % 256) << 20;
      AllocError why;
      void* const block = allocator->TryAllocate(bytes, {}, &why);
      if (block != nullptr) {
        blocks.push_back(block);
        sizes.push_back(bytes);
        live += bytes;
      } else if (!blocks.empty()) {
        free_one();
      }
    }
    pollfd wait{STDIN_FILENO, POLLIN, 0};
    if (random() % 16 == 0 && poll(&wait, 1, 0) > 0) return 0;
  }
}

// fork DEVICE POLICY: allocates, forks, and the child says what the allocator says to it,
// of memory that is at hand and of memory that is not.
inline int Fork(const std::vector<std::string>& words) {
  const std::unique_ptr<Allocator> allocator = Open(words[1], words[2]);
  if (allocator == nullptr) return 1;
  const absl::StatusOr<void*> block = allocator->Allocate(std::size_t{1} << 20);
  if (!block.ok() || !allocator->Deallocate(*block).ok()) return 1;
  const pid_t child = fork();
  if (child == 0) {
    Print("hit: " + FirstLine(allocator->Allocate(std::size_t{1} << 20).status()));
    Print("miss: " + FirstLine(allocator->Allocate(std::size_t{1} << 30).status()));
    exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Print(absl::StrCat("parent: ", FirstLine(allocator->Allocate(std::size_t{1} << 30).status()),
                     ", child's exit code ", WEXITSTATUS(status)));
  return status;
}

inline int RunRole(const std::vector<std::string>& words) {
  if (words[0] == "hold") return Hold(words);
  if (words[0] == "phases") return Phases(words);
  if (words[0] == "busy") return Busy(words);
  if (words[0] == "fork") return Fork(words);
  return 2;
}

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_SHARING_ROLES_H_
