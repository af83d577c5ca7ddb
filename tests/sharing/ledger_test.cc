// SPDX-License-Identifier: Apache-2.0
//
// The ledger's file and its accounts, seen from two accounts of one process; other
// processes are in processes_test.cc.
#include "sharing/ledger.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/log.h"
#include "tests/support/sharing_dir.h"

namespace hbm::sharing {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

Terms FirstCome() {
  Terms terms;
  terms.sharing = Sharing::kFirstCome;
  terms.strategy = "bfc";
  terms.name = "test";
  return terms;
}

std::unique_ptr<Ledger> Join(const Terms& terms = FirstCome(), std::uint64_t total = 80 * kGiB) {
  absl::StatusOr<std::unique_ptr<Ledger>> ledger = Ledger::Join("GPU-1", total, terms);
  EXPECT_TRUE(ledger.ok()) << ledger.status();
  return ledger.ok() ? *std::move(ledger) : nullptr;
}

Ledger::FreeBytes Free(std::uint64_t bytes) {
  return [bytes]() -> absl::StatusOr<std::uint64_t> { return bytes; };
}

class LedgerTest : public ::testing::Test {
 protected:
  LedgerTest() {
    old_sink_ =
        SetLogSink([this](LogSeverity, std::string_view message) { log_.emplace_back(message); });
  }
  ~LedgerTest() override { SetLogSink(old_sink_); }

  std::string PathOf(const std::string& kind) {
    return dir_.path() + "/" + *SharingFileName(kind, "GPU-1");
  }

  testing::SharingDir dir_;
  std::vector<std::string> log_;
  LogSink old_sink_;
};

TEST_F(LedgerTest, TwoStartersCannotBothCountTheSameBytes) {
  const auto a = Join();
  const auto b = Join();
  ASSERT_TRUE(a->Charge(60 * kGiB, Free(80 * kGiB)).ok());
  // Nothing is allocated yet, so the device still says that all is free.
  std::uint64_t could = 0;
  const absl::Status second = b->Charge(60 * kGiB, Free(80 * kGiB), &could);
  EXPECT_EQ(second.code(), absl::StatusCode::kResourceExhausted) << second;
  EXPECT_EQ(could, 20 * kGiB);
  EXPECT_THAT(std::string(second.message()), HasSubstr("(test, bfc) holds 60 GiB"));
  a->Refund(60 * kGiB);
  EXPECT_TRUE(b->Charge(60 * kGiB, Free(80 * kGiB)).ok());
}

TEST_F(LedgerTest, CommittedMemoryIsOnTheDeviceAndReleasedMemoryIsNot) {
  const auto a = Join();
  const auto b = Join();
  ASSERT_TRUE(a->Charge(50 * kGiB, Free(80 * kGiB)).ok());
  a->Commit(50 * kGiB);
  EXPECT_EQ(*b->Room(Free(30 * kGiB)), 30 * kGiB);
  a->Release(50 * kGiB);
  EXPECT_EQ(*b->Room(Free(80 * kGiB)), 80 * kGiB);
  EXPECT_EQ(a->held(), 0U);
}

TEST_F(LedgerTest, OutsidersAreSeenThroughTheDevice) {
  const auto a = Join();
  EXPECT_FALSE(a->Charge(50 * kGiB, Free(10 * kGiB)).ok());
  EXPECT_TRUE(a->Charge(10 * kGiB, Free(10 * kGiB)).ok());
}

TEST_F(LedgerTest, AnAccountEndsWithItsObject) {
  auto a = Join();
  const auto b = Join();
  ASSERT_TRUE(a->Charge(80 * kGiB, Free(80 * kGiB)).ok());
  a.reset();
  EXPECT_TRUE(b->Charge(80 * kGiB, Free(80 * kGiB)).ok());
}

TEST_F(LedgerTest, WishesReachOthersAndFade) {
  const auto a = Join();
  const auto b = Join();
  a->Want(3 * kGiB);
  EXPECT_EQ(b->WantedByOthers(), 3 * kGiB);
  EXPECT_EQ(a->WantedByOthers(), 0U);
  a->StopWanting();
  EXPECT_EQ(b->WantedByOthers(), 0U);
  a->Want(kGiB);
  absl::SleepFor(absl::Milliseconds(250));
  EXPECT_EQ(b->WantedByOthers(), 0U);
}

TEST_F(LedgerTest, SharesBeyondTheWholeDeviceAreRefusedByName) {
  Terms terms = FirstCome();
  terms.share = 0.6;
  const auto a = Join(terms);
  terms.share = 0.4;
  auto b = Join(terms);
  terms.share = 0.1;
  const auto third = Ledger::Join("GPU-1", 80 * kGiB, terms);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted) << third.status();
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("(test, bfc)"));
  b.reset();
  EXPECT_TRUE(Ledger::Join("GPU-1", 80 * kGiB, terms).ok());
}

TEST_F(LedgerTest, FilesAreTheUsersOwn) {
  const auto a = Join();
  struct stat info;
  ASSERT_EQ(stat(PathOf("ledger").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
}

TEST_F(LedgerTest, AGroupMayShare) {
  setenv("HBMALLOC_SHARING_GROUP", std::to_string(getgid()).c_str(), 1);
  const auto a = Join();
  struct stat info;
  ASSERT_EQ(stat(PathOf("ledger").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0660U);
  EXPECT_EQ(info.st_gid, getgid());
  setenv("HBMALLOC_SHARING_GROUP", "no-such-group-here", 1);
  const auto none = Ledger::Join("GPU-1", 80 * kGiB, FirstCome());
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no-such-group-here"));
  unsetenv("HBMALLOC_SHARING_GROUP");
}

TEST_F(LedgerTest, ADeviceOfAnotherSizeIsRefused) {
  const auto a = Join();
  const auto b = Ledger::Join("GPU-1", 40 * kGiB, FirstCome());
  EXPECT_EQ(b.status().code(), absl::StatusCode::kFailedPrecondition) << b.status();
}

// What may be found under the file's name, and is not to be trusted.
struct Damage {
  const char* name;
  void (*make)(const std::string& path);
};

void Overwrite(const std::string& path, off_t offset, const std::string& bytes) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(pwrite(file, bytes.data(), bytes.size(), offset), static_cast<ssize_t>(bytes.size()));
  close(file);
}

const Damage kDamages[] = {
    {"Empty", [](const std::string& path) { ASSERT_EQ(truncate(path.c_str(), 0), 0); }},
    {"Truncated", [](const std::string& path) { ASSERT_EQ(truncate(path.c_str(), 5000), 0); }},
    {"Longer", [](const std::string& path) { ASSERT_EQ(truncate(path.c_str(), 1 << 20), 0); }},
    {"Magic", [](const std::string& path) { Overwrite(path, 0, "foreign"); }},
    {"Version", [](const std::string& path) { Overwrite(path, 8, "\x09"); }},
    {"Capacity", [](const std::string& path) { Overwrite(path, 24, "\x01\x02"); }},
    {"Key", [](const std::string& path) { Overwrite(path, 36, "9"); }},
    {"SlotState", [](const std::string& path) { Overwrite(path, 4096, "\x07"); }},
    {"SlotHeld",
     [](const std::string& path) {
       Overwrite(path, 4096 + 48, "\xff\xff\xff\xff\xff\xff\xff\xff");
     }},
    {"Mode", [](const std::string& path) { ASSERT_EQ(chmod(path.c_str(), 0666), 0); }},
    {"Directory",
     [](const std::string& path) {
       unlink(path.c_str());
       ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
     }},
    {"Link",
     [](const std::string& path) {
       unlink(path.c_str());
       ASSERT_EQ(symlink("/etc/passwd", path.c_str()), 0);
     }},
    {"Pipe",
     [](const std::string& path) {
       unlink(path.c_str());
       ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
     }},
};

TEST_F(LedgerTest, WhateverIsFoundInItsPlaceIsSetAsideWithAWarning) {
  for (const Damage& damage : kDamages) {
    SCOPED_TRACE(damage.name);
    const std::string path = PathOf("ledger");
    {
      // A slot that is taken, by a process that is killed.
      const pid_t child = fork();
      if (child == 0) {
        const auto ledger = Ledger::Join("GPU-1", 80 * kGiB, FirstCome());
        static_cast<void>(ledger);
        _exit(0);
      }
      ASSERT_EQ(waitpid(child, nullptr, 0), child);
    }
    damage.make(path);
    log_.clear();
    const auto ledger = Join();
    ASSERT_NE(ledger, nullptr);
    ASSERT_EQ(log_.size(), 1U);
    EXPECT_THAT(log_[0], HasSubstr("set aside"));
    EXPECT_TRUE(ledger->Charge(80 * kGiB, Free(80 * kGiB)).ok());
    for (const std::string& name : dir_.Files()) {
      if (!absl::StrContains(name, ".bad.")) continue;
      if (unlink((dir_.path() + "/" + name).c_str()) != 0) {
        rmdir((dir_.path() + "/" + name).c_str());
      }
    }
  }
}

TEST_F(LedgerTest, AFileThatIsCutShortInUseIsNotTrusted) {
  const auto a = Join();
  // Kept long enough that the mapping still has the pages that are read.
  ASSERT_EQ(truncate(PathOf("ledger").c_str(), 300000 / 4096 * 4096), 0);
  EXPECT_FALSE(ReadBooks(a->file(), -1, nullptr).claims.empty());
  const absl::Status charged = a->Charge(kGiB, Free(80 * kGiB));
  if (!charged.ok()) {
    EXPECT_EQ(charged.code(), absl::StatusCode::kDataLoss) << charged;
  }
}

TEST_F(LedgerTest, AllSlotsTakenIsAnErrorAndDeadOnesAreUsedAgain) {
  // A file for each slot, in one process for once: more than many shells allow at first.
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_max < 2 * kSlots) GTEST_SKIP() << "at most " << files.rlim_max << " open files";
  std::vector<std::unique_ptr<Ledger>> all;
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    auto ledger = Ledger::Join("GPU-1", 80 * kGiB, FirstCome());
    ASSERT_TRUE(ledger.ok()) << i << ": " << ledger.status();
    all.push_back(*std::move(ledger));
  }
  EXPECT_EQ(Ledger::Join("GPU-1", 80 * kGiB, FirstCome()).status().code(),
            absl::StatusCode::kResourceExhausted);
  all.pop_back();
  EXPECT_TRUE(Ledger::Join("GPU-1", 80 * kGiB, FirstCome()).ok());
}

TEST_F(LedgerTest, ThreadsOfOneProcessNeverPassTheCapacity) {
  constexpr int kThreads = 4;
  std::atomic<std::uint64_t> held{0};
  std::atomic<std::uint64_t> most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const auto ledger = Join();
      for (int i = 0; i < 300; ++i) {
        const std::uint64_t bytes = static_cast<std::uint64_t>(1 + i % 30) * kGiB;
        if (!ledger->Charge(bytes, Free(80 * kGiB)).ok()) continue;
        const std::uint64_t now = held.fetch_add(bytes) + bytes;
        std::uint64_t seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        ledger->Commit(bytes);
        held.fetch_sub(bytes);
        ledger->Release(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most.load(), 80 * kGiB);
  EXPECT_GE(most.load(), 30 * kGiB);
}

TEST_F(LedgerTest, AnAccountMayBeUsedByManyThreads) {
  const auto ledger = Join();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        if (!ledger->Charge(kGiB, Free(80 * kGiB)).ok()) continue;
        i % 2 == 0 ? ledger->Refund(kGiB) : (ledger->Commit(kGiB), ledger->Release(kGiB));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger->held(), 0U);
}

}  // namespace
}  // namespace hbm::sharing
