// SPDX-License-Identifier: Apache-2.0
//
// The checks of the policy's field `debug`: a program that writes where it must not is
// told what, where and whose; one that does not is told nothing.
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/faulty_source.h"

namespace hbm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::size_t kMiB = std::size_t{1} << 20;

class DebugChecksTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    previous_sink_ = SetLogSink(
        [this](LogSeverity, std::string_view message) { log_ += std::string(message) + "\n"; });
  }
  void TearDown() override { SetLogSink(std::move(previous_sink_)); }

  void Make(const std::string& fields, const std::string& device = "host:64MiB") {
    const absl::StatusOr<Policy> policy = ParsePolicy(GetParam() + ":" + fields);
    ASSERT_TRUE(policy.ok()) << policy.status();
    auto allocator = MakeAllocator(*policy, *OpenDevice(device));
    ASSERT_TRUE(allocator.ok()) << allocator.status();
    allocator_ = *std::move(allocator);
  }
  unsigned char* Get(std::size_t bytes, std::size_t alignment = 1) {
    AllocateOptions options;
    options.alignment = alignment;
    return static_cast<unsigned char*>(*allocator_->Allocate(bytes, options));
  }

  std::unique_ptr<Allocator> allocator_;
  std::string log_;
  LogSink previous_sink_;
};

TEST_P(DebugChecksTest, AByteBehindTheEndIsFoundAtTheFree) {
  Make("debug=guard");
  static const TagId kTag = RegisterTag("activations");
  ScopedTag scope(kTag);
  for (const std::size_t bytes : {1U, 255U, 256U, 1000U, 4096U, 300'000U}) {
    for (const std::size_t beyond : {0U, 1U, 255U}) {
      unsigned char* const block = Get(bytes);
      std::memset(block, 0, bytes);  // all of it may be written
      ASSERT_TRUE(allocator_->CheckMemory().ok());
      block[bytes + beyond] = 0;
      const absl::Status found = allocator_->CheckMemory();
      EXPECT_TRUE(absl::IsDataLoss(found));
      const absl::Status status = allocator_->Deallocate(block);
      EXPECT_TRUE(absl::IsDataLoss(status)) << bytes << " " << beyond;
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr("behind its end 1 byte is overwritten, at offset " +
                          std::to_string(beyond)),
                HasSubstr("of " + std::to_string(bytes) + " bytes"), HasSubstr("activations")));
      // It is freed all the same.
      EXPECT_TRUE(absl::IsInvalidArgument(allocator_->Deallocate(block)));
    }
  }
  EXPECT_EQ(allocator_->GetStats().requested_bytes, 0);
}

TEST_P(DebugChecksTest, SoAreBytesBeforeTheStart) {
  Make("debug=guard");
  for (const std::size_t alignment : {1U, 256U, 4096U, 65536U, 2U << 20}) {
    unsigned char* const block = Get(100, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0U);
    std::memset(block - 3, 0x5A, 3);
    const absl::Status status = allocator_->Deallocate(block);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("before it 3 bytes are overwritten, from offset 253 to 255; there is 5a "
                          "5a 5a"));
  }
}

TEST_P(DebugChecksTest, GoodProgramsAreToldNothing) {
  Make("debug=guard+poison+leaks+stacks,quarantine=4MiB");
  std::vector<std::pair<unsigned char*, std::size_t>> live;
  for (std::size_t i = 0; i < 500; ++i) {
    const std::size_t bytes = 1 + i * 37 % 50'000;
    live.emplace_back(Get(bytes, std::size_t{1} << i % 13), bytes);
    std::memset(live.back().first, static_cast<int>(i), bytes);
    if (i % 3 == 0) {
      EXPECT_TRUE(allocator_->Deallocate(live[i / 2].first).ok());
      live[i / 2] = live.back();
      live.pop_back();
      live.emplace_back(Get(1), 1);
    }
  }
  EXPECT_TRUE(allocator_->CheckMemory().ok());
  for (const auto& [block, bytes] : live) EXPECT_TRUE(allocator_->Deallocate(block).ok());
  EXPECT_EQ(allocator_->GetStats().bytes_in_use, 0);
  allocator_.reset();
  EXPECT_THAT(log_, IsEmpty());
}

TEST_P(DebugChecksTest, FreshAndFreedBytesHavePatterns) {
  Make("debug=poison,quarantine=1MiB");
  unsigned char* const block = Get(5000);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(block[i], 0xFF);
  float value = 0;
  std::memcpy(&value, block, sizeof(value));
  EXPECT_NE(value, value);  // not a number
  EXPECT_TRUE(allocator_->Deallocate(block).ok());
  // Held back, so that it can still be read.
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(block[i], 0xFE);
  allocator_.reset();
  EXPECT_THAT(log_, IsEmpty());
}

TEST_P(DebugChecksTest, AWriteAfterTheFreeIsFoundWhenTheBlockIsGivenUp) {
  Make("debug=poison+stacks,quarantine=1MiB");
  unsigned char* const block = Get(5000);
  EXPECT_TRUE(allocator_->Deallocate(block).ok());
  block[4321] = 7;
  EXPECT_TRUE(absl::IsDataLoss(allocator_->CheckMemory()));
  EXPECT_GE(allocator_->GetStats().pending_bytes, 5000);
  EXPECT_THAT(log_, IsEmpty());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(allocator_->Deallocate(Get(kMiB / 2)).ok());
  EXPECT_THAT(log_, AllOf(HasSubstr("written to after it was freed: 1 byte is overwritten, at "
                                    "offset 4321; there is 07"),
                          HasSubstr("allocated at")));
}

TEST_P(DebugChecksTest, WhatIsHeldBackFailsNoRequest) {
  Make("debug=poison,quarantine=1GiB,memory_fraction=1");
  for (int i = 0; i < 300; ++i) {
    void* const block = Get(kMiB);
    ASSERT_NE(block, nullptr);
    ASSERT_TRUE(allocator_->Deallocate(block).ok());
    ASSERT_TRUE(absl::IsInvalidArgument(allocator_->Deallocate(block)));
  }
  ASSERT_TRUE(allocator_->Trim().ok());
  EXPECT_EQ(allocator_->GetStats().pool_bytes, 0);
}

TEST_P(DebugChecksTest, LeaksAreListedByTagWithWhereTheyCameFrom) {
  Make("debug=leaks+stacks");
  {
    ScopedTag scope(RegisterTag("weights"));
    Get(1000);
    Get(2000);
  }
  Get(64);
  ASSERT_TRUE(allocator_->Deallocate(Get(77)).ok());
  allocator_.reset();
  EXPECT_THAT(log_, AllOf(HasSubstr("leaks: 3 blocks"), HasSubstr("weights: 2 blocks"),
                          HasSubstr("(no tag): 1 blocks"), HasSubstr("allocation number 2"),
                          HasSubstr("DebugChecksTest"), Not(HasSubstr("77 bytes"))));
}

TEST_P(DebugChecksTest, ThreadsAreCheckedToo) {
  Make("debug=guard+poison,quarantine=1MiB,memory_fraction=1");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = 1; i < 400; ++i) {
        void* const block = allocator_->TryAllocate(i * 13);
        if (block == nullptr) continue;
        std::memset(block, 1, i * 13);
        EXPECT_TRUE(allocator_->Deallocate(block).ok());
        if (i % 100 == 0) {
          EXPECT_TRUE(allocator_->CheckMemory().ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  allocator_.reset();
  EXPECT_THAT(log_, IsEmpty());
}

TEST_P(DebugChecksTest, WithoutBytesOnlyLeaksAreFound) {
  const auto device = OpenDevice("sim:64MiB");
  for (const char* checks : {"guard", "poison", "guard+leaks"}) {
    const absl::Status status =
        MakeAllocator(*ParsePolicy(GetParam() + ":debug=" + checks), *device).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("debug"), HasSubstr("sim")));
  }
  Make("debug=leaks", "sim:64MiB");
  Get(100);
  allocator_.reset();
  EXPECT_THAT(log_, HasSubstr("leaks: 1 blocks"));
}

TEST_P(DebugChecksTest, AFreeThatTheSourceRefusesLeavesTheBlockLive) {
  if (GetParam() != "platform") GTEST_SKIP() << "frees there call no source";
  const auto device = OpenDevice("host:64MiB");
  const auto source =
      std::make_shared<testing::FaultySource>(*(*device)->MakeSource(*ParsePolicy("platform")));
  auto allocator = MakeAllocator(*ParsePolicy("platform:debug=guard"), source);
  ASSERT_TRUE(allocator.ok()) << allocator.status();
  void* const block = *(*allocator)->Allocate(1000);
  source->Fail(testing::SourceCall::kReleaseBlock, 1, absl::InternalError("injected"));
  EXPECT_TRUE(absl::IsInternal((*allocator)->Deallocate(block)));
  EXPECT_EQ((*allocator)->GetStats().requested_bytes, 1000);
  EXPECT_TRUE((*allocator)->Deallocate(block).ok());
  EXPECT_EQ((*allocator)->GetStats().num_frees, 1);
}

TEST(DebugPolicyTest, AnyJoinedNamesAreRead) {
  for (const char* text : {"guard+poison+leaks", "guard;poison;leaks", "LEAKS + guard;poison"}) {
    const absl::StatusOr<Policy> policy = ParsePolicy(std::string("bfc:debug=") + text);
    ASSERT_TRUE(policy.ok()) << policy.status();
    EXPECT_TRUE(policy->debug.guard && policy->debug.poison && policy->debug.leaks);
    EXPECT_FALSE(policy->debug.stacks);
    EXPECT_EQ(ToString(*policy), "bfc:debug=guard+poison+leaks");
  }
  for (const char* text : {"", "guards", "guard+", "guard poison", "all", "1"}) {
    EXPECT_THAT(std::string(ParsePolicy(std::string("debug=") + text).status().message()),
                HasSubstr("allowed: none, or any of guard, poison, leaks, stacks"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DebugChecksTest,
                         ::testing::Values("bfc", "on_demand", "platform", "elastic"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace hbm
