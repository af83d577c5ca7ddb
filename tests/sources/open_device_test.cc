// SPDX-License-Identifier: Apache-2.0
//
// Every form of device spec, and what is said about the wrong ones.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/device.h"
#include "hbmalloc/policy.h"

namespace hbm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

struct Good {
  const char* spec;
  const char* name;
  std::size_t total;
  std::size_t free;
};

TEST(OpenDevice, TakesEveryForm) {
  const std::size_t h200 = 143771 * kMiB;
  const Good kTable[] = {
      {"sim", "sim:h200", h200, h200},
      {"sim:h200", "sim:h200", h200, h200},
      {"sim:H200", "sim:h200", h200, h200},
      {"sim:80GiB", "sim:80GiB", 80 * kGiB, 80 * kGiB},
      {"  sim:80GiB\n", "sim:80GiB", 80 * kGiB, 80 * kGiB},
      {"sim:2097152", "sim:2MiB", 2 * kMiB, 2 * kMiB},
      {"sim:12GiB,used=1537MiB", "sim:12GiB,used=1537MiB", 12 * kGiB, 12 * kGiB - 1537 * kMiB},
      {"sim:1GiB,lag=1ms", "sim:1GiB,lag=1ms", kGiB, kGiB},
      {"sim:1GiB,context=500MiB", "sim:1GiB,context=500MiB", kGiB, kGiB},
      {"sim,lag=10ms", "sim:h200,lag=10ms", h200, h200},
      {"sim:4GiB,context=1MiB,used=1GiB,lag=2us", "sim:4GiB,used=1GiB,lag=2us,context=1MiB",
       4 * kGiB, 3 * kGiB},
      {"sim:1GiB,used=1GiB", "sim:1GiB,used=1GiB", kGiB, 0},
      {"host:1GiB", "host:1GiB", kGiB, kGiB},
  };
  for (const Good& good : kTable) {
    SCOPED_TRACE(good.spec);
    const absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(good.spec);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ((*device)->Name(), good.name);
    const absl::StatusOr<MemoryInfo> info = (*device)->GetMemoryInfo();
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->total, good.total);
    EXPECT_EQ(info->free, good.free);
    EXPECT_FALSE((*device)->IsCuda());
    // The name is a spec of the same device.
    const absl::StatusOr<std::shared_ptr<Device>> again = OpenDevice((*device)->Name());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->Name(), good.name);
    EXPECT_NE((*again)->Uuid(), (*device)->Uuid());
  }
}

TEST(OpenDevice, HostIsTheMachinesMemory) {
  const absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice("host");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->Name(), "host");
  EXPECT_GE((*device)->GetMemoryInfo()->total, 64 * kMiB);
  EXPECT_EQ((*device)->simulated_clock(), nullptr);
}

struct Bad {
  const char* spec;
  const char* where;
  const char* what;
};

TEST(OpenDevice, SaysWhereASpecIsWrong) {
  const Bad kTable[] = {
      {"", "device \"\"", "allowed are sim:SIZE"},
      {":", "device \":\"", "allowed are sim:SIZE"},
      {"gpu:0", "\"gpu\"", "cuda:N"},
      {"cuda:zz", "\"zz\"", "no ordinal"},
      {"cuda:GPU-12ab", "\"GPU-12ab\"", "32 hexadecimal digits"},
      {"MIG-xyz", "\"MIG-xyz\"", "no ordinal"},
      {"cuda:1.5", "\"1.5\"", "PCI bus id"},
      {"cuda:0,lag=1ms", "\"lag=1ms\"", "takes none"},
      {"simulated", "\"simulated\"", "host[:SIZE]"},
      {"sim:", "character 4", "nothing follows"},
      {"sim:80Gib?", "\"80Gib?\" at character 5", ""},
      {"sim:-1", "\"-1\" at character 5", ""},
      {"sim:0", "\"0\" at character 5", "from 2MiB"},
      {"sim:1MiB", "\"1MiB\" at character 5", "from 2MiB"},
      {"sim:2000TiB", "\"2000TiB\" at character 5", "to 1024TiB"},
      {"sim:h100", "\"h100\" at character 5", ""},
      {"sim:1GiB,", "\"\" at character 10", "OPTION=VALUE"},
      {"sim:1GiB,used", "\"used\" at character 10", "OPTION=VALUE"},
      {"sim:1GiB,used=", "\"used=\" at character 10", "OPTION=VALUE"},
      {"sim:1GiB,=1", "\"=1\" at character 10", "OPTION=VALUE"},
      {"sim:1GiB,used=2GiB", "\"used=2GiB\" at character 10", "at most the capacity, 1GiB"},
      {"sim:1GiB,lag=1ms,lag=2ms", "\"lag=2ms\" at character 18", "twice"},
      {"sim:1GiB,lag=soon", "\"lag=soon\" at character 10", "from 0 to 30s"},
      {"sim:1GiB,lag=-1ms", "\"lag=-1ms\" at character 10", "from 0 to 30s"},
      {"sim:1GiB,lag=inf", "\"lag=inf\" at character 10", "from 0 to 30s"},
      {"sim:1GiB,usd=1", "\"usd=1\" at character 10", "used, lag, context and shared"},
      {"host:1GiB,used=1MiB", "\"used=1MiB\" at character 11", "allowed is shared"},
      {"host:12", "\"12\" at character 6", "from 2MiB"},
      {"host:100TiB", "\"100TiB\" at character 6", "to 64TiB"},
  };
  for (const Bad& bad : kTable) {
    SCOPED_TRACE(bad.spec);
    const absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(bad.spec);
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(device.status().message()),
                AllOf(HasSubstr(bad.where), HasSubstr(bad.what)));
  }
}

TEST(OpenDevice, MemoryKindsOfStandIns) {
  Policy policy;
  const auto sim = *OpenDevice("sim:1GiB");
  policy.memory_kind = MemoryKind::kPinnedHost;
  EXPECT_EQ(sim->MakeSource(policy).status().code(), absl::StatusCode::kInvalidArgument);
  policy.memory_kind = MemoryKind::kUnified;
  const auto unified = sim->MakeSource(policy);
  ASSERT_TRUE(unified.ok()) << unified.status();
  EXPECT_EQ((*unified)->virtual_memory(), nullptr);
  // Unified memory goes beyond the device, up to 16 times.
  EXPECT_TRUE((*unified)->AllocateRegion(16 * kGiB).ok());
  EXPECT_EQ((*unified)->AllocateRegion(1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sim->GetMemoryInfo()->free, kGiB);

  const auto host = *OpenDevice("host:1GiB");
  for (MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kUnified, MemoryKind::kPinnedHost}) {
    policy.memory_kind = kind;
    EXPECT_TRUE(host->MakeSource(policy).ok());
  }
}

}  // namespace
}  // namespace hbm
