// SPDX-License-Identifier: Apache-2.0
//
// What elastic promises, on every trace the project ships: one pass from cold on a
// simulated device, with what the cost model says a driver would have charged.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "observe/trace_reader.h"
#include "tests/support/paths.h"

namespace hbm {
namespace {

constexpr double kMiB = 1 << 20;
constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;

const char* const kTraces[] = {"gpt2_train_varlen",
                               "llama_decode_growing_kv",
                               "resnet50_train_varbatch",
                               "gnn_train_vargraph",
                               "moe_train_routed",
                               "mlp_train_multistream",
                               "unet_train_varsize",
                               "xla_train_1",
                               "xla_eager_1",
                               "random_small",
                               "random_mixed",
                               "random_stacked",
                               "random_tight",
                               "edges"};
constexpr int kPyTorchTraces = 7;  // the first ones
constexpr int kRecordedTraces = 9;

struct Figures {
  Stats stats;
  int failures = 0;
  double live = 0;          // peak bytes
  double pool = 0;          // peak bytes
  double mean_ratio = 0;    // mean pool over mean live
  double driver_share = 0;  // of the trace's own duration
  double driver_ns = 0;     // per event
  bool IsWithin(double ratio) const { return pool <= ratio * live || pool <= live + 8 * kMiB; }
};

const observe::Trace& Load(const std::string& name) {
  static auto* const traces = new std::vector<observe::Trace>();
  for (const observe::Trace& trace : *traces) {
    if (trace.name == name) return trace;
  }
  auto trace = observe::ReadTraceFile(testing::SourcePath("bench/traces/" + name + ".csv.gz"));
  EXPECT_TRUE(trace.ok()) << trace.status();
  traces->reserve(std::size(kTraces));
  traces->push_back(*std::move(trace));
  return traces->back();
}

Figures Replay(const std::string& name, const std::string& policy_text,
               const std::string& device_text) {
  const observe::Trace& trace = Load(name);
  const observe::LiveBytes live = observe::ComputeLiveBytes(trace);
  const auto device = *OpenDevice(device_text);
  Policy policy = *ParsePolicy(policy_text);
  policy.memory_fraction = {1.0, {}};
  const auto allocator = *MakeAllocator(policy, device);
  std::vector<void*> blocks(trace.block_count);
  Figures figures;
  double pool_time = 0;
  std::int64_t last = 0;
  for (const observe::TraceEvent& event : trace.events) {
    if (event.time_us != last) {
      pool_time += static_cast<double>(allocator->GetStats().pool_bytes) *
                   static_cast<double>(event.time_us - last);
      last = event.time_us;
      device->simulated_clock()->AdvanceTo(absl::Microseconds(last));
    }
    if (event.kind == observe::TraceEvent::Kind::kAllocate) {
      AllocateOptions options;
      options.stream = StreamRef::FromHandle(reinterpret_cast<void*>(std::uintptr_t{event.stream}));
      const auto block = allocator->Allocate(event.bytes, options);
      blocks[event.block] = block.ok() ? *block : nullptr;
      if (!block.ok()) ++figures.failures;
    } else {
      EXPECT_TRUE(allocator->Deallocate(blocks[event.block]).ok());
      blocks[event.block] = nullptr;
    }
  }
  figures.stats = allocator->GetStats();  // before what is left is torn down
  for (void* block : blocks) EXPECT_TRUE(allocator->Deallocate(block).ok());
  figures.live = static_cast<double>(live.peak);
  figures.pool = static_cast<double>(figures.stats.peak_pool_bytes);
  figures.mean_ratio = pool_time / live.byte_microseconds;
  const auto driver = static_cast<double>(figures.stats.driver_nanoseconds);
  figures.driver_ns = driver / static_cast<double>(trace.events.size());
  figures.driver_share = driver / 1e3 / static_cast<double>(trace.DurationMicroseconds());
  return figures;
}

TEST(ElasticFiguresTest, WithoutSlackThePoolIsWhatIsLive) {
  for (int i = 0; i < static_cast<int>(std::size(kTraces)); ++i) {
    const Figures figures = Replay(kTraces[i], "elastic:slack=0", "sim:h200");
    const bool is_random = absl::StartsWith(kTraces[i], "random");
    EXPECT_TRUE(figures.IsWithin(is_random ? 1.05 : 1.02))
        << kTraces[i] << ": " << figures.pool / figures.live;
    EXPECT_EQ(figures.failures, 0);
  }
}

TEST(ElasticFiguresTest, WithTheDefaultSlackItIsAtMostATwentiethMore) {
  for (const char* trace : kTraces) {
    const Figures figures = Replay(trace, "elastic", "sim:h200");
    EXPECT_TRUE(figures.IsWithin(1.05)) << trace << ": " << figures.pool / figures.live;
    EXPECT_EQ(figures.failures, 0);
  }
}

TEST(ElasticFiguresTest, AndTheDriverIsCalledSeldom) {
  for (int i = 0; i < kPyTorchTraces; ++i) {
    const Figures figures = Replay(kTraces[i], "elastic", "sim:h200");
    EXPECT_LE(figures.driver_ns, 500) << kTraces[i];
    EXPECT_LE(figures.driver_share, 0.01) << kTraces[i];
  }
}

TEST(ElasticFiguresTest, WithInfiniteSlackHardlyEver) {
  for (int i = 0; i < kPyTorchTraces; ++i) {
    EXPECT_LE(Replay(kTraces[i], "elastic:slack=inf", "sim:h200").driver_share, 0.002)
        << kTraces[i];
  }
}

TEST(ElasticFiguresTest, WithIdleReleaseThePoolFollowsWhatIsLive) {
  for (int i = 0; i < kPyTorchTraces; ++i) {
    const Figures figures = Replay(kTraces[i], "elastic:slack=0,idle_release=0", "sim:h200");
    EXPECT_LE(figures.mean_ratio, 1.15) << kTraces[i];
  }
}

// The smallest device that serves the whole trace is hardly larger than what is
// live, even when work on freed blocks goes on for 10 ms.
TEST(ElasticFiguresTest, ASmallDeviceSuffices) {
  for (int i = 0; i < static_cast<int>(std::size(kTraces)); ++i) {
    const double live = static_cast<double>(observe::ComputeLiveBytes(Load(kTraces[i])).peak);
    const bool is_random = absl::StartsWith(kTraces[i], "random");
    const double most = std::max((is_random ? 1.05 : 1.02) * live, live + 8 * kMiB);
    const auto granules = [](double bytes) {
      return static_cast<std::uint64_t>(bytes) / kGranule * kGranule;
    };
    const Figures figures =
        Replay(kTraces[i], "elastic:slack=0", absl::StrCat("sim:", granules(most)));
    EXPECT_EQ(figures.failures, 0) << kTraces[i];
    EXPECT_EQ(figures.stats.num_waits, 0) << kTraces[i];
    const Figures lagging = Replay(kTraces[i], "elastic:slack=0",
                                   absl::StrCat("sim:", granules(1.10 * live), ",lag=10ms"));
    EXPECT_EQ(lagging.failures, 0) << kTraces[i] << " with lag";
  }
}

}  // namespace
}  // namespace hbm
