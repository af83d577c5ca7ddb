// SPDX-License-Identifier: Apache-2.0
//
// One contract of virtual memory over every source that has it: what is right
// works, and what is wrong is refused and changes nothing.
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/device.h"
#include "hbmalloc/policy.h"
#include "tests/support/faulty_source.h"

namespace hbm {
namespace {

using ::testing::HasSubstr;
using testing::Outstanding;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

class VirtualMemoryTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    device_ = *OpenDevice(GetParam());
    source_ = std::make_unique<testing::FaultySource>(*device_->MakeSource(Policy{}));
    memory_ = source_->virtual_memory();
    ASSERT_NE(memory_, nullptr);
    granule_ = memory_->Granularity();
    range_ = *memory_->Reserve(64 * granule_);
  }

  void* At(std::size_t granules) {
    return static_cast<char*>(range_.address) + granules * granule_;
  }
  MemoryRange Range(std::size_t from, std::size_t granules) {
    return {At(from), granules * granule_};
  }
  VirtualMemory::Handle Create(std::size_t granules) {
    absl::StatusOr<VirtualMemory::Handle> handle = memory_->Create(granules * granule_);
    EXPECT_TRUE(handle.ok()) << handle.status();
    return handle.value_or(0);
  }
  static void ExpectError(const absl::Status& status, absl::StatusCode code, const char* words) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<testing::FaultySource> source_;
  VirtualMemory* memory_ = nullptr;
  std::size_t granule_ = 0;
  MemoryRange range_;
};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition = absl::StatusCode::kFailedPrecondition;

TEST_P(VirtualMemoryTest, TakesCapacityAtCreateAndGivesItBackAtRelease) {
  EXPECT_EQ(source_->HeldBytes(), 0u);  // addresses are free of charge
  const VirtualMemory::Handle all = *memory_->Create(kGiB);
  EXPECT_EQ(source_->HeldBytes(), kGiB);
  EXPECT_EQ(device_->GetMemoryInfo()->free, 0u);
  EXPECT_EQ(memory_->Create(granule_).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(source_->AllocateRegion(1).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(memory_->Release(all).ok());
  EXPECT_EQ(source_->HeldBytes(), 0u);
  EXPECT_TRUE(source_->AllocateRegion(kGiB).ok());
}

TEST_P(VirtualMemoryTest, RefusesSizesOffTheGranularity) {
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, granule_ + 1, SIZE_MAX}) {
    EXPECT_EQ(memory_->Create(bytes).status().code(), kInvalid);
    EXPECT_EQ(memory_->Reserve(bytes).status().code(), kInvalid);
  }
  const std::size_t huge = SIZE_MAX / granule_ * granule_;
  EXPECT_EQ(memory_->Create(huge).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory_->Reserve(huge).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(VirtualMemoryTest, ReservesFarMoreAddressesThanThereIsMemory) {
  const absl::StatusOr<MemoryRange> large = memory_->Reserve(1024 * kGiB);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large->address) % granule_, 0u);
  EXPECT_TRUE(memory_->FreeReservation(*large).ok());
}

TEST_P(VirtualMemoryTest, MapsOnlyInsideOneReservation) {
  const VirtualMemory::Handle two = Create(2);
  ExpectError(memory_->Map(At(63), two), kInvalid, "not wholly inside a reservation");
  ExpectError(memory_->Map(At(64), two), kInvalid, "not wholly inside a reservation");
  ExpectError(memory_->Map(nullptr, two), kInvalid, "not wholly inside a reservation");
  ExpectError(memory_->Map(static_cast<char*>(At(1)) + 4096, two), kInvalid, "multiple of");
  EXPECT_TRUE(memory_->Map(At(62), two).ok());
}

TEST_P(VirtualMemoryTest, NeverMapsOverWhatIsMapped) {
  const VirtualMemory::Handle four = Create(4);
  const VirtualMemory::Handle two = Create(2);
  ASSERT_TRUE(memory_->Map(At(10), four).ok());
  for (std::size_t at : {9u, 10u, 11u, 13u}) {
    ExpectError(memory_->Map(At(at), two), kPrecondition, "is mapped at");
  }
  ExpectError(memory_->Map(At(20), four), kPrecondition, "already");
  EXPECT_TRUE(memory_->Map(At(8), two).ok());
  const VirtualMemory::Handle other = Create(2);
  EXPECT_TRUE(memory_->Map(At(14), other).ok());
  // A handle that covers all three at once.
  const VirtualMemory::Handle large = Create(20);
  ExpectError(memory_->Map(At(0), large), kPrecondition, "is mapped at");
}

TEST_P(VirtualMemoryTest, UnmapsWholeHandlesOnly) {
  const VirtualMemory::Handle four = Create(4);
  const VirtualMemory::Handle two = Create(2);
  ASSERT_TRUE(memory_->Map(At(0), four).ok());
  ASSERT_TRUE(memory_->Map(At(4), two).ok());
  ExpectError(memory_->Unmap(Range(0, 2)), kInvalid, "cuts handle");
  ExpectError(memory_->Unmap(Range(2, 2)), kInvalid, "inside a handle");
  ExpectError(memory_->Unmap(Range(0, 5)), kInvalid, "cuts handle");
  ExpectError(memory_->Unmap(Range(0, 7)), kInvalid, "no handle is mapped from");
  ExpectError(memory_->Unmap(Range(8, 1)), kInvalid, "no handle is mapped from");
  ExpectError(memory_->Unmap({At(0), 100}), kInvalid, "multiples of");
  ExpectError(memory_->SetAccess(Range(0, 5)), kInvalid, "cuts handle");
  ExpectError(memory_->SetAccess(Range(6, 1)), kInvalid, "no handle is mapped from");
  EXPECT_TRUE(memory_->SetAccess(Range(0, 6)).ok());
  EXPECT_TRUE(memory_->Unmap(Range(0, 6)).ok());
  ExpectError(memory_->Unmap(Range(0, 6)), kInvalid, "no handle is mapped from");
}

TEST_P(VirtualMemoryTest, ReleasesOnlyWhatIsUnmapped) {
  const VirtualMemory::Handle handle = Create(2);
  ASSERT_TRUE(memory_->Map(At(0), handle).ok());
  ExpectError(memory_->Release(handle), kPrecondition, "still mapped");
  EXPECT_EQ(source_->HeldBytes(), 2 * granule_);
  ASSERT_TRUE(memory_->Unmap(Range(0, 2)).ok());
  EXPECT_EQ(source_->HeldBytes(), 2 * granule_);  // unmapped, still held
  ASSERT_TRUE(memory_->Release(handle).ok());
  ExpectError(memory_->Release(handle), kInvalid, "released already");
  ExpectError(memory_->Map(At(0), handle), kInvalid, "released already");
  ExpectError(memory_->Release(0), kInvalid, "never was");
  ExpectError(memory_->Release(handle + 1000), kInvalid, "never was");
  EXPECT_EQ(source_->HeldBytes(), 0u);
}

TEST_P(VirtualMemoryTest, FreesReservationsWholeAndEmpty) {
  const VirtualMemory::Handle handle = Create(1);
  ASSERT_TRUE(memory_->Map(At(63), handle).ok());
  ExpectError(memory_->FreeReservation(range_), kPrecondition, "still mapped");
  ASSERT_TRUE(memory_->Unmap(Range(63, 1)).ok());
  ExpectError(memory_->FreeReservation(Range(0, 63)), kInvalid, "not a reservation as it was made");
  ExpectError(memory_->FreeReservation(Range(1, 63)), kInvalid, "not a reservation as it was made");
  ASSERT_TRUE(memory_->FreeReservation(range_).ok());
  ExpectError(memory_->FreeReservation(range_), kInvalid, "freed already");
  ExpectError(memory_->Map(At(0), handle), kInvalid, "not wholly inside a reservation");
}

TEST_P(VirtualMemoryTest, MovesAHandleFromOneRangeToAnother) {
  const VirtualMemory::Handle handle = Create(2);
  for (std::size_t at : {0u, 7u, 30u}) {
    ASSERT_TRUE(memory_->Map(At(at), handle).ok());
    ASSERT_TRUE(memory_->SetAccess(Range(at, 2)).ok());
    ASSERT_TRUE(memory_->Unmap(Range(at, 2)).ok());
  }
  EXPECT_EQ(source_->HeldBytes(), 2 * granule_);
}

// The wrapper that other tests rely on.
TEST_P(VirtualMemoryTest, FaultsAreInjectedAndLeaksAreCounted) {
  EXPECT_EQ(source_->GetOutstanding(), (Outstanding{0, 0, 1, 0, 0, 0}));
  source_->Fail(testing::SourceCall::kCreate, 2, absl::InternalError("injected"));
  const VirtualMemory::Handle first = Create(1);
  EXPECT_EQ(memory_->Create(granule_).status().code(), absl::StatusCode::kInternal);
  const VirtualMemory::Handle second = Create(1);
  EXPECT_EQ(source_->HeldBytes(), 2 * granule_);
  source_->FailWhen([&](const testing::CallRecord& record) {
    return record.handle == second ? absl::UnavailableError("not this one") : absl::OkStatus();
  });
  EXPECT_TRUE(memory_->Map(At(0), first).ok());
  EXPECT_EQ(memory_->Map(At(1), second).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(source_->GetOutstanding(), (Outstanding{0, 0, 1, 2, 1, 0}));
  EXPECT_FALSE(source_->IsUsable(Range(0, 1)));
  ASSERT_TRUE(memory_->SetAccess(Range(0, 1)).ok());
  EXPECT_TRUE(source_->IsUsable(Range(0, 1)));
  EXPECT_FALSE(source_->IsUsable(Range(0, 2)));
  source_->StopFailing();
  source_->FailAny(1, absl::InternalError("any"), 2);
  EXPECT_FALSE(memory_->Unmap(Range(0, 1)).ok());
  EXPECT_FALSE(memory_->Release(second).ok());
  EXPECT_TRUE(memory_->Unmap(Range(0, 1)).ok());
  EXPECT_FALSE(source_->IsUsable(Range(0, 1)));
  EXPECT_TRUE(memory_->Release(first).ok());
  EXPECT_TRUE(memory_->Release(second).ok());
  source_->LimitReservations(range_.bytes + granule_);
  EXPECT_EQ(memory_->Reserve(2 * granule_).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(memory_->Reserve(granule_).ok());
  EXPECT_EQ(source_->GetOutstanding(), (Outstanding{0, 0, 2, 0, 0, 0}));
  EXPECT_EQ(source_->GetPeak().handles, 2u);
  EXPECT_EQ(source_->Count(testing::SourceCall::kCreate), 3);
}

INSTANTIATE_TEST_SUITE_P(Sources, VirtualMemoryTest, ::testing::Values("sim:1GiB", "host:1GiB"),
                         [](const auto& instance) {
                           const std::string spec = instance.param;
                           return spec.substr(0, spec.find(':'));
                         });

}  // namespace
}  // namespace hbm
