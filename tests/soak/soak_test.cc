// SPDX-License-Identifier: Apache-2.0
//
// Mixed load at a tight limit while the source fails now and then: at the end the books
// are exact, nothing is leaked, and the process is as large as it was.
//
//   HBMALLOC_SOAK_SECONDS=3600 build/release/tests/soak_soak_test      # an hour, all in all
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/faulty_source.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

double SecondsEach(std::size_t tests) {
  const char* const asked = std::getenv("HBMALLOC_SOAK_SECONDS");
  return (asked != nullptr ? std::atof(asked) : 4.0) / static_cast<double>(tests);
}

// Private memory of this process, in bytes.
std::size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

const std::vector<std::string> kPolicies = {"bfc", "on_demand:garbage_collection=true", "platform",
                                            "elastic:slack=0"};

class SoakTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SoakTest, FlatMemoryAndExactBooks) {
  const LogSink sink = SetLogSink(nullptr);
  const auto device = *OpenDevice("host:64MiB");
  const auto source =
      std::make_shared<testing::FaultySource>(*device->MakeSource(*ParsePolicy(GetParam())));
  std::atomic<std::int64_t> faults{0};
  std::atomic<bool> failing{true};
  std::atomic<std::uint64_t> calls{0};
  source->FailWhen([&](const testing::CallRecord&) -> absl::Status {
    // Every 31st call of any kind, of both sorts of error.
    const std::uint64_t call = ++calls;
    if (!failing || call % 31 != 0) return absl::OkStatus();
    ++faults;
    return call % 2 == 0 ? absl::ResourceExhaustedError("injected")
                         : absl::InternalError("injected");
  });
  failing = false;
  auto allocator = *MakeAllocator(*ParsePolicy(GetParam()), source);
  failing = true;
  std::atomic<std::int64_t> allocated{0};
  std::atomic<std::int64_t> freed{0};
  const auto work = [&](std::uint64_t seed, absl::Time end) {
    std::mt19937_64 random(seed);
    std::vector<void*> live;
    const auto free_last = [&] {
      // A free that the source refuses leaves the block live.
      for (int i = 0; i < 20; ++i) {
        if (allocator->Deallocate(live.back()).ok()) {
          ++freed;
          live.pop_back();
          return;
        }
      }
    };
    while (absl::Now() < end) {
      for (int i = 0; i < 50; ++i) {
        const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 4 * kMiB : 64 * 1024);
        if (void* const block = allocator->TryAllocate(bytes)) {
          ++allocated;
          live.push_back(block);
        }
        while (live.size() > 8 || (!live.empty() && random() % 3 == 0)) {
          std::swap(live[random() % live.size()], live.back());
          free_last();
        }
      }
      if (random() % 32 == 0) allocator->Trim().status().IgnoreError();
    }
    while (!live.empty()) free_last();
  };
  const auto run = [&](double seconds) {
    const absl::Time end = absl::Now() + absl::Seconds(seconds);
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) threads.emplace_back(work, t, end);
    for (std::thread& thread : threads) thread.join();
    failing = false;
    EXPECT_TRUE(allocator->Trim().ok());
    failing = true;
  };
  const double seconds = SecondsEach(kPolicies.size());
  run(seconds / 4);  // until tables have their size
  const std::size_t before = ResidentBytes();
  run(seconds * 3 / 4);
  const std::size_t after = ResidentBytes();
  EXPECT_LT(after, before + 16 * kMiB);
  const Stats stats = allocator->GetStats();
  EXPECT_EQ(stats.bytes_in_use, 0);
  EXPECT_EQ(stats.requested_bytes, 0);
  EXPECT_EQ(stats.num_allocs, allocated);
  EXPECT_EQ(stats.num_frees, freed);
  EXPECT_EQ(stats.pool_bytes, 0);
  failing = false;
  allocator.reset();
  EXPECT_EQ(source->GetOutstanding(), testing::Outstanding{});
  // A pool that is taken once hardly calls its source.
  EXPECT_TRUE(faults > 0 || calls < 100);
  std::cout << GetParam() << ": " << allocated << " allocations, " << faults << " faults injected, "
            << seconds << " s\n";
  SetLogSink(sink);
}

INSTANTIATE_TEST_SUITE_P(All, SoakTest, ::testing::ValuesIn(kPolicies), [](const auto& test) {
  return test.param.substr(0, test.param.find(':'));
});

}  // namespace
}  // namespace hbm
