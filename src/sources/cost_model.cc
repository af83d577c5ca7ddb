// SPDX-License-Identifier: Apache-2.0
#include "sources/cost_model.h"

#include <array>
#include <cmath>

namespace hbm::sources {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kRows = 5;

using Row = std::array<std::int64_t, kRows>;
using Sizes = std::array<std::size_t, kRows>;

// One call's nanoseconds at each of five sizes.
struct Curve {
  const Sizes& bytes;
  Row nanoseconds;
};

constexpr Sizes kRegionBytes = {2 * kMiB, 32 * kMiB, 256 * kMiB, 2 * kGiB, 16 * kGiB};
constexpr Sizes kHandleBytes = {2 * kMiB, 20 * kMiB, 128 * kMiB, 1 * kGiB, 8 * kGiB};

// In the order of DriverCall. Medians on an idle H200, driver 580, CUDA 13.0.
constexpr Curve kCurves[] = {
    {kRegionBytes, {40'000, 50'000, 74'000, 264'000, 1'476'000}},     // cudaMalloc
    {kRegionBytes, {35'000, 59'000, 180'000, 1'136'000, 8'284'000}},  // cudaFree
    {kHandleBytes, {700, 900, 2'400, 4'200, 14'000}},                 // AddressReserve
    {kHandleBytes, {13'500, 14'200, 16'200, 32'300, 24'455'000}},     // MemCreate
    {kHandleBytes, {1'000, 1'000, 1'100, 1'800, 13'000}},             // MemMap
    {kHandleBytes, {24'900, 25'000, 50'800, 93'500, 397'000}},        // MemSetAccess
    {kHandleBytes, {17'200, 17'100, 25'300, 38'000, 130'000}},        // MemUnmap
    {kHandleBytes, {11'800, 21'500, 77'500, 537'000, 4'097'000}},     // MemRelease
    {kHandleBytes, {600, 800, 3'400, 6'700, 24'000}},                 // AddressFree
};

}  // namespace

std::int64_t CostNanoseconds(DriverCall call, std::size_t bytes) {
  const Curve& curve = kCurves[static_cast<std::size_t>(call)];
  if (bytes <= curve.bytes.front()) return curve.nanoseconds.front();
  std::size_t upper = 1;
  while (upper + 1 < kRows && bytes > curve.bytes[upper]) ++upper;
  const std::size_t lower = upper - 1;
  const double slope = static_cast<double>(curve.nanoseconds[upper] - curve.nanoseconds[lower]) /
                       static_cast<double>(curve.bytes[upper] - curve.bytes[lower]);
  return curve.nanoseconds[lower] +
         std::llround(slope * static_cast<double>(bytes - curve.bytes[lower]));
}

}  // namespace hbm::sources
