// SPDX-License-Identifier: Apache-2.0
//
// Time on a simulated device: when freed memory may be reused, and what waiting
// for it costs.
#include "sources/sim_timeline.h"

#include "gtest/gtest.h"
#include "hbmalloc/device.h"
#include "hbmalloc/policy.h"

namespace hbm::sources {
namespace {

StreamRef Stream(std::uintptr_t number) {
  return StreamRef::FromHandle(reinterpret_cast<void*>(number));
}

class SimTimelineTest : public ::testing::Test {
 protected:
  bool IsDone(Timeline::Marker marker) { return *timeline_.IsDone(marker); }

  SimClock clock_;
  SimTimeline timeline_{&clock_, absl::Milliseconds(10)};
};

TEST_F(SimTimelineTest, WorkEndsALagAfterItWasMarked) {
  clock_.AdvanceTo(absl::Milliseconds(5));
  const Timeline::Marker marker = *timeline_.Record(Stream(1));
  EXPECT_NE(marker, 0u);
  EXPECT_FALSE(IsDone(marker));
  clock_.AdvanceTo(absl::Milliseconds(15) - absl::Nanoseconds(1));
  EXPECT_FALSE(IsDone(marker));
  clock_.AdvanceTo(absl::Milliseconds(15));
  EXPECT_TRUE(IsDone(marker));
  EXPECT_TRUE(IsDone(0));
}

TEST_F(SimTimelineTest, TheClockNeverGoesBack) {
  clock_.AdvanceTo(absl::Seconds(2));
  clock_.AdvanceTo(absl::Seconds(1));
  EXPECT_EQ(clock_.Now(), absl::Seconds(2));
}

TEST_F(SimTimelineTest, WaitingMovesTheClockAndIsCounted) {
  const Timeline::Marker marker = *timeline_.Record(Stream(1));
  clock_.AdvanceTo(absl::Milliseconds(4));
  EXPECT_TRUE(timeline_.WaitOnHost(marker, absl::InfiniteDuration()).ok());
  EXPECT_EQ(clock_.Now(), absl::Milliseconds(10));
  EXPECT_TRUE(IsDone(marker));
  EXPECT_EQ(timeline_.host_waits(), 1u);
  EXPECT_EQ(timeline_.host_wait_nanoseconds(), 6'000'000);
  // What is done is not waited for.
  EXPECT_TRUE(timeline_.WaitOnHost(marker, absl::ZeroDuration()).ok());
  EXPECT_TRUE(timeline_.WaitForDevice().ok());
  EXPECT_EQ(timeline_.host_waits(), 1u);
}

TEST_F(SimTimelineTest, WaitingEndsAtItsTimeout) {
  const Timeline::Marker marker = *timeline_.Record(Stream(1));
  EXPECT_EQ(timeline_.WaitOnHost(marker, absl::Milliseconds(3)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(clock_.Now(), absl::Milliseconds(3));
  EXPECT_EQ(timeline_.WaitOnHost(marker, absl::ZeroDuration()).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(timeline_.WaitOnHost(marker, -absl::Seconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(clock_.Now(), absl::Milliseconds(3));
  EXPECT_EQ(timeline_.host_wait_nanoseconds(), 3'000'000);
  EXPECT_TRUE(timeline_.WaitOnHost(marker, absl::Milliseconds(7)).ok());
}

TEST_F(SimTimelineTest, AStreamThatWaitsEndsItsOwnWorkLater) {
  const Timeline::Marker first = *timeline_.Record(Stream(1));
  clock_.AdvanceTo(absl::Milliseconds(2));
  ASSERT_TRUE(timeline_.WaitOnStream(Stream(2), first).ok());
  const Timeline::Marker second = *timeline_.Record(Stream(2));
  const Timeline::Marker third = *timeline_.Record(Stream(3));
  EXPECT_EQ(timeline_.host_waits(), 0u);
  clock_.AdvanceTo(absl::Milliseconds(12));
  EXPECT_TRUE(IsDone(third));
  EXPECT_FALSE(IsDone(second));  // it began when the first was done, at 10 ms
  clock_.AdvanceTo(absl::Milliseconds(20));
  EXPECT_TRUE(IsDone(second));
}

TEST_F(SimTimelineTest, WaitForDeviceWaitsForTheLast) {
  const Timeline::Marker first = *timeline_.Record(Stream(1));
  clock_.AdvanceTo(absl::Milliseconds(9));
  const Timeline::Marker last = *timeline_.Record(Stream(2));
  ASSERT_TRUE(timeline_.WaitForDevice().ok());
  EXPECT_EQ(clock_.Now(), absl::Milliseconds(19));
  EXPECT_TRUE(IsDone(first));
  EXPECT_TRUE(IsDone(last));
}

TEST_F(SimTimelineTest, CountsMarkersThatAreNotForgotten) {
  const Timeline::Marker first = *timeline_.Record(Stream(1));
  const Timeline::Marker second = *timeline_.Record(Stream(1));
  EXPECT_EQ(timeline_.outstanding_markers(), 2);
  timeline_.Forget(first);
  timeline_.Forget(second);
  timeline_.Forget(0);
  EXPECT_EQ(timeline_.outstanding_markers(), 0);
}

TEST_F(SimTimelineTest, OnlyStreamsAreStreams) {
  EXPECT_EQ(*timeline_.StreamId(Stream(7)), 7u);
  EXPECT_EQ(*timeline_.StreamId(StreamRef()), 0u);
  for (StreamRef wrong : {StreamRef::OfAllocation(), StreamRef::Synchronized()}) {
    EXPECT_EQ(timeline_.StreamId(wrong).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(timeline_.Record(wrong).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(timeline_.WaitOnStream(wrong, 0).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(SimTimelineWithoutLag, EverythingIsDoneAtOnce) {
  SimClock clock;
  SimTimeline timeline(&clock, absl::ZeroDuration());
  const Timeline::Marker marker = *timeline.Record(Stream(1));
  EXPECT_TRUE(*timeline.IsDone(marker));
  EXPECT_TRUE(timeline.WaitOnHost(marker, absl::ZeroDuration()).ok());
  EXPECT_TRUE(timeline.WaitOnStream(Stream(2), marker).ok());
  EXPECT_TRUE(timeline.WaitForDevice().ok());
  timeline.Forget(marker);
  EXPECT_EQ(timeline.host_waits(), 0u);
  EXPECT_EQ(timeline.outstanding_markers(), 0);
  EXPECT_EQ(clock.Now(), absl::ZeroDuration());
}

TEST(SimDeviceTime, SourcesOfOneDeviceShareClockAndTimeline) {
  const auto device = *OpenDevice("sim:1GiB,lag=1ms");
  const auto first = *device->MakeSource(Policy{});
  const auto second = *device->MakeSource(Policy{});
  const Timeline::Marker marker = *first->timeline()->Record(Stream(1));
  EXPECT_FALSE(*second->timeline()->IsDone(marker));
  device->simulated_clock()->AdvanceTo(absl::Milliseconds(1));
  EXPECT_TRUE(*second->timeline()->IsDone(marker));
}

}  // namespace
}  // namespace hbm::sources
