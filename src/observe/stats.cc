// SPDX-License-Identifier: Apache-2.0
#include "hbmalloc/stats.h"

#include "absl/strings/str_cat.h"

namespace hbm {

std::string_view ToString(LimitSource source) {
  switch (source) {
    case LimitSource::kMemoryFraction:
      return "memory_fraction";
    case LimitSource::kMemoryLimit:
      return "memory_limit";
    case LimitSource::kReserve:
      return "reserve";
    case LimitSource::kSetMemoryLimit:
      return "SetMemoryLimit";
    case LimitSource::kShortage:
      return "shortage";
  }
  return "unknown";
}

std::string ToString(const Stats& stats) {
  std::string text;
  const auto line = [&text](const char* name, std::int64_t value) {
    absl::StrAppend(&text, name, ": ", value, "\n");
  };
  line("num_allocs", stats.num_allocs);
  line("bytes_in_use", stats.bytes_in_use);
  line("peak_bytes_in_use", stats.peak_bytes_in_use);
  line("largest_alloc_size", stats.largest_alloc_size);
  line("bytes_limit", stats.bytes_limit);
  line("bytes_reserved", stats.bytes_reserved);
  line("peak_bytes_reserved", stats.peak_bytes_reserved);
  line("largest_free_block_bytes", stats.largest_free_block_bytes);
  line("pool_bytes", stats.pool_bytes);
  line("peak_pool_bytes", stats.peak_pool_bytes);
  line("peak_allocated_bytes", stats.peak_allocated_bytes);
  line("requested_bytes", stats.requested_bytes);
  line("peak_requested_bytes", stats.peak_requested_bytes);
  line("num_frees", stats.num_frees);
  line("num_failures", stats.num_failures);
  line("num_regions", stats.num_regions);
  line("highest_used_bytes", stats.highest_used_bytes);
  line("pending_bytes", stats.pending_bytes);
  line("num_waits", stats.num_waits);
  line("wait_nanoseconds", stats.wait_nanoseconds);
  line("driver_calls", stats.driver_calls);
  line("driver_nanoseconds", stats.driver_nanoseconds);
  const std::string_view source = ToString(stats.limit_source);
  absl::StrAppend(&text, "limit_source: ", absl::string_view(source.data(), source.size()), "\n");
  return text;
}

}  // namespace hbm
