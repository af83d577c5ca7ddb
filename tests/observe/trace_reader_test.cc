// SPDX-License-Identifier: Apache-2.0
#include "observe/trace_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "observe/gunzip.h"
#include "tests/support/paths.h"

namespace hbm::observe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kHeader[] = "Thread,Time,Action,Pointer,Size,Stream\n";
constexpr auto kAllocate = TraceEvent::Kind::kAllocate;
constexpr auto kFree = TraceEvent::Kind::kFree;

absl::StatusOr<Trace> Read(const std::string& rows) { return ReadTrace(kHeader + rows, "t.csv"); }

std::string TraceFile(const std::string& name) {
  return testing::SourcePath("bench/traces/" + name + ".csv.gz");
}

std::string FileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

TEST(TraceReaderTest, ReadsEventsWithDenseIdsStreamsAndTimes) {
  const absl::StatusOr<Trace> trace = Read(
      "0,100,allocate,0x1000,512,0\n"
      "0,105,allocate,0x2000,1,7\n"
      "1,107,free,0x1000,512,7\n"
      "1,107,allocate,0x1000,3,0\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->name, "t");
  EXPECT_EQ(trace->file, "t.csv");
  EXPECT_EQ(trace->block_count, 3u);
  EXPECT_THAT(trace->streams, ElementsAre(0u, 7u));
  EXPECT_EQ(trace->DurationMicroseconds(), 7);
  ASSERT_EQ(trace->events.size(), 4u);
  const TraceEvent& second = trace->events[1];
  EXPECT_EQ(second.kind, kAllocate);
  EXPECT_EQ(second.block, 1u);
  EXPECT_EQ(second.bytes, 1u);
  EXPECT_EQ(second.stream, 1u);
  EXPECT_EQ(second.time_us, 5);
  const TraceEvent& third = trace->events[2];
  EXPECT_EQ(third.kind, kFree);
  EXPECT_EQ(third.block, 0u);
  EXPECT_EQ(third.bytes, 512u);
  EXPECT_EQ(third.stream, 1u);
  EXPECT_EQ(trace->events[3].block, 2u);
}

TEST(TraceReaderTest, LiveBytesAreAPeakAndAnIntegral) {
  const absl::StatusOr<Trace> trace = Read(
      "0,0,allocate,0x1000,100,0\n"
      "0,10,allocate,0x2000,50,0\n"
      "0,12,free,0x1000,100,0\n"
      "0,20,allocate,0x1000,100,0\n"
      "0,21,free,0x2000,50,0\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  const LiveBytes live = ComputeLiveBytes(*trace);
  EXPECT_EQ(live.peak, 150u);
  EXPECT_EQ(live.peak_event, 1u);
  EXPECT_DOUBLE_EQ(live.byte_microseconds, 100 * 10 + 150 * 2 + 50 * 8 + 150 * 1);
}

struct GoodCase {
  const char* name;
  std::string text;
  std::size_t events;
};

class GoodTraceTest : public ::testing::TestWithParam<GoodCase> {};

TEST_P(GoodTraceTest, IsRead) {
  const absl::StatusOr<Trace> trace = ReadTrace(GetParam().text, "t.csv");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->events.size(), GetParam().events);
}

std::vector<GoodCase> GoodCases() {
  const std::string header = kHeader;
  const std::string row = "0,1,allocate,0x1000,8,0";
  return {
      {"HeaderOnly", header, 0},
      {"HeaderWithoutNewline", "Thread,Time,Action,Pointer,Size,Stream", 0},
      {"NoTrailingNewline", header + row, 1},
      {"CarriageReturns", "Thread,Time,Action,Pointer,Size,Stream\r\n" + row + "\r\n", 1},
      {"BlankLines", "\n" + header + "\n" + row + "\n\n  \n", 1},
      {"ByteOrderMark", "\xef\xbb\xbf" + header + row, 1},
      {"OtherColumnOrder", "Size,Stream,Pointer,Action,Time\n8,0,0x1000,allocate,1\n", 1},
      {"ExtraColumns", "Thread,Time,Action,Pointer,Size,Stream,Device,Tag\n" + row + ",0,x\n", 1},
      {"ZeroSize", header + "0,1,allocate,0x1000,0,0\n0,2,free,0x1000,0,0\n", 2},
      {"ZeroSizesShareAnAddress",
       header + "0,1,allocate,0x1000,0,0\n0,2,allocate,0x1000,0,0\n0,2,free,0x1000,0,0\n", 3},
      {"NullZeroSizes",
       header + "0,1,allocate,(nil),0,0\n0,2,allocate,0x0,0,0x0\n0,3,free,(nil),0,0\n", 2},
      {"FailuresAreNotReplayed", header + "0,1,allocate failure,(nil),999,0\n" + row, 1},
      {"FreeOfUnknown", header + "0,1,free,0xdead,8,0\n" + row, 1},
      {"TimeOfDayAndHandles", header + "7f00,00:00:01.5,allocate,0x1000,8,0x55d0c0ffee00\n", 1},
      {"Spaces", header + " 0 , 1 , allocate , 0x1000 , 8 , 0 \n", 1},
      {"DecimalPointer", header + "0,1,allocate,4096,8,12345678901\n", 1},
      {"UpperHex", header + "0,1,allocate,0XFFFFABCD,8,0\n", 1},
      {"LargestSize", header + "0,1,allocate,0x1000,9223372036854775807,0\n", 1},
  };
}

INSTANTIATE_TEST_SUITE_P(Table, GoodTraceTest, ::testing::ValuesIn(GoodCases()),
                         [](const auto& param) { return std::string(param.param.name); });

struct BadCase {
  const char* name;
  std::string text;
  std::string place;  // "t.csv:LINE: "
  std::string words;
};

class BadTraceTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadTraceTest, IsRefusedWithFileAndLine) {
  const absl::StatusOr<Trace> trace = ReadTrace(GetParam().text, "t.csv");
  ASSERT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument) << trace.status();
  EXPECT_THAT(std::string(trace.status().message()),
              AllOf(StartsWith(GetParam().place), HasSubstr(GetParam().words)));
}

std::vector<BadCase> BadCases() {
  const std::string h = kHeader;
  const std::string row = "0,1,allocate,0x1000,8,0\n";
  return {
      {"Empty", "", "t.csv: ", "empty"},
      {"OnlyBlankLines", "\n\n", "t.csv:1: ", "not a trace"},
      {"NoHeader", row, "t.csv:1: ", "not a trace"},
      {"Binary", std::string("\x7f\x45\x4c\x46\x00\x01", 6), "t.csv:1: ", "not a trace"},
      {"MissingColumn", "Thread,Time,Action,Pointer,Stream\n", "t.csv:1: ", "Size is missing"},
      {"MissingTime", "Action,Pointer,Size,Stream\n", "t.csv:1: ", "Time is missing"},
      {"ColumnTwice", "Time,Size,Action,Pointer,Size,Stream\n", "t.csv:1: ", "Size appears twice"},
      {"TooFewFields", h + row + "0,1,allocate,0x2000,8\n", "t.csv:3: ", "5 fields, the header 6"},
      {"TooManyFields", h + "0,1,allocate,0x2000,8,0,1\n", "t.csv:2: ", "7 fields"},
      {"FieldsWithoutEnd", h + std::string(100000, ','), "t.csv:2: ", "65 fields"},
      {"BadAction", h + "0,1,realloc,0x1000,8,0\n", "t.csv:2: ", "Action: \"realloc\""},
      {"EmptySize", h + "0,1,allocate,0x1000,,0\n", "t.csv:2: ", "Size: \"\""},
      {"NegativeSize", h + "0,1,allocate,0x1000,-8,0\n", "t.csv:2: ", "Size: \"-8\""},
      {"SizeWithUnit", h + "0,1,allocate,0x1000,8KiB,0\n", "t.csv:2: ", "Size: \"8KiB\""},
      {"FractionalSize", h + "0,1,allocate,0x1000,8.5,0\n", "t.csv:2: ", "Size: \"8.5\""},
      {"SizeBeyond64Bits", h + "0,1,allocate,0x1000,18446744073709551616,0\n",
       "t.csv:2: ", "Size: \"18446744073709551616\""},
      {"LiveBytesBeyond63Bits",
       h + "0,1,allocate,0x1000,9223372036854775807,0\n0,1,allocate,0x2000,1,0\n",
       "t.csv:3: ", "live bytes"},
      {"BadSizeOfAFree", h + row + "\n0,1,free,0x1000,x,0\n", "t.csv:4: ", "Size: \"x\""},
      {"BadPointer", h + "0,1,allocate,pointer,8,0\n", "t.csv:2: ", "Pointer: \"pointer\""},
      {"LongPointer", h + "0,1,allocate,0x12345678123456781,8,0\n", "t.csv:2: ", "Pointer"},
      {"NullPointer", h + "0,1,allocate,0x0,8,0\n", "t.csv:2: ", "null for an allocation of 8"},
      {"BadStream", h + "0,1,allocate,0x1000,8,main\n", "t.csv:2: ", "Stream: \"main\""},
      {"BadTime", h + "0,noon,allocate,0x1000,8,0\n", "t.csv:2: ", "Time: \"noon\""},
      {"BadTimeOfDay", h + "0,25:00:00.0,allocate,0x1000,8,0\n", "t.csv:2: ", "Time: \"25:00"},
      {"ShortTimeOfDay", h + "0,00:00,allocate,0x1000,8,0\n", "t.csv:2: ", "Time: \"00:00\""},
      {"TimeBeyondRange", h + "0,18446744073709551615,allocate,0x1000,8,0\n", "t.csv:2: ", "Time"},
      {"DuplicatePointer", h + row + "0,2,allocate,0x1000,16,0\n",
       "t.csv:3: ", "0x1000: allocated again while still live (8 bytes, allocation 0)"},
      {"DuplicateOfZeroSize", h + "0,1,allocate,0x1000,0,0\n0,2,allocate,0x1000,16,0\n",
       "t.csv:3: ", "allocated again"},
      {"BadAlignment", "Time,Action,Pointer,Size,Stream,Alignment\n1,allocate,0x1000,8,0,3\n",
       "t.csv:2: ", "Alignment: \"3\""},
      {"UnprintableFieldIsEscaped", h + "0,1,\x01\xff,0x1000,8,0\n", "t.csv:2: ", "\\x01\\xff"},
      {"HugeFieldIsCut", h + "0,1," + std::string(1 << 20, 'a') + ",0x1000,8,0\n",
       "t.csv:2: ", "aaaa...\""},
  };
}

INSTANTIATE_TEST_SUITE_P(Table, BadTraceTest, ::testing::ValuesIn(BadCases()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(TraceReaderTest, CountsAndNamesFreesOfUnknownPointers) {
  std::string rows = "0,1,allocate,0x1000,8,0\n0,2,free,0x1000,8,0\n0,2,free,0x1000,8,0\n";
  for (int i = 0; i < 20; ++i) rows += "0,3,free,0xabc0,8,0\n";
  const absl::StatusOr<Trace> trace = Read(rows);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->events.size(), 2u);
  EXPECT_EQ(trace->unknown_frees, 21u);
  ASSERT_EQ(trace->unknown_free_examples.size(), 5u);
  EXPECT_EQ(trace->unknown_free_examples[0], "line 4: 0x1000");
  EXPECT_EQ(trace->unknown_free_examples[1], "line 5: 0xabc0");
}

TEST(TraceReaderTest, CountsRecordedFailures) {
  const absl::StatusOr<Trace> trace =
      Read("0,1,allocate failure,(nil),8,0\n0,1,allocate failure,0x0,8,0x0\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->allocate_failures, 2u);
  EXPECT_TRUE(trace->events.empty());
}

TEST(TraceReaderTest, TimesOfDayPassMidnightAndNeverFall) {
  const absl::StatusOr<Trace> trace = Read(
      "0,23:59:59.999998,allocate,0x1000,8,0\n"
      "0,23:59:59.999997,allocate,0x2000,8,0\n"  // another thread, a little late
      "0,00:00:00.000001,free,0x1000,8,0\n"
      "0,00:00:01,free,0x2000,8,0\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::vector<std::int64_t> times;
  for (const TraceEvent& event : trace->events) times.push_back(event.time_us);
  EXPECT_THAT(times, ElementsAre(0, 0, 3, 1000002));
  EXPECT_EQ(trace->times_out_of_order, 1u);
}

TEST(TraceReaderTest, FractionsOfASecondAreMicroseconds) {
  const absl::StatusOr<Trace> trace = Read(
      "0,01:00:00.5,allocate,0x1000,8,0\n"
      "0,01:00:00.500001999,free,0x1000,8,0\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->DurationMicroseconds(), 1);
}

TEST(TraceReaderTest, OfSeveralDevicesTheBusiestIsRead) {
  const auto trace = ReadTrace(
      "Time,Action,Pointer,Size,Stream,Device\n"
      "1,allocate,0x1000,256,0,a\n"
      "2,allocate,0x1000,512,0,b\n"
      "3,free,0x1000,512,0,b\n"
      "4,allocate,0x1000,512,0,c\n"
      "5,allocate,0x2000,1024,0,b\n"
      "6,free,0x1000,256,0,a\n",
      "t.csv");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->events.size(), 3u);
  EXPECT_EQ(trace->events[0].bytes, 512u);
  EXPECT_EQ(trace->events[2].bytes, 1024u);
  EXPECT_EQ(trace->unknown_frees, 0u);
  ASSERT_EQ(trace->notes.size(), 1u);
  EXPECT_THAT(trace->notes[0], ::testing::HasSubstr("3 devices are in the trace; b, which"));
}

TEST(TraceReaderTest, AlignmentsAreKept) {
  const absl::StatusOr<Trace> trace = ReadTrace(
      "Time,Action,Pointer,Size,Stream,Alignment\n"
      "1,allocate,0x1000,8,0,4096\n1,allocate,0x2000,8,0,\n1,allocate,0x3000,8,0,0\n",
      "t.csv");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->events[0].log2_alignment, 12);
  EXPECT_EQ(trace->events[1].log2_alignment, 0);
  EXPECT_EQ(trace->events[2].log2_alignment, 0);
}

TEST(TraceReaderTest, TagsAreKeptByBlock) {
  const absl::StatusOr<Trace> trace = ReadTrace(
      "Time,Action,Pointer,Size,Stream,Tag\n"
      "1,allocate,0x1000,8,0,\n1,allocate,0x2000,8,0,weights\n1,free,0x1000,8,0,other\n"
      "1,allocate,0x1000,8,0, cache \n1,allocate,0x3000,8,0,weights\n1,allocate,0x4000,8,0,\n",
      "t.csv");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_THAT(trace->tags, ElementsAre("", "weights", "cache"));
  EXPECT_THAT(trace->block_tags, ElementsAre(0, 1, 2, 1, 0));
}

TEST(TraceReaderTest, ATraceWithoutTagsKeepsNone) {
  const absl::StatusOr<Trace> trace =
      ReadTrace("Time,Action,Pointer,Size,Stream,Tag\n1,allocate,0x1000,8,0,\n", "t.csv");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_TRUE(trace->tags.empty());
  EXPECT_TRUE(trace->block_tags.empty());
}

TEST(TraceReaderTest, MissingFilesAndFoldersAreErrors) {
  const absl::StatusOr<Trace> missing = ReadTraceFile("/no/such/trace.csv");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/no/such/trace.csv"));
  EXPECT_FALSE(ReadTraceFile(::testing::TempDir()).ok());
}

bool HaveZlib() {
  return Gunzip("\x1f\x8b", 1).status().code() != absl::StatusCode::kUnimplemented;
}

TEST(TraceReaderTest, ReadsEveryShippedTrace) {
  if (!HaveZlib()) GTEST_SKIP() << "built without zlib";
  const std::vector<std::pair<std::string, std::size_t>> shipped = {
      {"gpt2_train_varlen", 67367},
      {"llama_decode_growing_kv", 125312},
      {"resnet50_train_varbatch", 33656},
      {"gnn_train_vargraph", 33384},
      {"moe_train_routed", 69372},
      {"mlp_train_multistream", 29662},
      {"unet_train_varsize", 23274},
      {"xla_train_1", 15170},
      {"xla_eager_1", 7014},
      {"random_small", 30000},
      {"random_mixed", 30000},
      {"random_stacked", 30000},
      {"random_tight", 30000},
      {"edges", 7256},
  };
  for (const auto& [name, events] : shipped) {
    const absl::StatusOr<Trace> trace = ReadTraceFile(TraceFile(name));
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->name, name);
    EXPECT_EQ(trace->events.size(), events) << name;
    EXPECT_EQ(trace->unknown_frees, 0u) << name;
    EXPECT_EQ(trace->streams.size(), name == "mlp_train_multistream" ? 4u : 1u) << name;
  }
}

TEST(TraceReaderTest, TruncatedOrDamagedGzipIsRefused) {
  if (!HaveZlib()) GTEST_SKIP() << "built without zlib";
  const std::string whole = FileBytes(TraceFile("edges"));
  ASSERT_TRUE(ReadTrace(whole, "t.csv.gz").ok());
  for (const std::size_t size : {std::size_t{2}, std::size_t{5}, std::size_t{18}, whole.size() / 2,
                                 whole.size() - 9, whole.size() - 1}) {
    const absl::StatusOr<Trace> trace = ReadTrace(whole.substr(0, size), "t.csv.gz");
    ASSERT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_THAT(std::string(trace.status().message()),
                AllOf(StartsWith("t.csv.gz: gzip: "), HasSubstr("too early")))
        << size;
  }
  std::string damaged = whole;
  damaged[whole.size() / 2] = static_cast<char>(damaged[whole.size() / 2] ^ 0x55);
  EXPECT_FALSE(ReadTrace(damaged, "t.csv.gz").ok());
}

TEST(TraceReaderTest, UnpackingIsBounded) {
  if (!HaveZlib()) GTEST_SKIP() << "built without zlib";
  const absl::StatusOr<std::string> unpacked = Gunzip(FileBytes(TraceFile("edges")), 1000);
  ASSERT_FALSE(unpacked.ok());
  EXPECT_THAT(std::string(unpacked.status().message()), HasSubstr("more than 1000 bytes"));
}

// A replay may rely on this whatever the bytes were.
void ExpectConsistent(const Trace& trace) {
  std::set<std::uint32_t> live;
  std::uint32_t next = 0;
  std::int64_t time_us = 0;
  for (const TraceEvent& event : trace.events) {
    ASSERT_GE(event.time_us, time_us);
    time_us = event.time_us;
    ASSERT_LT(event.stream, trace.streams.size());
    if (event.kind == kAllocate) {
      ASSERT_EQ(event.block, next++);
      live.insert(event.block);
    } else {
      ASSERT_EQ(live.erase(event.block), 1u);
    }
  }
  ASSERT_EQ(next, trace.block_count);
}

TEST(TraceReaderTest, AnyBytesAreReadOrRefused) {
  const std::string seed =
      std::string(kHeader) +
      "0,1,allocate,0x1000,8,0\n0,00:00:00.5,allocate,0x2000,0,3\n0,2,free,0x1000,8,0\n"
      "0,9,allocate failure,(nil),8,0\n0,9,free,0x7,8,0\n";
  std::mt19937 random(7);
  int read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = seed;
    for (int edits = static_cast<int>(random() % 4); edits >= 0; --edits) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 8);
          break;
        case 2:
          text.insert(at, 1, ",\n0x(9:."[random() % 8]);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
      }
      if (text.empty()) text = ",";
    }
    const absl::StatusOr<Trace> trace = ReadTrace(text, "t.csv");
    if (!trace.ok()) continue;
    ++read;
    ExpectConsistent(*trace);
    if (HasFatalFailure()) FAIL() << text;
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace hbm::observe
