// SPDX-License-Identifier: Apache-2.0
//
// Buffer, AllocatorSet, the shape of XLA's allocator, and std::pmr, over real memory.
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hbmalloc/allocator_set.h"
#include "hbmalloc/buffer.h"
#include "hbmalloc/device_memory_allocator.h"
#include "hbmalloc/pmr.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

Policy OnDemand() { return *ParsePolicy("on_demand:memory_fraction=1"); }

std::unique_ptr<Allocator> Host(const char* device = "host:64MiB") {
  return *MakeAllocator(OnDemand(), *OpenDevice(device));
}

TEST(Buffer, FreesWhatItOwnsOnceAndInEveryWay) {
  const std::unique_ptr<Allocator> allocator = Host();
  const auto live = [&] { return allocator->GetStats().requested_bytes; };
  {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(*allocator, kMiB);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    std::memset(buffer->data(), 1, buffer->size());
    EXPECT_EQ(live(), static_cast<std::int64_t>(kMiB));
    Buffer moved = *std::move(buffer);
    EXPECT_TRUE(buffer->empty());
    EXPECT_EQ(moved.size(), kMiB);
    moved = *Buffer::Allocate(*allocator, 4096);  // frees the first
    EXPECT_EQ(live(), 4096);
    Buffer& self = moved;
    moved = std::move(self);
    EXPECT_EQ(live(), 4096);
  }
  EXPECT_EQ(live(), 0);
  Buffer buffer = *Buffer::Allocate(*allocator, 100);
  EXPECT_TRUE(buffer.Free().ok());
  EXPECT_TRUE(buffer.Free().ok());
  Buffer released = *Buffer::Allocate(*allocator, 100);
  void* const block = released.Release();
  EXPECT_EQ(live(), 100);
  EXPECT_TRUE(allocator->Deallocate(block).ok());
  EXPECT_TRUE(Buffer::Allocate(*allocator, 0)->empty());
  EXPECT_EQ(Buffer::Allocate(*allocator, 65 * kMiB).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Buffer().RecordUse(StreamRef()).ok());
}

TEST(AllocatorSet, FindsTheOwnerOfABlock) {
  absl::StatusOr<AllocatorSet> set = AllocatorSet::Make(OnDemand(), {"host:32MiB", "host:64MiB"});
  ASSERT_TRUE(set.ok()) << set.status();
  void* const first = *set->Allocate(0, kMiB);
  void* const second = *set->Allocate(1, kMiB);
  EXPECT_EQ(*set->FindOwner(static_cast<char*>(second) + 5), 1);
  EXPECT_EQ(*set->FindOwner(first), 0);
  EXPECT_TRUE(set->Deallocate(second).ok());
  EXPECT_EQ(set->at(1)->GetStats().requested_bytes, 0);
  EXPECT_EQ(set->at(0)->GetStats().requested_bytes, static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(set->Deallocate(second).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(set->Deallocate(static_cast<char*>(first) + 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(set->Deallocate(0, first).ok());
  EXPECT_TRUE(set->Deallocate(nullptr).ok());
  EXPECT_EQ(set->Allocate(2, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(set->Allocate(-1, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(set->at(2), nullptr);
}

TEST(AllocatorSet, IsMadeWholeOrNotAtAll) {
  const absl::StatusOr<AllocatorSet> set =
      AllocatorSet::Make(OnDemand(), {"host:32MiB", "toaster"});
  EXPECT_EQ(set.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(set.status().message()).find("toaster"), std::string::npos);
  std::vector<std::unique_ptr<Allocator>> none(1);
  EXPECT_FALSE(AllocatorSet::Make(std::move(none)).ok());
}

TEST(DeviceMemoryAllocator, HasTheShapeOfXlas) {
  const AllocatorSet devices = *AllocatorSet::Make(OnDemand(), {"host:32MiB", "host:32MiB"});
  const AllocatorSet pinned = *AllocatorSet::Make(OnDemand(), {"host:8MiB"});
  DeviceMemoryAllocator memory;
  ASSERT_TRUE(memory.AddMemorySpace(0, &devices).ok());
  ASSERT_TRUE(memory.AddMemorySpace(5, &pinned).ok());
  EXPECT_FALSE(memory.AddMemorySpace(5, &pinned).ok());
  EXPECT_FALSE(memory.AddMemorySpace(6, nullptr).ok());
  {
    absl::StatusOr<OwningDeviceMemory> block = memory.Allocate(1, kMiB);
    ASSERT_TRUE(block.ok()) << block.status();
    std::memset(**block, 3, block->size());
    EXPECT_EQ(block->device_ordinal(), 1);
    OwningDeviceMemory moved = *std::move(block);
    EXPECT_TRUE(block->is_null());
    EXPECT_EQ(devices.at(1)->GetStats().requested_bytes, static_cast<std::int64_t>(kMiB));
  }
  EXPECT_EQ(devices.at(1)->GetStats().requested_bytes, 0);
  EXPECT_TRUE(memory.Allocate(0, 0)->is_null());
  EXPECT_EQ(memory.Allocate(0, 33 * kMiB, /*retry_on_failure=*/false).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory.Allocate(0, 1, true, 9).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(memory.Allocate(2, 1).status().code(), absl::StatusCode::kInvalidArgument);
  OwningDeviceMemory kept = *memory.Allocate(0, 64, true, 5);
  EXPECT_EQ(pinned.at(0)->GetStats().requested_bytes, 64);
  void* const released = kept.Release();
  EXPECT_TRUE(memory.Deallocate(0, released, 5).ok());
  EXPECT_TRUE(memory.Deallocate(0, nullptr).ok());
}

TEST(MemoryResource, HoldsTheStandardsContainers) {
  absl::StatusOr<std::unique_ptr<std::pmr::memory_resource>> resource =
      MakeMemoryResource(OnDemand(), *OpenDevice("host:64MiB"));
  ASSERT_TRUE(resource.ok()) << resource.status();
  std::pmr::vector<std::pmr::string> words(resource->get());
  for (int i = 0; i < 1000; ++i) words.emplace_back("a word that is too long for the short form");
  EXPECT_EQ(words.back().substr(0, 6), "a word");
  void* const page = (*resource)->allocate(100, 4096);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(page) % 4096, 0u);
  (*resource)->deallocate(page, 100, 4096);
  EXPECT_THROW((void)(*resource)->allocate(65 * kMiB), std::bad_alloc);
  EXPECT_TRUE(**resource == **resource);
}

TEST(MemoryResource, RefusesMemoryThatTheCpuCannotUse) {
  const auto resource = MakeMemoryResource(OnDemand(), *OpenDevice("sim:1GiB"));
  EXPECT_EQ(resource.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(resource.status().message()).find("pinned_host"), std::string::npos);
  EXPECT_FALSE(MakeMemoryResource(OnDemand(), nullptr).ok());
}

}  // namespace
}  // namespace hbm
