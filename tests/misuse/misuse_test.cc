// SPDX-License-Identifier: Apache-2.0
//
// What callers and devices do that nobody should: every strategy answers with an error
// or goes on, and its books stay right.
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/faulty_source.h"

namespace hbm {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();

class MisuseTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { previous_sink_ = SetLogSink(nullptr); }
  void TearDown() override { SetLogSink(std::move(previous_sink_)); }

  std::unique_ptr<Allocator> Make(const std::string& device, const std::string& fields = "") {
    const std::string separator = GetParam().find(':') == std::string::npos ? ":" : ",";
    const absl::StatusOr<Policy> policy =
        ParsePolicy(fields.empty() ? GetParam() : GetParam() + separator + fields);
    EXPECT_TRUE(policy.ok()) << policy.status();
    auto allocator = MakeAllocator(*policy, *OpenDevice(device));
    EXPECT_TRUE(allocator.ok()) << allocator.status();
    return *std::move(allocator);
  }

  LogSink previous_sink_;
};

TEST_P(MisuseTest, TheDeviceObjectMayGoFirst) {
  auto device = *OpenDevice("host:64MiB");
  auto allocator = *MakeAllocator(*ParsePolicy(GetParam()), device);
  device.reset();
  void* const block = *allocator->Allocate(kMiB);
  EXPECT_TRUE(allocator->Deallocate(block).ok());
  EXPECT_TRUE(allocator->Trim().ok());
}

TEST_P(MisuseTest, SizesAndAlignmentsAroundEveryPowerOfTwo) {
  const auto allocator = Make("sim:256MiB");
  for (int bit = 0; bit < 64; ++bit) {
    for (const int offset : {-1, 0, 1}) {
      const std::size_t bytes =
          (std::size_t{1} << bit) + static_cast<std::size_t>(static_cast<std::int64_t>(offset));
      for (int log = 0; log < 64; log += 3) {
        for (const int more : {-1, 0, 1}) {
          AllocateOptions options;
          options.alignment =
              (std::size_t{1} << log) + static_cast<std::size_t>(static_cast<std::int64_t>(more));
          const std::size_t a = options.alignment;
          const bool good = a != 0 && (a & (a - 1)) == 0 && a <= kMaxAlignment;
          AllocError why;
          void* const block = allocator->TryAllocate(bytes, options, &why);
          if (bytes == 0 || block == nullptr) {
            ASSERT_EQ(block, nullptr);
            ASSERT_TRUE(bytes == 0 || why.code == (good ? absl::StatusCode::kResourceExhausted
                                                        : absl::StatusCode::kInvalidArgument))
                << bytes << " at " << a;
            // What surely fits was given.
            ASSERT_FALSE(good && bytes != 0 && bytes <= 64 * kMiB) << bytes << " at " << a;
            continue;
          }
          ASSERT_TRUE(good) << a;
          ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block) % a, 0U);
          ASSERT_GE(allocator->Describe(block)->chunk_bytes, bytes);
          ASSERT_TRUE(allocator->Deallocate(block).ok());
        }
      }
    }
  }
  for (const std::size_t below : {0U, 1U, 254U, 255U, 256U, 257U, 511U, 512U, 2U << 20}) {
    EXPECT_TRUE(absl::IsResourceExhausted(allocator->Allocate(kMax - below).status()));
  }
  EXPECT_EQ(allocator->GetStats().bytes_in_use, 0);
  EXPECT_EQ(allocator->GetStats().num_allocs, allocator->GetStats().num_frees);
}

TEST_P(MisuseTest, ManyTinyBlocks) {
  const auto allocator = Make("sim:1GiB", "memory_fraction=1");
  // platform has a device allocation for each.
  const std::size_t count = GetParam() == "platform" ? 20'000 : 300'000;
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.push_back(allocator->TryAllocate(1));
    ASSERT_NE(blocks.back(), nullptr);
  }
  EXPECT_EQ(allocator->GetStats().requested_bytes, static_cast<std::int64_t>(count));
  for (std::size_t i = 0; i < count; i += 2) ASSERT_TRUE(allocator->Deallocate(blocks[i]).ok());
  for (std::size_t i = 1; i < count; i += 2) ASSERT_TRUE(allocator->Deallocate(blocks[i]).ok());
  EXPECT_EQ(allocator->GetStats().bytes_in_use, 0);
}

TEST_P(MisuseTest, AlignmentAsLargeAsThePool) {
  const auto allocator = Make("sim:4MiB", "memory_fraction=1");
  AllocateOptions options;
  options.alignment = kMaxAlignment;
  void* const block = allocator->TryAllocate(1, options);
  EXPECT_TRUE(allocator->Deallocate(block).ok());  // null is no block
  EXPECT_TRUE(absl::IsResourceExhausted(allocator->Allocate(4 * kMiB + 1, options).status()));
  EXPECT_EQ(allocator->GetStats().bytes_in_use, 0);
}

TEST_P(MisuseTest, AbsurdPoliciesAreRefusedInWords) {
  const auto device = *OpenDevice("sim:64MiB");
  for (const char* fields : {"memory_limit=1", "memory_limit=255", "memory_fraction=1e-12",
                             "reserve=64MiB", "reserve=16EiB", "reserve=1TiB"}) {
    const std::string separator = GetParam().find(':') == std::string::npos ? ":" : ",";
    const absl::StatusOr<Policy> policy = ParsePolicy(GetParam() + separator + fields);
    const absl::Status status =
        policy.ok() ? MakeAllocator(*policy, device).status() : policy.status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << fields << ": " << status;
    const std::string field(fields, std::string(fields).find('='));
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  }
}

TEST_P(MisuseTest, AllocatorsStartedOneAfterAnotherGetEqualShares) {
  const auto device = *OpenDevice("sim:1GiB");
  const std::string separator = GetParam().find(':') == std::string::npos ? ":" : ",";
  std::vector<std::unique_ptr<Allocator>> allocators;
  for (int i = 0; i < 3; ++i) {
    auto made = MakeAllocator(*ParsePolicy(GetParam() + separator + "memory_fraction=0.3"), device);
    ASSERT_TRUE(made.ok()) << made.status();
    allocators.push_back(*std::move(made));
    void* const block = allocators.back()->TryAllocate(200 * kMiB);
    EXPECT_NE(block, nullptr);
    EXPECT_EQ(allocators.back()->GetStats().bytes_limit, allocators[0]->GetStats().bytes_limit);
  }
}

TEST_P(MisuseTest, TheKindThatWasAskedForIsTheKindThatRuns) {
  const auto allocator = Make("sim:64MiB");
  const std::string kind(ToString(*allocator->policy().strategy));
  EXPECT_EQ(GetParam().substr(0, kind.size()), kind);
  // And behaves so: only bfc holds memory before the first request, only platform and
  // elastic hold none after the last free.
  const std::int64_t first = allocator->GetStats().pool_bytes;
  EXPECT_EQ(first != 0, kind == "bfc");
}

TEST_P(MisuseTest, WhatTheDeviceSaysIsFreeMayNotBeHad) {
  // As under a limit that the device's figures do not show.
  const auto device = *OpenDevice("sim:1GiB");
  const auto source =
      std::make_shared<testing::FaultySource>(*device->MakeSource(*ParsePolicy(GetParam())));
  auto held = std::make_shared<std::size_t>(0);
  source->FailWhen([held](const testing::CallRecord& record) -> absl::Status {
    const bool takes = record.call == testing::SourceCall::kAllocateRegion ||
                       record.call == testing::SourceCall::kAllocateBlock ||
                       record.call == testing::SourceCall::kCreate;
    if (!takes) return absl::OkStatus();
    if (*held + record.range.bytes > 200 * kMiB) {
      return absl::ResourceExhaustedError("injected: over a hidden limit");
    }
    *held += record.range.bytes;
    return absl::OkStatus();
  });
  auto allocator = MakeAllocator(*ParsePolicy(GetParam()), source);
  ASSERT_TRUE(allocator.ok()) << allocator.status();
  std::vector<void*> blocks;
  while (void* const block = (*allocator)->TryAllocate(8 * kMiB)) blocks.push_back(block);
  EXPECT_GE(blocks.size(), 10U);
  EXPECT_LE(blocks.size(), 25U);
  EXPECT_TRUE(absl::IsResourceExhausted((*allocator)->Allocate(8 * kMiB).status()));
  for (void* const block : blocks) EXPECT_TRUE((*allocator)->Deallocate(block).ok());
  EXPECT_EQ((*allocator)->GetStats().bytes_in_use, 0);
}

TEST_P(MisuseTest, OneThirdRunIsAsGoodAsTheFirst) {
  const auto allocator = Make("sim:256MiB", "memory_fraction=1");
  std::size_t first = 0;
  for (int run = 0; run < 3; ++run) {
    std::vector<void*> blocks;
    for (std::size_t i = 0;; ++i) {
      AllocateOptions options;
      options.stream = StreamRef::FromHandle(reinterpret_cast<void*>(i % 2));  // NOLINT
      void* const block = allocator->TryAllocate((i % 7 + 1) * kMiB, options);
      if (block == nullptr) break;
      blocks.push_back(block);
    }
    if (run == 0) first = blocks.size();
    EXPECT_GE(blocks.size(), first);
    for (void* const block : blocks) ASSERT_TRUE(allocator->Deallocate(block).ok());
    // Nearly all of it in one piece, whatever streams the pieces were used on.
    void* const large = allocator->TryAllocate(120 * kMiB);
    EXPECT_NE(large, nullptr);
    EXPECT_TRUE(allocator->Deallocate(large).ok());
  }
}

TEST_P(MisuseTest, PointersOfEveryKindAreRefused) {
  const auto allocator = Make("sim:64MiB");
  void* const block = *allocator->Allocate(1000);
  const auto base = reinterpret_cast<std::uintptr_t>(block);
  for (int bit = 0; bit < 64; ++bit) {
    const std::uintptr_t address = base ^ (std::uintptr_t{1} << bit);
    void* const wrong = reinterpret_cast<void*>(address);  // NOLINT
    if (wrong == nullptr) continue;
    EXPECT_TRUE(absl::IsInvalidArgument(allocator->Deallocate(wrong))) << bit;
    EXPECT_TRUE(absl::IsInvalidArgument(allocator->RecordUse(wrong, StreamRef()))) << bit;
    const absl::StatusOr<BlockInfo> info = allocator->Describe(wrong);
    EXPECT_EQ(info.ok(), address > base && address - base < 1000) << bit;
  }
  EXPECT_TRUE(allocator->Deallocate(block).ok());
}

INSTANTIATE_TEST_SUITE_P(All, MisuseTest,
                         ::testing::Values("bfc", "on_demand", "platform", "elastic",
                                           "on_demand:stream_mode=ordered",
                                           "bfc:thread_cache=true"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) c = c == ':' || c == '=' ? '_' : c;
                           return name;
                         });

TEST(EnvironmentMisuseTest, ChangesWhileRunningReachNoAllocatorThatIs) {
  const LogSink sink = SetLogSink(nullptr);
  setenv("HBMALLOC_POLICY", "on_demand:memory_fraction=0.5", 1);
  auto allocator = *MakeAllocator(*PolicyFromEnv(), *OpenDevice("sim:64MiB"));
  const std::int64_t limit = allocator->GetStats().bytes_limit;
  for (const char* text : {"platform", "", "nonsense", "bfc:memory_fraction=0.1"}) {
    setenv("HBMALLOC_POLICY", text, 1);
    PolicyFromEnv().status().IgnoreError();
    EXPECT_EQ(allocator->policy().strategy, Strategy::kOnDemand);
    EXPECT_EQ(allocator->GetStats().bytes_limit, limit);
  }
  unsetenv("HBMALLOC_POLICY");
  SetLogSink(sink);
}

}  // namespace
}  // namespace hbm
