// SPDX-License-Identifier: Apache-2.0
//
// File: sim_device.h
//
// A device that is only simulated: it hands out addresses with nothing behind
// them, keeps to a capacity, and adds up what a driver would have charged. It is
// deterministic: the same calls give the same addresses and figures everywhere.
//
//   absl::StatusOr<std::shared_ptr<Device>> device = OpenSimDevice("sim:80GiB,lag=1ms");
//
// All allocators made on one device draw from one capacity and share one clock
// and one timeline, as processes on a real device do. Each has addresses of its
// own, so what one does never moves another's blocks.
#ifndef HBMALLOC_SOURCES_SIM_DEVICE_H_
#define HBMALLOC_SOURCES_SIM_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "hbmalloc/device.h"
#include "sources/capacity.h"
#include "sources/sim_timeline.h"

namespace hbm::sources {

// An H200's memory as nvidia-smi gives it, 143,771 MiB: what `h200` stands for.
inline constexpr std::size_t kH200Bytes = std::size_t{143771} << 20;

struct SimOptions {
  std::size_t total_bytes = kH200Bytes;
  std::size_t used_bytes = 0;     // held by others all along
  std::size_t context_bytes = 0;  // charged once for each source, as for a process
  absl::Duration lag = absl::ZeroDuration();
  // By which other processes open the same device; empty: it is this process's own.
  std::string shared;
};

// What the sources of one simulated device share.
struct SimState {
  SimState(std::string device_name, const SimOptions& device_options,
           std::shared_ptr<sharing::SharedCapacity> shared)
      : name(std::move(device_name)),
        options(device_options),
        capacity(options.total_bytes - options.used_bytes, std::move(shared)),
        unified_capacity(options.total_bytes * 16),
        timeline(&clock, options.lag) {}

  const std::string name;
  const SimOptions options;
  Capacity capacity;
  // Unified memory may be 16 times the device's: the host holds what does not fit.
  Capacity unified_capacity;
  SimClock clock;
  SimTimeline timeline;
  // Which of the address space's slices are in use: one for each source.
  core::Mutex mutex;
  std::uint64_t slices_in_use[4] HBM_GUARDED_BY(mutex) = {};
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(const SimOptions& options,
                     std::shared_ptr<sharing::SharedCapacity> shared = nullptr);

  std::string_view Name() const override { return state_->name; }
  std::string_view Uuid() const override { return uuid_; }
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override;
  absl::StatusOr<std::shared_ptr<MemorySource>> MakeSource(const Policy& policy) override;
  SimulatedClock* simulated_clock() override { return &state_->clock; }

  SimTimeline& timeline() { return state_->timeline; }

 private:
  const std::shared_ptr<SimState> state_;
  const std::string uuid_;
};

// "sim", "sim:SIZE" or "sim:h200", with options used=, lag=, context= and shared=.
absl::StatusOr<std::shared_ptr<Device>> OpenSimDevice(std::string_view spec);

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_SIM_DEVICE_H_
