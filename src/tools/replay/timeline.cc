// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/timeline.h"

#include <algorithm>

namespace hbm::replay {

Timeline::Timeline(std::size_t events, bool has_free_chunks)
    : events_per_sample_(events / kMaxSamples + 1), has_free_chunks_(has_free_chunks) {
  samples_.reserve(events / events_per_sample_ + 1);
}

void Timeline::Add(const observe::ReplayMoment& moment) {
  if (moment.event % events_per_sample_ == 0) {
    samples_.emplace_back();
    samples_.back().event = moment.event;
  }
  if (samples_.empty()) return;
  Sample& sample = samples_.back();
  const Stats& stats = moment.stats;
  sample.in_use = std::max(sample.in_use, stats.bytes_in_use);
  sample.pool = std::max(sample.pool, stats.pool_bytes);
  if (!has_free_chunks_) return;
  const std::int64_t free = stats.pool_bytes - stats.bytes_in_use;
  const double external = free <= 0 ? 0
                                    : 1 - static_cast<double>(stats.largest_free_block_bytes) /
                                              static_cast<double>(free);
  sample.fragmentation = std::max(sample.fragmentation, std::clamp(external, 0.0, 1.0));
}

}  // namespace hbm::replay
