// SPDX-License-Identifier: Apache-2.0
#include "observe/pytorch_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "observe/trace_reader.h"
#include "tests/support/paths.h"

namespace hbm::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = TraceEvent::Kind;

std::string Path(const std::string& name) {
  return testing::SourcePath("tests/observe/data/" + name);
}

std::string Data(const std::string& name) {
  std::ifstream file(Path(name), std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

void ExpectEvent(const TraceEvent& event, Kind kind, std::uint32_t block, std::uint64_t bytes,
                 std::int64_t time_us) {
  EXPECT_EQ(event.kind, kind);
  EXPECT_EQ(event.block, block);
  EXPECT_EQ(event.bytes, bytes);
  EXPECT_EQ(event.time_us, time_us);
}

class SnapshotProtocolTest : public ::testing::TestWithParam<int> {};

TEST_P(SnapshotProtocolTest, BlocksLiveBeforeComeFirstThenTheHistory) {
  const absl::StatusOr<Trace> trace =
      ReadTraceFile(Path("snapshot_p" + std::to_string(GetParam()) + ".pickle"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->name, "snapshot_p" + std::to_string(GetParam()));
  ASSERT_EQ(trace->events.size(), 7u);
  // By address: the one whose free the history has, then the two live to the end.
  ExpectEvent(trace->events[0], Kind::kAllocate, 0, 300, 0);
  ExpectEvent(trace->events[1], Kind::kAllocate, 1, 1500000, 0);
  ExpectEvent(trace->events[2], Kind::kAllocate, 2, 2000000, 0);
  ExpectEvent(trace->events[3], Kind::kAllocate, 3, 1000, 10);
  ExpectEvent(trace->events[4], Kind::kFree, 0, 300, 21);
  ExpectEvent(trace->events[5], Kind::kAllocate, 4, 200, 30);
  ExpectEvent(trace->events[6], Kind::kFree, 3, 1000, 50);
  EXPECT_THAT(trace->streams, ElementsAre(0u, 7u, 0x55aau));
  EXPECT_EQ(trace->events[1].stream, 1u);
  EXPECT_EQ(trace->events[5].stream, 2u);
  EXPECT_EQ(trace->allocate_failures, 1u);
  EXPECT_EQ(trace->unknown_frees, 0u);
  EXPECT_THAT(trace->notes, ElementsAre(HasSubstr("3 blocks were live before")));
}

INSTANTIATE_TEST_SUITE_P(Protocols, SnapshotProtocolTest, ::testing::Values(2, 3, 4, 5));

TEST(PyTorchSnapshotTest, TheLongestHistoryOfSeveralDevicesIsReadAndSaid) {
  const absl::StatusOr<Trace> trace = ReadTraceFile(Path("two_devices.pickle"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->events.size(), 7u);
  EXPECT_THAT(trace->notes[0], HasSubstr("2 devices have a history; this is device 0"));
}

TEST(PyTorchSnapshotTest, OtherPicklesAreRefusedWithWhatToDo) {
  for (const auto& [data, words] : std::vector<std::pair<std::string, std::string>>{
           {std::string("\x80\x02}."), "_record_memory_history"},
           {std::string("\x80\x02]."), "_record_memory_history"},
           {std::string("\x80\x02}X\x0d\x00\x00\x00"
                        "device_traces]s.",
                        24),
            "history is empty"},
           {Data("evil_p4.pickle"), "could run code"},
           {std::string("\x80\x02}X"), "ends too early"},
       }) {
    const absl::StatusOr<Trace> trace = ReadTrace(data, "s.pickle");
    ASSERT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(trace.status().message()), HasSubstr(words));
    EXPECT_THAT(std::string(trace.status().message()), HasSubstr("s.pickle: "));
  }
}

// An event of `action` at address 16 with one byte, as one letter's memo entry.
std::string SharedEvents(int count) {
  std::string data(
      "\x80\x02}X\x0d\x00\x00\x00"
      "device_traces](]",
      25 - 1);
  data += std::string("(}(X\x06\x00\x00\x00", 8) + "actionX" + std::string("\x05\x00\x00\x00", 4) +
          "ownedu" + std::string("q\x01", 2);
  for (int i = 0; i < count; ++i) data += std::string("h\x01", 2);
  return data + "ees.";
}

TEST(PyTorchSnapshotTest, ASharedEntryCannotMakeTheReaderWalkForEver) {
  const std::string data = SharedEvents(100000);
  const absl::StatusOr<Trace> trace = ReadTrace(data, "s.pickle");
  ASSERT_FALSE(trace.ok());
  EXPECT_THAT(std::string(trace.status().message()), HasSubstr("over and over"));
}

TEST(PyTorchSnapshotTest, AnyBytesAreReadOrRefused) {
  const std::string seed = Data("snapshot_p4.pickle");
  std::mt19937 random(3);
  int read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string data = seed;
    for (int edits = static_cast<int>(random() % 3); edits >= 0; --edits) {
      data[2 + random() % (data.size() - 2)] = static_cast<char>(random());
    }
    const absl::StatusOr<Trace> trace = ReadTrace(data, "s.pickle");
    read += trace.ok() ? 1 : 0;
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace hbm::observe
