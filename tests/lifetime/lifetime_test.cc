// SPDX-License-Identifier: Apache-2.0
//
// How processes and threads end and multiply while there are allocators: static
// destructors in any order, exit from a thread, fork, signals.
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A bit of everything.
bool Use(Allocator& allocator) {
  ScopedTag scope(RegisterTag("lifetime"));
  const absl::StatusOr<void*> block = allocator.Allocate(kMiB);
  if (!block.ok()) return false;
  std::memset(*block, 1, kMiB);
  const bool described = allocator.Describe(static_cast<char*>(*block) + 5).ok();
  // The report of a failure names tags, devices and policies.
  const bool failed = !allocator.Allocate(std::size_t{1} << 40).ok();
  return described && failed && allocator.Deallocate(*block).ok() && allocator.Trim().ok();
}

std::unique_ptr<Allocator> Make(const std::string& policy) {
  return *MakeAllocator(*ParsePolicy(policy), *OpenDevice("host:64MiB"));
}

// Lives as a static object and uses its allocator in its destructor.
struct Holder {
  std::unique_ptr<Allocator> allocator;
  void* live = nullptr;
  ~Holder() {
    if (allocator == nullptr) return;
    if (!Use(*allocator)) _exit(2);
    allocator->Deallocate(live).IgnoreError();
    allocator.reset();
    // The library still works.
    if (!Use(*Make("bfc"))) _exit(3);
  }
};

class LifetimeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    previous_sink_ = SetLogSink(nullptr);
  }
  void TearDown() override { SetLogSink(std::move(previous_sink_)); }

  // Runs in a child; its answer is whether the child ended as it should.
  template <typename Body>
  static bool InChild(Body body) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a child that hangs is a failure, not a wait
      body();
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  LogSink previous_sink_;
};

class LifetimeDeathTest : public LifetimeTest {};

TEST_P(LifetimeDeathTest, AStaticThatWasMadeBeforeTheLibraryWasUsed) {
  EXPECT_EXIT(
      {
        SetLogSink(nullptr);
        static Holder holder;  // its destructor runs after those of the library's statics
        holder.allocator = Make(GetParam());
        holder.live = *holder.allocator->Allocate(100);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(LifetimeDeathTest, AStaticThatWasMadeAfterwards) {
  EXPECT_EXIT(
      {
        SetLogSink(nullptr);
        Use(*Make(GetParam()));
        static Holder holder;
        holder.allocator = Make(GetParam());
        holder.live = *holder.allocator->Allocate(100);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(LifetimeDeathTest, ExitFromAThreadWhileOthersWork) {
  EXPECT_EXIT(
      {
        SetLogSink(nullptr);
        // Threads go on while the process ends, so nobody may take the allocator away.
        Allocator* const allocator = Make(GetParam()).release();
        for (int t = 0; t < 3; ++t) {
          std::thread([allocator] {
            for (;;) allocator->Deallocate(allocator->TryAllocate(1000)).IgnoreError();
          }).detach();
        }
        std::thread([allocator] {
          Use(*allocator);
          std::exit(0);
        }).join();
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(LifetimeDeathTest, AThreadsLastFreesMayComeInItsDestructors) {
  EXPECT_EXIT(
      {
        SetLogSink(nullptr);
        static const std::unique_ptr<Allocator> allocator = Make(GetParam());
        std::thread([] {
          thread_local struct Last {
            void* block = allocator->TryAllocate(1000);
            ~Last() {
              if (!allocator->Deallocate(block).ok() || !Use(*allocator)) _exit(4);
            }
          } last;
          if (last.block == nullptr) _exit(5);
        }).join();
        std::exit(allocator->GetStats().bytes_in_use == 0 ? 0 : 6);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(LifetimeTest, AChildMayUseTheLibraryForTheFirstTime) {
  EXPECT_TRUE(InChild([] { _exit(Use(*Make(GetParam())) ? 0 : 1); }));
}

TEST_P(LifetimeTest, AChildHasItsOwnCopyAndLeavesTheParentsAlone) {
  auto allocator = Make(GetParam());
  auto* const block = static_cast<unsigned char*>(*allocator->Allocate(kMiB));
  std::memset(block, 0x11, kMiB);
  EXPECT_TRUE(InChild([&] {
    for (std::size_t i = 0; i < kMiB; ++i) {
      if (block[i] != 0x11) _exit(1);
    }
    std::memset(block, 0x22, kMiB);
    if (!Use(*allocator)) _exit(2);
    if (!allocator->Deallocate(block).ok()) _exit(3);
    allocator.reset();
    _exit(0);
  }));
  for (std::size_t i = 0; i < kMiB; ++i) ASSERT_EQ(block[i], 0x11);
  EXPECT_TRUE(allocator->Deallocate(block).ok());
  EXPECT_TRUE(Use(*allocator));
}

TEST_P(LifetimeTest, AChildOfABusyParentEndsCleanly) {
  const auto allocator = Make(GetParam());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        allocator->Deallocate(allocator->TryAllocate(5000)).IgnoreError();
        allocator->GetStats();
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    // A lock may be held for ever in the child, so it leaves the allocator alone; a
    // new one is its own.
    EXPECT_TRUE(InChild([] { _exit(0); }));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator->GetStats().bytes_in_use, 0);
  EXPECT_TRUE(Use(*allocator));
}

TEST_P(LifetimeTest, SignalsInterruptNothing) {
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = [](int) {};  // no SA_RESTART: system calls see EINTR
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const itimerval every = {{0, 200}, {0, 200}};
  const itimerval never = {{0, 0}, {0, 0}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &every, nullptr), 0);
  const auto allocator = Make(GetParam());
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Use(*allocator));
  // Waiting keeps its time: for what could be had, were the first block freed.
  const auto most = static_cast<std::size_t>(allocator->GetStats().bytes_limit) / 8 * 5;
  void* const first = allocator->TryAllocate(most);
  ASSERT_NE(first, nullptr);
  AllocateOptions options;
  options.max_wait = absl::Milliseconds(50);
  const absl::Time start = absl::Now();
  EXPECT_FALSE(allocator->Allocate(most, options).ok());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(50));
  EXPECT_TRUE(allocator->Deallocate(first).ok());
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

const auto kPolicies =
    ::testing::Values("bfc", "on_demand", "platform", "elastic", "bfc:thread_cache=true");
std::string NameOf(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == ':' || c == '=' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, LifetimeTest, kPolicies, NameOf);
INSTANTIATE_TEST_SUITE_P(All, LifetimeDeathTest, kPolicies, NameOf);

}  // namespace
}  // namespace hbm
