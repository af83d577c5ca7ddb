// SPDX-License-Identifier: Apache-2.0
//
// Exports, read by what they are for: check_exports.py (Python's own readers), and
// this library's reader of PyTorch's snapshots.
#include "hbmalloc/export.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "hbmalloc/hbmalloc.h"
#include "observe/pytorch_snapshot.h"
#include "observe/replay.h"
#include "observe/trace_reader.h"
#include "tests/support/paths.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Everything that a format may trip over.
const char kStrangeName[] = "a \"b\" \\ \n\t, {c} \xff\xfe \xe2\x82\xac";

bool HasPython() { return std::system("python3 -c 1 >/dev/null 2>&1") == 0; }

std::string Write(const std::string& name, const std::string& bytes) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/hbm_", getpid(), "_", name);
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

void Check(const std::string& kind, const std::string& files) {
  if (!HasPython()) GTEST_SKIP() << "no python3";
  const std::string command = absl::StrCat(
      "python3 ", testing::SourcePath("tests/observe/check_exports.py"), " ", kind, " ", files);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

// Half a program: live blocks with tags and streams, holes, a failure, a trim.
class ExportTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto made =
        MakeAllocator(*ParsePolicy(absl::StrCat(GetParam(), ":memory_fraction=1,means=true")),
                      *OpenDevice("sim:256MiB"));
    ASSERT_TRUE(made.ok()) << made.status();
    allocator_ = *std::move(made);
    allocator_->SetEventCallback(history_.Callback());
    std::mt19937_64 random(3);
    for (int i = 0; i < 400; ++i) {
      AllocateOptions options;
      if (i % 3 == 0) options.tag = RegisterTag(kStrangeName);
      if (i % 5 == 0) options.stream = StreamRef::FromHandle(reinterpret_cast<void*>(~0UL - 9));
      void* const block = allocator_->TryAllocate(1 + random() % (kMiB / 2), options);
      ASSERT_NE(block, nullptr);
      blocks_.push_back(block);
      if (i % 2 == 0) continue;
      const std::size_t at = random() % blocks_.size();
      ASSERT_TRUE(allocator_->Deallocate(blocks_[at]).ok());
      blocks_[at] = blocks_.back();
      blocks_.pop_back();
    }
    EXPECT_EQ(allocator_->TryAllocate(1000 * kMiB), nullptr);
    EXPECT_TRUE(allocator_->Trim().ok());
  }
  void TearDown() override {
    for (void* const block : blocks_) allocator_->Deallocate(block).IgnoreError();
  }

  EventHistory history_{100000};
  std::unique_ptr<Allocator> allocator_;
  std::vector<void*> blocks_;
};

TEST_P(ExportTest, JsonFollowsItsSchema) {
  const std::string json = ToJson(CaptureState(*allocator_, kStrangeName));
  Check("json", testing::SourcePath("docs/snapshot.schema.json") + " " + Write("state.json", json));
}

TEST_P(ExportTest, PicklesAreReadByPython) {
  AllocatorState state = CaptureState(*allocator_, "sim");
  state.events = history_.Entries();
  std::string files;
  for (int protocol = 2; protocol <= 4; ++protocol) {
    const std::string bytes = ToPyTorchPickle({state, state}, protocol);
    EXPECT_EQ(bytes.substr(0, 2), std::string("\x80") + static_cast<char>(protocol));
    files += " " + Write(absl::StrCat("state", protocol, ".pickle"), bytes);
  }
  Check("pickle", files);
}

// What was done can be replayed from the pickle.
TEST_P(ExportTest, PicklesReplay) {
  AllocatorState state = CaptureState(*allocator_, "sim");
  state.events = history_.Entries();
  const std::string path = Write("replay.pickle", ToPyTorchPickle({state}));
  const auto trace = observe::ReadTraceFile(path);
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::size_t allocations = 0;
  std::size_t frees = 0;
  for (const observe::TraceEvent& event : trace->events) {
    (event.kind == observe::TraceEvent::Kind::kFree ? frees : allocations) += 1;
  }
  EXPECT_EQ(allocations, 400u);
  EXPECT_EQ(frees, static_cast<std::size_t>(state.stats.num_frees));
  EXPECT_EQ(trace->unknown_frees, 0u);
}

TEST_P(ExportTest, PrometheusTakesTheFigures) {
  const std::string text = ToPrometheus(
      {CaptureFigures(*allocator_, kStrangeName), CaptureFigures(*allocator_, "sim:1")});
  Check("prometheus", Write("figures.prom", text));
  const Stats stats = allocator_->GetStats();
  EXPECT_NE(text.find(absl::StrCat("\nhbmalloc_pool_bytes{device=\"sim:1\"} ", stats.pool_bytes)),
            std::string::npos);
  EXPECT_NE(text.find(absl::StrCat("\nhbmalloc_allocs_total{device=\"sim:1\"} 400\n")),
            std::string::npos);
}

TEST_P(ExportTest, TimelineHasCountersAndSlices) {
  if (GetParam() == std::string("bfc")) GTEST_SKIP() << "bfc calls no driver after its start";
  Check("timeline", Write("timeline.json", ToChromeTrace({{kStrangeName, history_.Entries()}})));
}

INSTANTIATE_TEST_SUITE_P(Strategies, ExportTest,
                         ::testing::Values("bfc", "on_demand", "platform", "elastic"),
                         [](const auto& strategy) { return std::string(strategy.param); });

TEST(EventHistoryTest, KeepsTheLatest) {
  EventHistory history(3);
  const auto allocator = MakeAllocator(*ParsePolicy("bfc"), *OpenDevice("sim:1GiB"));
  ASSERT_TRUE(allocator.ok());
  (*allocator)->SetEventCallback(history.Callback());
  for (std::size_t bytes = 1; bytes <= 5; ++bytes) {
    EXPECT_TRUE((*allocator)->Deallocate(*(*allocator)->Allocate(bytes)).ok());
  }
  const std::vector<EventHistory::Entry> entries = history.Entries();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].kind, Event::Kind::kFree);
  EXPECT_EQ(entries[0].bytes, 4u);
  EXPECT_EQ(entries[2].bytes, 5u);
}

}  // namespace
}  // namespace hbm
