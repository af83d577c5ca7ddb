// SPDX-License-Identifier: Apache-2.0
//
// Who may take how much, by small examples worked out by hand.
#include "sharing/shares.h"

#include "gtest/gtest.h"

namespace hbm::sharing {
namespace {

Claim Held(std::uint64_t held, double share = 0) {
  Claim claim;
  claim.held = held;
  claim.share = share;
  return claim;
}

Books Device(std::uint64_t capacity, std::uint64_t free, std::vector<Claim> claims) {
  Books books;
  books.capacity = capacity;
  books.device_free = free;
  books.claims = std::move(claims);
  return books;
}

TEST(Shares, AvailableIsTheSmallerOfTheBooksAndTheDevice) {
  EXPECT_EQ(Available(Device(100, 100, {Held(30), Held(20)})), 50U);
  // Somebody who is not in the books holds 40.
  EXPECT_EQ(Available(Device(100, 10, {Held(30), Held(20)})), 10U);
}

TEST(Shares, WhatIsChargedAndNotAllocatedIsNotOnTheDeviceYet) {
  Claim charged = Held(30);
  charged.charged = 30;
  // An outsider holds 50, the device says that 50 are free, 30 of them are promised.
  EXPECT_EQ(Available(Device(100, 50, {charged, Held(0)})), 20U);
}

TEST(Shares, ReserveAndOverheadAreNobodysToTake) {
  Books books = Device(100, 100, {Held(10), Held(0)});
  books.reserve = 20;
  books.claims[0].overhead = 5;
  EXPECT_EQ(Available(books), 65U);
  books.reserve = 200;
  EXPECT_EQ(Available(books), 0U);
}

TEST(Shares, PartsAreEqualUnlessShareSays) {
  EXPECT_EQ(PartOf(Device(100, 100, {Held(0), Held(0), Held(0), Held(0)}), 2), 25U);
  const Books books = Device(100, 100, {Held(0, 0.5), Held(0), Held(0)});
  EXPECT_EQ(PartOf(books, 0), 50U);
  EXPECT_EQ(PartOf(books, 1), 25U);
  EXPECT_DOUBLE_EQ(SumOfShares(books), 0.5);
}

TEST(Shares, SharesThatTakeEverythingLeaveNothingToTheOthers) {
  EXPECT_EQ(PartOf(Device(100, 100, {Held(0, 0.7), Held(0, 0.3), Held(0)}), 2), 0U);
}

TEST(Shares, FairLendsWhatNobodyNeeds) {
  const Books books = Device(100, 40, {Held(60), Held(0)});
  EXPECT_EQ(MayTake(books, 0, true), 40U);
  EXPECT_EQ(MayTake(books, 1, true), 40U);
}

TEST(Shares, FairKeepsBackWhatOthersLackWithinTheirParts) {
  Books books = Device(100, 40, {Held(60), Held(0)});
  books.claims[1].wants = 30;
  EXPECT_EQ(MayTake(books, 0, true), 10U);  // it is beyond its part of 50
  EXPECT_EQ(MayTake(books, 0, false), 40U);
  books.claims[1].wants = 90;  // only 50 of that is its due
  EXPECT_EQ(MayTake(books, 0, true), 0U);
  // Within its own part nothing is kept back from it.
  books = Device(100, 70, {Held(30), Held(0)});
  books.claims[1].wants = 70;
  EXPECT_EQ(MayTake(books, 0, true), 20U);
}

TEST(Shares, NothingUnderflows) {
  Books books = Device(100, 0, {Held(90), Held(90)});
  books.claims[1].wants = ~std::uint64_t{0};
  books.claims[1].charged = ~std::uint64_t{0};
  EXPECT_EQ(Available(books), 0U);
  EXPECT_EQ(MayTake(books, 0, true), 0U);
  EXPECT_EQ(MayTake(books, 1, true), 0U);
}

}  // namespace
}  // namespace hbm::sharing
