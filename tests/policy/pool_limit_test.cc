// SPDX-License-Identifier: Apache-2.0
#include "policy/pool_limit.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hbm::policy {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kGranule = 2 * kMiB;

PoolLimit Limit(const std::string& spec, MemoryInfo memory = {80 * kGiB, 60 * kGiB},
                std::size_t granule = kGranule) {
  const absl::StatusOr<Policy> policy = ParsePolicy(spec);
  EXPECT_TRUE(policy.ok()) << policy.status();
  const absl::StatusOr<PoolLimit> limit = ComputePoolLimit(*policy, memory, granule);
  EXPECT_TRUE(limit.ok()) << spec << ": " << limit.status();
  return limit.value_or(PoolLimit());
}

std::string ErrorOf(const std::string& spec, MemoryInfo memory) {
  const absl::Status status = ComputePoolLimit(*ParsePolicy(spec), memory, kGranule).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << spec;
  return std::string(status.message());
}

TEST(PoolLimit, FractionIsOfTotalMemory) {
  EXPECT_EQ(Limit("").bytes, 60 * kGiB);
  EXPECT_EQ(Limit("").start_bytes, 60 * kGiB);
  EXPECT_EQ(Limit("").source, LimitSource::kMemoryFraction);
  EXPECT_EQ(Limit("memory_fraction=1").bytes, 80 * kGiB);
  // What others hold changes nothing: processes started in turn get equal shares.
  EXPECT_EQ(Limit("memory_fraction=0.25", {80 * kGiB, 60 * kGiB}).bytes,
            Limit("memory_fraction=0.25", {80 * kGiB, 1 * kGiB}).bytes);
}

TEST(PoolLimit, FractionOfFree) {
  EXPECT_EQ(Limit("memory_fraction=0.5,fraction_of=free").bytes, 30 * kGiB);
}

TEST(PoolLimit, SmallestRuleWins) {
  EXPECT_EQ(Limit("memory_limit=8GiB").bytes, 8 * kGiB);
  EXPECT_EQ(Limit("memory_limit=8GiB").source, LimitSource::kMemoryLimit);
  EXPECT_EQ(Limit("memory_limit=70GiB").bytes, 60 * kGiB);
  EXPECT_EQ(Limit("memory_limit=70GiB").source, LimitSource::kMemoryFraction);
  EXPECT_EQ(Limit("reserve=30GiB").bytes, 50 * kGiB);
  EXPECT_EQ(Limit("reserve=30GiB").source, LimitSource::kReserve);
  EXPECT_EQ(Limit("reserve=1GiB").source, LimitSource::kMemoryFraction);
  EXPECT_EQ(Limit("reserve=30GiB,memory_limit=40GiB").source, LimitSource::kMemoryLimit);
  EXPECT_EQ(Limit("reserve=50GiB,memory_limit=40GiB").bytes, 30 * kGiB);
  EXPECT_EQ(Limit("reserve=50GiB,memory_limit=40GiB").source, LimitSource::kReserve);
}

TEST(PoolLimit, GrowingFractionStartsBelowItsLimit) {
  const PoolLimit grows = Limit("memory_fraction=0.5+");
  EXPECT_EQ(grows.bytes, 80 * kGiB);
  EXPECT_EQ(grows.start_bytes, 40 * kGiB);
  const PoolLimit range = Limit("memory_fraction=0.25-0.5,memory_limit=16GiB");
  EXPECT_EQ(range.bytes, 16 * kGiB);
  EXPECT_EQ(range.start_bytes, 16 * kGiB);
  // A start below one granule is one granule.
  EXPECT_EQ(Limit("memory_fraction=1e-9+").start_bytes, kGranule);
}

TEST(PoolLimit, FloorsToTheGranule) {
  EXPECT_EQ(Limit("memory_limit=5MiB").bytes, 4 * kMiB);
  EXPECT_EQ(Limit("memory_limit=2097153").bytes, 2 * kMiB);
  EXPECT_EQ(Limit("memory_fraction=0.3", {kGiB, kGiB}).bytes, 306 * kMiB);  // of 307.2 MiB
  EXPECT_EQ(Limit("memory_limit=1000", {kGiB, kGiB}, 256).bytes, 768U);
  EXPECT_EQ(Limit("memory_limit=1000", {kGiB, kGiB}, 0).bytes, 1000U);
  EXPECT_EQ(Limit("reserve=1", {kGiB, kGiB}).bytes, 768 * kMiB);
  EXPECT_EQ(Limit("memory_fraction=1,reserve=1", {kGiB, kGiB}).bytes, kGiB - 2 * kMiB);
}

TEST(PoolLimit, UnifiedMemoryMayExceedTheTotal) {
  EXPECT_EQ(Limit("memory_kind=unified,memory_fraction=4").bytes, 320 * kGiB);
  EXPECT_EQ(Limit("memory_kind=unified,memory_fraction=4").start_bytes, 320 * kGiB);
  // A reserve is still left of the device's own memory.
  EXPECT_EQ(Limit("memory_kind=unified,memory_fraction=4,reserve=1GiB").bytes, 79 * kGiB);
}

TEST(PoolLimit, NothingOverflows) {
  const PoolLimit all = Limit("memory_fraction=1", {kMax, kMax}, 256);
  EXPECT_EQ(all.bytes, kMax - 255);
  EXPECT_EQ(Limit("memory_kind=unified,memory_fraction=16", {kMax, kMax}, 256).bytes, kMax - 255);
  EXPECT_EQ(Limit("memory_kind=unified,memory_fraction=16", {kMax, kMax}, 256).start_bytes,
            kMax - 255);
  EXPECT_EQ(Limit("memory_limit=18446744073709551615").bytes, 60 * kGiB);
}

TEST(PoolLimit, NothingLeftNamesTheFieldThatTookIt) {
  const MemoryInfo memory = {kGiB, kGiB};
  EXPECT_THAT(ErrorOf("reserve=1GiB", memory), HasSubstr("reserve: 1GiB"));
  EXPECT_THAT(ErrorOf("reserve=18446744073709551615", memory), HasSubstr("reserve: "));
  EXPECT_THAT(ErrorOf("memory_limit=1MiB", memory), HasSubstr("memory_limit: 1MiB"));
  EXPECT_THAT(ErrorOf("memory_fraction=1e-6", memory),
              HasSubstr("memory_fraction: 1e-06 of the 1 GiB"));
  EXPECT_THAT(ErrorOf("fraction_of=free", {kGiB, 0}), HasSubstr("that are free"));
  EXPECT_THAT(ErrorOf("", {0, 0}), HasSubstr("memory_fraction"));
}

}  // namespace
}  // namespace hbm::policy
