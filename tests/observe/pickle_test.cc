// SPDX-License-Identifier: Apache-2.0
#include "observe/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "tests/support/paths.h"

namespace hbm::observe {
namespace {

using ::testing::HasSubstr;
using Kind = PickleValue::Kind;

std::string Data(const std::string& name) {
  std::ifstream file(testing::SourcePath("tests/observe/data/" + name), std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  EXPECT_FALSE(bytes.str().empty()) << name;
  return bytes.str();
}

class PickleProtocolTest : public ::testing::TestWithParam<int> {};

TEST_P(PickleProtocolTest, ReadsWhatPythonWrote) {
  const std::string data = Data("values_p" + std::to_string(GetParam()) + ".pickle");
  ASSERT_TRUE(Pickle::LooksLikePickle(data));
  const absl::StatusOr<Pickle> pickle = Pickle::Parse(data);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const auto find = [&](const char* key) -> const PickleValue& {
    static const PickleValue missing{};
    const PickleValue* const value = Pickle::Find(pickle->root(), key);
    EXPECT_NE(value, nullptr) << key;
    return value == nullptr ? missing : *value;
  };
  const auto expect_int = [&](const char* key, bool negative, std::uint64_t magnitude) {
    EXPECT_EQ(find(key).kind, Kind::kInt) << key;
    EXPECT_EQ(find(key).negative, negative) << key;
    EXPECT_EQ(find(key).magnitude, magnitude) << key;
  };
  EXPECT_EQ(find("none").kind, Kind::kNone);
  EXPECT_EQ(find("true").magnitude, 1u);
  EXPECT_EQ(find("false").kind, Kind::kBool);
  EXPECT_EQ(find("false").magnitude, 0u);
  expect_int("small", false, 7);
  expect_int("word", false, 60000);
  expect_int("negative", true, 5);
  expect_int("int", false, 2147483647);
  expect_int("long", false, (std::uint64_t{1} << 63) + 12345);
  expect_int("deep", true, std::uint64_t{1} << 62);
  EXPECT_EQ(find("huge").kind, Kind::kBigInt);
  EXPECT_EQ(find("float").real, 1.5);
  EXPECT_EQ(find("text").text, "h\xc3\xa9llo");
  EXPECT_EQ(find("long_text").text, std::string(300, 'x'));
  ASSERT_EQ(find("tuple").items.size(), 4u);
  EXPECT_EQ(find("tuple").items[3]->magnitude, 4u);
  ASSERT_EQ(find("pair").items.size(), 2u);
  EXPECT_EQ(find("pair").items[1]->text, "two");
  EXPECT_GE(find("empty").items.size(), 3u);
  ASSERT_EQ(find("shared").items.size(), 2u);
  EXPECT_EQ(find("shared").items[0], find("shared").items[1]);  // one value, not two
  EXPECT_EQ(Pickle::Find(pickle->root(), "absent"), nullptr);
  if (GetParam() >= 3) {
    EXPECT_EQ(find("bytes").text, std::string("\x00\xff", 2));
  }
  if (GetParam() >= 4) {
    ASSERT_EQ(find("set").items.size(), 1u);
    EXPECT_EQ(find("frozen").items.at(0)->magnitude, 6u);
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, PickleProtocolTest, ::testing::Values(2, 3, 4, 5));

TEST(PickleTest, WhateverCouldRunCodeIsRefused) {
  for (const char* name : {"evil_p2.pickle", "evil_p4.pickle"}) {
    const absl::StatusOr<Pickle> pickle = Pickle::Parse(Data(name));
    ASSERT_EQ(pickle.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(pickle.status().message()), HasSubstr("could run code"));
  }
  // Every operation that imports, calls or builds: refused wherever it stands.
  for (const char opcode : std::string("cioRbPQVFILSTUp\x81\x82\x83\x84\x92\x93\x96\x97\x98")) {
    EXPECT_FALSE(Pickle::Parse(std::string("\x80\x04N") + opcode + ".").ok()) << opcode;
  }
}

TEST(PickleTest, EveryTruncationIsRefused) {
  const std::string data = Data("snapshot_p4.pickle");
  for (std::size_t size = 0; size < data.size(); ++size) {
    EXPECT_FALSE(Pickle::Parse(std::string_view(data).substr(0, size)).ok()) << size;
  }
}

TEST(PickleTest, BrokenMachinesAreRefused) {
  const std::string start("\x80\x02", 2);
  for (const std::string& body :
       {std::string("."), std::string("NN."), std::string("(."), std::string("0."),
        std::string("t."), std::string("(N}u."), std::string("}(Nu."), std::string("Na."),
        std::string("]"), std::string("]NNs."), std::string("h\x07."), std::string("Nq"),
        std::string("Nr\xff\xff\xff\xff."), std::string("X\xff\xff\xff\xff."),
        std::string("\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", 10), std::string("(]Na(a."),
        std::string("\x8a\x05\x01."), std::string("\x87.")}) {
    EXPECT_FALSE(Pickle::Parse(start + body).ok()) << body;
  }
}

TEST(PickleTest, AListMayContainItself) {
  const absl::StatusOr<Pickle> pickle =
      Pickle::Parse(std::string("\x80\x02]q\x00h\x00"
                                "a.",
                                9));
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_EQ(pickle->root().items.at(0), &pickle->root());
}

TEST(PickleTest, AnyBytesAreReadOrRefused) {
  const std::string seed = Data("values_p4.pickle");
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string data = seed;
    for (int edits = static_cast<int>(random() % 5); edits >= 0; --edits) {
      data[random() % data.size()] = static_cast<char>(random());
    }
    const absl::StatusOr<Pickle> pickle = Pickle::Parse(data);
    if (!pickle.ok()) continue;
    EXPECT_LE(pickle->size(), data.size());
  }
}

}  // namespace
}  // namespace hbm::observe
