// SPDX-License-Identifier: Apache-2.0
//
// Traces of running programs: what is in the file is what was done, in an order
// that makes sense, and reads back.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "hbmalloc/hbmalloc.h"
#include "observe/gunzip.h"
#include "observe/replay.h"
#include "observe/trace_reader.h"
#include "tests/support/golden.h"

namespace hbm {
namespace {

using ::testing::HasSubstr;

std::string TempFile(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/hbm_", getpid(), "_", name);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  std::string bytes = text.str();
  if (path.size() < 3 || path.substr(path.size() - 3) != ".gz") return bytes;
  const absl::StatusOr<std::string> unpacked = observe::Gunzip(bytes, std::size_t{1} << 30);
  EXPECT_TRUE(unpacked.ok()) << unpacked.status();
  return unpacked.value_or("");
}

// Until a file has not grown for a second.
void WaitUntilQuiet(const std::string& path) {
  for (std::size_t before = 0, size = 1; size != before || size == 0;) {
    before = size;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    struct stat status {};
    if (stat(path.c_str(), &status) == 0) size = static_cast<std::size_t>(status.st_size);
  }
}

std::unique_ptr<Allocator> Make(const std::string& spec, const std::string& device = "sim:4GiB") {
  const auto policy = ParsePolicy(spec);
  EXPECT_TRUE(policy.ok()) << policy.status();
  auto allocator = MakeAllocator(*policy, *OpenDevice(device));
  EXPECT_TRUE(allocator.ok()) << allocator.status();
  return allocator.ok() ? *std::move(allocator) : nullptr;
}

// A row by the rules of RMM's own log parser: columns by name, whole numbers,
// pointers in base 16, three actions.
struct Row {
  std::size_t thread = 0;
  std::string action;
  std::uint64_t pointer = 0;
  std::size_t size = 0;
  std::uint64_t stream = 0;
  std::string device, alignment, nanoseconds, tag;
};

std::vector<Row> ParseAsRmm(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  std::vector<std::string> names = absl::StrSplit(lines.at(0), ',');
  std::vector<Row> rows;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = absl::StrSplit(lines[i], ',');
    EXPECT_EQ(fields.size(), names.size()) << lines[i];
    std::map<std::string, std::string> at;
    for (std::size_t c = 0; c < names.size(); ++c) at[names[c]] = fields[c];
    Row row;
    row.thread = std::stoull(at.at("Thread"));
    row.action = at.at("Action");
    EXPECT_TRUE(row.action == "allocate" || row.action == "allocate failure" ||
                row.action == "free")
        << row.action;
    row.pointer = std::stoull(at.at("Pointer"), nullptr, 16);
    row.size = std::stoull(at.at("Size"));
    row.stream = std::stoull(at.at("Stream"), nullptr, 16);
    unsigned h = 99, m = 99, s = 99, us = 9999999;
    EXPECT_EQ(std::sscanf(at.at("Time").c_str(), "%2u:%2u:%2u.%6u", &h, &m, &s, &us), 4);
    EXPECT_EQ(at.at("Time").size(), 15u);
    row.device = at.at("Device");
    row.alignment = at.at("Alignment");
    row.nanoseconds = at.at("Nanoseconds");
    row.tag = at.at("Tag");
    rows.push_back(row);
  }
  return rows;
}

class TraceRecorderTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TraceRecorderTest, WritesWhatWasDone) {
  const std::string path = TempFile(absl::StrCat("done", GetParam()));
  void* small = nullptr;
  {
    const auto allocator = Make("bfc:memory_fraction=1,trace=" + path);
    AllocateOptions options;
    options.alignment = 4096;
    options.stream = StreamRef::FromHandle(reinterpret_cast<void*>(0x20));
    options.tag = RegisterTag("weights, \"all\"\n");
    small = *allocator->Allocate(1000);
    void* const large = *allocator->Allocate(1 << 20, options);
    EXPECT_FALSE(allocator->Allocate(std::size_t{8} << 30).ok());
    EXPECT_EQ(allocator->TryAllocate(0), nullptr);
    AllocateOptions bad;
    bad.alignment = 3;
    EXPECT_FALSE(allocator->Allocate(1, bad).ok());
    EXPECT_FALSE(allocator->Deallocate(static_cast<char*>(small) + 256).ok());
    EXPECT_TRUE(allocator->Deallocate(large).ok());
    EXPECT_FALSE(allocator->Deallocate(large).ok());
    EXPECT_TRUE(allocator->Deallocate(small).ok());
  }
  const std::vector<Row> rows = ParseAsRmm(ReadFile(path));
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0].action, "allocate");
  EXPECT_EQ(rows[0].size, 1000u);
  EXPECT_EQ(rows[0].pointer, reinterpret_cast<std::uintptr_t>(small));
  EXPECT_EQ(rows[0].alignment, "256");
  EXPECT_EQ(rows[0].device, "sim:4GiB");
  EXPECT_EQ(rows[1].stream, 0x20u);
  EXPECT_EQ(rows[1].alignment, "4096");
  EXPECT_EQ(rows[1].tag, "weights; _all__");
  EXPECT_EQ(rows[2].action, "allocate failure");
  EXPECT_EQ(rows[2].size, std::size_t{8} << 30);
  EXPECT_EQ(rows[3].action, "free");
  EXPECT_EQ(rows[3].size, std::size_t{1} << 20);
  EXPECT_EQ(rows[3].stream, 0x20u);
  EXPECT_EQ(rows[3].tag, "weights; _all__");
  EXPECT_EQ(rows[4].pointer, rows[0].pointer);
  std::int64_t last = 0;
  for (const Row& row : rows) {
    EXPECT_GE(std::stoll(row.nanoseconds), last);
    last = std::stoll(row.nanoseconds);
    EXPECT_EQ(row.thread, rows[0].thread);
  }
  EXPECT_LT(last, 60'000'000'000);

  const auto trace = observe::ReadTraceFile(path);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->events.size(), 4u);
  EXPECT_EQ(trace->unknown_frees, 0u);
  EXPECT_EQ(trace->allocate_failures, 1u);
  EXPECT_EQ(trace->events[1].log2_alignment, 12);
  const auto other = Make("bfc:memory_fraction=1");
  EXPECT_EQ(observe::MeasureMemory(*trace, *other, nullptr).failures, 0u);
  std::remove(path.c_str());
}

INSTANTIATE_TEST_SUITE_P(Forms, TraceRecorderTest, ::testing::Values(".csv", ".csv.gz"),
                         [](const auto& form) {
                           return form.param == std::string(".csv") ? "Plain" : "Gzip";
                         });

// An address is freed in the file before it is given out again, whatever the
// threads' races: the reader refuses a file in which it is not.
TEST(TraceRecorderOrderTest, ManyThreadsMakeOneConsistentTrace) {
  for (const char* const spec :
       {"bfc:memory_fraction=1", "bfc:memory_fraction=1,thread_cache=1", "elastic", "platform"}) {
    const std::string path = TempFile("threads.csv");
    constexpr int kThreads = 4;
    constexpr int kRounds = 20000;
    std::atomic<std::uint64_t> done{0};
    {
      const auto allocator =
          Make(absl::StrCat(spec, absl::StrContains(spec, ":") ? "," : ":", "trace=", path));
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          std::mt19937_64 random(static_cast<std::uint64_t>(t));
          std::vector<void*> live;
          std::uint64_t mine = 0;
          for (int i = 0; i < kRounds; ++i) {
            if (live.size() < 8 || random() % 2 == 0) {
              live.push_back(allocator->TryAllocate(1 + random() % 4096));
              EXPECT_NE(live.back(), nullptr);
            } else {
              const std::size_t at = random() % live.size();
              EXPECT_TRUE(allocator->Deallocate(live[at]).ok());
              live[at] = live.back();
              live.pop_back();
            }
            ++mine;
          }
          for (void* const block : live) {
            EXPECT_TRUE(allocator->Deallocate(block).ok());
            ++mine;
          }
          done += mine;
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    const auto trace = observe::ReadTraceFile(path);
    ASSERT_TRUE(trace.ok()) << spec << ": " << trace.status();
    EXPECT_EQ(trace->events.size(), done.load()) << spec;
    EXPECT_EQ(trace->unknown_frees, 0u) << spec;
    // Each thread frees its own blocks: a free in another's name is one that came too
    // late, and that the writer made up for.
    std::set<std::size_t> seen;
    std::map<std::uint64_t, std::size_t> owner;
    std::size_t strangers = 0;
    for (const Row& row : ParseAsRmm(ReadFile(path))) {
      seen.insert(row.thread);
      if (row.action == "allocate") {
        owner[row.pointer] = row.thread;
      } else if (owner.at(row.pointer) != row.thread) {
        ++strangers;
      }
    }
    EXPECT_EQ(strangers, 0u) << spec;
    EXPECT_EQ(seen.size(), kThreads);
    std::remove(path.c_str());
  }
}

// A trace that is played and recorded is itself again, on every recorded trace.
TEST(TraceRecorderReplayTest, RecordingAReplayGivesTheSameTrace) {
  LogSink previous = SetLogSink(nullptr);  // traces leave blocks live
  std::set<std::string> names;
  for (const testing::GoldenCase& golden : testing::GoldenCases()) names.insert(golden.trace);
  for (const std::string& name : names) {
    const observe::Trace trace = testing::LoadTrace(name);
    const std::string path = TempFile(name + ".csv");
    {
      const auto allocator = Make("bfc:memory_fraction=1,trace=" + path, "sim:1TiB");
      std::vector<void*> blocks(trace.block_count);
      for (const observe::TraceEvent& event : trace.events) {
        if (event.kind == observe::TraceEvent::Kind::kAllocate) {
          blocks[event.block] = allocator->TryAllocate(event.bytes);
        } else {
          ASSERT_TRUE(allocator->Deallocate(blocks[event.block]).ok());
        }
      }
    }
    const auto again = observe::ReadTraceFile(path);
    ASSERT_TRUE(again.ok()) << again.status();
    // Requests of nothing give nothing to record.
    std::vector<observe::TraceEvent> expected;
    std::vector<std::uint32_t> numbers(trace.block_count);
    std::uint32_t next = 0;
    for (observe::TraceEvent event : trace.events) {
      if (event.bytes == 0) continue;
      if (event.kind == observe::TraceEvent::Kind::kAllocate) numbers[event.block] = next++;
      event.block = numbers[event.block];
      expected.push_back(event);
    }
    ASSERT_EQ(again->events.size(), expected.size()) << name;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(again->events[i].kind, expected[i].kind) << name << " " << i;
      ASSERT_EQ(again->events[i].bytes, expected[i].bytes) << name << " " << i;
      ASSERT_EQ(again->events[i].block, expected[i].block) << name << " " << i;
    }
    std::remove(path.c_str());
  }
  SetLogSink(previous);
}

TEST(TraceRecorderFileTest, AllocatorsShareAFileAndAreToldApart) {
  const std::string path = TempFile("shared.csv");
  {
    const auto a = Make("trace=" + path, "sim:1GiB");
    const auto b = Make("elastic:trace=" + path, "sim:1GiB");
    const auto c = Make("trace=" + path, "host:64MiB");
    for (Allocator* const allocator : {a.get(), b.get(), c.get()}) {
      EXPECT_TRUE(allocator->Deallocate(*allocator->Allocate(100)).ok());
    }
  }
  std::vector<std::string> devices;
  for (const Row& row : ParseAsRmm(ReadFile(path))) devices.push_back(row.device);
  EXPECT_THAT(devices, ::testing::ElementsAre("sim:1GiB", "sim:1GiB", "sim:1GiB#2", "sim:1GiB#2",
                                              "host:64MiB", "host:64MiB"));
  std::remove(path.c_str());
}

TEST(TraceRecorderFileTest, AFileThatCannotBeMadeIsAnError) {
  const auto allocator =
      MakeAllocator(*ParsePolicy("trace=/no/such/folder/run.csv"), *OpenDevice("sim:1GiB"));
  ASSERT_TRUE(absl::IsInvalidArgument(allocator.status()));
  EXPECT_THAT(std::string(allocator.status().message()),
              HasSubstr("trace: /no/such/folder/run.csv: cannot be written: No such file"));
}

TEST(TraceRecorderFileTest, AFullDiskEndsTheTraceAndNothingElse) {
  std::atomic<int> warnings{0};
  LogSink previous = SetLogSink([&](LogSeverity, std::string_view message) {
    if (message.find("No space left") != std::string_view::npos) ++warnings;
  });
  {
    const auto allocator = Make("trace=/dev/full");
    for (int i = 0; i < 300000; ++i) {
      ASSERT_TRUE(allocator->Deallocate(*allocator->Allocate(1000)).ok());
    }
  }
  SetLogSink(previous);
  EXPECT_EQ(warnings, 1);
}

TEST(TraceRecorderFileTest, TheProcessNumberMayBeInTheName) {
  const std::string name = absl::StrCat(::testing::TempDir(), "/hbm_%%_%p.csv");
  Make("trace=" + name);
  const std::string path = absl::StrCat(::testing::TempDir(), "/hbm_%_", getpid(), ".csv");
  EXPECT_THAT(ReadFile(path), HasSubstr("Thread,Time,Action"));
  std::remove(path.c_str());
}

// Nobody reads at first, and then nobody reads on: callers wait ten seconds once, and
// the end is not waited for for ever. What was lost is told.
TEST(TraceRecorderFileTest, APipeThatNobodyReadsHangsNothingSlow) {
  const std::string path = TempFile("pipe.csv");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(
      MakeAllocator(*ParsePolicy("trace=" + path), *OpenDevice("sim:1GiB")).status()));
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  std::string warnings;
  LogSink previous = SetLogSink(
      [&](LogSeverity, std::string_view message) { warnings += std::string(message) + "\n"; });
  const auto start = std::chrono::steady_clock::now();
  {
    const auto allocator = Make("trace=" + path);
    for (int i = 0; i < 300000; ++i) {
      ASSERT_TRUE(allocator->Deallocate(*allocator->Allocate(1000)).ok());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(25));
  }
  SetLogSink(previous);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_THAT(warnings, HasSubstr("the end of the trace is lost"));
  close(reader);  // the writer is told now that nobody reads, and must not end the program
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  std::remove(path.c_str());
}

// What a program leaves live when it ends, and what it did just before.
TEST(TraceRecorderExitDeathTest, NothingIsLostAtExit) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string path = absl::StrCat(::testing::TempDir(), "/hbm_exit.csv.gz");
  EXPECT_EXIT(
      {
        setenv("HBMALLOC_POLICY", ("memory_fraction=0.5,trace=" + path).c_str(), 1);
        auto allocator = MakeAllocator(*PolicyFromEnv(), *OpenDevice("sim:1GiB"));
        for (int i = 0; i < 50000; ++i) {
          (*allocator)->Deallocate(*(*allocator)->Allocate(1000)).IgnoreError();
        }
        (*allocator)->Allocate(4242).IgnoreError();
        allocator->release();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
  const std::vector<Row> rows = ParseAsRmm(ReadFile(path));
  ASSERT_EQ(rows.size(), 100001u);
  EXPECT_EQ(rows.back().size, 4242u);
  std::remove(path.c_str());
}

TEST(TraceRecorderExitDeathTest, AnAbortLosesTheLastBufferAtMost) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string path = absl::StrCat(::testing::TempDir(), "/hbm_abort.csv.gz");
  EXPECT_DEATH(
      {
        const auto allocator = Make("trace=" + path);
        for (int i = 0; i < 50000; ++i) {
          allocator->Deallocate(*allocator->Allocate(1000)).IgnoreError();
        }
        WaitUntilQuiet(path);
        allocator->Allocate(4242).IgnoreError();
        std::abort();
      },
      "");
  EXPECT_GE(ParseAsRmm(ReadFile(path)).size(), 100000u);
  std::remove(path.c_str());
}

// The child has no writer; it must neither hang nor write into its parent's file.
TEST(TraceRecorderForkTest, AChildRecordsNothing) {
  const std::string path = TempFile("fork.csv");
  {
    const auto allocator = Make("trace=" + path);
    EXPECT_TRUE(allocator->Deallocate(*allocator->Allocate(1000)).ok());
    const pid_t child = fork();
    if (child == 0) {
      for (int i = 0; i < 200000; ++i) {
        allocator->Deallocate(*allocator->Allocate(777)).IgnoreError();
      }
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(allocator->Deallocate(*allocator->Allocate(1000)).ok());
  }
  const std::vector<Row> rows = ParseAsRmm(ReadFile(path));
  EXPECT_EQ(rows.size(), 4u);
  for (const Row& row : rows) EXPECT_EQ(row.size, 1000u);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace hbm
