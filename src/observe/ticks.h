// SPDX-License-Identifier: Apache-2.0
//
// File: ticks.h
//
// The cheapest steady clock there is: the processor's own counter where it counts
// at one rate always and on every core, else the system's clock. A third of what
// the system's clock costs.
//
//   std::uint64_t before = observe::ReadTicks();
//   ...
//   observe::TickScale scale;            // made long before, to learn the rate
//   std::int64_t nanoseconds = scale.ToNanoseconds(before);
#ifndef HBMALLOC_OBSERVE_TICKS_H_
#define HBMALLOC_OBSERVE_TICKS_H_

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace hbm::observe {

inline std::int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

#if defined(__x86_64__)
inline bool HasSteadyCounter() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  // "Invariant TSC": one rate in every state of every core.
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
}
inline const bool kHasSteadyCounter = HasSteadyCounter();
inline std::uint64_t ReadTicks() {
  return kHasSteadyCounter ? __rdtsc() : static_cast<std::uint64_t>(SteadyNanoseconds());
}
#else
inline std::uint64_t ReadTicks() { return static_cast<std::uint64_t>(SteadyNanoseconds()); }
#endif

// Ticks to nanoseconds of the steady clock, by the line through the two latest
// anchors: continuous, and never falling. Thread-compatible.
class TickScale {
 public:
  TickScale() : from_ticks_(ReadTicks()), from_nanoseconds_(SteadyNanoseconds()) {
    to_ticks_ = from_ticks_ + 1;
    to_nanoseconds_ = from_nanoseconds_;
  }
  // Learns where the clocks are now. Ticks read from now on are for the next call.
  void Anchor() {
    const std::uint64_t ticks = ReadTicks();
    const std::int64_t nanoseconds = SteadyNanoseconds();
    if (ticks <= to_ticks_) return;
    if (to_nanoseconds_ != from_nanoseconds_) {
      from_ticks_ = to_ticks_;
      from_nanoseconds_ = to_nanoseconds_;
    }
    to_ticks_ = ticks;
    to_nanoseconds_ = nanoseconds;
  }
  std::int64_t ToNanoseconds(std::uint64_t ticks) const {
    const double rate = static_cast<double>(to_nanoseconds_ - from_nanoseconds_) /
                        static_cast<double>(to_ticks_ - from_ticks_);
    const auto delta = static_cast<std::int64_t>(ticks - from_ticks_);
    return from_nanoseconds_ + static_cast<std::int64_t>(static_cast<double>(delta) * rate);
  }
  std::int64_t start() const { return from_nanoseconds_; }

 private:
  std::uint64_t from_ticks_;
  std::int64_t from_nanoseconds_;
  std::uint64_t to_ticks_;
  std::int64_t to_nanoseconds_;
};

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_TICKS_H_
