// SPDX-License-Identifier: Apache-2.0
//
// A child of fork: it holds nothing of its parent's, uses nothing, and hurts nothing.
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/sharing.h"
#include "tests/support/sharing_dir.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::unique_ptr<Allocator> Make(const std::string& policy) {
  const auto device = OpenDevice("sim:8GiB,shared=fork");
  EXPECT_TRUE(device.ok()) << device.status();
  absl::StatusOr<std::unique_ptr<Allocator>> made = MakeAllocator(*ParsePolicy(policy), *device);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// Runs `work` in a child; the bits of what it says.
template <typename Work>
int InChild(const Work& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class ForkTest : public ::testing::TestWithParam<const char*> {
 protected:
  testing::SharingDir dir_;
};

TEST_P(ForkTest, EveryCallInTheChildIsAClearError) {
  std::unique_ptr<Allocator> allocator = Make(GetParam());
  void* const block = *allocator->Allocate(kMiB);
  ASSERT_TRUE(allocator->Deallocate(*allocator->Allocate(kMiB)).ok());
  const int wrong = InChild([&] {
    int bits = 0;
    const auto is_refused = [](const absl::Status& status) {
      return absl::IsFailedPrecondition(status) &&
             status.message().find("child of a fork") != absl::string_view::npos;
    };
    // Memory that the parent has at hand, and memory that it has not.
    if (!is_refused(allocator->Allocate(kMiB).status())) bits |= 1;
    if (!is_refused(allocator->Allocate(512 * kMiB).status())) bits |= 2;
    if (!is_refused(allocator->Deallocate(block))) bits |= 4;
    AllocError why;
    if (allocator->TryAllocate(kMiB, {}, &why) != nullptr ||
        why.code != absl::StatusCode::kFailedPrecondition) {
      bits |= 8;
    }
    // Neither hangs nor touches what is the parent's.
    allocator.reset();
    return bits;
  });
  EXPECT_EQ(wrong, 0);
  const absl::StatusOr<SharingState> state = GetSharingState("sim-fork");
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_EQ(state->processes.size(), 1U);
  EXPECT_EQ(state->processes[0].pid, getpid());
  EXPECT_GE(state->processes[0].held, kMiB);
  EXPECT_TRUE(allocator->Deallocate(block).ok());
  EXPECT_TRUE(allocator->Allocate(600 * kMiB).ok());
}

TEST_P(ForkTest, TheChildMayHaveAnAllocatorOfItsOwn) {
  const std::unique_ptr<Allocator> allocator = Make(GetParam());
  EXPECT_EQ(InChild([] {
              const std::unique_ptr<Allocator> own = Make("elastic:sharing=fair");
              return own->Allocate(kMiB).ok() ? 0 : 1;
            }),
            0);
}

INSTANTIATE_TEST_SUITE_P(Strategies, ForkTest,
                         ::testing::Values("elastic:sharing=fair", "on_demand:sharing=fair",
                                           "platform:sharing=fair", "bfc:sharing=fair,share=0.5",
                                           "bfc:sharing=first_come,thread_cache=true"),
                         [](const auto& param) { return std::to_string(param.index); });

}  // namespace
}  // namespace hbm
