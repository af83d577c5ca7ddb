// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/policy.h"

namespace hbm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

std::string ErrorOf(const std::string& spec) {
  const absl::StatusOr<Policy> policy = ParsePolicy(spec);
  if (policy.ok()) return "accepted as " + ToString(*policy);
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument) << spec;
  return std::string(policy.status().message());
}

TEST(ParsePolicy, EmptyTextIsTheDefault) {
  EXPECT_EQ(*ParsePolicy(""), Policy());
  EXPECT_EQ(*ParsePolicy(" \n"), Policy());
  EXPECT_EQ(ToString(Policy()), "");
}

TEST(ParsePolicy, ReadsEveryField) {
  const absl::StatusOr<Policy> policy = ParsePolicy(
      "bfc:memory_fraction=0.5-0.9,preallocate=yes,memory_limit=8GiB,reserve=1GiB,"
      "fraction_of=free,growth=4MiB,fragmentation_fraction=0.1,garbage_collection=on,max_wait=10s,"
      "on_shortage=fail,memory_kind=pinned_host,stream_mode=ordered,slack=inf,reuse_wait=20ms,idle_"
      "release=5s,"
      "release_threshold=1GB,peers=1;2,thread_cache=1,quarantine=16MiB,trace=a=b:%p.csv,means=1");
  ASSERT_TRUE(policy.ok()) << policy.status();
  Policy want;
  want.strategy = Strategy::kBfc;
  want.memory_fraction = {0.5, 0.9};
  want.preallocate = true;
  want.memory_limit = 8 * kGiB;
  want.reserve = kGiB;
  want.fraction_of = FractionOf::kFree;
  want.growth = 4 * kMiB;
  want.fragmentation_fraction = 0.1;
  want.garbage_collection = true;
  want.max_wait = absl::Seconds(10);
  want.on_shortage = OnShortage::kFail;
  want.memory_kind = MemoryKind::kPinnedHost;
  want.stream_mode = StreamMode::kOrdered;
  want.slack = std::numeric_limits<double>::infinity();
  want.reuse_wait = absl::Milliseconds(20);
  want.idle_release = absl::Seconds(5);
  want.release_threshold = 1000000000;
  want.peers = {1, 2};
  want.thread_cache = true;
  want.quarantine = 16 * kMiB;
  want.trace = "a=b:%p.csv";
  want.means = true;
  EXPECT_EQ(*policy, want);
  EXPECT_EQ(policy->strategy, Strategy::kBfc);
  EXPECT_EQ(policy->memory_limit, 8 * kGiB);
  EXPECT_EQ(policy->peers, (std::vector<int>{1, 2}));
  EXPECT_TRUE(ParsePolicy("exportable=1")->exportable);
}

TEST(ParsePolicy, StrategyStandsInFrontOrGoesByItsName) {
  const std::vector<std::pair<std::string, Strategy>> cases = {
      {"bfc", Strategy::kBfc},
      {"on_demand", Strategy::kOnDemand},
      {"platform", Strategy::kPlatform},
      {"cuda_async", Strategy::kCudaAsync},
      {"elastic", Strategy::kElastic},
      {" Elastic ", Strategy::kElastic},
      {"strategy=platform", Strategy::kPlatform},
      {"reserve=1GiB,strategy=bfc", Strategy::kBfc},
      {" bfc : reserve = 1GiB , slack = 0.1 ", Strategy::kBfc}};
  for (const auto& [spec, strategy] : cases) {
    const absl::StatusOr<Policy> policy = ParsePolicy(spec);
    ASSERT_TRUE(policy.ok()) << spec << ": " << policy.status();
    EXPECT_EQ(policy->strategy, strategy) << spec;
  }
  EXPECT_EQ(ParsePolicy("reserve=1GiB")->strategy, std::nullopt);
}

TEST(ParsePolicy, ErrorsNameFieldValueAndWhatIsAllowed) {
  EXPECT_THAT(
      ErrorOf("bfc:on_shortage=panic"),
      AllOf(HasSubstr("on_shortage"), HasSubstr("\"panic\""), HasSubstr("allowed: shrink, fail")));
  EXPECT_THAT(ErrorOf("bcf"), AllOf(HasSubstr("strategy: \"bcf\""), HasSubstr("on_demand")));
  EXPECT_THAT(ErrorOf("growth=1"),
              AllOf(HasSubstr("growth: \"1\" is out of range"), HasSubstr("256 to 1TiB")));
  EXPECT_THAT(ErrorOf("memory_limit=8G"), HasSubstr("write GiB (binary) or GB (decimal)"));
  EXPECT_THAT(ErrorOf("max_wait=10"), HasSubstr("write 10s"));
}

TEST(ParsePolicy, UnknownFieldNamesTheNearest) {
  EXPECT_THAT(ErrorOf("bfc:memory_fracton=0.5"), HasSubstr("Did you mean memory_fraction?"));
  EXPECT_THAT(ErrorOf("Reserve=1GiB"), HasSubstr("Did you mean reserve?"));
  EXPECT_THAT(ErrorOf("garbage=1"), AllOf(HasSubstr("Did you mean garbage_collection?"),
                                          HasSubstr("The fields are: strategy, memory_fraction")));
  EXPECT_THAT(ErrorOf("a=b"), Not(HasSubstr("Did you mean")));
}

TEST(ParsePolicy, ErrorsQuoteTheTextAsWrittenAndNeverAScreenfulOfIt) {
  EXPECT_THAT(ErrorOf("memory_limit=0.1"), HasSubstr("\"0.1\" is out of range"));
  const std::string long_text(100000, '7');
  for (const char* field : {"peers", "slack", "strategy", "memory_limit", "max_wait", "nonsense"}) {
    const std::string error = ErrorOf(std::string(field) + "=" + long_text);
    EXPECT_FALSE(error.empty()) << field;
    EXPECT_LT(error.size(), 1000u) << field;
  }
}

TEST(ParsePolicy, NoneIsNoPeers) {
  const absl::StatusOr<Policy> policy = ParsePolicy("peers=none");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_TRUE(policy->peers.empty());
}

TEST(ParsePolicy, EachFieldOnce) {
  EXPECT_THAT(ErrorOf("reserve=1GiB,reserve=1GiB"),
              AllOf(HasSubstr("reserve"), HasSubstr("give each field once")));
  EXPECT_THAT(ErrorOf("bfc:strategy=bfc"), HasSubstr("give each field once"));
}

TEST(ParsePolicy, RefusesBrokenForms) {
  for (const char* spec : {":",
                           "bfc:",
                           ":reserve=1",
                           "bfc:reserve",
                           "bfc,reserve=1GiB",
                           "reserve=",
                           "=1",
                           "=",
                           ",",
                           "reserve=1GiB,",
                           ",reserve=1GiB",
                           "reserve=1GiB,,slack=0",
                           "bfc:on_demand",
                           "bfc:bfc:reserve=1",
                           "reserve=1GiB;slack=0",
                           "reserve==1",
                           "bfc reserve=1GiB",
                           "peers=1,2",
                           "peers=",
                           "peers=1;",
                           "peers=a",
                           "peers=-1",
                           "peers=1;1",
                           "peers=1024",
                           "peers=99999999999",
                           "bfc:reserve=unset"}) {
    EXPECT_FALSE(ParsePolicy(spec).ok()) << spec << " " << ErrorOf(spec);
  }
  EXPECT_FALSE(ParsePolicy(std::string_view("bfc\0", 4)).ok());
  EXPECT_FALSE(ParsePolicy(std::string(1 << 20, 'x')).ok());
  EXPECT_LT(ErrorOf(std::string(1 << 20, 'x') + "=1").size(), 2000U);
}

TEST(ParsePolicy, OutOfRange) {
  for (const char* spec :
       {"memory_limit=0", "growth=255", "growth=2TiB", "fragmentation_fraction=1.1",
        "fragmentation_fraction=inf", "fragmentation_fraction=-0.1", "slack=-1", "slack=nan",
        "max_wait=-1s", "reuse_wait=-1s", "idle_release=-1ns", "quarantine=1025GiB", "reserve=-1",
        "reserve=18446744073709551616"}) {
    EXPECT_FALSE(ParsePolicy(spec).ok()) << ErrorOf(spec);
  }
  for (const char* spec : {"memory_limit=1", "growth=256", "growth=1TiB",
                           "fragmentation_fraction=1", "slack=0", "slack=inf", "max_wait=inf",
                           "idle_release=0", "quarantine=1TiB", "reserve=18446744073709551615"}) {
    EXPECT_TRUE(ParsePolicy(spec).ok()) << ErrorOf(spec);
  }
}

struct FractionCase {
  std::string text;
  MemoryFraction want;
};

TEST(MemoryFraction, FollowsXlasGrammar) {
  const std::vector<FractionCase> cases = {
      {"0.75", {0.75, {}}},        {"0.75+", {0.75, 1.0}},     {"0.75-0.85", {0.75, 0.85}},
      {"0.75-0.75", {0.75, {}}},   {"1", {1.0, {}}},           {"1.0", {1.0, {}}},
      {"1+", {1.0, {}}},           {".90", {0.9, {}}},         {" 0.5 ", {0.5, {}}},
      {"1e-3", {1e-3, {}}},        {"7.5e-1", {0.75, {}}},     {"7.5e-1+", {0.75, 1.0}},
      {"1e-3-2e-3", {1e-3, 2e-3}}, {"1E-3-1E+0", {1e-3, 1.0}},
  };
  for (const FractionCase& c : cases) {
    const absl::StatusOr<Policy> policy = ParsePolicy("memory_fraction=" + c.text);
    ASSERT_TRUE(policy.ok()) << c.text << ": " << policy.status();
    EXPECT_EQ(policy->memory_fraction.start, c.want.start) << c.text;
    EXPECT_EQ(policy->memory_fraction.cap, c.want.cap) << c.text;
  }
}

TEST(MemoryFraction, OverOneNeedsUnifiedMemory) {
  for (const char* text : {"1.5", "1.5-1.5", "4.0", "1.7", "16"}) {
    const std::string field = std::string("memory_fraction=") + text;
    EXPECT_THAT(ErrorOf(field), HasSubstr("memory_kind=unified")) << text;
    EXPECT_TRUE(ParsePolicy(field + ",memory_kind=unified").ok()) << text;
    EXPECT_FALSE(ParsePolicy(field + ",memory_kind=pinned_host").ok()) << text;
    EXPECT_FALSE(ParsePolicy(field + ",memory_kind=unified,fraction_of=free").ok()) << text;
  }
  EXPECT_FALSE(ParsePolicy("memory_fraction=16.1,memory_kind=unified").ok());
}

TEST(MemoryFraction, RefusesEveryMalformedText) {
  for (const char* text :
       {"",       " ",        "abc",     "0",           "0.0",     "-0.5",   "nan",  "inf",
        "-inf",   "0.5-",     "0.5-abc", "0.5-0.7-0.9", "+",       "0+",     "nan+", "0.5++",
        "0.5+-1", "0.5-0.9+", "1.5+",    "0.5-1.5",     "0.9-0.5", ".XX",    "100",  "90%",
        "100%",   "%",        "x%",      "0.5 - 0.7",   "0.5 +",   "1e",     "1e-",  "e-1",
        "0x1p-1", "0,5",      "0.5/0.7", "-",           "--",      "0-0.5",  "+0.5", "1e999",
        "1e-999", "0.5-inf",  "0.5-nan", "17",          "2-3",     "1.5-2+", "0.5e", "0.5 0.6"}) {
    EXPECT_FALSE(ParsePolicy(std::string("memory_fraction=") + text).ok()) << "\"" << text << "\"";
    EXPECT_FALSE(ParsePolicy(std::string("memory_kind=unified,memory_fraction=") + text).ok())
        << "\"" << text << "\"";
  }
}

TEST(MemoryFraction, SaysWhatWasProbablyMeant) {
  EXPECT_THAT(ErrorOf("memory_fraction=100"), HasSubstr("write 1;"));
  EXPECT_THAT(ErrorOf("memory_fraction=75"), HasSubstr("write 0.75;"));
  EXPECT_THAT(ErrorOf("memory_fraction=90%"), HasSubstr("write 0.9;"));
  EXPECT_THAT(ErrorOf("memory_fraction=10"),
              AllOf(HasSubstr("memory_kind=unified"), HasSubstr("write 0.1")));
}

TEST(ValidatePolicy, RefusesCombinationsThatContradict) {
  for (const char* spec :
       {"on_demand:preallocate=true", "platform:preallocate=true", "cuda_async:memory_kind=unified",
        "elastic:memory_kind=unified", "elastic:memory_kind=pinned_host",
        "exportable=true,memory_kind=unified", "exportable=true,memory_kind=pinned_host"}) {
    EXPECT_FALSE(ParsePolicy(spec).ok()) << spec;
  }
  for (const char* spec :
       {"bfc:preallocate=false", "bfc:preallocate=true", "on_demand:preallocate=false",
        "platform:preallocate=false", "elastic:preallocate=true", "cuda_async:preallocate=true",
        "platform:memory_kind=unified", "preallocate=false", "exportable=true"}) {
    EXPECT_TRUE(ParsePolicy(spec).ok()) << ErrorOf(spec);
  }
}

TEST(ValidatePolicy, ChecksPoliciesMadeInCode) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<void (*)(Policy&, double nan, double inf)> breaks = {
      [](Policy& p, double n, double) { p.memory_fraction.start = n; },
      [](Policy& p, double, double i) { p.memory_fraction.start = i; },
      [](Policy& p, double n, double) { p.memory_fraction.cap = n; },
      [](Policy& p, double, double i) { p.memory_fraction.cap = i; },
      [](Policy& p, double, double) { p.memory_fraction.start = 0; },
      [](Policy& p, double, double) { p.memory_fraction.start = -1; },
      [](Policy& p, double, double) { p.memory_fraction.cap = 0.5; },
      [](Policy& p, double n, double) { p.slack = n; },
      [](Policy& p, double n, double) { p.fragmentation_fraction = n; },
      [](Policy& p, double, double) { p.max_wait = -absl::Seconds(1); },
      [](Policy& p, double, double) { p.max_wait = -absl::InfiniteDuration(); },
      [](Policy& p, double, double) { p.growth = 0; },
      [](Policy& p, double, double) { p.memory_limit = 0; },
      [](Policy& p, double, double) { p.strategy = static_cast<Strategy>(77); },
      [](Policy& p, double, double) { p.memory_kind = static_cast<MemoryKind>(-1); },
      [](Policy& p, double, double) { p.on_shortage = static_cast<OnShortage>(9); },
      [](Policy& p, double, double) { p.fraction_of = static_cast<FractionOf>(9); },
      [](Policy& p, double, double) { p.stream_mode = static_cast<StreamMode>(9); },
      [](Policy& p, double, double) { p.peers = {-1}; },
      [](Policy& p, double, double) {
        p.peers = {3, 3};
      },
  };
  for (std::size_t i = 0; i < breaks.size(); ++i) {
    Policy policy;
    ASSERT_TRUE(ValidatePolicy(policy).ok());
    breaks[i](policy, nan, inf);
    const absl::Status status = ValidatePolicy(policy);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "case " << i;
    EXPECT_THAT(std::string(status.message()), HasSubstr("allowed: ")) << "case " << i;
    ToString(policy);  // of anything, without a crash
  }
}

TEST(ToString, IsShort) {
  for (const char* spec :
       {"", "bfc", "elastic:slack=inf", "memory_fraction=0.5", "bfc:memory_fraction=0.75+",
        "bfc:memory_fraction=0.5-0.9,reserve=1GiB", "on_demand:growth=1GiB,max_wait=10s",
        "platform:preallocate=false", "stream_mode=single", "peers=0;3"}) {
    EXPECT_EQ(ToString(*ParsePolicy(spec)), spec);
  }
  EXPECT_EQ(ToString(*ParsePolicy("memory_fraction=0.75,reserve=0,slack=5e-2")), "");
  Policy policy;
  policy.memory_fraction = {0.5, 0.5};
  EXPECT_EQ(ToString(policy), "memory_fraction=0.5");
  EXPECT_EQ(*ParsePolicy(ToString(policy)), policy);
}

class RandomPolicies {
 public:
  Policy Next() {
    Policy p;
    if (Coin()) p.strategy = static_cast<Strategy>(Below(5));
    if (Coin()) {
      p.memory_fraction.start = Unit();
      if (Coin()) p.memory_fraction.cap = p.memory_fraction.start + Unit();
    }
    if (Coin()) p.preallocate = Coin();
    if (Coin()) p.memory_limit = Size();
    if (Coin()) p.reserve = Size();
    if (Coin()) p.fraction_of = static_cast<FractionOf>(Below(2));
    if (Coin()) p.growth = Size();
    if (Coin()) p.fragmentation_fraction = Unit();
    p.garbage_collection = Coin();
    if (Coin()) p.max_wait = Time();
    if (Coin()) p.on_shortage = static_cast<OnShortage>(Below(2));
    if (Coin()) p.memory_kind = static_cast<MemoryKind>(Below(3));
    if (Coin()) p.stream_mode = static_cast<StreamMode>(Below(2));
    if (Coin()) p.slack = Unit() * 10;
    if (Coin()) p.reuse_wait = Time();
    if (Coin()) p.idle_release = Time();
    if (Coin()) p.release_threshold = Size();
    p.exportable = Coin();
    if (Coin()) p.peers = {static_cast<int>(Below(8)), static_cast<int>(8 + Below(8))};
    p.thread_cache = Coin();
    if (Coin()) p.quarantine = Size();
    if (Coin()) p.trace = "run-%p.csv.gz";
    if (Coin()) p.means = true;
    return p;
  }

 private:
  std::uint64_t Below(std::uint64_t n) { return random_() % n; }
  bool Coin() { return Below(4) == 0; }
  double Unit() { return std::uniform_real_distribution<double>(1e-9, 1.0)(random_); }
  std::size_t Size() { return random_() >> Below(64); }
  absl::Duration Time() {
    return absl::Nanoseconds(static_cast<std::int64_t>(random_() >> (1 + Below(63))));
  }
  std::mt19937_64 random_{20240229};
};

TEST(ToString, RoundTripsRandomPolicies) {
  RandomPolicies policies;
  int valid = 0;
  for (int i = 0; i < 20000; ++i) {
    const Policy policy = policies.Next();
    if (!ValidatePolicy(policy).ok()) continue;
    ++valid;
    const std::string text = ToString(policy);
    const absl::StatusOr<Policy> read = ParsePolicy(text);
    ASSERT_TRUE(read.ok()) << text << ": " << read.status();
    ASSERT_EQ(*read, policy) << text;
    ASSERT_EQ(ToString(*read), text);
  }
  EXPECT_GT(valid, 5000);
}

}  // namespace
}  // namespace hbm
