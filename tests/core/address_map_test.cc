// SPDX-License-Identifier: Apache-2.0
#include "core/address_map.h"

#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

#include "gtest/gtest.h"

namespace hbm::core {
namespace {

TEST(AddressMapTest, EmptyFindsNothing) {
  AddressMap map;
  EXPECT_EQ(map.Find(4096, [](ChunkId) { return true; }), kNoChunk);
  EXPECT_EQ(map.Take(4096, [](ChunkId) { return true; }), kNoChunk);
}

TEST(AddressMapTest, AgreesWithAnOrdinaryMap) {
  AddressMap map;
  std::unordered_map<std::uint64_t, ChunkId> model;
  std::unordered_map<ChunkId, std::uint64_t> address_of;
  std::vector<std::uint64_t> addresses;
  std::mt19937_64 random(3);
  ChunkId next_id = 1;
  const auto is = [&](std::uint64_t address) {
    return [&address_of, address](ChunkId id) { return address_of.at(id) == address; };
  };
  for (int step = 0; step < 300'000; ++step) {
    const bool grow = step / 50'000 % 2 == 0 ? random() % 4 != 0 : random() % 4 == 0;
    if (grow || addresses.empty()) {
      // Dense runs, as a pool gives out, and far ones.
      const std::uint64_t address = (random() % 2 == 0 ? random() % 100'000 : random() >> 9) * 256;
      if (!model.emplace(address, next_id).second) continue;
      address_of[next_id] = address;
      ASSERT_TRUE(map.Reserve(1));
      map.Insert(address, next_id++);
      addresses.push_back(address);
    } else {
      std::swap(addresses[random() % addresses.size()], addresses.back());
      const std::uint64_t address = addresses.back();
      addresses.pop_back();
      ASSERT_EQ(map.Take(address, is(address)), model.at(address));
      model.erase(address);
    }
    ASSERT_EQ(map.size(), model.size());
    const std::uint64_t probe = random() % 100'000 * 256;
    const auto expected = model.find(probe);
    ASSERT_EQ(map.Find(probe, is(probe)), expected == model.end() ? kNoChunk : expected->second);
  }
  for (const auto& [address, id] : model) ASSERT_EQ(map.Find(address, is(address)), id);
}

TEST(AddressMapTest, TakesAtMostTwentyTwoBytesABlock) {
  AddressMap map;
  for (ChunkId id = 1; id <= 2'000'000; ++id) {
    ASSERT_TRUE(map.Reserve(1));
    map.Insert(std::uint64_t{id} * 256, id);
    ASSERT_LE(map.TouchedBytes(), id * std::size_t{22} + 32'768) << id;
  }
}

}  // namespace
}  // namespace hbm::core
