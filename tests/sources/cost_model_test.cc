// SPDX-License-Identifier: Apache-2.0
//
// The cost model against the measured tables, written down here a second time in
// microseconds as they were published.
#include "sources/cost_model.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace hbm::sources {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

struct Measured {
  std::size_t bytes;
  std::vector<double> microseconds;
};

const DriverCall kRegionCalls[] = {DriverCall::kMalloc, DriverCall::kFree};
const Measured kRegions[] = {{256, {40, 35}},         {2 * kMiB, {40, 35}},
                             {32 * kMiB, {50, 59}},   {256 * kMiB, {74, 180}},
                             {2 * kGiB, {264, 1136}}, {16 * kGiB, {1476, 8284}}};

const DriverCall kHandleCalls[] = {DriverCall::kAddressReserve, DriverCall::kMemCreate,
                                   DriverCall::kMemMap,         DriverCall::kMemSetAccess,
                                   DriverCall::kMemUnmap,       DriverCall::kMemRelease,
                                   DriverCall::kAddressFree};
const Measured kHandles[] = {{2 * kMiB, {0.7, 13.5, 1.0, 24.9, 17.2, 11.8, 0.6}},
                             {20 * kMiB, {0.9, 14.2, 1.0, 25.0, 17.1, 21.5, 0.8}},
                             {128 * kMiB, {2.4, 16.2, 1.1, 50.8, 25.3, 77.5, 3.4}},
                             {1 * kGiB, {4.2, 32.3, 1.8, 93.5, 38.0, 537, 6.7}},
                             {8 * kGiB, {14, 24455, 13, 397, 130, 4097, 24}}};

template <typename Rows, typename Calls>
void ExpectMeasuredRows(const Rows& rows, const Calls& calls) {
  for (const Measured& row : rows) {
    std::size_t column = 0;
    for (DriverCall call : calls) {
      SCOPED_TRACE(::testing::Message() << row.bytes << " bytes, column " << column);
      EXPECT_EQ(CostNanoseconds(call, row.bytes),
                static_cast<std::int64_t>(row.microseconds[column] * 1000 + 0.5));
      ++column;
    }
  }
}

TEST(CostModel, GivesWhatWasMeasuredAtTheMeasuredSizes) {
  ExpectMeasuredRows(kRegions, kRegionCalls);
  ExpectMeasuredRows(kHandles, kHandleCalls);
}

TEST(CostModel, IsLinearBetweenRows) {
  // Half way from 2 MiB (40) to 32 MiB (50).
  EXPECT_EQ(CostNanoseconds(DriverCall::kMalloc, 17 * kMiB), 45'000);
  // A quarter of the way from 128 MiB (77.5) to 1 GiB (537).
  EXPECT_EQ(CostNanoseconds(DriverCall::kMemRelease, 128 * kMiB + 224 * kMiB), 192'375);
  // Right behind a row the next slope holds: 24 us over 224 MiB.
  EXPECT_EQ(CostNanoseconds(DriverCall::kMalloc, 32 * kMiB + kMiB / 2), 50'054);
  // Also where the measured cost falls with size.
  EXPECT_EQ(CostNanoseconds(DriverCall::kMemUnmap, 11 * kMiB), 17'150);
}

TEST(CostModel, KeepsTheLastSlopeBeyondTheLastRow) {
  // From 2 GiB to 16 GiB cudaFree rises by 7148 us; 14 GiB more, by as much again.
  EXPECT_EQ(CostNanoseconds(DriverCall::kFree, 30 * kGiB), (8284 + 7148) * 1000);
  EXPECT_EQ(CostNanoseconds(DriverCall::kMemMap, 15 * kGiB), 13'000 + 11'200);
}

TEST(CostModel, IsFlatBelowTheFirstRow) {
  EXPECT_EQ(CostNanoseconds(DriverCall::kMalloc, 1), 40'000);
  EXPECT_EQ(CostNanoseconds(DriverCall::kMemCreate, 0), 13'500);
}

TEST(CostModel, NeverFallsBelowZeroForHugeSizes) {
  for (int call = 0; call <= static_cast<int>(DriverCall::kAddressFree); ++call) {
    EXPECT_GT(CostNanoseconds(static_cast<DriverCall>(call), std::size_t{1} << 60), 0);
  }
}

}  // namespace
}  // namespace hbm::sources
