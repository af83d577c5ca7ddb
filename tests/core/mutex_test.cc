// SPDX-License-Identifier: Apache-2.0
//
// The spin lock leans to its first thread until another one comes: whatever the
// moment of that, no two are ever in at once.
#include "core/mutex.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hbm::core {
namespace {

// Not atomic: two threads in at once lose a count, or leave the two apart.
struct Books {
  std::uint64_t left = 0;
  std::uint64_t right = 0;
};

// Threads that come one after another, each while those before it are busy.
std::uint64_t CountTogether(int threads, int each, SpinLock::Use use, std::uint64_t* torn) {
  SpinLock lock(use);
  Books books;
  std::atomic<int> in{0};
  const auto work = [&](int number) {
    while (in.load() < number) {
    }
    for (int i = 0; i < each; ++i) {
      const MutexLock hold(lock);
      if (books.left != books.right) ++*torn;
      ++books.left;
      ++books.right;
      if (i == each / 4) in.store(number + 1);
    }
  };
  std::vector<std::thread> all;
  for (int number = 0; number < threads; ++number) all.emplace_back(work, number);
  for (std::thread& thread : all) thread.join();
  return books.left;
}

TEST(SpinLockTest, TheFirstThreadAloneKeepsCounting) {
  std::uint64_t torn = 0;
  EXPECT_EQ(CountTogether(1, 100'000, SpinLock::Use::kMostlyOneThread, &torn), 100'000U);
  EXPECT_EQ(torn, 0U);
}

TEST(SpinLockTest, ASecondThreadComesAtAnyMoment) {
  std::uint64_t torn = 0;
  for (int round = 0; round < 1000; ++round) {
    const int each = 100 + round % 97;
    ASSERT_EQ(CountTogether(2, each, SpinLock::Use::kMostlyOneThread, &torn),
              static_cast<std::uint64_t>(2 * each))
        << "round " << round;
  }
  EXPECT_EQ(torn, 0U);
}

TEST(SpinLockTest, ManyThreads) {
  for (const SpinLock::Use use : {SpinLock::Use::kMostlyOneThread, SpinLock::Use::kManyThreads}) {
    std::uint64_t torn = 0;
    EXPECT_EQ(CountTogether(8, 20'000, use, &torn), 160'000U);
    EXPECT_EQ(torn, 0U);
  }
}

}  // namespace
}  // namespace hbm::core
