// SPDX-License-Identifier: Apache-2.0
//
// elastic against a driver that fails: the k-th call of each kind, once or several
// times in a row. Whatever fails, no memory is lost, no block is without access,
// and once the driver works again all of it can be used.
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/faulty_source.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kDevice = 96 * kMiB;

struct Case {
  SourceCall call;
  absl::StatusCode code;
  int times;
};

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return absl::StrCat(ToString(info.param.call), "_",
                      info.param.code == absl::StatusCode::kInternal ? "Internal" : "Exhausted",
                      "_", info.param.times);
}

class ElasticFaultsTest : public ::testing::TestWithParam<Case> {
 protected:
  void Open(const std::string& policy_text) {
    device_ = std::make_shared<FaultyDevice>(*OpenDevice(absl::StrCat("sim:", kDevice)));
    auto policy = ParsePolicy(policy_text);
    ASSERT_TRUE(policy.ok()) << policy.status();
    policy->memory_fraction = {1.0, {}};
    auto made = MakeAllocator(*policy, device_);
    ASSERT_TRUE(made.ok()) << made.status();
    allocator_ = *std::move(made);
  }

  // Random blocks up to most of the device, so that pages have to move.
  void Churn(int steps, std::uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < steps; ++i) {
      if (!blocks_.empty() && random() % 100 < 45) {
        auto victim =
            std::next(blocks_.begin(), static_cast<std::ptrdiff_t>(random() % blocks_.size()));
        ASSERT_TRUE(allocator_->Deallocate(victim->first).ok());
        blocks_.erase(victim);
      } else {
        const std::size_t bytes = std::size_t{256} << (random() % 17) | (random() % 200);
        const auto block = allocator_->Allocate(bytes);
        if (!block.ok()) continue;
        ASSERT_TRUE(blocks_.emplace(*block, bytes).second);
        // The new block lies apart from its neighbours and may be used.
        const auto at = blocks_.find(*block);
        const auto after = std::next(at);
        if (after != blocks_.end()) {
          ASSERT_LE(static_cast<char*>(at->first) + bytes, static_cast<char*>(after->first));
        }
      }
    }
  }

  void ExpectAllUsable() {
    for (const auto& [block, bytes] : blocks_) {
      ASSERT_TRUE(device_->source()->IsUsable({block, bytes})) << block << ", " << bytes;
    }
    const Stats stats = allocator_->GetStats();
    const Outstanding out = device_->source()->GetOutstanding();
    EXPECT_EQ(static_cast<std::size_t>(stats.pool_bytes), device_->source()->HeldBytes());
    EXPECT_LE(stats.pool_bytes, stats.bytes_limit);
    EXPECT_EQ(static_cast<std::size_t>(stats.num_regions), out.mappings);
  }

  // With the driver well again, everything can be freed, given back, and had anew.
  void ExpectRecovers() {
    device_->source()->StopFailing();
    Churn(50, 99);
    ExpectAllUsable();
    for (const auto& [block, bytes] : blocks_) ASSERT_TRUE(allocator_->Deallocate(block).ok());
    blocks_.clear();
    ASSERT_TRUE(allocator_->Trim().ok());
    EXPECT_EQ(allocator_->GetStats().pool_bytes, 0);
    EXPECT_EQ(device_->source()->GetOutstanding().handles, 0u);
    const auto whole = allocator_->Allocate(kDevice);
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_TRUE(device_->source()->IsUsable({*whole, kDevice}));
    ASSERT_TRUE(allocator_->Deallocate(*whole).ok());
    allocator_.reset();
    EXPECT_EQ(device_->source()->GetOutstanding(), Outstanding{});
  }

  std::shared_ptr<FaultyDevice> device_;
  std::unique_ptr<Allocator> allocator_;
  std::map<void*, std::size_t> blocks_;
};

TEST_P(ElasticFaultsTest, LosesNothingWhicheverCallFails) {
  const Case& fault = GetParam();
  for (const char* policy : {"elastic:slack=0", "elastic", "elastic:idle_release=0,slack=0"}) {
    for (int k : {1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144}) {
      SCOPED_TRACE(absl::StrCat(policy, ", call ", k));
      blocks_.clear();
      Open(policy);
      Churn(150, 1);
      device_->source()->Fail(fault.call, k, absl::Status(fault.code, "injected"), fault.times);
      Churn(300, 2);
      ExpectAllUsable();
      ASSERT_TRUE(allocator_->Trim().ok());
      ExpectAllUsable();
      ExpectRecovers();
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, ElasticFaultsTest,
    ::testing::Values(Case{SourceCall::kCreate, absl::StatusCode::kResourceExhausted, 1},
                      Case{SourceCall::kCreate, absl::StatusCode::kResourceExhausted, 40},
                      Case{SourceCall::kCreate, absl::StatusCode::kInternal, 2},
                      Case{SourceCall::kMap, absl::StatusCode::kInternal, 1},
                      Case{SourceCall::kMap, absl::StatusCode::kResourceExhausted, 3},
                      Case{SourceCall::kSetAccess, absl::StatusCode::kInternal, 1},
                      Case{SourceCall::kSetAccess, absl::StatusCode::kInternal, 9},
                      Case{SourceCall::kUnmap, absl::StatusCode::kInternal, 1},
                      Case{SourceCall::kUnmap, absl::StatusCode::kInternal, 7},
                      Case{SourceCall::kRelease, absl::StatusCode::kInternal, 1},
                      Case{SourceCall::kRelease, absl::StatusCode::kInternal, 5},
                      Case{SourceCall::kGetMemoryInfo, absl::StatusCode::kInternal, 1}),
    CaseName);

// Access fails and then so does unmapping: the memory is neither usable nor free.
TEST_F(ElasticFaultsTest, MemoryThatCannotBeUnmappedComesBackLater) {
  Open("elastic:slack=0");
  device_->source()->Fail(SourceCall::kSetAccess, 1, absl::InternalError("injected"), 100);
  device_->source()->Fail(SourceCall::kUnmap, 1, absl::InternalError("injected"), 100);
  const auto failed = allocator_->Allocate(8 * kMiB);
  ASSERT_FALSE(failed.ok());
  EXPECT_TRUE(absl::IsInternal(failed.status())) << failed.status();
  ExpectRecovers();
}

TEST_F(ElasticFaultsTest, ConstructionFailsCleanly) {
  for (SourceCall call :
       {SourceCall::kReserve, SourceCall::kCreate, SourceCall::kMap, SourceCall::kSetAccess}) {
    auto device = *OpenDevice(absl::StrCat("sim:", kDevice));
    auto policy = *ParsePolicy("elastic:preallocate=true,on_shortage=fail");
    auto source = std::make_shared<FaultySource>(*device->MakeSource(policy));
    source->Fail(call, 1, absl::InternalError("injected"));
    const auto made = MakeAllocator(policy, source);
    EXPECT_TRUE(absl::IsInternal(made.status())) << ToString(call) << ": " << made.status();
    EXPECT_EQ(source->GetOutstanding(), Outstanding{}) << ToString(call);
  }
}

// A low device is met with what is idle: one round of stealing, one retry.
TEST_F(ElasticFaultsTest, ALowDeviceIsMetWithIdlePages) {
  Open("elastic");
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(*allocator_->Allocate(4 * kMiB));
  // Every other block goes, so that no free chunk holds 8 MiB.
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    ASSERT_TRUE(allocator_->Deallocate(blocks[i]).ok());
  }
  device_->source()->Fail(SourceCall::kCreate, 1, absl::ResourceExhaustedError("low"), 1000);
  const auto block = allocator_->Allocate(8 * kMiB);
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_TRUE(device_->source()->IsUsable({*block, 8 * kMiB}));
  const auto too_much = allocator_->Allocate(64 * kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(too_much.status())) << too_much.status();
}

}  // namespace
}  // namespace hbm::testing
