// SPDX-License-Identifier: Apache-2.0
//
// The protocol by which memory is charged, as a model small enough to try every order
// of every step of several processes, with deaths anywhere: charge (lock, read the
// books slot by slot, ask the device, write, unlock), allocate, commit or refund,
// release. A step is one access to what is shared. The orders are those of
// src/sharing/ledger.cc; changing one of them is seen here, as the mutants show.
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "gtest/gtest.h"

namespace hbm::sharing {
namespace {

constexpr int kMostProcesses = 3;
constexpr int kCapacity = 3;

// What may be done wrongly.
enum class Mutant {
  kNone,
  kNoLock,                // the books are read and written without the lock
  kDeviceBeforeBooks,     // the device is asked before the books are read
  kCommitBeforeAllocate,  // the charge ends before the device knows
  kNoCharge,              // the memory is looked for and allocated, then entered
};

struct Scenario {
  int processes = 2;
  std::array<int, kMostProcesses> wants = {2, 2, 1};
  int rounds = 2;
  int deaths = 1;
  int outside = 0;    // units that somebody who is not in the books has from the start
  int outsiders = 0;  // up to which somebody may take at any moment
  Mutant mutant = Mutant::kNone;
};

enum Pc : std::uint8_t {
  kStart,
  kReadCharged,
  kReadHeld,
  kAskDevice,
  kDecide,
  kWriteHeld,
  kWriteCharged,
  kUnlock,
  kAllocate,
  kCommit,
  kFree,
  kRelease,
  kRefundCharged,
  kRefundHeld,
  kDone,
};

// Plain bytes, so that states compare as text.
struct Process {
  std::uint8_t pc = kStart;
  std::uint8_t round = 0;
  std::uint8_t slot = 0;  // that is read next
  std::uint8_t held = 0;  // sums so far
  std::uint8_t charged = 0;
  std::uint8_t free = 0;  // what the device said
  std::uint8_t fits = 0;
  std::uint8_t looked_again = 0;
  std::uint8_t dead = 0;
};
struct SlotModel {
  std::uint8_t taken = 1;
  std::uint8_t held = 0;
  std::uint8_t charged = 0;
};
struct State {
  std::uint8_t lock = 0;  // 1 + holder
  std::uint8_t deaths = 0;
  std::uint8_t outside = 0;
  std::array<std::uint8_t, kMostProcesses> on_device = {};
  std::array<Process, kMostProcesses> processes = {};
  std::array<SlotModel, kMostProcesses> slots = {};
};

class Model {
 public:
  explicit Model(const Scenario& setup) : setup_(setup) {}

  // The first thing found to be wrong; empty if nothing is, in any order of steps.
  std::string Explore() {
    State first;
    first.outside = static_cast<std::uint8_t>(setup_.outside);
    for (int i = setup_.processes; i < kMostProcesses; ++i) {
      first.processes[static_cast<std::size_t>(i)].pc = kDone;
      first.slots[static_cast<std::size_t>(i)].taken = 0;
    }
    Reach(first);
    while (!queue_.empty() && wrong_.empty()) {
      const State state = queue_.front();
      queue_.pop_front();
      Expand(state);
    }
    return wrong_;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  bool Is(Mutant mutant) const { return setup_.mutant == mutant; }

  void Reach(const State& state) {
    char bytes[sizeof(State)];
    std::memcpy(bytes, &state, sizeof(State));
    if (seen_.emplace(bytes, sizeof(State)).second) queue_.push_back(state);
  }

  int Used(const State& state) const {
    int used = state.outside;
    for (const std::uint8_t units : state.on_device) used += units;
    return used;
  }

  void Expand(const State& state) {
    int held = 0;
    for (const SlotModel& slot : state.slots) held += slot.taken != 0 ? slot.held : 0;
    if (held > kCapacity) wrong_ = "the books hold more than the device has";
    bool moved = false;
    bool all_done = true;
    for (int i = 0; i < setup_.processes; ++i) {
      const Process& process = state.processes[static_cast<std::size_t>(i)];
      if (process.dead != 0 || process.pc == kDone) continue;
      all_done = false;
      moved |= StepOf(state, i);
      if (state.deaths < setup_.deaths) Die(state, i);
    }
    for (int i = 0; i < setup_.processes; ++i) Reclaim(state, i);
    if (state.outside < setup_.outsiders && Used(state) < kCapacity) {
      State next = state;
      ++next.outside;
      Reach(next);
    }
    if (!all_done && !moved) wrong_ = "everybody waits for ever";
    if (all_done) CheckEnd(state);
  }

  // The process is killed: its locks go at once, its memory when the driver gets to it.
  void Die(State state, int i) {
    state.processes[static_cast<std::size_t>(i)] = Process();
    state.processes[static_cast<std::size_t>(i)].dead = 1;
    if (state.lock == i + 1) state.lock = 0;
    ++state.deaths;
    Reach(state);
  }

  void Reclaim(State state, int i) {
    const auto at = static_cast<std::size_t>(i);
    if (state.processes[at].dead == 0 || state.on_device[at] == 0) return;
    state.on_device[at] = 0;
    Reach(state);
  }

  // Those who are left agree with the device, and hold nothing any more.
  void CheckEnd(const State& state) {
    for (int i = 0; i < setup_.processes; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (state.processes[at].dead != 0) continue;
      if (state.slots[at].held != 0 || state.slots[at].charged != 0 || state.on_device[at] != 0) {
        wrong_ = "something is left in the books or on the device";
      }
    }
    if (state.lock != 0) wrong_ = "the lock outlived its holder";
  }

  // One step of process i; false if it cannot go on now.
  bool StepOf(State state, int i) {
    const auto at = static_cast<std::size_t>(i);
    Process& self = state.processes[at];
    SlotModel& own = state.slots[at];
    const auto want = static_cast<std::uint8_t>(setup_.wants[at]);
    switch (self.pc) {
      case kStart:
        if (!Is(Mutant::kNoLock)) {
          if (state.lock != 0) return false;
          state.lock = static_cast<std::uint8_t>(i + 1);
        }
        self.slot = self.held = self.charged = 0;
        self.pc = Is(Mutant::kDeviceBeforeBooks) ? kAskDevice : kReadCharged;
        break;
      case kReadCharged:
        self.charged = static_cast<std::uint8_t>(
            self.charged +
            (state.slots[self.slot].taken != 0 ? state.slots[self.slot].charged : 0));
        self.pc = kReadHeld;
        break;
      case kReadHeld:
        self.held = static_cast<std::uint8_t>(
            self.held + (state.slots[self.slot].taken != 0 ? state.slots[self.slot].held : 0));
        ++self.slot;
        if (self.slot < setup_.processes) {
          self.pc = kReadCharged;
        } else {
          self.pc = Is(Mutant::kDeviceBeforeBooks) ? kDecide : kAskDevice;
        }
        break;
      case kAskDevice:
        self.free = static_cast<std::uint8_t>(kCapacity - Used(state));
        self.pc = Is(Mutant::kDeviceBeforeBooks) ? kReadCharged : kDecide;
        break;
      case kDecide:
        Decide(&state, &self, want);
        break;
      case kWriteHeld:
        own.held = static_cast<std::uint8_t>(own.held + want);
        self.pc = kWriteCharged;
        break;
      case kWriteCharged:
        own.charged = static_cast<std::uint8_t>(own.charged + want);
        self.pc = kUnlock;
        break;
      case kUnlock:
        if (!Is(Mutant::kNoLock)) state.lock = 0;
        if (self.fits == 0) {
          EndRound(&self);
        } else {
          self.pc = Is(Mutant::kCommitBeforeAllocate) ? kCommit : kAllocate;
        }
        break;
      case kAllocate:
        if (Used(state) + want > kCapacity) {
          if (setup_.outsiders <= setup_.outside)
            wrong_ = "what was charged could not be allocated";
          self.pc = Is(Mutant::kCommitBeforeAllocate) ? kRefundHeld : kRefundCharged;
        } else {
          state.on_device[at] = static_cast<std::uint8_t>(state.on_device[at] + want);
          if (Is(Mutant::kNoCharge)) own.held = static_cast<std::uint8_t>(own.held + want);
          const bool no_commit = Is(Mutant::kCommitBeforeAllocate) || Is(Mutant::kNoCharge);
          self.pc = no_commit ? kFree : kCommit;
        }
        break;
      case kCommit:
        own.charged = static_cast<std::uint8_t>(own.charged - want);
        self.pc = Is(Mutant::kCommitBeforeAllocate) ? kAllocate : kFree;
        break;
      case kFree:
        state.on_device[at] = static_cast<std::uint8_t>(state.on_device[at] - want);
        self.pc = kRelease;
        break;
      case kRelease:
        own.held = static_cast<std::uint8_t>(own.held - want);
        EndRound(&self);
        break;
      case kRefundCharged:
        own.charged = static_cast<std::uint8_t>(own.charged - want);
        self.pc = kRefundHeld;
        break;
      case kRefundHeld:
        own.held = static_cast<std::uint8_t>(own.held - want);
        EndRound(&self);
        break;
      default:
        return false;
    }
    Reach(state);
    return true;
  }

  // The same arithmetic as MayTake's for first_come; without room, the slots of the
  // dead are freed and everything is looked at once more.
  void Decide(State* state, Process* self, std::uint8_t want) {
    const int by_books = kCapacity - self->held;
    const int by_device = self->free - self->charged;
    self->fits = want <= by_books && want <= by_device ? 1 : 0;
    if (self->fits != 0) {
      self->pc = Is(Mutant::kNoCharge) ? kUnlock : kWriteHeld;
      return;
    }
    bool reaped = false;
    for (std::size_t at = 0; at < state->slots.size() && self->looked_again == 0; ++at) {
      if (state->processes[at].dead == 0 || state->slots[at].taken == 0) continue;
      state->slots[at] = SlotModel();
      state->slots[at].taken = 0;
      reaped = true;
    }
    if (reaped) {
      self->looked_again = 1;
      self->slot = self->held = self->charged = 0;
      self->pc = Is(Mutant::kDeviceBeforeBooks) ? kAskDevice : kReadCharged;
    } else {
      self->pc = kUnlock;
    }
  }

  void EndRound(Process* self) {
    const auto round = static_cast<std::uint8_t>(self->round + 1);
    *self = Process();
    self->round = round;
    self->pc = round < setup_.rounds ? kStart : kDone;
  }

  const Scenario setup_;
  std::unordered_set<std::string> seen_;
  std::deque<State> queue_;
  std::string wrong_;
};

TEST(ProtocolModel, TwoProcessesWithDeathsAtEveryStep) {
  Scenario setup;
  setup.deaths = 2;
  Model model(setup);
  EXPECT_EQ(model.Explore(), "");
  EXPECT_GT(model.states(), 1000U);
  std::cout << model.states() << " states\n";
}

TEST(ProtocolModel, ThreeProcessesWithADeathAtEveryStep) {
  Scenario setup;
  setup.processes = 3;
  setup.rounds = 1;
  Model model(setup);
  EXPECT_EQ(model.Explore(), "");
  std::cout << model.states() << " states\n";
}

// What is charged can be allocated although the books do not know of everybody.
TEST(ProtocolModel, BesideSomebodyWhoIsNotInTheBooks) {
  for (const int want : {1, 2}) {
    Scenario setup;
    setup.outside = 1;
    setup.wants = {1, want, 1};
    setup.deaths = 2;
    Model model(setup);
    EXPECT_EQ(model.Explore(), "");
    std::cout << model.states() << " states\n";
  }
}

// An outsider may come between charge and allocation: then the charge is refunded.
TEST(ProtocolModel, WithOutsidersWhoComeAtAnyMoment) {
  Scenario setup;
  setup.outsiders = 2;
  Model model(setup);
  EXPECT_EQ(model.Explore(), "");
  std::cout << model.states() << " states\n";
}

TEST(ProtocolModel, EveryWrongOrderIsFound) {
  for (const Mutant mutant : {Mutant::kNoLock, Mutant::kDeviceBeforeBooks,
                              Mutant::kCommitBeforeAllocate, Mutant::kNoCharge}) {
    // Which sizes show it differs from one to the other.
    bool found = false;
    for (const std::array<int, kMostProcesses>& wants :
         {std::array<int, kMostProcesses>{2, 2, 1}, std::array<int, kMostProcesses>{1, 2, 1},
          std::array<int, kMostProcesses>{1, 3, 1}}) {
      for (const int outside : {0, 1}) {
        Scenario setup;
        setup.wants = wants;
        setup.mutant = mutant;
        setup.outside = outside;
        found = found || !Model(setup).Explore().empty();
      }
    }
    EXPECT_TRUE(found) << static_cast<int>(mutant);
  }
}

}  // namespace
}  // namespace hbm::sharing
