// SPDX-License-Identifier: Apache-2.0
#include "core/free_index.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace hbm::core {
namespace {

using Entry = std::tuple<std::uint64_t, std::uint64_t, ChunkId>;  // size, address, id

FreeKey KeyOf(const Entry& entry) {
  return FreeKey::Make(std::get<0>(entry), std::get<1>(entry), std::get<2>(entry));
}

TEST(FreeKeyTest, HoldsWhatItWasMadeFrom) {
  for (std::uint64_t size : {std::uint64_t{256}, std::uint64_t{1} << 30, kMaxChunkBytes}) {
    for (std::uint64_t address :
         {std::uint64_t{0}, std::uint64_t{0x7fff12345600}, ~std::uint64_t{0} - 255}) {
      const FreeKey key = FreeKey::Make(size, address, 0xFFFFFFFF);
      EXPECT_EQ(key.size(), size);
      EXPECT_EQ(key.address(), address);
      EXPECT_EQ(key.id(), 0xFFFFFFFFu);
    }
  }
}

TEST(FreeIndexTest, EmptyHasNothing) {
  FreeIndex index;
  EXPECT_FALSE(index.LowerBound(256));
  EXPECT_FALSE(index.LowerBound(kMaxChunkBytes));
  EXPECT_FALSE(index.Largest());
  EXPECT_TRUE(index.empty());
}

TEST(FreeIndexTest, SmallestSizeThenLowestAddress) {
  FreeIndex index;
  ASSERT_TRUE(index.Reserve(4));
  index.Insert(FreeKey::Make(1024, 4096, 1));
  index.Insert(FreeKey::Make(512, 8192, 2));
  index.Insert(FreeKey::Make(1024, 512, 3));
  index.Insert(FreeKey::Make(kMaxChunkBytes, 1 << 20, 4));
  EXPECT_EQ(index.LowerBound(256).id(), 2u);
  EXPECT_EQ(index.LowerBound(512).id(), 2u);
  EXPECT_EQ(index.LowerBound(768).id(), 3u);
  EXPECT_EQ(index.Next(index.LowerBound(768)).id(), 1u);
  EXPECT_EQ(index.LowerBound(1280).id(), 4u);
  EXPECT_EQ(index.Largest().id(), 4u);
}

// Against std::set, with few sizes (deep trees in one bin) and with many.
class FreeIndexRandomTest : public ::testing::TestWithParam<int> {};

TEST_P(FreeIndexRandomTest, AgreesWithASet) {
  const int distinct_sizes = GetParam();
  std::mt19937_64 random(static_cast<std::uint64_t>(distinct_sizes));
  const auto size = [&] {
    const double step = static_cast<double>(random() % static_cast<std::uint64_t>(distinct_sizes));
    const double exponent = 39.0 * step / distinct_sizes;
    return static_cast<std::uint64_t>(std::exp2(exponent)) * 256;
  };
  FreeIndex index;
  std::set<Entry> model;
  std::vector<Entry> entries;
  ChunkId next_id = 1;
  for (int step = 0; step < 200'000; ++step) {
    // Grows to thousands, shrinks to none, and again.
    const bool grow = step / 20'000 % 2 == 0 ? random() % 4 != 0 : random() % 4 == 0;
    if (grow || entries.empty()) {
      const Entry entry{size(), (random() % (1 << 30)) * 256, next_id++};
      ASSERT_TRUE(index.Reserve(1));
      index.Insert(KeyOf(entry));
      model.insert(entry);
      entries.push_back(entry);
    } else {
      std::swap(entries[random() % entries.size()], entries.back());
      index.Erase(KeyOf(entries.back()));
      model.erase(entries.back());
      entries.pop_back();
    }
    ASSERT_EQ(index.size(), model.size());
    const Entry probe{size(), (random() % (1 << 30)) * 256, 0};
    const auto expected = model.lower_bound(probe);
    const FreeKey found = index.LowerBound(KeyOf(probe));
    ASSERT_EQ(static_cast<bool>(found), expected != model.end());
    if (found) {
      ASSERT_EQ(found, KeyOf(*expected));
    }
    const FreeKey largest = index.Largest();
    ASSERT_EQ(largest, model.empty() ? FreeKey() : KeyOf(*model.rbegin()));
  }
  // In order from end to end.
  FreeKey key = index.LowerBound(256);
  for (const Entry& entry : model) {
    ASSERT_EQ(key, KeyOf(entry));
    key = index.Next(key);
  }
  EXPECT_FALSE(key);
}

INSTANTIATE_TEST_SUITE_P(Sizes, FreeIndexRandomTest, ::testing::Values(1, 3, 50, 100'000));

TEST(FreeIndexTest, NodesAreUsedAgain) {
  FreeIndex index;
  std::size_t after_first_round = 0;
  for (int round = 0; round < 5; ++round) {
    for (ChunkId id = 1; id <= 10'000; ++id) {
      ASSERT_TRUE(index.Reserve(1));
      index.Insert(FreeKey::Make(4096, std::uint64_t{id} * 7919 % 10'007 * 256, id));
    }
    for (ChunkId id = 10'000; id >= 1; --id) {
      index.Erase(FreeKey::Make(4096, std::uint64_t{id} * 7919 % 10'007 * 256, id));
    }
    if (round == 0) after_first_round = index.TouchedBytes();
  }
  EXPECT_TRUE(index.empty());
  EXPECT_EQ(index.TouchedBytes(), after_first_round);
}

}  // namespace
}  // namespace hbm::core
