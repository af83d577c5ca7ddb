// SPDX-License-Identifier: Apache-2.0
//
// Packing of small blocks into granules, with granules that touch.
#include "sources/block_packer.h"

#include <vector>

#include "gtest/gtest.h"

namespace hbm::sources {
namespace {

constexpr std::size_t kGranule = 4096;

TEST(BlockPacker, HasNoRoomWithoutAGranule) {
  BlockPacker packer(kGranule);
  EXPECT_EQ(packer.Place(512, 512), 0u);
}

TEST(BlockPacker, TakesTheSmallestRunThatHolds) {
  BlockPacker packer(kGranule);
  packer.AddGranule(kGranule);
  const std::uintptr_t first = packer.Place(1024, 512);
  const std::uintptr_t second = packer.Place(512, 512);
  const std::uintptr_t third = packer.Place(1024, 512);
  EXPECT_EQ(first, kGranule);
  EXPECT_EQ(second, kGranule + 1024);
  EXPECT_EQ(third, kGranule + 1536);
  EXPECT_EQ(packer.Remove(first, 1024), 0u);
  // 1024 bytes are free in front, 1536 behind.
  EXPECT_EQ(packer.Place(512, 512), kGranule);
  EXPECT_EQ(packer.Place(1536, 512), kGranule + 2560);
  EXPECT_EQ(packer.Place(1024, 512), 0u);
  // An aligned block does not fit into the 512 bytes that are left at + 512.
  EXPECT_EQ(packer.Place(512, 1024), 0u);
  EXPECT_EQ(packer.Place(512, 512), kGranule + 512);
}

TEST(BlockPacker, GranulesGoBackAloneThoughTheyTouch) {
  BlockPacker packer(kGranule);
  packer.AddGranule(1 * kGranule);
  packer.AddGranule(2 * kGranule);
  packer.AddGranule(3 * kGranule);
  std::vector<std::uintptr_t> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(packer.Place(kGranule / 2, 512));
  EXPECT_EQ(packer.Place(512, 512), 0u);
  // Free the halves around each border: no run may cross it.
  EXPECT_EQ(packer.Remove(blocks[1], kGranule / 2), 0u);
  EXPECT_EQ(packer.Remove(blocks[2], kGranule / 2), 0u);
  EXPECT_EQ(packer.Remove(blocks[4], kGranule / 2), 0u);
  EXPECT_EQ(packer.Remove(blocks[3], kGranule / 2), 2 * kGranule);
  // What the neighbours have free is still there.
  EXPECT_EQ(packer.Place(kGranule, 512), 0u);
  EXPECT_EQ(packer.Place(kGranule / 2, 512), blocks[1]);
  EXPECT_EQ(packer.Place(kGranule / 2, 512), blocks[4]);
  EXPECT_EQ(packer.Remove(blocks[1], kGranule / 2), 0u);
  EXPECT_EQ(packer.Remove(blocks[4], kGranule / 2), 0u);
  EXPECT_EQ(packer.Remove(blocks[5], kGranule / 2), 3 * kGranule);
  EXPECT_EQ(packer.Remove(blocks[0], kGranule / 2), 1 * kGranule);
  EXPECT_EQ(packer.Place(512, 512), 0u);
}

}  // namespace
}  // namespace hbm::sources
