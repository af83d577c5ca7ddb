// SPDX-License-Identifier: Apache-2.0
//
// Sharing as users meet it: real processes that start together, die, and need memory
// in turn. HBMALLOC_TEST_DEVICE and HBMALLOC_TEST_PEAK let the alternation run on a
// real GPU.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/sharing.h"
#include "sharing/ledger.h"
#include "sharing/slot_file.h"
#include "tests/sharing/children.h"
#include "tests/sharing/roles.h"
#include "tests/support/sharing_dir.h"

namespace hbm {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// Looks at the device's capacity and at the ledger all the time, each under its lock,
// and keeps the most that it ever saw.
class Observer {
 public:
  explicit Observer(const std::string& key) : key_(key), thread_([this] { Run(); }) {}
  ~Observer() { Stop(); }
  void Stop() {
    ends_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  std::uint64_t most_on_device() const { return most_[0].load(); }
  std::uint64_t most_in_ledger() const { return most_[1].load(); }
  int looks() const { return looks_.load(); }

 private:
  void Run() {
    std::unique_ptr<sharing::SlotFile> files[2];
    const char* const kinds[2] = {"capacity", "ledger"};
    while (!ends_.load()) {
      for (int i = 0; i < 2; ++i) {
        if (files[i] == nullptr) {
          sharing::SlotFile::Options options;
          options.kind = kinds[i];
          options.key = key_;
          options.create = false;
          auto file = sharing::SlotFile::Open(options);
          if (!file.ok()) continue;
          files[i] = *std::move(file);
        }
        sharing::SlotFile::Lock lock(files[i].get());
        if (!lock.status().ok()) continue;
        most_[i].store(std::max(most_[i].load(), files[i]->Sum(true)));
        looks_.fetch_add(1);
      }
      absl::SleepFor(absl::Microseconds(200));
    }
  }

  const std::string key_;
  std::atomic<bool> ends_{false};
  std::atomic<std::uint64_t> most_[2] = {};
  std::atomic<int> looks_{0};
  std::thread thread_;
};

class ProcessesTest : public ::testing::Test {
 protected:
  // Starts `count` processes that each take an equal part of 80 GiB; how long until
  // the last one has it.
  void StartTogether(int count, absl::Duration within) {
    const std::uint64_t part = (80 * kGiB - kGiB) / static_cast<std::uint64_t>(count);
    const std::string bytes = absl::StrCat(part / (2 * kMiB) * (2 * kMiB));
    Observer observer("sim-start");
    const absl::Time start = absl::Now();
    std::vector<Child> children;
    for (int i = 0; i < count; ++i) {
      children.push_back(Child::Start({"hold", "sim:80GiB,shared=start", "sharing=fair", bytes}));
    }
    for (Child& child : children) ASSERT_EQ(child.ReadLine(), "ok");
    const absl::Duration took = absl::Now() - start;
    RecordProperty("milliseconds", static_cast<int>(absl::ToInt64Milliseconds(took)));
    std::cout << count << " processes had their parts after " << took << "\n";
    EXPECT_LT(took, within);

    const absl::StatusOr<SharingState> state = GetSharingState("sim-start");
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->processes.size(), static_cast<std::size_t>(count));
    for (const SharingProcess& process : state->processes) {
      EXPECT_TRUE(process.alive);
      EXPECT_EQ(process.strategy, "elastic");
      EXPECT_GE(process.part, part / (2 * kMiB) * (2 * kMiB));
    }
    const int looks = observer.looks();
    while (observer.looks() < looks + 4) absl::SleepFor(absl::Milliseconds(1));
    observer.Stop();
    EXPECT_LE(observer.most_on_device(), 80 * kGiB);
    EXPECT_LE(observer.most_in_ledger(), 79 * kGiB);
    EXPECT_GE(observer.most_on_device(), 78 * kGiB);
    for (Child& child : children) child.CloseInput();
    for (Child& child : children) EXPECT_EQ(child.Wait(), 0);
  }

  // No slot of a dead process counts any more, anywhere.
  static bool IsGone(const std::string& key, pid_t pid) {
    for (const char* const kind : {"capacity", "ledger"}) {
      sharing::SlotFile::Options options;
      options.kind = kind;
      options.key = key;
      options.create = false;
      const auto file = sharing::SlotFile::Open(options);
      if (!file.ok()) continue;
      (*file)->Reap();
      for (std::uint32_t i = 0; i < (*file)->used_slots(); ++i) {
        const sharing::Slot& slot = (*file)->slot(i);
        if (slot.taken.load() != 0 && slot.pid.load() == pid) return false;
      }
    }
    return true;
  }

  void KillRounds(int rounds, absl::Duration usable_within);
  void Alternate(const std::string& device, const std::string& uuid, int count, int rounds,
                 std::uint64_t peak);

  testing::SharingDir dir_;
};

TEST_F(ProcessesTest, SixteenStartTogetherAndEachGetsItsPart) {
  StartTogether(16, absl::Seconds(30));
}

TEST_F(ProcessesTest, SlowSixteenStartWithinASecond) { StartTogether(16, absl::Seconds(1)); }

TEST_F(ProcessesTest, SlowTwoHundredAndFiftySixStartWithinFiveSeconds) {
  StartTogether(256, absl::Seconds(5));
}

TEST_F(ProcessesTest, WithoutSharingTheSameStartFails) {
  std::vector<Child> children;
  for (int i = 0; i < 16; ++i) {
    children.push_back(Child::Start({"hold", "sim:80GiB,shared=off", "bfc", "4GiB"}));
  }
  int failed = 0;
  for (Child& child : children) {
    const std::string line = child.ReadLine();
    EXPECT_TRUE(line == "ok" || absl::StartsWith(line, "fail ")) << line;
    failed += line == "ok" ? 0 : 1;
  }
  EXPECT_GT(failed, 8);
}

TEST_F(ProcessesTest, FirstComeWaitsForItsTurnAndThenHasIt) {
  Child first = Child::Start(
      {"hold", "sim:8GiB,shared=turn", "bfc:sharing=first_come,memory_fraction=0.8", "1GiB"});
  ASSERT_EQ(first.ReadLine(), "ok");
  Child second = Child::Start({"hold", "sim:8GiB,shared=turn",
                               "bfc:sharing=first_come,memory_fraction=0.8,max_wait=20s", "5GiB"});
  EXPECT_EQ(second.ReadLine(absl::Milliseconds(200)), "timeout");
  first.CloseInput();
  EXPECT_EQ(second.ReadLine(), "ok");
}

TEST_F(ProcessesTest, FirstComeFailsByNameOrShrinks) {
  Child first = Child::Start(
      {"hold", "sim:8GiB,shared=turn", "bfc:sharing=first_come,memory_fraction=0.8", "1GiB"});
  ASSERT_EQ(first.ReadLine(), "ok");
  Child fails = Child::Start(
      {"hold", "sim:8GiB,shared=turn",
       "bfc:sharing=first_come,memory_fraction=0.8,max_wait=50ms,on_shortage=fail", "1GiB"});
  EXPECT_THAT(fails.ReadLine(), HasSubstr(absl::StrCat("process ", first.pid(), " (")));
  Child shrinks = Child::Start(
      {"hold", "sim:8GiB,shared=turn",
       "bfc:sharing=first_come,memory_fraction=0.8,max_wait=50ms,on_shortage=shrink", "1GiB"});
  EXPECT_EQ(shrinks.ReadLine(), "ok");
}

TEST_F(ProcessesTest, ANewcomerGetsItsPartAsOthersGiveBack) {
  // The first keeps all that it once had, until somebody else wants it.
  Child first =
      Child::Start({"phases", "sim:8GiB,shared=new", "elastic:sharing=fair,slack=inf", "5GiB"});
  ASSERT_EQ(first.ReadLine(), "ready");
  first.Send("go");
  ASSERT_THAT(first.ReadLine(), StartsWith("ok"));
  first.Send("free");
  ASSERT_EQ(first.ReadLine(), "freed");
  Child second = Child::Start({"hold", "sim:8GiB,shared=new", "sharing=fair", "3900MiB"});
  EXPECT_EQ(second.ReadLine(), "ok");
}

// Each in its turn needs the whole peak, on a device that holds 1.2 of it, and keeps
// what it had mapped (slack is infinite) until the others want it.
void ProcessesTest::Alternate(const std::string& device, const std::string& uuid, int count,
                              int rounds, std::uint64_t peak) {
  std::vector<Child> children;
  for (int i = 0; i < count; ++i) {
    children.push_back(
        Child::Start({"phases", device, "elastic:sharing=fair,slack=inf,memory_fraction=1",
                      absl::StrCat(peak)}));
  }
  for (Child& child : children) ASSERT_EQ(child.ReadLine(), "ready");
  std::int64_t slowest = 0;
  for (int round = 0; round < rounds; ++round) {
    for (Child& child : children) {
      child.Send("go");
      const std::string line = child.ReadLine();
      ASSERT_THAT(line, StartsWith("ok")) << "round " << round;
      slowest = std::max<std::int64_t>(slowest, std::atoll(line.c_str() + 3));
      const absl::StatusOr<SharingState> state = GetSharingState(uuid);
      ASSERT_TRUE(state.ok()) << state.status();
      // The memory is with the one whose turn it is.
      for (const SharingProcess& process : state->processes) {
        if (process.pid == child.pid()) {
          EXPECT_GE(process.held, peak);
        } else {
          EXPECT_LT(process.held, peak / 4);
        }
      }
      child.Send("free");
      ASSERT_EQ(child.ReadLine(), "freed");
    }
  }
  std::cout << count << " processes, " << rounds << " rounds of " << policy::FormatBytes(peak)
            << " each: the slowest peak took " << slowest / 1000 << " ms\n";
  for (Child& child : children) child.CloseInput();
  for (Child& child : children) EXPECT_EQ(child.Wait(), 0);
}

TEST_F(ProcessesTest, TwoElasticProcessesTakeTurnsOnOneDevice) {
  Alternate("sim:12GiB,shared=alt", "sim-alt", 2, 5, 10 * kGiB);
}

TEST_F(ProcessesTest, FourElasticProcessesTakeTurnsOnOneDevice) {
  Alternate("sim:12GiB,shared=alt", "sim-alt", 4, 3, 10 * kGiB);
}

TEST_F(ProcessesTest, GpuElasticProcessesTakeTurns) {
  const char* const device = std::getenv("HBMALLOC_TEST_DEVICE");
  if (device == nullptr) GTEST_SKIP() << "HBMALLOC_TEST_DEVICE names no device";
  const char* const peak = std::getenv("HBMALLOC_TEST_PEAK");
  const auto opened = OpenDevice(device);
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (const int count : {2, 4}) {
    Alternate(device, std::string((*opened)->Uuid()), count, 2,
              *policy::ParseBytes(peak == nullptr ? "100GiB" : peak));
  }
}

void ProcessesTest::KillRounds(int rounds, absl::Duration usable_within) {
  constexpr int kProcesses = 8;
  const std::string device = "sim:8GiB,shared=kill";
  std::mt19937 random(7);
  Observer observer("sim-kill");
  struct Worker {
    Child process;
    pid_t left_behind = 0;
  };
  const auto start = [&] {
    Worker worker;
    const char* const policies[] = {"elastic:sharing=fair", "on_demand:sharing=fair",
                                    "elastic:sharing=first_come", "platform:sharing=fair"};
    std::vector<std::string> words = {"busy", device, policies[random() % 4], "2GiB",
                                      absl::StrCat(random() % 1000)};
    if (random() % 8 == 0) words.emplace_back("fork");
    worker.process = Child::Start(words);
    worker.left_behind = static_cast<pid_t>(std::atoi(worker.process.ReadLine().c_str()));
    return worker;
  };
  std::vector<Worker> workers;
  for (int i = 0; i < kProcesses; ++i) workers.push_back(start());
  absl::Duration slowest;
  int with_children = 0;
  for (int round = 0; round < rounds; ++round) {
    absl::SleepFor(absl::Microseconds(random() % 5000));
    Worker& worker = workers[random() % kProcesses];
    const pid_t pid = worker.process.pid();
    worker.process.Kill();
    const absl::Time death = absl::Now();
    while (!IsGone("sim-kill", pid)) {
      ASSERT_LT(absl::Now() - death, absl::Seconds(20)) << "round " << round;
    }
    slowest = std::max(slowest, absl::Now() - death);
    if (worker.left_behind > 0) {
      // The child outlives its parent, and holds nothing.
      EXPECT_EQ(kill(worker.left_behind, 0), 0);
      kill(worker.left_behind, SIGKILL);
      ++with_children;
    }
    worker = start();
  }
  std::cout << rounds << " killed, " << with_children
            << " of them with a living child: memory was usable after at most " << slowest << "\n";
  EXPECT_LT(slowest, usable_within);
  for (Worker& worker : workers) {
    worker.process.CloseInput();
    EXPECT_EQ(worker.process.Wait(), 0) << "stuck or failed";
    if (worker.left_behind > 0) kill(worker.left_behind, SIGKILL);
  }
  observer.Stop();
  EXPECT_GT(observer.looks(), rounds);
  EXPECT_LE(observer.most_on_device(), 8 * kGiB);
  EXPECT_LE(observer.most_in_ledger(), 8 * kGiB);
  // Everything is there again.
  Child last = Child::Start({"hold", device, "elastic:sharing=fair,memory_fraction=1", "7GiB"});
  EXPECT_EQ(last.ReadLine(), "ok");
}

TEST_F(ProcessesTest, WhoIsKilledAnywhereLeavesNothing) { KillRounds(50, absl::Seconds(5)); }

TEST_F(ProcessesTest, SlowAThousandKilledAnywhereLeaveNothing) {
  KillRounds(1000, absl::Milliseconds(100));
}

TEST_F(ProcessesTest, AStoppedHolderIsNamedAndNotWaitedForForEver) {
  Child holder = Child::Start(
      {"hold", "sim:8GiB,shared=stop", "elastic:sharing=fair,memory_fraction=1", "7GiB"});
  ASSERT_EQ(holder.ReadLine(), "ok");
  kill(holder.pid(), SIGSTOP);
  Child other =
      Child::Start({"hold", "sim:8GiB,shared=stop", "elastic:sharing=fair,max_wait=300ms", "4GiB"});
  EXPECT_THAT(other.ReadLine(), StartsWith("fail "));
  kill(holder.pid(), SIGCONT);
}

TEST_F(ProcessesTest, TheGroupOfOneUserSeesItselfInTheList) {
  Child holder =
      Child::Start({"hold", "sim:8GiB,shared=list", "elastic:sharing=fair,share=0.5", "1GiB"});
  ASSERT_EQ(holder.ReadLine(), "ok");
  absl::SleepFor(absl::Milliseconds(250));
  const absl::StatusOr<std::vector<SharingState>> states = ListSharedDevices();
  ASSERT_TRUE(states.ok()) << states.status();
  ASSERT_EQ(states->size(), 1U);
  const SharingState& state = states->front();
  EXPECT_EQ(state.uuid, "sim-list");
  EXPECT_EQ(state.capacity, 8 * kGiB);
  ASSERT_EQ(state.processes.size(), 1U);
  const SharingProcess& process = state.processes.front();
  EXPECT_EQ(process.pid, holder.pid());
  EXPECT_EQ(process.in_use, kGiB);
  EXPECT_GE(process.held, kGiB);
  EXPECT_DOUBLE_EQ(process.share, 0.5);
}

}  // namespace
}  // namespace hbm

int main(int argc, char** argv) {
  if (argc > 2 && std::string_view(argv[1]) == "--role") {
    return hbm::testing::RunRole(std::vector<std::string>(argv + 2, argv + argc));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
