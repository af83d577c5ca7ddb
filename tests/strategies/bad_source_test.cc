// SPDX-License-Identifier: Apache-2.0
//
// A memory source that does not keep its promises gets a clear error, and the books
// stay as they were.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hbmalloc/hbmalloc.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

void* At(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// Gives what it was told to, one range after another.
class ScriptedSource : public MemorySource {
 public:
  explicit ScriptedSource(std::vector<MemoryRange> ranges) : ranges_(std::move(ranges)) {}
  std::string_view Name() const override { return "scripted"; }
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override { return MemoryInfo{64 * kMiB, 64 * kMiB}; }
  absl::StatusOr<MemoryRange> AllocateRegion(std::size_t /*bytes*/) override {
    if (next_ == ranges_.size()) return absl::ResourceExhaustedError("no more");
    return ranges_[next_++];
  }
  absl::Status ReleaseRegion(MemoryRange /*region*/) override { return absl::OkStatus(); }

 private:
  std::vector<MemoryRange> ranges_;
  std::size_t next_ = 0;
};

std::unique_ptr<Allocator> Make(const std::string& policy, std::vector<MemoryRange> ranges) {
  auto made = MakeAllocator(*ParsePolicy(policy), std::make_shared<ScriptedSource>(ranges));
  return made.ok() ? *std::move(made) : nullptr;
}

// Calls what the strategy asks for invalid.
class ObjectingSource : public ScriptedSource {
 public:
  ObjectingSource() : ScriptedSource({}) {}
  absl::StatusOr<MemoryRange> AllocateRegion(std::size_t /*bytes*/) override {
    return absl::InvalidArgumentError("the source objects");
  }
};

TEST(BadSourceTest, WhatASourceObjectsToIsNotTheCallersFault) {
  std::string log;
  const LogSink sink = SetLogSink([&](LogSeverity, std::string_view text) { log += text; });
  for (const char* policy : {"on_demand", "platform"}) {
    log.clear();
    auto allocator = *MakeAllocator(*ParsePolicy(policy), std::make_shared<ObjectingSource>());
    const absl::Status status = allocator->Allocate(kMiB).status();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_NE(status.message().find("memory source"), std::string::npos) << status;
    EXPECT_EQ(status.message().find("stream"), std::string::npos) << status;
    EXPECT_NE(log.find("the source objects"), std::string::npos) << policy;
  }
  SetLogSink(sink);
}

constexpr std::uintptr_t kTop = std::numeric_limits<std::uintptr_t>::max();

TEST(BadSourceTest, PlatformRefusesBlocksThatAreNotWhatWasAsked) {
  for (const MemoryRange& range :
       {MemoryRange{nullptr, kMiB}, MemoryRange{At(4096), 100}, MemoryRange{At(4096), 0},
        MemoryRange{At(4096 + 128), kMiB}, MemoryRange{At(kTop - 4095), kMiB}}) {
    auto allocator = Make("platform", {range});
    const auto block = allocator->Allocate(kMiB / 2);
    EXPECT_TRUE(absl::IsInternal(block.status())) << range.address << " " << range.bytes;
    EXPECT_EQ(allocator->GetStats().bytes_in_use, 0);
  }
}

TEST(BadSourceTest, PlatformRefusesABlockThatIsGivenTwice) {
  auto allocator = Make("platform", {{At(4096), kMiB}, {At(4096), kMiB}});
  void* const block = *allocator->Allocate(kMiB);
  EXPECT_TRUE(absl::IsInternal(allocator->Allocate(kMiB).status()));
  EXPECT_EQ(allocator->GetStats().requested_bytes, static_cast<std::int64_t>(kMiB));
  EXPECT_TRUE(allocator->Deallocate(block).ok());
}

TEST(BadSourceTest, PoolsRefuseRegionsThatCannotBe) {
  for (const MemoryRange& range : {MemoryRange{nullptr, 2 * kMiB}, MemoryRange{At(kTop - 255), 256},
                                   MemoryRange{At(4096 + 128), 2 * kMiB}}) {
    auto allocator = Make("on_demand", {range});
    EXPECT_TRUE(absl::IsInternal(allocator->Allocate(100).status())) << range.address;
    EXPECT_EQ(allocator->GetStats().pool_bytes, 0);
  }
}

TEST(BadSourceTest, PoolsRefuseARegionThatOverlapsAnother) {
  auto allocator = Make("on_demand", {{At(2 * kMiB), 2 * kMiB}, {At(3 * kMiB), 4 * kMiB}});
  void* const block = *allocator->Allocate(kMiB);
  EXPECT_TRUE(absl::IsInternal(allocator->Allocate(3 * kMiB).status()));
  EXPECT_EQ(allocator->GetStats().pool_bytes, static_cast<std::int64_t>(2 * kMiB));
  EXPECT_TRUE(allocator->Deallocate(block).ok());
}

class ScriptedVirtualMemory : public ScriptedSource, public VirtualMemory {
 public:
  ScriptedVirtualMemory(std::size_t granularity, MemoryRange reservation)
      : ScriptedSource({}), granularity_(granularity), reservation_(reservation) {}
  VirtualMemory* virtual_memory() override { return this; }
  std::size_t Granularity() const override { return granularity_; }
  absl::StatusOr<MemoryRange> Reserve(std::size_t bytes) override {
    MemoryRange range = reservation_;
    if (range.bytes == 0) range.bytes = bytes;
    return range;
  }
  absl::Status FreeReservation(MemoryRange /*range*/) override { return absl::OkStatus(); }
  absl::StatusOr<Handle> Create(std::size_t /*bytes*/) override { return Handle{0}; }
  absl::Status Release(Handle /*handle*/) override { return absl::OkStatus(); }
  absl::Status Map(void* /*address*/, Handle /*handle*/) override { return absl::OkStatus(); }
  absl::Status SetAccess(MemoryRange /*range*/) override { return absl::OkStatus(); }
  absl::Status Unmap(MemoryRange /*range*/) override { return absl::OkStatus(); }

 private:
  const std::size_t granularity_;
  const MemoryRange reservation_;
};

absl::StatusOr<std::unique_ptr<Allocator>> MakeElastic(std::size_t granularity,
                                                       MemoryRange reservation) {
  return MakeAllocator(*ParsePolicy("elastic"),
                       std::make_shared<ScriptedVirtualMemory>(granularity, reservation));
}

TEST(BadSourceTest, ElasticRefusesGranularitiesThatCannotBe) {
  for (const std::size_t granularity :
       {std::size_t{0}, std::size_t{1}, std::size_t{3000000}, std::size_t{1} << 62}) {
    EXPECT_TRUE(absl::IsInvalidArgument(MakeElastic(granularity, {At(1 << 30), 0}).status()))
        << granularity;
  }
}

TEST(BadSourceTest, ElasticRefusesReservationsThatCannotBe) {
  for (const MemoryRange& range :
       {MemoryRange{nullptr, 0}, MemoryRange{At((1 << 30) + 4096), 0},
        MemoryRange{At(1 << 30), kMiB}, MemoryRange{At(kTop - 2 * kMiB + 1), 0}}) {
    EXPECT_TRUE(absl::IsInternal(MakeElastic(2 * kMiB, range).status())) << range.address;
  }
}

TEST(BadSourceTest, ElasticRefusesAHandleOfZero) {
  auto made = MakeElastic(2 * kMiB, {At(1 << 30), 0});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_FALSE((*made)->Allocate(kMiB).ok());
  EXPECT_EQ((*made)->GetStats().bytes_in_use, 0);
}

TEST(BadSourceTest, ALimitBeyondAllMemoryIsNotNegative) {
  for (const char* policy : {"bfc", "on_demand", "platform", "elastic"}) {
    auto allocator = *MakeAllocator(*ParsePolicy(policy), *OpenDevice("sim:64MiB"));
    ASSERT_TRUE(allocator->SetMemoryLimit(std::numeric_limits<std::size_t>::max()).ok());
    EXPECT_GT(allocator->GetStats().bytes_limit, 0) << policy;
  }
}

TEST(BadSourceTest, AFractionThatIsNoNumberIsNamed) {
  Policy policy;
  policy.memory_fraction.start = std::nan("");
  EXPECT_TRUE(absl::IsInvalidArgument(ValidatePolicy(policy)));
  EXPECT_EQ(ToString(policy).find("e-"), std::string::npos) << ToString(policy);
}

// For ThreadSanitizer: a snapshot, as every out-of-memory report takes one, beside
// threads at work.
TEST(ThreadCacheSnapshotTest, MayBeTakenWhileThreadsWork) {
  auto allocator = *MakeAllocator(*ParsePolicy("bfc:thread_cache=true"), *OpenDevice("sim:1GiB"));
  std::thread worker([&] {
    for (int i = 0; i < 3000; ++i) {
      void* const block = allocator->TryAllocate(300);
      if (!allocator->Deallocate(block).ok()) std::abort();
    }
  });
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(allocator->TakeSnapshot().regions.empty());
  worker.join();
}

}  // namespace
}  // namespace hbm
