// SPDX-License-Identifier: Apache-2.0
//
// File: capacity.h
//
// A device's bytes, taken and returned by every source on it. Thread-safe, and
// never over the total, whatever the number of sources.
//
//   Capacity capacity(80 * kGiB);
//   if (!capacity.TryTake(bytes)) return absl::ResourceExhaustedError(...);
//
// With a SharedCapacity, other processes take and return the same bytes.
#ifndef HBMALLOC_SOURCES_CAPACITY_H_
#define HBMALLOC_SOURCES_CAPACITY_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "sharing/shared_capacity.h"

namespace hbm::sources {

class Capacity {
 public:
  explicit Capacity(std::size_t total, std::shared_ptr<sharing::SharedCapacity> shared = nullptr)
      : total_(total), shared_(std::move(shared)) {}

  bool TryTake(std::size_t bytes) {
    if (shared_ != nullptr) return shared_->TryTake(bytes);
    std::size_t taken = taken_.load(std::memory_order_relaxed);
    do {
      if (bytes > total_ - taken) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
    return true;
  }
  // Requires that the bytes were taken.
  void Return(std::size_t bytes) {
    if (shared_ != nullptr) return shared_->Return(bytes);
    taken_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  std::size_t total() const { return total_; }
  std::size_t available() const {
    if (shared_ != nullptr) return shared_->available();
    return total_ - taken_.load(std::memory_order_relaxed);
  }

 private:
  const std::size_t total_;
  const std::shared_ptr<sharing::SharedCapacity> shared_;  // null: this process's alone
  std::atomic<std::size_t> taken_{0};
};

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_CAPACITY_H_
