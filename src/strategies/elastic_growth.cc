// SPDX-License-Identifier: Apache-2.0
#include "strategies/elastic_growth.h"

#include <cmath>

namespace hbm::strategies {
namespace {

constexpr std::uint64_t kKiB = std::uint64_t{1} << 10;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// The figures below were chosen on the recorded and random traces in bench/traces,
// against the cost model of the simulated device.

// Blocks below this lie apart from the others. With no slack to lose, fewer do.
constexpr std::uint64_t kSmallBlock = 256 * kKiB;
constexpr std::uint64_t kSmallBlockTightest = 64 * kKiB;
// While all slack is less than this, every page counts.
constexpr double kTightSlackBytes = 12.0 * kMiB;
// Handles are never larger, so that a few pinned ones do not eat the slack.
constexpr std::uint64_t kLargestHandle = 64 * kMiB;
// Nor larger than the slack over this. A small slack is a few granules, and has less to
// spare for one that is pinned.
constexpr double kHandlesInSlack = 1.1;
constexpr double kHandlesInSmallSlack = 1.25;
constexpr double kSmallSlackBytes = 16.0 * kMiB;
// Nor those for blocks that are larger themselves.
constexpr std::uint64_t kLargestExactHandle = 256 * kMiB;
constexpr std::uint64_t kLargestSmallBlockHandle = 4 * kMiB;
// Handles become smaller when more than this part of the slack is pinned, and only
// if that many live bytes' worth were freed since the last time: while a program
// only grows, pinned memory says nothing yet.
constexpr double kPinnedTooMuch = 1.3;
constexpr double kPinnedLittle = 0.1;
constexpr double kChurnBetweenShrinks = 0.1;
// Nor do they become smaller than the slack over this: what a program pins changes with
// its sizes, and the driver's time with the number of handles.
constexpr double kMostHandlesInSlack = 32;
constexpr double kLeastSlackToJudge = 12.0 * kMiB;
// A free chunk this many handles long is room for growth, not waste.
constexpr std::uint64_t kRoomHandles = 2;
// Beyond the budget, a handle may still be this part of the slack: for the driver
// a handle of 20 MiB costs what one of 2 MiB does.
constexpr double kHandleBeyondBudget = 0.2;
// Without stealing, each handle is at least this part of the pool.
constexpr double kGrowthWithoutStealing = 0.5;
constexpr std::uint64_t kLargestHandleWithoutStealing = 1024 * kMiB;

}  // namespace

ElasticGrowth::ElasticGrowth(double slack, std::uint64_t granule)
    : slack_(std::isinf(slack) ? 0 : slack),
      never_steals_(std::isinf(slack)),
      granule_(granule),
      small_bytes_(slack == 0 ? kSmallBlockTightest : kSmallBlock),
      largest_handle_(std::max(kLargestHandle, granule)) {
  UpdateTightness();
}

std::uint64_t ElasticGrowth::FloorToGranule(double bytes) const {
  return static_cast<std::uint64_t>(bytes) / granule_ * granule_;
}

void ElasticGrowth::UpdateTightness() {
  places_tightly_ = !never_steals_ && (is_tightest() || largest_handle_ <= 2 * granule_ ||
                                       slack_ * static_cast<double>(peak_) <= kTightSlackBytes);
}

std::uint64_t ElasticGrowth::Budget(std::uint64_t limit) const {
  if (never_steals_) return limit;
  const double budget = static_cast<double>(peak()) + SlackBytes();
  return budget >= static_cast<double>(limit) ? limit : static_cast<std::uint64_t>(budget);
}

std::uint64_t ElasticGrowth::HandleBytes(bool is_small) const {
  const double slack = SlackBytes();
  const double most = slack / (slack < kSmallSlackBytes ? kHandlesInSmallSlack : kHandlesInSlack);
  std::uint64_t largest = largest_handle_;
  if (is_small) largest = std::min(largest, kLargestSmallBlockHandle);
  std::uint64_t bytes = granule_;
  while (bytes * 2 <= largest && static_cast<double>(bytes * 2) <= most) bytes *= 2;
  return bytes;
}

std::uint64_t ElasticGrowth::SpareHandle(bool is_small) const { return HandleBytes(is_small); }

void ElasticGrowth::NotePressure(const Pressure& pressure) {
  if (never_steals_ || is_tightest()) return;
  const double slack = SlackBytes();
  const std::uint64_t handle = HandleBytes(false);
  const double room = static_cast<double>(std::min(pressure.largest_pinned, kRoomHandles * handle));
  const double pinned = static_cast<double>(pressure.pool_with_need) - static_cast<double>(live()) -
                        static_cast<double>(pressure.idle) - room;
  if (pinned > kPinnedTooMuch * slack && slack > kLeastSlackToJudge) {
    const auto freed = static_cast<double>(freed_ - freed_at_shrink_);
    if (freed <= kChurnBetweenShrinks * static_cast<double>(live())) return;
    freed_at_shrink_ = freed_;
    largest_handle_ = std::max({granule_, FloorToGranule(slack / kMostHandlesInSlack), handle / 2});
  } else if (pinned < kPinnedLittle * slack) {
    largest_handle_ = std::min(std::max(kLargestHandle, granule_), largest_handle_ * 2);
  }
  UpdateTightness();
}

std::uint64_t ElasticGrowth::NextHandleWithoutStealing(const Piece& piece) const {
  const std::uint64_t most = std::max(kLargestHandleWithoutStealing, granule_);
  const auto part =
      static_cast<std::uint64_t>(kGrowthWithoutStealing * static_cast<double>(piece.pool));
  const std::uint64_t target = std::min(std::max(piece.wanted, part), most);
  std::uint64_t bytes = granule_;
  while (bytes * 2 <= target) bytes *= 2;
  if (bytes > piece.wanted && bytes > piece.room) bytes = piece.wanted;
  if (piece.wanted > bytes && piece.wanted <= most) bytes = piece.wanted;
  if (piece.pool + bytes > piece.limit) bytes = std::min(bytes, piece.wanted);
  return bytes;
}

std::uint64_t ElasticGrowth::NextHandle(const Piece& piece) const {
  if (never_steals_) return NextHandleWithoutStealing(piece);
  const double slack = SlackBytes();
  const std::uint64_t handle = HandleBytes(piece.is_small);
  std::uint64_t bytes = handle;
  if (piece.wanted >= handle) {
    // For a large block: one handle, if the slack could bear to see it pinned.
    std::uint64_t largest = kLargestExactHandle;
    if (largest_handle_ < kLargestHandle) largest = std::max(handle, largest_handle_);
    largest = std::min(largest, std::max(handle, FloorToGranule(slack)));
    bytes = std::min(piece.wanted, largest);
  }
  if (bytes > piece.room) bytes = std::min(piece.wanted, bytes);
  const std::uint64_t budget = Budget(piece.limit);
  if (bytes <= piece.wanted || piece.pool + bytes <= budget) return bytes;
  // The budget has no room for more than the block needs.
  const std::uint64_t beyond = std::min(bytes, FloorToGranule(kHandleBeyondBudget * slack));
  if (piece.is_small || beyond <= piece.wanted || piece.can_steal ||
      piece.pool + beyond > piece.limit || piece.pool + piece.wanted <= budget) {
    return piece.wanted;
  }
  return beyond;
}

}  // namespace hbm::strategies
