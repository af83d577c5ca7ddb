// SPDX-License-Identifier: Apache-2.0
//
// File: event_ring.h
//
// Events on their way from any number of threads to the one that writes them. The
// place in the ring is the event's number: one atomic addition gives both, so that
// all events stand in one order, and an event that another has seen happen has the
// smaller number.
//
//   EventRing ring;
//   ring.Push(record);                                   // any thread
//   ring.Drain([](std::uint64_t number, const EventRecord& record) { ... });   // one
//
// A free is pushed before it is done and an allocation after: an address is then
// freed in the ring before it is given out again.
#ifndef HBMALLOC_OBSERVE_EVENT_RING_H_
#define HBMALLOC_OBSERVE_EVENT_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace hbm::observe {

enum class EventAction : std::uint8_t { kAllocate, kFailure, kFree, kRefusedFree };

struct EventRecord {
  std::uint64_t ticks = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;  // StreamRef::value()
  std::uint32_t tag = 0;
  std::uint32_t thread = 0;
  std::uint16_t device = 0;
  EventAction action = EventAction::kAllocate;
  std::uint8_t log2_alignment = 0;
};

class EventRing {
 public:
  // A power of two; 64 bytes each.
  static constexpr std::uint64_t kCapacity = std::uint64_t{1} << 16;

  EventRing() : slots_(std::make_unique<Slot[]>(kCapacity)) {
    for (std::uint64_t i = 0; i < kCapacity; ++i) {
      slots_[i].turn.store(i, std::memory_order_relaxed);
    }
  }
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  // Whether there is room for a few more. Threads that ask at the same time may
  // take a little more than there is: Push waits for the reader then.
  bool HasRoom() const {
    return head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_acquire) <
           kCapacity - kSlack;
  }
  // Returns the event's number.
  std::uint64_t Push(const EventRecord& record) {
    const std::uint64_t number = head_.fetch_add(1, std::memory_order_relaxed);
    Slot& slot = slots_[number % kCapacity];
    while (__builtin_expect(slot.turn.load(std::memory_order_acquire) != number, 0)) Pause();
    slot.record = record;
    slot.turn.store(number + 1, std::memory_order_release);
    return number;
  }

  // Calls visit(number, record) for what is there, in order; returns how many. One
  // thread at a time.
  template <typename Visit>
  std::uint64_t Drain(Visit visit) {
    const std::uint64_t begin = tail_.load(std::memory_order_relaxed);
    std::uint64_t number = begin;
    for (;;) {
      Slot& slot = slots_[number % kCapacity];
      // Not pushed yet, or numbered but not yet filled: a few instructions away.
      if (slot.turn.load(std::memory_order_acquire) != number + 1) break;
      visit(number, slot.record);
      slot.turn.store(number + kCapacity, std::memory_order_release);
      ++number;
      if (number % kBatch == 0) tail_.store(number, std::memory_order_release);
    }
    tail_.store(number, std::memory_order_release);
    return number - begin;
  }
  // Events pushed and not drained.
  std::uint64_t size() const {
    return head_.load(std::memory_order_acquire) - tail_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint64_t kSlack = 1024;
  static constexpr std::uint64_t kBatch = 256;

  struct alignas(64) Slot {
    std::atomic<std::uint64_t> turn{0};
    EventRecord record;
  };
  static_assert(sizeof(Slot) == 64);

  static void Pause();  // trace_recorder.cc

  std::unique_ptr<Slot[]> slots_;
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
};

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_EVENT_RING_H_
