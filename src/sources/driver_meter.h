// SPDX-License-Identifier: Apache-2.0
//
// File: driver_meter.h
//
// Adds up a source's driver calls and their time. Thread-safe.
//
//   DriverMeter meter;
//   meter.Add(CostNanoseconds(DriverCall::kMalloc, bytes));   // a modelled charge
//   { DriverMeter::Timer timer(meter); munmap(...); }         // wall time
#ifndef HBMALLOC_SOURCES_DRIVER_METER_H_
#define HBMALLOC_SOURCES_DRIVER_METER_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "hbmalloc/memory_source.h"

namespace hbm::sources {

class DriverMeter {
 public:
  void Add(std::int64_t nanoseconds) {
    calls_.fetch_add(1, std::memory_order_relaxed);
    nanoseconds_.fetch_add(static_cast<std::uint64_t>(nanoseconds), std::memory_order_relaxed);
  }
  DriverUse Total() const {
    return {calls_.load(std::memory_order_relaxed), nanoseconds_.load(std::memory_order_relaxed)};
  }

  // Counts one call that takes as long as this lives.
  class Timer {
   public:
    explicit Timer(DriverMeter& meter) : meter_(meter), start_(std::chrono::steady_clock::now()) {}
    ~Timer() {
      const auto elapsed = std::chrono::steady_clock::now() - start_;
      meter_.Add(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
    }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    DriverMeter& meter_;
    const std::chrono::steady_clock::time_point start_;
  };

 private:
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> nanoseconds_{0};
};

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_DRIVER_METER_H_
