// SPDX-License-Identifier: Apache-2.0
//
// Every recorded trace gets from bfc and on_demand the very addresses that XLA's
// own allocator gave.
#include "tests/support/golden.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"

namespace hbm {
namespace {

using ::hbm::testing::GoldenCase;

class GoldenTest : public ::testing::TestWithParam<GoldenCase> {
 protected:
  static std::unique_ptr<Allocator> MakeFor(const GoldenCase& golden) {
    const auto device =
        OpenDevice(absl::StrCat("sim:", golden.limit, ",used=", golden.limit - golden.capacity));
    EXPECT_TRUE(device.ok()) << device.status();
    Policy policy;
    policy.strategy = golden.strategy == "bfc" ? Strategy::kBfc : Strategy::kOnDemand;
    policy.memory_fraction = {1.0, {}};
    auto allocator = MakeAllocator(policy, *device);
    EXPECT_TRUE(allocator.ok()) << allocator.status();
    return *std::move(allocator);
  }
};

std::int64_t AddressOf(const void* ptr) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(ptr));
}

// Replays a trace; the blocks' addresses, 0 for those that failed.
std::vector<void*> Replay(const observe::Trace& trace, Allocator& allocator) {
  std::vector<void*> blocks(trace.block_count);
  for (const observe::TraceEvent& event : trace.events) {
    if (event.kind == observe::TraceEvent::Kind::kAllocate) {
      blocks[event.block] = allocator.TryAllocate(event.bytes);
    } else {
      EXPECT_TRUE(allocator.Deallocate(blocks[event.block]).ok());
    }
  }
  return blocks;
}

TEST_P(GoldenTest, PlacesEveryBlockWhereXlaDoes) {
  const GoldenCase& golden = GetParam();
  const observe::Trace trace = testing::LoadTrace(golden.trace);
  const std::vector<std::int64_t> expected = testing::LoadOffsets(golden);
  ASSERT_EQ(expected.size(), trace.block_count);
  const std::unique_ptr<Allocator> allocator = MakeFor(golden);
  const std::vector<void*> blocks = Replay(trace, *allocator);

  // Those recorded from XLA count from the trace's first block.
  const bool from_first_block = trace.name.rfind("xla_", 0) == 0;
  const std::int64_t base =
      AddressOf(from_first_block ? blocks[0] : allocator->TakeSnapshot().regions[0].range.address);
  std::size_t wrong = 0;
  for (std::size_t id = 0; id < expected.size(); ++id) {
    const std::int64_t offset = blocks[id] == nullptr ? -1 : AddressOf(blocks[id]) - base;
    if (offset != expected[id] && ++wrong <= 3) {
      ADD_FAILURE() << "block " << id << " is at " << offset << ", XLA's at " << expected[id];
    }
  }
  EXPECT_EQ(wrong, 0u) << "of " << expected.size();

  if (golden.pool.has_value()) {
    const Stats stats = allocator->GetStats();
    EXPECT_EQ(stats.peak_pool_bytes, golden.pool->peak_pool);
    EXPECT_EQ(stats.peak_bytes_in_use, golden.pool->peak_in_use);
    EXPECT_EQ(stats.num_failures, golden.pool->failures);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, ::testing::ValuesIn(testing::GoldenCases()),
                         [](const auto& test) { return test.param.Name(); });

TEST(GoldenFilesTest, AllAreThere) {
  const std::vector<GoldenCase>& cases = testing::GoldenCases();
  EXPECT_EQ(cases.size(), 28u);
  std::size_t rows = 0;
  for (const GoldenCase& golden : cases) rows += golden.pool.has_value();
  EXPECT_EQ(rows, 26u);
}

}  // namespace
}  // namespace hbm
