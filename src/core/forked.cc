// SPDX-License-Identifier: Apache-2.0
#include "core/forked.h"

#include <pthread.h>

#include <atomic>

namespace hbm::core {
namespace {

std::atomic<std::uint32_t> generation{0};

// A plain array: a thread of the parent may hold any lock at the moment of the fork.
constexpr int kMostFlags = 4096;
std::atomic<std::atomic<bool>*> flags[kMostFlags];

// The child has one thread, this one.
void InChild() {
  generation.fetch_add(1, std::memory_order_relaxed);
  for (std::atomic<std::atomic<bool>*>& entry : flags) {
    std::atomic<bool>* const flag = entry.load(std::memory_order_relaxed);
    if (flag != nullptr) flag->store(true);
  }
}

}  // namespace

std::uint32_t ForkGeneration() {
  static const int registered = pthread_atfork(nullptr, nullptr, &InChild);
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

RaisedInChild::RaisedInChild(std::atomic<bool>* flag) : flag_(flag), made_in_(ForkGeneration()) {
  for (std::atomic<std::atomic<bool>*>& entry : flags) {
    std::atomic<bool>* none = nullptr;
    if (entry.compare_exchange_strong(none, flag)) return;
  }
}

RaisedInChild::~RaisedInChild() {
  for (std::atomic<std::atomic<bool>*>& entry : flags) {
    std::atomic<bool>* expected = flag_;
    if (entry.compare_exchange_strong(expected, nullptr)) return;
  }
}

}  // namespace hbm::core
