// SPDX-License-Identifier: Apache-2.0
//
// The simulated device from the outside: where regions lie, what fits, what is
// charged, and that allocators on one device share it.
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/device.h"
#include "hbmalloc/policy.h"
#include "sources/cost_model.h"
#include "tests/support/faulty_source.h"

namespace hbm {
namespace {

using sources::CostNanoseconds;
using sources::DriverCall;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

std::shared_ptr<Device> Open(std::string_view spec) {
  absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(spec);
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

std::shared_ptr<MemorySource> MakeSource(Device& device) {
  absl::StatusOr<std::shared_ptr<MemorySource>> source = device.MakeSource(Policy{});
  EXPECT_TRUE(source.ok()) << source.status();
  return *std::move(source);
}

std::uintptr_t AddressOf(const MemoryRange& range) {
  return reinterpret_cast<std::uintptr_t>(range.address);
}

TEST(SimDevice, RegionsAreRoundedToTwoMebibytesAndApart) {
  const auto device = Open("sim:1GiB");
  const auto source = MakeSource(*device);
  EXPECT_EQ(source->Granularity(), 2 * kMiB);
  const MemoryRange first = *source->AllocateRegion(1);
  const MemoryRange second = *source->AllocateRegion(5 * kMiB);
  const MemoryRange third = *source->AllocateRegion(4 * kMiB);
  EXPECT_NE(first.address, nullptr);
  EXPECT_EQ(AddressOf(first) % (2 * kMiB), 0u);
  EXPECT_EQ(first.bytes, 2 * kMiB);
  EXPECT_EQ(AddressOf(second) - AddressOf(first), 4 * kMiB);
  EXPECT_EQ(second.bytes, 6 * kMiB);
  EXPECT_EQ(AddressOf(third) - AddressOf(second), 8 * kMiB);
  EXPECT_EQ(third.bytes, 4 * kMiB);
  EXPECT_EQ(source->HeldBytes(), 12 * kMiB);
  EXPECT_FALSE(source->IsHostAccessible());
}

TEST(SimDevice, ReleasedRegionsGiveCapacityBackButNotAddresses) {
  const auto device = Open("sim:8MiB");
  const auto source = MakeSource(*device);
  const MemoryRange first = *source->AllocateRegion(8 * kMiB);
  EXPECT_EQ(source->AllocateRegion(1).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(source->ReleaseRegion(first).ok());
  EXPECT_EQ(source->HeldBytes(), 0u);
  const MemoryRange second = *source->AllocateRegion(8 * kMiB);
  EXPECT_EQ(AddressOf(second) - AddressOf(first), 10 * kMiB);
}

TEST(SimDevice, FillsToTheLastByteAndNoFurther) {
  // What fits is capacity - used - context, in whole granules.
  const auto device = Open("sim:12GiB,used=1825361100,context=500MiB");
  const std::size_t left = 12 * kGiB - 1825361100 - 500 * kMiB;
  const std::size_t fits = left / (2 * kMiB) * (2 * kMiB);
  EXPECT_EQ(device->GetMemoryInfo()->free, left + 500 * kMiB);
  const auto source = MakeSource(*device);
  EXPECT_EQ(source->GetMemoryInfo()->total, 12 * kGiB);
  EXPECT_EQ(source->GetMemoryInfo()->free, left);
  EXPECT_EQ(source->AllocateRegion(fits + 1).status().code(), absl::StatusCode::kResourceExhausted);
  const absl::StatusOr<MemoryRange> all = source->AllocateRegion(fits);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(source->GetMemoryInfo()->free, left - fits);
  EXPECT_EQ(source->AllocateRegion(1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(SimDevice, RefusesWhatIsNoRegion) {
  const auto device = Open("sim:1GiB");
  const auto source = MakeSource(*device);
  const MemoryRange region = *source->AllocateRegion(4 * kMiB);
  MemoryRange inside = region;
  inside.address = static_cast<char*>(inside.address) + 2 * kMiB;
  inside.bytes = 2 * kMiB;
  MemoryRange shorter = region;
  shorter.bytes = 2 * kMiB;
  for (const MemoryRange& wrong : {inside, shorter, MemoryRange{}}) {
    EXPECT_EQ(source->ReleaseRegion(wrong).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(source->ReleaseBlock(wrong).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(source->ReleaseBlock(region).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(source->HeldBytes(), 4 * kMiB);
  EXPECT_TRUE(source->ReleaseRegion(region).ok());
  EXPECT_EQ(source->ReleaseRegion(region).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(source->HeldBytes(), 0u);
}

TEST(SimDevice, RefusesSizesThatOverflow) {
  const auto device = Open("sim:1GiB");
  const auto source = MakeSource(*device);
  for (std::size_t bytes : {SIZE_MAX, SIZE_MAX - kMiB, SIZE_MAX - 2 * kMiB + 1, kGiB + 1}) {
    EXPECT_EQ(source->AllocateRegion(bytes).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(source->AllocateBlock(bytes, 256).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(source->AllocateRegion(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(source->HeldBytes(), 0u);
}

TEST(SimDevice, AllocatorsOnOneDeviceShareItsCapacity) {
  const auto device = Open("sim:10GiB,context=1GiB");
  auto first = MakeSource(*device);
  auto second = MakeSource(*device);
  EXPECT_EQ(device->GetMemoryInfo()->free, 8 * kGiB);
  const MemoryRange mine = *first->AllocateRegion(6 * kGiB);
  EXPECT_EQ(second->AllocateRegion(3 * kGiB).status().code(), absl::StatusCode::kResourceExhausted);
  const MemoryRange theirs = *second->AllocateRegion(2 * kGiB);
  EXPECT_TRUE(AddressOf(mine) + mine.bytes <= AddressOf(theirs) ||
              AddressOf(theirs) + theirs.bytes <= AddressOf(mine));
  EXPECT_EQ(second->ReleaseRegion(mine).code(), absl::StatusCode::kInvalidArgument);
  // A source that ends gives back all it held, its context too.
  first.reset();
  EXPECT_EQ(device->GetMemoryInfo()->free, 7 * kGiB);
  EXPECT_TRUE(second->AllocateRegion(7 * kGiB).ok());
  EXPECT_EQ(device->MakeSource(Policy{}).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(SimDevice, OneAllocatorsLayoutDoesNotDependOnAnothers) {
  std::vector<std::uintptr_t> alone, together;
  for (const bool disturbed : {false, true}) {
    const auto device = Open("sim:1GiB");
    const auto source = MakeSource(*device);
    const auto other = MakeSource(*device);
    for (std::size_t bytes : {3 * kMiB, 1 * kMiB, 20 * kMiB}) {
      if (disturbed) {
        ASSERT_TRUE(other->AllocateRegion(7 * kMiB).ok());
      }
      (disturbed ? together : alone).push_back(AddressOf(*source->AllocateRegion(bytes)));
    }
  }
  EXPECT_EQ(alone, together);
}

TEST(SimDevice, EndsManySourcesAndStillServes) {
  const auto device = Open("sim:1GiB");
  for (int i = 0; i < 1000; ++i) {
    const auto source = MakeSource(*device);
    ASSERT_TRUE(source->AllocateRegion(kGiB).ok());
  }
  std::vector<std::shared_ptr<MemorySource>> sources;
  absl::Status status;
  while (status.ok() && sources.size() < 1000) {
    absl::StatusOr<std::shared_ptr<MemorySource>> source = device->MakeSource(Policy{});
    status = source.status();
    if (source.ok()) sources.push_back(*source);
  }
  EXPECT_GE(sources.size(), 200u);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(SimDevice, CapacityHoldsUnderThreads) {
  const auto device = Open("sim:1GiB");
  constexpr int kThreads = 8;
  std::atomic<std::int64_t> held{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto source = *device->MakeSource(Policy{});
      std::vector<MemoryRange> mine;
      for (std::size_t i = 0; i < 2000; ++i) {
        const std::size_t bytes = (1 + (i * 7 + static_cast<std::size_t>(t)) % 90) * 2 * kMiB;
        if (const auto region = source->AllocateRegion(bytes); region.ok()) {
          mine.push_back(*region);
          const auto total =
              held.fetch_add(static_cast<std::int64_t>(bytes)) + static_cast<std::int64_t>(bytes);
          if (total > static_cast<std::int64_t>(kGiB)) over = true;
        } else if (!mine.empty()) {
          held.fetch_sub(static_cast<std::int64_t>(mine.back().bytes));
          if (!source->ReleaseRegion(mine.back()).ok()) over = true;
          mine.pop_back();
        }
      }
      for (const MemoryRange& region : mine)
        held.fetch_sub(static_cast<std::int64_t>(region.bytes));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(over);
  EXPECT_EQ(device->GetMemoryInfo()->free, kGiB);
}

TEST(SimDevice, ChargesRegionsByTheModel) {
  const auto device = Open("sim:h200");
  const auto source = MakeSource(*device);
  EXPECT_EQ(source->GetDriverUse().calls, 0u);
  const MemoryRange small = *source->AllocateRegion(100);
  EXPECT_EQ(source->GetDriverUse().nanoseconds, 40'000u);
  const MemoryRange large = *source->AllocateRegion(2 * kGiB);
  EXPECT_EQ(source->GetDriverUse().nanoseconds, 304'000u);
  ASSERT_TRUE(source->ReleaseRegion(small).ok());
  ASSERT_TRUE(source->ReleaseRegion(large).ok());
  EXPECT_EQ(source->GetDriverUse().nanoseconds, 304'000u + 35'000u + 1'136'000u);
  EXPECT_EQ(source->GetDriverUse().calls, 4u);
  // A call that fails is counted and costs nothing.
  EXPECT_FALSE(source->AllocateRegion(SIZE_MAX).ok());
  EXPECT_EQ(source->GetDriverUse().calls, 5u);
  EXPECT_EQ(source->GetDriverUse().nanoseconds, 304'000u + 35'000u + 1'136'000u);
}

TEST(SimDevice, ChargesVirtualMemoryPerHandle) {
  const auto device = Open("sim:h200");
  const auto source = MakeSource(*device);
  VirtualMemory* const memory = source->virtual_memory();
  const MemoryRange range = *memory->Reserve(64 * kMiB);
  char* const base = static_cast<char*>(range.address);
  std::uint64_t expected = static_cast<std::uint64_t>(
      CostNanoseconds(DriverCall::kAddressReserve, 64 * kMiB) +
      CostNanoseconds(DriverCall::kMemCreate, 20 * kMiB) + 2 * 13'500 + 3 * 1'000);
  std::vector<VirtualMemory::Handle> handles = {
      *memory->Create(20 * kMiB), *memory->Create(2 * kMiB), *memory->Create(2 * kMiB)};
  ASSERT_TRUE(memory->Map(base, handles[0]).ok());
  ASSERT_TRUE(memory->Map(base + 20 * kMiB, handles[1]).ok());
  ASSERT_TRUE(memory->Map(base + 22 * kMiB, handles[2]).ok());
  EXPECT_EQ(source->GetDriverUse().nanoseconds, expected);
  EXPECT_EQ(source->GetDriverUse().calls, 7u);
  // One call over three handles: one call, three costs.
  ASSERT_TRUE(memory->SetAccess({base, 24 * kMiB}).ok());
  expected += 25'000 + 2 * 24'900;
  EXPECT_EQ(source->GetDriverUse().nanoseconds, expected);
  ASSERT_TRUE(memory->Unmap({base, 24 * kMiB}).ok());
  expected += 17'100 + 2 * 17'200;
  EXPECT_EQ(source->GetDriverUse().nanoseconds, expected);
  for (VirtualMemory::Handle handle : handles) ASSERT_TRUE(memory->Release(handle).ok());
  expected += 21'500 + 2 * 11'800;
  EXPECT_EQ(source->GetDriverUse().nanoseconds, expected);
  EXPECT_EQ(source->GetDriverUse().calls, 12u);
}

TEST(SimDevice, SmallBlocksShareAGranule) {
  const auto device = Open("sim:64MiB");
  const auto source = MakeSource(*device);
  std::vector<MemoryRange> blocks;
  for (int i = 0; i < 4096; ++i) blocks.push_back(*source->AllocateBlock(300, 256));
  // 512 bytes each: exactly one granule.
  EXPECT_EQ(source->HeldBytes(), 2 * kMiB);
  blocks.push_back(*source->AllocateBlock(1, 256));
  EXPECT_EQ(source->HeldBytes(), 4 * kMiB);
  // The first granule is held until the last of its blocks goes.
  for (std::size_t i = 0; i + 2 < blocks.size(); ++i) {
    ASSERT_TRUE(source->ReleaseBlock(blocks[i]).ok());
  }
  EXPECT_EQ(source->HeldBytes(), 4 * kMiB);
  ASSERT_TRUE(source->ReleaseBlock(blocks[4095]).ok());
  EXPECT_EQ(source->HeldBytes(), 2 * kMiB);
  ASSERT_TRUE(source->ReleaseBlock(blocks[4096]).ok());
  EXPECT_EQ(source->HeldBytes(), 0u);
  EXPECT_EQ(source->ReleaseBlock(blocks[0]).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SimDevice, BlocksOfAMebibyteGetGranulesOfTheirOwn) {
  const auto device = Open("sim:64MiB");
  const auto source = MakeSource(*device);
  ASSERT_TRUE(source->AllocateBlock(1000, 256).ok());
  for (std::size_t bytes : {kMiB - 100, kMiB, kMiB + 1}) {
    const std::size_t before = source->HeldBytes();
    const absl::StatusOr<MemoryRange> block = source->AllocateBlock(bytes, 256);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_EQ(block->bytes, 2 * kMiB);
    EXPECT_EQ(source->HeldBytes() - before, 2 * kMiB) << bytes;
    ASSERT_TRUE(source->ReleaseBlock(*block).ok());
    EXPECT_EQ(source->HeldBytes(), before);
  }
  const absl::StatusOr<MemoryRange> shared = source->AllocateBlock(kMiB - 512, 256);
  EXPECT_EQ(shared->bytes, kMiB - 512);
  EXPECT_EQ(source->HeldBytes(), 2 * kMiB);
  EXPECT_EQ(source->AllocateBlock(0, 256).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(source->AllocateBlock(1, 4 * kMiB).status().code(), absl::StatusCode::kInvalidArgument);
}

// Blocks of random sizes and alignments: aligned, disjoint, in the capacity, and
// nothing is held once they are gone.
TEST(SimDevice, BlocksNeverOverlap) {
  const auto device = Open("sim:256MiB");
  const auto source = MakeSource(*device);
  std::map<std::uintptr_t, MemoryRange> live;
  std::uint64_t random = 1;
  const auto next = [&random] {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(random >> 33);
  };
  for (int i = 0; i < 20000; ++i) {
    const std::size_t bytes = 1 + (next() % 8 == 0 ? next() % (3 * kMiB) : next() % 5000);
    const std::size_t alignment = std::size_t{256} << (next() % 14);
    if (next() % 100 < 55) {
      const absl::StatusOr<MemoryRange> block = source->AllocateBlock(bytes, alignment);
      if (!block.ok()) continue;
      const std::uintptr_t start = AddressOf(*block);
      ASSERT_EQ(start % alignment, 0u);
      ASSERT_GE(block->bytes, bytes);
      const auto after = live.lower_bound(start);
      if (after != live.end()) {
        ASSERT_LE(start + block->bytes, after->first);
      }
      if (after != live.begin()) {
        const auto& [before, range] = *std::prev(after);
        ASSERT_LE(before + range.bytes, start);
      }
      live[start] = *block;
    } else if (!live.empty()) {
      auto victim = live.lower_bound(live.begin()->first + next() % (64 * kMiB));
      if (victim == live.end()) victim = live.begin();
      ASSERT_TRUE(source->ReleaseBlock(victim->second).ok());
      live.erase(victim);
    }
    ASSERT_LE(source->HeldBytes(), 256 * kMiB);
  }
  EXPECT_GT(live.size(), 100u);
  for (const auto& block : live) ASSERT_TRUE(source->ReleaseBlock(block.second).ok());
  EXPECT_EQ(source->HeldBytes(), 0u);
  EXPECT_TRUE(source->AllocateRegion(256 * kMiB).ok());
}

}  // namespace
}  // namespace hbm
