// SPDX-License-Identifier: Apache-2.0
//
// A process that ends at each store that others can see, one after the other: nothing
// of it is left, and nobody is stuck.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "sharing/ledger.h"
#include "sharing/shared_capacity.h"
#include "tests/support/sharing_dir.h"

namespace hbm::sharing {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr int kDone = 42;

std::atomic<int> steps_left{0};

void EndWhenStepsAreUsedUp() {
  if (steps_left.fetch_sub(1) == 0) _exit(1);
}

// The dead are looked for now and then: what they held is there within 100 ms.
template <typename Try>
bool SoonTrue(const Try& attempt) {
  const absl::Time deadline = absl::Now() + absl::Milliseconds(100);
  while (!attempt()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// All that an account and a device's capacity ever do to shared memory.
int EverythingOnce() {
  const auto all_free = []() -> absl::StatusOr<std::uint64_t> { return 80 * kGiB; };
  auto capacity = SharedCapacity::Open("GPU-1", 80 * kGiB);
  Terms terms;
  terms.sharing = Sharing::kFirstCome;
  auto ledger = Ledger::Join("GPU-1", 80 * kGiB, terms);
  if (!capacity.ok() || !ledger.ok()) return 2;
  for (int i = 0; i < 2; ++i) {
    if (!SoonTrue([&] { return (*ledger)->Charge(50 * kGiB, all_free).ok(); })) return 3;
    if (!SoonTrue([&] { return (*capacity)->TryTake(50 * kGiB); })) return 4;
    (*ledger)->Commit(50 * kGiB);
    if ((*ledger)->Charge(40 * kGiB, all_free).ok()) return 5;
    (*capacity)->Return(50 * kGiB);
    (*ledger)->Release(50 * kGiB);
    if (!SoonTrue([&] { return (*ledger)->Charge(70 * kGiB, all_free).ok(); })) return 6;
    (*ledger)->Refund(70 * kGiB);
    (*ledger)->AddHeld(kGiB);
    (*ledger)->Release(kGiB);
  }
  ledger->reset();
  capacity->reset();
  return kDone;
}

TEST(Crash, AtEveryStepLeavesEverythingUsable) {
  testing::SharingDir dir;
  int steps = 0;
  for (;; ++steps) {
    SCOPED_TRACE(steps);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);  // a hang is a failure
      steps_left.store(steps);
      step_hook.store(&EndWhenStepsAreUsedUp);
      _exit(EverythingOnce());
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    // The next one has the whole device.
    const pid_t next = fork();
    if (next == 0) {
      alarm(20);
      _exit(EverythingOnce());
    }
    int next_status = 0;
    ASSERT_EQ(waitpid(next, &next_status, 0), next);
    ASSERT_TRUE(WIFEXITED(next_status));
    ASSERT_EQ(WEXITSTATUS(next_status), kDone);
    if (WEXITSTATUS(status) == kDone) break;
    ASSERT_EQ(WEXITSTATUS(status), 1);
  }
  EXPECT_GT(steps, 30);
  std::cout << steps << " steps\n";
}

}  // namespace
}  // namespace hbm::sharing
