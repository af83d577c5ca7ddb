// SPDX-License-Identifier: Apache-2.0
#include "observe/replay.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace hbm::observe {
namespace {

constexpr std::uint64_t kGrid = std::uint64_t{2} << 20;

std::uint64_t Unsigned(std::int64_t value) {
  return value < 0 ? 0 : static_cast<std::uint64_t>(value);
}

// The recorded handles mean nothing here. The first stream becomes the default
// one, the others get small numbers beyond those that CUDA gives a meaning to.
std::vector<StreamRef> StreamsOf(const Trace& trace, ReplayStreams which) {
  std::vector<StreamRef> streams;
  for (std::uintptr_t i = 0; i < std::max<std::size_t>(trace.streams.size(), 1); ++i) {
    streams.push_back(i == 0 || which == ReplayStreams::kOne
                          ? StreamRef()
                          : StreamRef::FromHandle(reinterpret_cast<void*>(i + 0xf)));
  }
  return streams;
}

AllocateOptions OptionsOf(const TraceEvent& event, const std::vector<StreamRef>& streams) {
  AllocateOptions options;
  options.stream = streams[event.stream];
  if (event.log2_alignment != 0) options.alignment = std::size_t{1} << event.log2_alignment;
  return options;
}

bool SharesAddressRange(const Policy& policy) {
  const Strategy strategy = policy.strategy.value_or(Strategy::kBfc);
  return strategy != Strategy::kPlatform && strategy != Strategy::kCudaAsync;
}

// One pass with statistics.
class MemoryPass {
 public:
  MemoryPass(const Trace& trace, Allocator& allocator, SimulatedClock* clock,
             const MemoryOptions& options)
      : trace_(trace),
        allocator_(allocator),
        clock_(clock),
        options_(options),
        live_(ComputeLiveBytes(trace)),
        streams_(StreamsOf(trace, options.streams)),
        blocks_(trace.block_count, nullptr) {}

  MemoryFigures Run() {
    const Stats before = allocator_.GetStats();
    figures_.setup_driver_calls = Unsigned(before.driver_calls);
    figures_.setup_driver_nanoseconds = Unsigned(before.driver_nanoseconds);
    pool_bytes_ = Unsigned(before.pool_bytes);
    if (options_.offsets) figures_.offsets.assign(trace_.block_count, -1);
    FindBase(nullptr);
    const absl::Duration start = clock_ == nullptr ? absl::ZeroDuration() : clock_->Now();
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      if (clock_ != nullptr) {
        clock_->AdvanceTo(start + absl::Microseconds(trace_.events[i].time_us));
      }
      Play(i);
      if (options_.stop_at_first_failure && figures_.failures != 0) break;
    }
    Finish(before);
    return std::move(figures_);
  }

 private:
  void Play(std::size_t index) {
    const TraceEvent& event = trace_.events[index];
    pool_byte_microseconds_ +=
        static_cast<double>(pool_bytes_) * static_cast<double>(event.time_us - time_us_);
    time_us_ = event.time_us;
    if (event.kind == TraceEvent::Kind::kAllocate) {
      live_bytes_ += event.bytes;
      Allocate(index, event);
    } else {
      live_bytes_ -= event.bytes;
      Free(event);
    }
    // A run to find out whether all requests succeed needs no figures.
    if (options_.stop_at_first_failure) return;
    ReplayMoment moment;
    moment.event = index;
    moment.time_us = event.time_us;
    moment.live_bytes = live_bytes_;
    moment.stats = allocator_.GetStats();
    pool_bytes_ = Unsigned(moment.stats.pool_bytes);
    if (index == live_.peak_event) {
      const Fragmentation fragmentation = allocator_.GetFragmentation();
      if (SharesAddressRange(allocator_.policy())) {
        figures_.external_fragmentation = fragmentation.external;
      }
      figures_.rounding_waste = fragmentation.rounding_waste;
    }
    if (options_.on_event != nullptr) options_.on_event(moment);
  }

  void Allocate(std::size_t index, const TraceEvent& event) {
    AllocError why;
    void* const block = Request(event, &why);
    blocks_[event.block] = block;
    if (block == nullptr) {
      if (why.code != absl::StatusCode::kOk) Failed(index, event, why);
      return;
    }
    if (!has_base_) FindBase(block);
    const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(block) - base_;
    height_ = std::max<std::uint64_t>(height_, offset + event.bytes);
    if (options_.offsets) figures_.offsets[event.block] = static_cast<std::int64_t>(offset);
  }

  // Nothing waits, unless the policy says that requests do.
  void* Request(const TraceEvent& event, AllocError* why) {
    const AllocateOptions options = OptionsOf(event, streams_);
    if (allocator_.policy().reuse_wait == absl::ZeroDuration()) {
      return allocator_.TryAllocate(event.bytes, options, why);
    }
    const absl::StatusOr<void*> block = allocator_.Allocate(event.bytes, options);
    if (block.ok()) return *block;
    *why = {block.status().code(), GetOomCause(block.status())};
    return nullptr;
  }

  void Failed(std::size_t index, const TraceEvent& event, const AllocError& why) {
    if (++figures_.failures != 1) return;
    const std::string_view cause = ToString(why.cause);
    figures_.first_failure = absl::StrCat(
        "event ", index, ", ", event.bytes,
        " bytes: ", why.code == absl::StatusCode::kResourceExhausted ? "out of memory" : "error",
        ", cause ", absl::string_view(cause.data(), cause.size()));
  }

  void Free(const TraceEvent& event) {
    void* const block = std::exchange(blocks_[event.block], nullptr);
    if (block == nullptr) return;
    if (!allocator_.Deallocate(block, streams_[event.stream]).ok()) ++figures_.refused_frees;
  }

  // Offsets are counted from the first region: the one that stands before the
  // first request, else the one that serves it.
  void FindBase(void* first_block) {
    if (first_block == nullptr) {
      const Snapshot snapshot = allocator_.TakeSnapshot();
      if (snapshot.regions.empty()) return;
      base_ = reinterpret_cast<std::uintptr_t>(snapshot.regions.front().range.address);
    } else {
      const absl::StatusOr<BlockInfo> info = allocator_.Describe(first_block);
      base_ = reinterpret_cast<std::uintptr_t>(info.ok() ? info->region.address : first_block);
    }
    has_base_ = true;
  }

  void Finish(const Stats& before) {
    const Stats after = allocator_.GetStats();
    figures_.peak_live_bytes = live_.peak;
    figures_.peak_bytes_in_use = Unsigned(after.peak_bytes_in_use);
    figures_.peak_pool_bytes = Unsigned(after.peak_pool_bytes);
    figures_.driver_calls = Unsigned(after.driver_calls - before.driver_calls);
    figures_.driver_nanoseconds = Unsigned(after.driver_nanoseconds - before.driver_nanoseconds);
    figures_.waits = Unsigned(after.num_waits - before.num_waits);
    figures_.wait_nanoseconds = Unsigned(after.wait_nanoseconds - before.wait_nanoseconds);
    if (live_.byte_microseconds > 0) {
      figures_.mean_pool_over_live = pool_byte_microseconds_ / live_.byte_microseconds;
    }
    if (figures_.peak_pool_bytes > 0) {
      figures_.utilization_at_peak = static_cast<double>(figures_.peak_bytes_in_use) /
                                     static_cast<double>(figures_.peak_pool_bytes);
    }
    if (live_.peak > 0 && SharesAddressRange(allocator_.policy())) {
      figures_.height_over_load = static_cast<double>(height_) / static_cast<double>(live_.peak);
    }
    for (void* const block : blocks_) {
      if (block != nullptr && !allocator_.Deallocate(block).ok()) ++figures_.refused_frees;
    }
  }

  const Trace& trace_;
  Allocator& allocator_;
  SimulatedClock* const clock_;
  const MemoryOptions& options_;
  const LiveBytes live_;
  const std::vector<StreamRef> streams_;
  std::vector<void*> blocks_;
  MemoryFigures figures_;
  bool has_base_ = false;
  std::uintptr_t base_ = 0;
  std::uint64_t height_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t pool_bytes_ = 0;
  std::int64_t time_us_ = 0;
  double pool_byte_microseconds_ = 0;
};

// What is timed. Kept apart and small: nothing else may creep in.
template <bool kMovesClock>
void PlayTimed(const Trace& trace, const std::vector<StreamRef>& streams, Allocator& allocator,
               SimulatedClock* clock, absl::Duration start, std::vector<void*>& blocks) {
  for (const TraceEvent& event : trace.events) {
    if constexpr (kMovesClock) clock->AdvanceTo(start + absl::Microseconds(event.time_us));
    void*& block = blocks[event.block];
    if (event.kind == TraceEvent::Kind::kAllocate) {
      block = allocator.TryAllocate(event.bytes, OptionsOf(event, streams));
    } else {
      allocator.Deallocate(block, streams[event.stream]).IgnoreError();
      block = nullptr;
    }
  }
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

MemoryFigures MeasureMemory(const Trace& trace, Allocator& allocator, SimulatedClock* clock,
                            const MemoryOptions& options) {
  return MemoryPass(trace, allocator, clock, options).Run();
}

SpeedFigures MeasureSpeed(const Trace& trace, Allocator& allocator, const SpeedOptions& options) {
  SpeedFigures figures;
  if (trace.events.empty()) return figures;
  const std::vector<StreamRef> streams = StreamsOf(trace, options.streams);
  std::vector<void*> blocks(trace.block_count, nullptr);
  std::vector<double> warm;
  SimulatedClock* const clock = options.clock;
  for (int pass = 0; pass < options.passes; ++pass) {
    const absl::Duration start = clock == nullptr ? absl::ZeroDuration() : clock->Now();
    const auto begin = std::chrono::steady_clock::now();
    if (clock == nullptr) {
      PlayTimed<false>(trace, streams, allocator, clock, start, blocks);
    } else {
      PlayTimed<true>(trace, streams, allocator, clock, start, blocks);
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    const double per_event = took.count() / static_cast<double>(trace.events.size());
    if (pass == 0) {
      figures.first_ns_per_event = per_event;
    } else {
      warm.push_back(per_event);
    }
    for (void*& block : blocks) {
      allocator.Deallocate(std::exchange(block, nullptr)).IgnoreError();
    }
  }
  if (!warm.empty()) figures.warm_ns_per_event = Median(std::move(warm));
  return figures;
}

namespace {

// Whether every request succeeds on a fresh device of so many bytes. A device
// that is too small for the allocator itself is simply too small.
absl::StatusOr<bool> Fits(const Trace& trace, const Policy& policy, const std::string& spec) {
  absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(spec);
  if (!device.ok()) return device.status();
  const absl::StatusOr<std::unique_ptr<Allocator>> allocator = MakeAllocator(policy, *device);
  if (!allocator.ok()) {
    if (absl::IsUnimplemented(allocator.status())) return allocator.status();
    return false;
  }
  MemoryOptions options;
  options.stop_at_first_failure = true;
  return MeasureMemory(trace, **allocator, (*device)->simulated_clock(), options).failures == 0;
}

}  // namespace

absl::StatusOr<std::uint64_t> FindNeededCapacity(
    const Trace& trace, const Policy& policy,
    const std::function<std::string(std::uint64_t)>& simulate) {
  const std::uint64_t peak = ComputeLiveBytes(trace).peak;
  // Less than what is live at once can never do, so `low` is known to fail.
  std::uint64_t low = peak == 0 ? 0 : (peak - 1) / kGrid;
  std::uint64_t high = low + 1;
  const std::uint64_t most = std::max(std::uint64_t{1} << 19, high * 64);
  // Most strategies need little more than what is live: steps grow from small.
  for (std::uint64_t step = std::max<std::uint64_t>(1, high / 64);; step *= 2) {
    const absl::StatusOr<bool> fits = Fits(trace, policy, simulate(high * kGrid));
    if (!fits.ok()) return fits.status();
    if (*fits) break;
    low = high;
    if (high >= most) {
      return absl::ResourceExhaustedError(
          absl::StrCat(trace.name, ": not every request succeeds even with ", high * kGrid,
                       " bytes, for ", peak, " bytes live at once"));
    }
    high = std::min(high + step, most);
  }
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    const absl::StatusOr<bool> fits = Fits(trace, policy, simulate(middle * kGrid));
    if (!fits.ok()) return fits.status();
    (*fits ? high : low) = middle;
  }
  return high * kGrid;
}

}  // namespace hbm::observe
