// SPDX-License-Identifier: Apache-2.0
#include "policy/environment.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/log.h"

namespace hbm::policy {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kAllocator[] = "XLA_PYTHON_CLIENT_ALLOCATOR";
constexpr char kPreallocate[] = "XLA_PYTHON_CLIENT_PREALLOCATE";
constexpr char kFraction[] = "XLA_CLIENT_MEM_FRACTION";
constexpr char kOldFraction[] = "XLA_PYTHON_CLIENT_MEM_FRACTION";
constexpr char kUnified[] = "TF_FORCE_UNIFIED_MEMORY";

EnvironmentPolicy Read(const Environment& environment) {
  absl::StatusOr<EnvironmentPolicy> read = ReadEnvironment(environment);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? *std::move(read) : EnvironmentPolicy();
}

std::string PolicyOf(const Environment& environment) { return ToString(Read(environment).policy); }

std::string ErrorOf(const Environment& environment) {
  const absl::StatusOr<EnvironmentPolicy> read = ReadEnvironment(environment);
  if (read.ok()) return "accepted as " + ToString(read->policy);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(read.status().message());
}

TEST(Environment, NothingSetIsTheDefault) {
  EXPECT_EQ(Read({}).policy, Policy());
  EXPECT_EQ(Read({{kAllocator, ""},
                  {kPreallocate, " "},
                  {kFraction, ""},
                  {kOldFraction, ""},
                  {kUnified, ""},
                  {"HBMALLOC_POLICY", " "}})
                .policy,
            Policy());
}

TEST(Environment, OwnPolicyWins) {
  const EnvironmentPolicy read = Read(
      {{"HBMALLOC_POLICY", "elastic:slack=0.1"}, {kFraction, "nonsense"}, {kPreallocate, "false"}});
  EXPECT_EQ(ToString(read.policy), "elastic:slack=0.1");
  EXPECT_EQ(read.origins.at("slack"), "HBMALLOC_POLICY");
  EXPECT_THAT(read.not_in_force,
              ElementsAre("XLA_PYTHON_CLIENT_PREALLOCATE=false: HBMALLOC_POLICY is set and wins",
                          "XLA_CLIENT_MEM_FRACTION=nonsense: HBMALLOC_POLICY is set and wins"));
  EXPECT_THAT(ErrorOf({{"HBMALLOC_POLICY", "elastic:slak=0.1"}}),
              AllOf(StartsWith("HBMALLOC_POLICY: "), HasSubstr("Did you mean slack?")));
}

TEST(Environment, Allocators) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"default", ""},
      {"bfc", "bfc"},
      {"BFC", "bfc"},
      {"platform", "platform"},
      {"cuda_async", "cuda_async:preallocate=true"},  // XLA's default
      {"vmm", "elastic"},
      {" Platform ", "platform"}};
  for (const auto& [value, policy] : cases) {
    EXPECT_EQ(PolicyOf({{kAllocator, value}}), policy) << value;
  }
  for (const char* value : {"elastic", "on_demand", "address", "cuda_malloc_async", "bfc,", "0"}) {
    EXPECT_THAT(ErrorOf({{kAllocator, value}}),
                AllOf(StartsWith(kAllocator), HasSubstr(value), HasSubstr("allowed: default, bfc")))
        << value;
  }
}

TEST(Environment, PreallocateIsNeverTakenTheOtherWay) {
  for (const char* no : {"false", "False", "FALSE", "0", "no", "NO", "off", "Off", " false "}) {
    EXPECT_EQ(PolicyOf({{kPreallocate, no}}), "preallocate=false") << no;
  }
  for (const char* yes : {"true", "True", "TRUE", "1", "yes", "on"}) {
    EXPECT_EQ(PolicyOf({{kPreallocate, yes}}), "preallocate=true") << yes;
  }
  for (const char* bad : {"2", "none", "disable", "f", "n", "0.0", "-1", "falsch"}) {
    EXPECT_THAT(ErrorOf({{kPreallocate, bad}}),
                AllOf(StartsWith(kPreallocate), HasSubstr(bad), HasSubstr("allowed: true, false")))
        << bad;
  }
}

TEST(Environment, PreallocateMeetsEveryAllocator) {
  EXPECT_EQ(PolicyOf({{kAllocator, "bfc"}, {kPreallocate, "false"}}), "bfc:preallocate=false");
  EXPECT_EQ(PolicyOf({{kAllocator, "cuda_async"}, {kPreallocate, "false"}}),
            "cuda_async:preallocate=false");
  for (const char* allocator : {"platform", "vmm"}) {
    for (const char* value : {"true", "false"}) {
      const EnvironmentPolicy read = Read({{kAllocator, allocator}, {kPreallocate, value}});
      EXPECT_EQ(read.policy.preallocate, std::nullopt);
      EXPECT_THAT(read.not_in_force, ElementsAre(StartsWith(kPreallocate)));
    }
    EXPECT_THAT(ErrorOf({{kAllocator, allocator}, {kPreallocate, "maybe"}}),
                StartsWith(kPreallocate));
  }
}

TEST(Environment, Fractions) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"0.5", "memory_fraction=0.5"},
      {" .90 ", "memory_fraction=0.9"},
      {"0.75", ""},
      {"0.75+", "memory_fraction=0.75+"},
      {"0.5-0.9", "memory_fraction=0.5-0.9"},
      {"1e-1", "memory_fraction=0.1"},
      {"1", "memory_fraction=1"},
      {"1.0", "memory_fraction=1"}};
  for (const auto& [value, policy] : cases) {
    EXPECT_EQ(PolicyOf({{kFraction, value}}), policy) << value;
    EXPECT_EQ(PolicyOf({{kOldFraction, value}}), policy) << value;
  }
  for (const char* value : {"100", "90%", ".XX", "abc", "0", "-0.5", "0.5-", "nan", "1.5+"}) {
    EXPECT_THAT(ErrorOf({{kFraction, value}}), StartsWith(kFraction)) << value;
    EXPECT_THAT(ErrorOf({{kOldFraction, value}}), StartsWith(kOldFraction)) << value;
  }
  EXPECT_THAT(ErrorOf({{kFraction, "100"}}), HasSubstr("write 1"));
  EXPECT_THAT(ErrorOf({{kFraction, "90%"}}), HasSubstr("write 0.9"));
}

TEST(Environment, BothNamesOfTheFraction) {
  EXPECT_EQ(PolicyOf({{kFraction, "0.5"}, {kOldFraction, "0.50"}}), "memory_fraction=0.5");
  EXPECT_EQ(PolicyOf({{kFraction, "0.5"}, {kOldFraction, ""}}), "memory_fraction=0.5");
  EXPECT_EQ(PolicyOf({{kFraction, ""}, {kOldFraction, "0.5"}}), "memory_fraction=0.5");
  EXPECT_THAT(ErrorOf({{kFraction, "0.5"}, {kOldFraction, "0.6"}}),
              AllOf(StartsWith(kFraction), HasSubstr("XLA_PYTHON_CLIENT_MEM_FRACTION=0.6"),
                    HasSubstr("contradict")));
  EXPECT_THAT(ErrorOf({{kFraction, "0.5"}, {kOldFraction, "x"}}), HasSubstr("contradict"));
}

TEST(Environment, OnlyAPreallocatedBfcPoolGrows) {
  for (const Environment& others :
       std::vector<Environment>{{{kPreallocate, "false"}},
                                {{kAllocator, "bfc"}, {kPreallocate, "0"}},
                                {{kAllocator, "platform"}},
                                {{kAllocator, "cuda_async"}},
                                {{kAllocator, "vmm"}}}) {
    Environment environment = others;
    environment[kFraction] = "0.5-0.9";
    const EnvironmentPolicy read = Read(environment);
    EXPECT_EQ(read.policy.memory_fraction, MemoryFraction{0.5});
    EXPECT_THAT(read.not_in_force, ElementsAre(StartsWith("XLA_CLIENT_MEM_FRACTION=0.5-0.9: ")));
  }
  const EnvironmentPolicy grows = Read({{kFraction, "0.5-0.9"}, {kPreallocate, "true"}});
  EXPECT_EQ(grows.policy.memory_fraction, (MemoryFraction{0.5, 0.9}));
  EXPECT_THAT(grows.not_in_force, IsEmpty());
}

TEST(Environment, UnifiedMemory) {
  for (const char* yes : {"1", "true", "True", "TRUE", "yes", "on"}) {
    EXPECT_EQ(PolicyOf({{kUnified, yes}}), "memory_fraction=1,memory_kind=unified") << yes;
  }
  for (const char* no : {"0", "false", "FALSE", "no", "off"}) {
    EXPECT_EQ(PolicyOf({{kUnified, no}}), "") << no;
  }
  for (const char* bad : {"2", "force", "t"}) {
    EXPECT_THAT(ErrorOf({{kUnified, bad}}), AllOf(StartsWith(kUnified), HasSubstr(bad))) << bad;
  }
  EXPECT_EQ(PolicyOf({{kUnified, "1"}, {kFraction, "4.0"}}),
            "memory_fraction=4,memory_kind=unified");
  EXPECT_EQ(PolicyOf({{kUnified, "1"}, {kFraction, "1.7"}, {kPreallocate, "false"}}),
            "memory_fraction=1.7,preallocate=false,memory_kind=unified");
  // A fraction alone does not make memory unified: in XLA it fails far away.
  EXPECT_THAT(ErrorOf({{kFraction, "4.0"}}), AllOf(HasSubstr("XLA_CLIENT_MEM_FRACTION=4.0"),
                                                   HasSubstr("TF_FORCE_UNIFIED_MEMORY=1")));
  EXPECT_THAT(ErrorOf({{kFraction, "4.0"}, {kUnified, "0"}}), HasSubstr("memory_kind=unified"));
  EXPECT_THAT(ErrorOf({{kFraction, "17"}, {kUnified, "1"}}), HasSubstr("more than 16 times"));
}

TEST(Environment, UnifiedMemoryIsAtLeastTheWholeDevice) {
  for (const char* fraction : {"0.5", "0.5+", "0.5-0.9"}) {
    const EnvironmentPolicy read = Read({{kUnified, "1"}, {kFraction, fraction}});
    EXPECT_EQ(read.policy.memory_fraction, MemoryFraction{1.0}) << fraction;
    EXPECT_THAT(read.warnings, ElementsAre(AllOf(HasSubstr(fraction), HasSubstr("taken as 1"))));
  }
  EXPECT_THAT(Read({{kUnified, "1"}}).warnings, IsEmpty());
  EXPECT_THAT(Read({{kUnified, "1"}, {kFraction, "1"}}).warnings, IsEmpty());
}

TEST(Environment, UnifiedMemoryMeetsEveryAllocator) {
  EXPECT_EQ(Read({{kUnified, "1"}, {kAllocator, "bfc"}}).policy.memory_kind, MemoryKind::kUnified);
  for (const char* allocator : {"platform", "cuda_async", "vmm"}) {
    const EnvironmentPolicy read = Read({{kUnified, "1"}, {kAllocator, allocator}});
    EXPECT_EQ(read.policy.memory_kind, MemoryKind::kDevice);
    EXPECT_EQ(read.policy.memory_fraction, MemoryFraction{0.75});
    EXPECT_THAT(read.not_in_force, ElementsAre(StartsWith("TF_FORCE_UNIFIED_MEMORY=1: ")));
  }
}

TEST(Environment, OthersVariablesAreNamedAsNotInForce) {
  const EnvironmentPolicy read = Read({{"TF_GPU_ALLOCATOR", "cuda_malloc_async"},
                                       {"TF_FORCE_GPU_ALLOW_GROWTH", "true"},
                                       {"TF_GPU_MEMORY_LIMIT", "4096"},
                                       {"XLA_FLAGS", "--xla_gpu_memory_fraction_policy=0.5"},
                                       {"XLA_SOMETHING_ELSE", "1"}});
  EXPECT_EQ(read.policy, Policy());
  EXPECT_THAT(read.not_in_force,
              ElementsAre("TF_GPU_ALLOCATOR=cuda_malloc_async: only TensorFlow reads it",
                          "TF_FORCE_GPU_ALLOW_GROWTH=true: only TensorFlow reads it",
                          "TF_GPU_MEMORY_LIMIT=4096: no program is known to read it",
                          "XLA_FLAGS with xla_gpu_memory_fraction_policy: only XLA reads it"));
}

TEST(Environment, FindsMisspeltNames) {
  EXPECT_THAT(FindMisspelt({{"HBMALLOC_POLICY", "bfc"}, {kFraction, "0.5"}, {"XLA_FLAGS", ""}}),
              IsEmpty());
  for (const char* name : {"HBMALLOC_POLICY ", " HBMALLOC_POLICY", "hbmalloc_policy",
                           "HBMALLOC_POLCY", "HBMALLOC_", "HBMALLOC_FRACTION"}) {
    EXPECT_THAT(FindMisspelt({{name, "bfc"}}),
                ElementsAre(AllOf(HasSubstr("\"" + std::string(name) + "\""),
                                  HasSubstr("did you mean HBMALLOC_POLICY?"))));
  }
  EXPECT_THAT(FindMisspelt({{"TF_FORCE_GPU_ALLOW_GROWTH ", "true"}}),
              ElementsAre(HasSubstr("did you mean TF_FORCE_GPU_ALLOW_GROWTH?")));
  EXPECT_THAT(FindMisspelt({{"XLA_CLIENT_MEM_FRACTION ", "0.5"}}),
              ElementsAre(HasSubstr("did you mean XLA_CLIENT_MEM_FRACTION?")));
}

TEST(Environment, DescriptionSaysWhereEachValueCameFrom) {
  const std::string text = DescribeEnvironment({{kFraction, "0.5"},
                                                {kAllocator, "vmm"},
                                                {"TF_GPU_ALLOCATOR", "cuda_malloc"},
                                                {"HBMALLOC_POLICY ", "bfc"}});
  EXPECT_THAT(text, StartsWith("policy: \"elastic:memory_fraction=0.5\"\n"));
  EXPECT_THAT(text,
              ::testing::ContainsRegex("strategy +elastic +XLA_PYTHON_CLIENT_ALLOCATOR=vmm\n"));
  EXPECT_THAT(text,
              ::testing::ContainsRegex("memory_fraction +0.5 +XLA_CLIENT_MEM_FRACTION=0.5\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("slack +0.05 +default\n"));
  EXPECT_THAT(text, HasSubstr("not in force: TF_GPU_ALLOCATOR=cuda_malloc: only TensorFlow"));
  EXPECT_THAT(text, HasSubstr("unknown: the environment variable \"HBMALLOC_POLICY \""));
  EXPECT_THAT(DescribeEnvironment({{kFraction, "100"}}),
              StartsWith("error: XLA_CLIENT_MEM_FRACTION: \"100\""));
  EXPECT_THAT(DescribeEnvironment({{kUnified, "1"}, {kFraction, "0.5"}}), HasSubstr("note: "));
}

TEST(EnvironmentWatch, SaysEachThingOnce) {
  EnvironmentWatch watch;
  EXPECT_THAT(watch.Fresh({{kFraction, "0.5"}}, {"a"}), ElementsAre("a"));
  EXPECT_THAT(watch.Fresh({{kFraction, "0.5"}}, {"a", "b"}), ElementsAre("b"));
  EXPECT_THAT(watch.Fresh({{kFraction, "0.6"}}, {}),
              ElementsAre(AllOf(HasSubstr(kFraction), HasSubstr("\"0.5\" to \"0.6\""))));
  EXPECT_THAT(watch.Fresh({{kFraction, "0.7"}}, {}), IsEmpty());
  EXPECT_THAT(watch.Fresh({{kFraction, "0.7"}, {"HBMALLOC_POLICY", "bfc"}}, {}),
              ElementsAre(HasSubstr("unset to \"bfc\"")));
  EXPECT_THAT(watch.Fresh({{kFraction, "0.5"}, {"TF_GPU_ALLOCATOR", "x"}}, {}), IsEmpty());
}

class ProcessEnvironment : public ::testing::Test {
 protected:
  ProcessEnvironment() {
    for (const char* name : {"HBMALLOC_POLICY", "HBMALLOC_POLICY ", kAllocator, kPreallocate,
                             kFraction, kOldFraction, kUnified}) {
      unsetenv(name);
    }
    previous_ = SetLogSink([this](LogSeverity severity, std::string_view message) {
      EXPECT_EQ(severity, LogSeverity::kWarning);
      log_.emplace_back(message);
    });
  }
  ~ProcessEnvironment() override { SetLogSink(std::move(previous_)); }

  std::vector<std::string> log_;
  LogSink previous_;
};

// One test, because what was said once stays said in this process.
TEST_F(ProcessEnvironment, IsReadAndWatched) {
  EXPECT_EQ(*PolicyFromEnv(), Policy());
  EXPECT_THAT(log_, IsEmpty());

  setenv("HBMALLOC_POLICY ", "bfc", 1);
  EXPECT_EQ(*PolicyFromEnv(), Policy());
  EXPECT_THAT(log_, ElementsAre(HasSubstr("\"HBMALLOC_POLICY \"")));
  EXPECT_TRUE(PolicyFromEnv().ok());
  EXPECT_EQ(log_.size(), 1U);

  setenv(kFraction, "0.5", 1);
  EXPECT_EQ(ToString(*PolicyFromEnv()), "memory_fraction=0.5");
  ASSERT_EQ(log_.size(), 2U);
  EXPECT_THAT(log_[1], AllOf(HasSubstr(kFraction), HasSubstr("unset to \"0.5\"")));

  setenv("HBMALLOC_POLICY", "elastic", 1);
  EXPECT_EQ(ToString(*PolicyFromEnv()), "elastic");
  EXPECT_EQ(log_.size(), 3U);
  EXPECT_THAT(DescribePolicyFromEnv(),
              AllOf(HasSubstr("HBMALLOC_POLICY is set and wins"), Not(HasSubstr("error"))));

  setenv("HBMALLOC_POLICY", "elastic:slak=1", 1);
  EXPECT_FALSE(PolicyFromEnv().ok());
  EXPECT_EQ(log_.size(), 3U);
  clearenv();
  EXPECT_EQ(*PolicyFromEnv(), Policy());
}

}  // namespace
}  // namespace hbm::policy
