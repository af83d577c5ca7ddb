// SPDX-License-Identifier: Apache-2.0
#include "policy/text.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hbm::policy {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kGiB = 1024 * kMiB;
constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();

TEST(ParseBytes, ReadsBinaryDecimalAndPlainSizes) {
  const std::vector<std::pair<std::string, std::size_t>> cases = {
      {"0", 0},
      {"4096", 4096},
      {"17B", 17},
      {"512MiB", 512 * kMiB},
      {"8GiB", 8 * kGiB},
      {"1.5GiB", 3 * kGiB / 2},
      {".5KiB", 512},
      {"3.KiB", 3 * kKiB},
      {"1TiB", 1024 * kGiB},
      {"2KB", 2000},
      {"3MB", 3000000},
      {"8GB", 8000000000},
      {"1.25TB", 1250000000000},
      {"8gib", 8 * kGiB},
      {" 8 GiB\t", 8 * kGiB},
      {"0.0009765625KiB", 1},
      {"1.9", 1},              // a fraction of a byte is floored
      {"1.8GiB", 1932735283},  // of 1932735283.2
      {"18446744073709551615", kMax},
      {"0.99999999999999999999999999KiB", 1023},
  };
  for (const auto& [text, bytes] : cases) {
    const absl::StatusOr<std::size_t> read = ParseBytes(text);
    ASSERT_TRUE(read.ok()) << text << ": " << read.status();
    EXPECT_EQ(*read, bytes) << text;
  }
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* text : {"", " ", ".", "GiB", "abc", "-1", "-1GiB", "+1", "1e9", "1GiBs", "1 2",
                           "1..5GiB", "1,5GiB", "inf", "nan", "0x10", "90%", "1PiB"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(ParseBytes, SaysWhatIsWrong) {
  EXPECT_THAT(std::string(View(ParseBytes("8G").status())), HasSubstr("GiB (binary) or GB"));
  EXPECT_THAT(std::string(View(ParseBytes("-8GiB").status())), HasSubstr("negative"));
  EXPECT_THAT(std::string(View(ParseBytes("8XB").status())), HasSubstr("\"XB\" is no unit"));
}

TEST(ParseBytes, RefusesMoreThanASizeHolds) {
  for (const char* text : {"18446744073709551616", "16777216TiB", "99999999999999999999999999TiB",
                           "340282366920938463463374607431768211457"}) {
    EXPECT_THAT(std::string(View(ParseBytes(text).status())), HasSubstr("is more than")) << text;
  }
  EXPECT_EQ(*ParseBytes("16777215TiB"), std::size_t{16777215} << 40);
}

TEST(FormatBytesExact, IsTheShortestTextThatReadsBack) {
  const std::vector<std::pair<std::size_t, std::string>> cases = {{0, "0"},
                                                                  {1, "1"},
                                                                  {256, "256"},
                                                                  {1000, "1KB"},
                                                                  {1024, "1KiB"},
                                                                  {1537, "1537"},
                                                                  {512 * kMiB, "512MiB"},
                                                                  {3 * kGiB / 2, "1.5GiB"},
                                                                  {8000000000, "8GB"},
                                                                  {1932735283, "1.8GiB"},
                                                                  {kMax, "18446744073709551615"}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(FormatBytesExact(bytes), text);
}

TEST(FormatBytesExact, ReadsBackForAnySize) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const std::size_t bytes = random() >> (random() % 64);
    const std::string text = FormatBytesExact(bytes);
    const absl::StatusOr<std::size_t> read = ParseBytes(text);
    ASSERT_TRUE(read.ok()) << text;
    ASSERT_EQ(*read, bytes) << text;
  }
}

TEST(FormatBytes, ShowsThreeDigits) {
  const std::vector<std::pair<std::size_t, std::string>> cases = {
      {0, "0 B"},
      {1023, "1023 B"},
      {1024, "1 KiB"},
      {1280 * kMiB, "1.25 GiB"},
      {80 * kGiB, "80 GiB"},
      {kMiB - 1, "1 MiB"},
      {12345678, "11.8 MiB"},
      {123 * kGiB + kGiB / 3, "123 GiB"},
      {kMax, "16 EiB"}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(FormatBytes(bytes), text);
}

TEST(ParseDuration, ReadsTimes) {
  EXPECT_EQ(*ParseDuration("10s"), absl::Seconds(10));
  EXPECT_EQ(*ParseDuration(" 1.5ms "), absl::Microseconds(1500));
  EXPECT_EQ(*ParseDuration("1h30m"), absl::Minutes(90));
  EXPECT_EQ(*ParseDuration("0"), absl::ZeroDuration());
  EXPECT_EQ(*ParseDuration("-0"), absl::ZeroDuration());
  EXPECT_EQ(*ParseDuration("inf"), absl::InfiniteDuration());
}

TEST(ParseDuration, RefusesWhatIsNoTime) {
  for (const char* text : {"", "s", "abc", "-1s", "-inf", "1d", "1 s", "nan", "1e3s",
                           "9223372036854775807h", "99999999999999999999s"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
  EXPECT_THAT(std::string(View(ParseDuration("10").status())), HasSubstr("write 10s"));
}

TEST(FormatDurationExact, IsShortAndReadsBack) {
  const std::vector<std::pair<absl::Duration, std::string>> cases = {
      {absl::ZeroDuration(), "0"},
      {absl::InfiniteDuration(), "inf"},
      {absl::Seconds(90), "90s"},
      {absl::Seconds(3600), "1h"},
      {absl::Milliseconds(500), "500ms"},
      {absl::Nanoseconds(1) / 4, "0.25ns"},
      {absl::Hours(25), "25h"}};
  for (const auto& [duration, text] : cases) EXPECT_EQ(FormatDurationExact(duration), text);

  std::mt19937_64 random(11);
  for (int i = 0; i < 20000; ++i) {
    const absl::Duration duration =
        absl::Nanoseconds(static_cast<std::int64_t>(random() >> (1 + random() % 63))) +
        absl::Nanoseconds(1) / 4 * static_cast<std::int64_t>(random() % 4);
    const std::string text = FormatDurationExact(duration);
    ASSERT_EQ(*ParseDuration(text), duration) << text;
  }
}

TEST(ParseNumber, ReadsDecimalsOnly) {
  EXPECT_EQ(*ParseNumber("0.05"), 0.05);
  EXPECT_EQ(*ParseNumber(".5"), 0.5);
  EXPECT_EQ(*ParseNumber(" 1e-3 "), 1e-3);
  EXPECT_EQ(*ParseNumber("1E+2"), 100.0);
  for (const char* text : {"", ".", "nan", "inf", "infinity", "0x1p3", "1e999", "1e-999", "-1",
                           "+1", "1e", "1f", "1 2", ".XX", "1,5"}) {
    EXPECT_FALSE(ParseNumber(text).ok()) << text;
  }
}

TEST(FormatNumber, ReadsBackForAnyNumber) {
  EXPECT_EQ(FormatNumber(0.75), "0.75");
  EXPECT_EQ(FormatNumber(-0.0), "0");
  std::mt19937_64 random(13);
  for (int i = 0; i < 20000; ++i) {
    const double value =
        std::ldexp(static_cast<double>(random()), -static_cast<int>(random() % 900));
    ASSERT_EQ(*ParseNumber(FormatNumber(value)), value) << FormatNumber(value);
  }
  const double least = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(*ParseNumber(FormatNumber(least)), least);
}

TEST(ParseBool, UnderstandsEveryCase) {
  for (const char* text : {"true", "True", "TRUE", "1", "yes", "YES", "on", "On", " true "}) {
    EXPECT_TRUE(*ParseBool(text)) << text;
  }
  for (const char* text : {"false", "False", "FALSE", "0", "no", "NO", "off", "OFF", "\tfalse"}) {
    EXPECT_FALSE(*ParseBool(text)) << text;
  }
  for (const char* text : {"", "2", "-1", "t", "f", "y", "n", "enable", "truefalse", "0.0"}) {
    EXPECT_FALSE(ParseBool(text).ok()) << text;
  }
}

}  // namespace
}  // namespace hbm::policy
