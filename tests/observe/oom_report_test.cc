// SPDX-License-Identifier: Apache-2.0
#include "observe/oom_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "tests/support/paths.h"

namespace hbm::observe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

void* At(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// A pool of 8 GiB: 3 live blocks of 2 GiB around two free gaps of 1 GiB.
OomReportInput Checkerboard(OomCause cause) {
  OomReportInput input;
  input.bytes = std::size_t{3} << 29;
  input.cause = cause;
  input.policy.strategy = Strategy::kBfc;
  input.policy.preallocate = true;
  input.stats.bytes_limit = 8 * kGiB;
  input.stats.pool_bytes = 8 * kGiB;
  input.stats.bytes_in_use = 6 * kGiB;
  input.stats.requested_bytes = 6 * kGiB - 3 * 100;
  input.stats.largest_free_block_bytes = 1 * kGiB;
  Snapshot::Region region;
  region.range = {At(1 << 21), std::size_t{8} << 30};
  std::uintptr_t address = 1 << 21;
  for (const bool live : {true, false, true, false, true}) {
    Snapshot::Chunk chunk;
    chunk.address = At(address);
    chunk.bytes = live ? std::size_t{2} << 30 : std::size_t{1} << 30;
    chunk.state = live ? ChunkState::kLive : ChunkState::kFree;
    chunk.requested_bytes = live ? chunk.bytes - 100 : 0;
    address += chunk.bytes;
    region.chunks.push_back(chunk);
  }
  input.snapshot.regions.push_back(region);
  return input;
}

TEST(OomReportTest, FragmentationIsToldInFull) {
  EXPECT_EQ(BuildOomReport(Checkerboard(OomCause::kFragmentation)),
            "out of memory: 1.5 GiB (1610612736 bytes) could not be allocated; cause: "
            "fragmentation: 2 GiB of the pool are free, but the largest piece is 1 GiB\n"
            "asked: alignment 256, stream default\n"
            "pool: strategy bfc, holds 8 GiB of at most 8 GiB; in use 6 GiB (asked for: "
            "6 GiB), free 2 GiB, largest free piece 1 GiB, held back 0 B\n"
            "live, the sizes that hold the most:\n"
            "       6 GiB  3 x 2 GiB\n"
            "map, 128 MiB a character (# in use, + mostly, - partly, ~ held back, . free):\n"
            "  [################........################........################]\n"
            "what to change:\n"
            "  - use strategy=elastic: free pages move to where they are needed\n"
            "  - set max_wait if other threads are about to free memory");
}

// One report for each cause and each thing that can set the limit, as users see them.
std::string ReportsOfAllCauses() {
  std::string all;
  const auto add = [&all](const char* title, const OomReportInput& input) {
    all += std::string("== ") + title + "\n" + BuildOomReport(input) + "\n";
  };
  OomReportInput input = Checkerboard(OomCause::kFragmentation);
  add("fragmentation, on_demand", [&] {
    OomReportInput changed = input;
    changed.policy.strategy = Strategy::kOnDemand;
    changed.attempts = {{"waiting for a free, 51 looks", absl::Seconds(1)}};
    changed.policy.max_wait = absl::Seconds(1);
    return changed;
  }());
  const std::pair<LimitSource, const char*> sources[] = {
      {LimitSource::kMemoryFraction, "limit, memory_fraction"},
      {LimitSource::kMemoryLimit, "limit, memory_limit"},
      {LimitSource::kReserve, "limit, reserve"},
      {LimitSource::kSetMemoryLimit, "limit, SetMemoryLimit"},
      {LimitSource::kShortage, "limit, shortage"}};
  for (const auto& [source, title] : sources) {
    input = Checkerboard(OomCause::kLimit);
    input.bytes = std::size_t{5} << 30;
    input.stats.limit_source = source;
    input.policy.memory_limit = std::size_t{8} << 30;
    input.policy.reserve = std::size_t{2} << 30;
    add(title, input);
  }
  input = Checkerboard(OomCause::kPending);
  input.stats.pending_bytes = 1 * kGiB;
  input.stream = StreamRef::FromHandle(At(0x7f01));
  input.tag = RegisterTag("activations");
  input.snapshot.regions[0].chunks[1].state = ChunkState::kPending;
  input.snapshot.regions[0].chunks[0].tag = RegisterTag("weights");
  input.attempts = {{"the low-memory callback, 2 times", absl::Microseconds(40)}};
  add("pending", input);
  input = Checkerboard(OomCause::kOtherProcess);
  input.policy.strategy = Strategy::kElastic;
  input.device = MemoryInfo{std::size_t{80} << 30, std::size_t{1} << 30};
  add("other process", input);
  input.cause = OomCause::kDevice;
  input.device = MemoryInfo{std::size_t{8} << 30, 0};
  add("device", input);
  input.snapshot.regions.clear();
  input.stats = Stats();
  input.device.reset();
  add("device, nothing known", input);
  return all;
}

TEST(OomReportTest, EveryCauseIsToldInFull) {
  const std::string path = testing::SourcePath("tests/observe/data/oom_reports.txt");
  const std::string reports = ReportsOfAllCauses();
  if (std::getenv("HBMALLOC_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << reports;
  std::stringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(reports, golden.str()) << "HBMALLOC_UPDATE_GOLDEN=1 writes the file anew";
}

TEST(OomReportTest, TheLimitNamesItsField) {
  OomReportInput input = Checkerboard(OomCause::kLimit);
  EXPECT_THAT(BuildOomReport(input),
              HasSubstr("(set by memory_fraction=0.75 of the device's total memory)"));
  EXPECT_THAT(BuildOomReport(input), HasSubstr("  - raise memory_fraction"));
  input.stats.limit_source = LimitSource::kMemoryLimit;
  input.policy.memory_limit = std::size_t{8} << 30;
  EXPECT_THAT(BuildOomReport(input), HasSubstr("(set by memory_limit=8GiB)"));
  EXPECT_THAT(BuildOomReport(input), HasSubstr("  - raise memory_limit"));
  input.stats.limit_source = LimitSource::kReserve;
  input.policy.reserve = std::size_t{1} << 30;
  EXPECT_THAT(BuildOomReport(input), HasSubstr("(set by reserve=1GiB, which is left to others)"));
}

TEST(OomReportTest, AdviceIsOnlyWhatIsNotSoAlready) {
  OomReportInput input = Checkerboard(OomCause::kFragmentation);
  input.policy.strategy = Strategy::kElastic;
  input.policy.max_wait = absl::Seconds(1);
  EXPECT_THAT(BuildOomReport(input), Not(HasSubstr("what to change")));
  input.policy.strategy = Strategy::kOnDemand;
  input.policy.garbage_collection = true;
  EXPECT_THAT(BuildOomReport(input), Not(HasSubstr("garbage_collection")));
  input = Checkerboard(OomCause::kLimit);
  input.policy.memory_fraction = MemoryFraction{1.0, {}};
  EXPECT_THAT(BuildOomReport(input), Not(HasSubstr("raise memory_fraction")));
}

TEST(OomReportTest, OthersAreToldApartFromThisAllocator) {
  OomReportInput input = Checkerboard(OomCause::kOtherProcess);
  input.device = MemoryInfo{std::size_t{80} << 30, std::size_t{1} << 30};
  EXPECT_THAT(BuildOomReport(input),
              HasSubstr("of 80 GiB, 1 GiB are free, this allocator holds 8 GiB and others "
                        "71 GiB"));
}

TEST(OomReportTest, TagsStreamsAndAttemptsAreNamed) {
  OomReportInput input = Checkerboard(OomCause::kPending);
  input.stats.pending_bytes = 512 * kMiB;
  input.tag = RegisterTag("activations");
  input.stream = StreamRef::FromHandle(At(0xabc));
  input.attempts = {{"search", absl::Microseconds(1)}, {"wait", absl::Milliseconds(20)}};
  input.snapshot.regions[0].chunks[0].tag = RegisterTag("weights\nsecond line");
  const std::string report = BuildOomReport(input);
  EXPECT_THAT(report, StartsWith("out of memory: 1.5 GiB (1610612736 bytes) could not be "
                                 "allocated; cause: 512 MiB are freed but held back"));
  EXPECT_THAT(report, HasSubstr("stream 0xabc, tag activations"));
  EXPECT_THAT(report, HasSubstr("tried: search (1us), wait (20ms)"));
  EXPECT_THAT(report, HasSubstr("  weights (1 block)"));
  EXPECT_THAT(report, Not(HasSubstr("second line")));
}

// Any state, also one that contradicts itself, gives a short report.
TEST(OomReportTest, NoStateBreaksIt) {
  std::mt19937_64 random(7);
  const auto any = [&random](std::int64_t most) {
    const std::int64_t edges[] = {0,
                                  -1,
                                  1,
                                  most,
                                  std::numeric_limits<std::int64_t>::max(),
                                  std::numeric_limits<std::int64_t>::min()};
    return random() % 4 == 0
               ? edges[random() % 6]
               : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  for (int round = 0; round < 2000; ++round) {
    OomReportInput input;
    input.bytes = static_cast<std::size_t>(any(kGiB));
    input.alignment = static_cast<std::size_t>(any(kMiB));
    input.cause = static_cast<OomCause>(random() % 6);
    input.policy.strategy = static_cast<Strategy>(random() % 5);
    input.stats.limit_source = static_cast<LimitSource>(random() % 5);
    input.stats.bytes_limit = any(kGiB);
    input.stats.pool_bytes = any(kGiB);
    input.stats.bytes_in_use = any(kGiB);
    input.stats.largest_free_block_bytes = any(kGiB);
    if (random() % 2 == 0) {
      input.device =
          MemoryInfo{static_cast<std::size_t>(any(kGiB)), static_cast<std::size_t>(any(kGiB))};
    }
    for (std::uint64_t r = random() % 4; r > 0; --r) {
      Snapshot::Region region;
      region.range.bytes = static_cast<std::size_t>(any(kGiB));
      for (std::uint64_t c = random() % 50; c > 0; --c) {
        Snapshot::Chunk chunk;
        chunk.bytes = static_cast<std::size_t>(any(kGiB));
        chunk.requested_bytes = static_cast<std::size_t>(any(kGiB));
        chunk.state = static_cast<ChunkState>(random() % 3);
        chunk.tag.value = static_cast<std::uint32_t>(random() % 9);
        region.chunks.push_back(chunk);
      }
      input.snapshot.regions.push_back(region);
    }
    for (std::uint64_t a = random() % 20; a > 0; --a) {
      input.attempts.push_back({"try", absl::Seconds(1)});
    }
    const std::string report = BuildOomReport(input);
    ASSERT_LE(std::count(report.begin(), report.end(), '\n') + 1, kMaxOomReportLines);
    ASSERT_LE(report.size(), 8000U);
  }
}

}  // namespace
}  // namespace hbm::observe
