// SPDX-License-Identifier: Apache-2.0
//
// File: timeline.h
//
// How an allocator's memory went over a replay, as few enough samples to draw: the
// highest values within each run of a few events, so that no peak is lost.
//
//   Timeline timeline(trace.events.size());
//   options.on_event = [&](const observe::ReplayMoment& moment) { timeline.Add(moment); };
#ifndef HBMALLOC_TOOLS_REPLAY_TIMELINE_H_
#define HBMALLOC_TOOLS_REPLAY_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "observe/replay.h"

namespace hbm::replay {

class Timeline {
 public:
  static constexpr std::size_t kMaxSamples = 16384;

  struct Sample {
    std::size_t event = 0;  // the first that it stands for
    std::int64_t in_use = 0;
    std::int64_t pool = 0;
    double fragmentation = -1;  // 1 - largest free / free; negative: not known
  };

  // `has_free_chunks` says whether the strategy's fragmentation is known.
  Timeline(std::size_t events, bool has_free_chunks);

  void Add(const observe::ReplayMoment& moment);

  const std::vector<Sample>& samples() const { return samples_; }

 private:
  std::size_t events_per_sample_;
  bool has_free_chunks_;
  std::vector<Sample> samples_;
};

}  // namespace hbm::replay

#endif  // HBMALLOC_TOOLS_REPLAY_TIMELINE_H_
