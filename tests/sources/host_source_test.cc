// SPDX-License-Identifier: Apache-2.0
//
// Host memory is real: bytes stay, and what is not mapped faults.
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hbmalloc/device.h"
#include "hbmalloc/policy.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

class HostSourceTest : public ::testing::Test {
 protected:
  HostSourceTest() : device_(*OpenDevice("host:64MiB")), source_(*device_->MakeSource(Policy{})) {}

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<MemorySource> source_;
};

void Fill(const MemoryRange& range, int value) { std::memset(range.address, value, range.bytes); }

bool IsFilled(const MemoryRange& range, int value) {
  const auto* const bytes = static_cast<const unsigned char*>(range.address);
  for (std::size_t i = 0; i < range.bytes; ++i) {
    if (bytes[i] != value) return false;
  }
  return true;
}

TEST_F(HostSourceTest, RegionsHoldTheirBytes) {
  std::vector<MemoryRange> regions;
  for (int i = 1; i <= 4; ++i) {
    regions.push_back(*source_->AllocateRegion(static_cast<std::size_t>(i) * kMiB));
    const MemoryRange& region = regions.back();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.address) % (2 * kMiB), 0u);
    EXPECT_EQ(region.bytes % (2 * kMiB), 0u);
    Fill(region, i);
  }
  for (int i = 1; i <= 4; ++i) {
    const MemoryRange& region = regions[static_cast<std::size_t>(i) - 1];
    EXPECT_TRUE(IsFilled(region, i));
    EXPECT_TRUE(source_->ReleaseRegion(region).ok());
  }
  EXPECT_EQ(source_->HeldBytes(), 0u);
  EXPECT_TRUE(source_->IsHostAccessible());
}

TEST_F(HostSourceTest, KeepsToItsCapacity) {
  const MemoryRange most = *source_->AllocateRegion(60 * kMiB);
  EXPECT_EQ(source_->AllocateRegion(5 * kMiB).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(source_->AllocateRegion(SIZE_MAX).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(source_->AllocateRegion(0).status().code(), absl::StatusCode::kInvalidArgument);
  const auto other = *device_->MakeSource(Policy{});
  EXPECT_FALSE(other->AllocateRegion(5 * kMiB).ok());
  EXPECT_TRUE(other->AllocateRegion(4 * kMiB).ok());
  EXPECT_EQ(other->ReleaseRegion(most).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(source_->ReleaseRegion(most).ok());
  EXPECT_EQ(source_->ReleaseRegion(most).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device_->GetMemoryInfo()->free, 60 * kMiB);
}

TEST_F(HostSourceTest, BlocksAreAlignedAndSmall) {
  for (std::size_t alignment = 256; alignment <= 2 * kMiB; alignment *= 2) {
    const absl::StatusOr<MemoryRange> block = source_->AllocateBlock(100, alignment);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block->address) % alignment, 0u);
    EXPECT_LE(block->bytes, 64u << 10);
    Fill(*block, 7);
    EXPECT_TRUE(source_->ReleaseBlock(*block).ok());
  }
  EXPECT_EQ(source_->AllocateBlock(100, 4 * kMiB).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(source_->HeldBytes(), 0u);
}

TEST_F(HostSourceTest, MappedMemoryHoldsItsBytesUntilUnmapped) {
  VirtualMemory* const memory = source_->virtual_memory();
  const MemoryRange range = *memory->Reserve(kGiB);
  const VirtualMemory::Handle handle = *memory->Create(4 * kMiB);
  const MemoryRange part{static_cast<char*>(range.address) + 6 * kMiB, 4 * kMiB};
  ASSERT_TRUE(memory->Map(part.address, handle).ok());
  ASSERT_TRUE(memory->SetAccess(part).ok());
  Fill(part, 9);
  EXPECT_TRUE(IsFilled(part, 9));
  // Access may be set again, as when a peer is added, and loses nothing.
  ASSERT_TRUE(memory->SetAccess(part).ok());
  EXPECT_TRUE(IsFilled(part, 9));
  ASSERT_TRUE(memory->Unmap(part).ok());
  ASSERT_TRUE(memory->Map(part.address, handle).ok());
  ASSERT_TRUE(memory->SetAccess(part).ok());
  EXPECT_FALSE(IsFilled(part, 9));
}

using HostSourceDeathTest = HostSourceTest;

TEST_F(HostSourceDeathTest, WhatIsNotMappedFaults) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  VirtualMemory* const memory = source_->virtual_memory();
  const MemoryRange range = *memory->Reserve(16 * kMiB);
  volatile char* const bytes = static_cast<char*>(range.address);
  EXPECT_DEATH(bytes[0] = 1, "");  // reserved
  const VirtualMemory::Handle handle = *memory->Create(2 * kMiB);
  ASSERT_TRUE(memory->Map(range.address, handle).ok());
  EXPECT_DEATH(bytes[0] = 1, "");  // mapped, no access yet
  ASSERT_TRUE(memory->SetAccess({range.address, 2 * kMiB}).ok());
  bytes[0] = 1;
  EXPECT_DEATH(bytes[2 * kMiB] = 1, "");  // the byte after the handle
  ASSERT_TRUE(memory->Unmap({range.address, 2 * kMiB}).ok());
  EXPECT_DEATH(bytes[0] = 1, "");  // unmapped
}

TEST_F(HostSourceTest, CountsSystemCallsAndTheirTime) {
  const DriverUse before = source_->GetDriverUse();
  const MemoryRange region = *source_->AllocateRegion(2 * kMiB);
  EXPECT_TRUE(source_->ReleaseRegion(region).ok());
  const DriverUse after = source_->GetDriverUse();
  EXPECT_EQ(after.calls - before.calls, 2u);
  EXPECT_GT(after.nanoseconds, before.nanoseconds);
}

TEST_F(HostSourceTest, HasNoTimeline) {
  // Work on host memory is done when the caller says so.
  EXPECT_EQ(source_->timeline(), nullptr);
}

}  // namespace
}  // namespace hbm
