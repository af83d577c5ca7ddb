// SPDX-License-Identifier: Apache-2.0
#include "policy/pool_limit.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "policy/fraction.h"
#include "policy/text.h"

namespace hbm::policy {
namespace {

// fraction x bytes, floored, at most the largest size. A fraction of 1 is exact
// at any size.
std::size_t Scale(std::size_t bytes, double fraction) {
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  const long double scaled = static_cast<long double>(bytes) * static_cast<long double>(fraction);
  if (!(scaled > 0)) return 0;
  return scaled >= static_cast<long double>(kMax) ? kMax : static_cast<std::size_t>(scaled);
}

// What the field that won said, for the error when it leaves nothing.
std::string Describe(const Policy& policy, const MemoryInfo& memory, LimitSource source) {
  const std::string total = FormatBytes(memory.total);
  if (source == LimitSource::kMemoryLimit) {
    return absl::StrCat("memory_limit: ", FormatBytesExact(*policy.memory_limit));
  }
  if (source == LimitSource::kReserve) {
    return absl::StrCat("reserve: ", FormatBytesExact(policy.reserve), " of the ", total,
                        " in total");
  }
  const std::string fraction = FormatFraction(policy.memory_fraction);
  if (policy.fraction_of == FractionOf::kFree) {
    return absl::StrCat("memory_fraction: ", fraction, " of the ", FormatBytes(memory.free),
                        " that are free");
  }
  return absl::StrCat("memory_fraction: ", fraction, " of the ", total, " in total");
}

// A share says how much; the fraction's default then says nothing, but for elastic,
// which may borrow that much.
MemoryFraction FractionOfPool(const Policy& policy) {
  const MemoryFraction none;
  if (!policy.share.has_value() || !(policy.memory_fraction == none)) return policy.memory_fraction;
  if (policy.strategy != Strategy::kElastic) return MemoryFraction{1.0};
  return MemoryFraction{*policy.share, std::max(*policy.share, none.start)};
}

}  // namespace

absl::StatusOr<PoolLimit> ComputePoolLimit(const Policy& policy, const MemoryInfo& memory,
                                           std::size_t granularity) {
  const std::size_t granule = std::max<std::size_t>(granularity, 1);
  const std::size_t base = policy.fraction_of == FractionOf::kFree ? memory.free : memory.total;
  const MemoryFraction fraction = FractionOfPool(policy);

  PoolLimit limit;
  limit.bytes = Scale(base, fraction.cap.value_or(fraction.start));
  const auto lower_to = [&limit](std::size_t bytes, LimitSource source) {
    if (bytes >= limit.bytes) return;
    limit.bytes = bytes;
    limit.source = source;
  };
  if (policy.memory_limit.has_value()) lower_to(*policy.memory_limit, LimitSource::kMemoryLimit);
  if (policy.reserve > 0) {
    lower_to(memory.total - std::min(memory.total, policy.reserve), LimitSource::kReserve);
  }

  limit.bytes -= limit.bytes % granule;
  if (limit.bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(policy, memory, limit.source),
                     " leaves less than one granule of memory, ", FormatBytesExact(granule),
                     limit.source == LimitSource::kReserve ? "; reserve less" : "; ask for more"));
  }
  const std::size_t start = Scale(base, fraction.start);
  limit.start_bytes = std::clamp(start - start % granule, granule, limit.bytes);
  return limit;
}

}  // namespace hbm::policy
