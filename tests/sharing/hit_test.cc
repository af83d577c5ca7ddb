// SPDX-License-Identifier: Apache-2.0
//
// A hit never touches shared memory: with the ledger's pages made unreadable, hits go
// on, and a miss does not.
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "hbmalloc/allocator.h"
#include "tests/support/sharing_dir.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Mapping {
  void* begin;
  std::size_t bytes;
};
std::vector<Mapping>* mappings;
std::atomic<bool> closed{false};
std::atomic<int> touched{0};
pid_t test_thread;

void Protect(int protection) {
  for (const Mapping& mapping : *mappings) mprotect(mapping.begin, mapping.bytes, protection);
}

// The thread that publishes figures may come, and waits; this one may not.
void OnFault(int /*signal*/) {
  if (syscall(SYS_gettid) == test_thread) {
    touched.fetch_add(1);
    closed.store(false);
    Protect(PROT_READ | PROT_WRITE);
    return;
  }
  while (closed.load()) usleep(1000);
}

void Close() {
  closed.store(true);
  Protect(PROT_NONE);
}
void Open() {
  Protect(PROT_READ | PROT_WRITE);
  closed.store(false);
}

class HitTest : public ::testing::TestWithParam<const char*> {};

TEST_P(HitTest, TouchesNoSharedMemory) {
  testing::SharingDir dir;
  const auto device = OpenDevice("sim:8GiB,shared=hit");
  auto allocator = *MakeAllocator(*ParsePolicy(GetParam()), *device);
  std::vector<void*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(*allocator->Allocate(kMiB));
  for (void* const block : blocks) ASSERT_TRUE(allocator->Deallocate(block).ok());

  std::vector<Mapping> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!absl::StrContains(line, dir.path())) continue;
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    ASSERT_EQ(std::sscanf(line.c_str(), "%lx-%lx", &begin, &end), 2);
    found.push_back({reinterpret_cast<void*>(begin), end - begin});  // NOLINT
  }
  ASSERT_GE(found.size(), 2U);  // the ledger and the simulated device's capacity
  mappings = &found;
  test_thread = static_cast<pid_t>(syscall(SYS_gettid));
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = &OnFault;
  ASSERT_EQ(sigaction(SIGSEGV, &action, &before), 0);

  Close();
  for (int round = 0; round < 1000; ++round) {
    void* const a = *allocator->Allocate(kMiB);
    void* const b = *allocator->Allocate(kMiB / 2);
    allocator->Deallocate(a).IgnoreError();
    allocator->Deallocate(b).IgnoreError();
  }
  EXPECT_EQ(touched.load(), 0);
  // And a miss does: the test would see it.
  const absl::StatusOr<void*> more = allocator->Allocate(512 * kMiB);
  EXPECT_GT(touched.load(), 0);
  Open();
  sigaction(SIGSEGV, &before, nullptr);
  touched.store(0);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_TRUE(allocator->Deallocate(*more).ok());
}

INSTANTIATE_TEST_SUITE_P(Strategies, HitTest,
                         ::testing::Values("elastic:sharing=fair,slack=inf",
                                           "on_demand:sharing=fair"),
                         [](const auto& param) { return std::to_string(param.index); });

}  // namespace
}  // namespace hbm
