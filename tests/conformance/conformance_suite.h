// SPDX-License-Identifier: Apache-2.0
//
// File: conformance_suite.h
//
// What every allocator does, whatever its strategy and its memory. Included by
// one .cc of a test program, which says for what it runs:
//
//   INSTANTIATE_TEST_SUITE_P(Here, ConformanceTest, ValuesIn(Subjects({"bfc"}, {{"sim:256MiB"}})),
//                            SubjectName);
#ifndef HBMALLOC_TESTS_CONFORMANCE_CONFORMANCE_SUITE_H_
#define HBMALLOC_TESTS_CONFORMANCE_CONFORMANCE_SUITE_H_

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"

namespace hbm::testing {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;

// Where memory comes from. It has at least 256 MiB.
struct Memory {
  std::string device;             // a spec for OpenDevice
  bool is_host_readable = false;  // then every byte of every block is checked
};

struct Subject {
  std::string policy;
  Memory memory;
};
inline void PrintTo(const Subject& subject, std::ostream* out) {
  *out << subject.policy << " on " << subject.memory.device;
}

inline std::vector<Subject> Subjects(const std::vector<std::string>& policies,
                                     const std::vector<Memory>& memories) {
  std::vector<Subject> subjects;
  for (const Memory& memory : memories) {
    for (const std::string& policy : policies) subjects.push_back({policy, memory});
  }
  return subjects;
}

inline std::string SubjectName(const ::testing::TestParamInfo<Subject>& info) {
  std::string name = info.param.policy + "_on_" + info.param.memory.device;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

class ConformanceTest : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    // Tests leave blocks live on purpose.
    previous_sink_ = SetLogSink([this](LogSeverity, std::string_view message) {
      std::lock_guard<std::mutex> lock(log_mutex_);
      log_.emplace_back(message);
    });
    absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(GetParam().memory.device);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    allocator_ = Make("");
  }
  void TearDown() override {
    allocator_.reset();
    SetLogSink(std::move(previous_sink_));
  }

  // Another allocator of the same strategy on the same device.
  std::unique_ptr<Allocator> Make(const std::string& more_fields) {
    std::string spec = GetParam().policy;
    if (!more_fields.empty()) {
      spec += (spec.find(':') == std::string::npos ? ":" : ",") + more_fields;
    }
    const absl::StatusOr<Policy> policy = ParsePolicy(spec);
    EXPECT_TRUE(policy.ok()) << policy.status();
    if (!policy.ok()) return nullptr;
    auto allocator = MakeAllocator(*policy, device_);
    EXPECT_TRUE(allocator.ok()) << allocator.status();
    return allocator.ok() ? *std::move(allocator) : nullptr;
  }

  void* Get(std::size_t bytes, const AllocateOptions& options = {}) {
    const absl::StatusOr<void*> block = allocator_->Allocate(bytes, options);
    EXPECT_TRUE(block.ok()) << block.status();
    return block.value_or(nullptr);
  }
  void Free(void* block) {
    const absl::Status status = allocator_->Deallocate(block);
    EXPECT_TRUE(status.ok()) << status;
  }
  // Blocks of one size until no more are given.
  std::vector<void*> Fill(std::size_t bytes) {
    std::vector<void*> blocks;
    AllocError why;
    while (void* const block = allocator_->TryAllocate(bytes, {}, &why)) blocks.push_back(block);
    EXPECT_EQ(why.code, absl::StatusCode::kResourceExhausted);
    return blocks;
  }
  // Figures that only successful calls may change.
  static std::vector<std::int64_t> Books(const Stats& stats) {
    return {stats.num_allocs,      stats.num_frees,  stats.bytes_in_use,
            stats.requested_bytes, stats.pool_bytes, stats.peak_bytes_in_use};
  }
  std::vector<std::string> Log() {
    std::lock_guard<std::mutex> lock(log_mutex_);
    return log_;
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Allocator> allocator_;

 private:
  std::mutex log_mutex_;
  std::vector<std::string> log_;
  LogSink previous_sink_;
};

inline std::uintptr_t AddressOf(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

inline char* Byte(void* block, std::size_t offset) { return static_cast<char*>(block) + offset; }

// Live ranges, to see that no two overlap. Thread-safe.
class Ranges {
 public:
  void Add(void* block, std::size_t bytes) {
    const std::uintptr_t start = AddressOf(block);
    std::lock_guard<std::mutex> lock(mutex_);
    const auto after = ranges_.lower_bound(start);
    EXPECT_TRUE(after == ranges_.end() || start + bytes <= after->first);
    EXPECT_TRUE(after == ranges_.begin() || std::prev(after)->second <= start);
    ranges_.emplace_hint(after, start, start + bytes);
  }
  void Remove(void* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    ranges_.erase(AddressOf(block));
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> ranges_;
};

TEST_P(ConformanceTest, ZeroBytesAreNullAndOk) {
  const absl::StatusOr<void*> block = allocator_->Allocate(0);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(*block, nullptr);
  AllocError why{absl::StatusCode::kInternal, OomCause::kDevice};
  EXPECT_EQ(allocator_->TryAllocate(0, {}, &why), nullptr);
  EXPECT_EQ(why.code, absl::StatusCode::kOk);
  EXPECT_EQ(allocator_->GetStats().num_allocs, 0);
}

TEST_P(ConformanceTest, NullIsNoBlock) {
  EXPECT_TRUE(allocator_->Deallocate(nullptr).ok());
  EXPECT_TRUE(allocator_->RecordUse(nullptr, StreamRef()).ok());
  EXPECT_TRUE(absl::IsNotFound(allocator_->Describe(nullptr).status()));
  EXPECT_EQ(allocator_->GetStats().num_frees, 0);
}

TEST_P(ConformanceTest, AlignmentIsHonoured) {
  std::vector<void*> blocks;
  Ranges ranges;
  for (std::size_t alignment = 1; alignment <= kMaxAlignment; alignment *= 2) {
    for (std::size_t bytes : {std::size_t{1}, std::size_t{257}, std::size_t{70'000}}) {
      AllocateOptions options;
      options.alignment = alignment;
      void* const block = Get(bytes, options);
      ASSERT_NE(block, nullptr);
      EXPECT_EQ(AddressOf(block) % std::max(alignment, kMinAlignment), 0u) << alignment;
      ranges.Add(block, bytes);
      blocks.push_back(block);
    }
  }
  for (void* block : blocks) Free(block);
  EXPECT_EQ(allocator_->GetStats().bytes_in_use, 0);
}

TEST_P(ConformanceTest, BadAlignmentIsRefused) {
  for (std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{257}, 2 * kMaxAlignment,
                                std::numeric_limits<std::size_t>::max()}) {
    AllocateOptions options;
    options.alignment = alignment;
    const absl::Status status = allocator_->Allocate(1, options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find("alignment"), absl::string_view::npos);
  }
  AllocateOptions options;
  options.stream = StreamRef::OfAllocation();
  EXPECT_TRUE(absl::IsInvalidArgument(allocator_->Allocate(1, options).status()));
  EXPECT_EQ(allocator_->GetStats().num_allocs, 0);
}

TEST_P(ConformanceTest, HugeSizesFailAndChangeNothing) {
  void* const block = Get(1000);
  const std::vector<std::int64_t> before = Books(allocator_->GetStats());
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  constexpr std::size_t kHalf = std::size_t{1} << 63;
  std::int64_t failures = allocator_->GetStats().num_failures;
  for (std::size_t bytes :
       {kMax, kMax - 1, kMax - 254, kMax - 255, kMax - 256, kMax - kMaxAlignment, kHalf - 1, kHalf,
        kHalf + 1, std::size_t{1} << 48, (std::size_t{1} << 48) - 255, std::size_t{1} << 40}) {
    for (std::size_t alignment : {kMinAlignment, kMaxAlignment}) {
      AllocateOptions options;
      options.alignment = alignment;
      const absl::Status status = allocator_->Allocate(bytes, options).status();
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << bytes << ": " << status;
      EXPECT_NE(GetOomCause(status), OomCause::kNone);
      EXPECT_EQ(allocator_->GetStats().num_failures, ++failures);
    }
  }
  EXPECT_EQ(Books(allocator_->GetStats()), before);
  Free(block);
}

TEST_P(ConformanceTest, FreeingTwiceIsRefused) {
  void* const first = Get(5000);
  void* const second = Get(5000);
  Free(first);
  const std::vector<std::int64_t> before = Books(allocator_->GetStats());
  EXPECT_TRUE(absl::IsInvalidArgument(allocator_->Deallocate(first)));
  EXPECT_TRUE(absl::IsInvalidArgument(allocator_->RecordUse(first, StreamRef())));
  EXPECT_EQ(Books(allocator_->GetStats()), before);
  Free(second);
  EXPECT_TRUE(absl::IsInvalidArgument(allocator_->Deallocate(second)));
}

TEST_P(ConformanceTest, ForeignAndInnerPointersAreRefused) {
  void* const block = Get(100'000);
  int local = 0;
  // Small, so that both fit; a policy that is small already says so itself.
  const bool is_small = GetParam().policy.find("memory_limit") != std::string::npos;
  const auto other = Make(is_small ? "" : "memory_limit=16MiB");
  ASSERT_NE(other, nullptr);
  const absl::StatusOr<void*> foreign = other->Allocate(1000);
  ASSERT_TRUE(foreign.ok());
  const std::vector<std::int64_t> before = Books(allocator_->GetStats());
  for (void* pointer :
       {static_cast<void*>(&local), *foreign, static_cast<void*>(Byte(block, 1)),
        static_cast<void*>(Byte(block, 256)), static_cast<void*>(Byte(block, 99'999)),
        reinterpret_cast<void*>(std::uintptr_t{256}),    // NOLINT
        reinterpret_cast<void*>(~std::uintptr_t{0})}) {  // NOLINT
    EXPECT_TRUE(absl::IsInvalidArgument(allocator_->Deallocate(pointer))) << pointer;
    EXPECT_TRUE(absl::IsInvalidArgument(allocator_->RecordUse(pointer, StreamRef()))) << pointer;
  }
  EXPECT_EQ(Books(allocator_->GetStats()), before);
  EXPECT_TRUE(other->Deallocate(*foreign).ok());
  Free(block);
}

TEST_P(ConformanceTest, ExhaustionIsReportedAndEnds) {
  const std::vector<void*> blocks = Fill(kMiB);
  ASSERT_GT(blocks.size(), 90u);
  Ranges ranges;
  for (void* block : blocks) ranges.Add(block, kMiB);
  const absl::StatusOr<void*> failed = allocator_->Allocate(kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(failed.status())) << failed.status();
  EXPECT_EQ(GetOomCause(failed.status()), OomCause::kLimit) << failed.status();
  EXPECT_EQ(allocator_->GetStats().num_failures, 2);

  Free(blocks.back());
  void* const again = Get(kMiB);
  for (std::size_t i = 0; i + 1 < blocks.size(); ++i) Free(blocks[i]);
  Free(again);
  EXPECT_EQ(allocator_->GetStats().bytes_in_use, 0);
  const std::vector<void*> second_round = Fill(kMiB);
  EXPECT_EQ(second_round.size(), blocks.size());
  for (void* block : second_round) Free(block);
}

TEST_P(ConformanceTest, StatsFollowEachStep) {
  std::mt19937_64 random(7);
  std::vector<std::pair<void*, std::size_t>> live;
  std::int64_t allocs = 0;
  std::int64_t frees = 0;
  std::int64_t requested = 0;
  std::int64_t peak_requested = 0;
  std::int64_t peak_in_use = 0;
  for (int step = 0; step < 2000; ++step) {
    if (live.empty() || random() % 5 < 3) {
      const std::size_t bytes = 1 + random() % (64 * kKiB);
      live.emplace_back(Get(bytes), bytes);
      ++allocs;
      requested += static_cast<std::int64_t>(bytes);
    } else {
      std::swap(live[random() % live.size()], live.back());
      Free(live.back().first);
      ++frees;
      requested -= static_cast<std::int64_t>(live.back().second);
      live.pop_back();
    }
    peak_requested = std::max(peak_requested, requested);
    const Stats stats = allocator_->GetStats();
    peak_in_use = std::max(peak_in_use, stats.bytes_in_use);
    ASSERT_EQ(stats.num_allocs, allocs);
    ASSERT_EQ(stats.num_frees, frees);
    ASSERT_EQ(stats.requested_bytes, requested);
    ASSERT_EQ(stats.peak_requested_bytes, peak_requested);
    ASSERT_EQ(stats.peak_bytes_in_use, peak_in_use);
    ASSERT_EQ(stats.peak_allocated_bytes, peak_in_use);
    ASSERT_GE(stats.bytes_in_use, requested);
    ASSERT_LE(stats.bytes_in_use, stats.pool_bytes);
    ASSERT_LE(stats.pool_bytes, stats.peak_pool_bytes);
    ASSERT_LE(stats.pool_bytes, stats.bytes_limit);
    ASSERT_EQ(stats.bytes_reserved, 0);
  }
  allocator_->ResetPeakStats();
  Stats stats = allocator_->GetStats();
  EXPECT_EQ(stats.num_allocs, 0);
  EXPECT_EQ(stats.num_frees, 0);
  EXPECT_EQ(stats.largest_alloc_size, 0);
  EXPECT_EQ(stats.peak_bytes_in_use, stats.bytes_in_use);
  EXPECT_EQ(stats.peak_requested_bytes, requested);
  EXPECT_EQ(stats.peak_pool_bytes, stats.pool_bytes);
  for (const auto& [block, bytes] : live) Free(block);
  stats = allocator_->GetStats();
  EXPECT_EQ(stats.bytes_in_use, 0);
  EXPECT_EQ(stats.requested_bytes, 0);
}

TEST_P(ConformanceTest, FragmentationIsConsistent) {
  void* const block = Get(10 * kMiB);
  const Fragmentation figures = allocator_->GetFragmentation();
  const Stats stats = allocator_->GetStats();
  EXPECT_EQ(figures.free_bytes, stats.pool_bytes - stats.bytes_in_use);
  EXPECT_EQ(figures.largest_free_bytes, stats.largest_free_block_bytes);
  EXPECT_LE(figures.largest_free_bytes, figures.free_bytes);
  EXPECT_GT(figures.utilization, 0.0);
  EXPECT_LE(figures.utilization, 1.0);
  Free(block);
}

TEST_P(ConformanceTest, TrimGivesIdleMemoryBack) {
  void* const kept = Get(3 * kMiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(Get(kMiB));
  for (void* block : blocks) Free(block);
  const Stats before = allocator_->GetStats();
  TrimOptions options;
  options.max_wait = absl::Seconds(10);
  const absl::StatusOr<TrimResult> result = allocator_->Trim(options);
  ASSERT_TRUE(result.ok()) << result.status();
  const Stats after = allocator_->GetStats();
  EXPECT_EQ(before.pool_bytes - after.pool_bytes, static_cast<std::int64_t>(result->released));
  EXPECT_LE(static_cast<std::int64_t>(result->pinned + result->pending),
            after.pool_bytes - after.requested_bytes);
  EXPECT_TRUE(allocator_->Describe(kept).ok());

  Free(kept);
  ASSERT_TRUE(allocator_->Trim(options).ok());
  EXPECT_EQ(allocator_->GetStats().pool_bytes, 0);
  void* const again = Get(kMiB);
  Free(again);
}

TEST_P(ConformanceTest, TrimKeepsWhatItIsAskedToKeep) {
  Free(Get(20 * kMiB));
  const std::int64_t pool = allocator_->GetStats().pool_bytes;
  TrimOptions options;
  options.keep_pool_bytes = static_cast<std::size_t>(pool);
  options.max_wait = absl::Seconds(10);
  const absl::StatusOr<TrimResult> result = allocator_->Trim(options);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->released, 0u);
  EXPECT_EQ(allocator_->GetStats().pool_bytes, pool);
}

TEST_P(ConformanceTest, TryAllocateSaysWhy) {
  AllocError why;
  void* const block = allocator_->TryAllocate(100, {}, &why);
  EXPECT_NE(block, nullptr);
  EXPECT_EQ(why.code, absl::StatusCode::kOk);
  EXPECT_EQ(allocator_->TryAllocate(std::size_t{1} << 45, {}, &why), nullptr);
  EXPECT_EQ(why.code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(why.cause, OomCause::kLimit);
  AllocateOptions options;
  options.alignment = 12;
  EXPECT_EQ(allocator_->TryAllocate(100, options, &why), nullptr);
  EXPECT_EQ(why.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(allocator_->TryAllocate(100, options), nullptr);
  Free(block);
}

TEST_P(ConformanceTest, DescribeKnowsEveryAddressOfABlock) {
  const TagId tag = RegisterTag("conformance");
  std::vector<void*> blocks;
  {
    ScopedTag scope(tag);
    for (std::size_t i = 0; i < 50; ++i) blocks.push_back(Get(10'000 + i));
  }
  const auto check = [&](std::size_t i) {
    const std::size_t bytes = 10'000 + i;
    for (std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{256}, bytes - 1}) {
      const absl::StatusOr<BlockInfo> info = allocator_->Describe(Byte(blocks[i], offset));
      ASSERT_TRUE(info.ok()) << info.status();
      EXPECT_EQ(info->address, blocks[i]);
      EXPECT_EQ(info->requested_bytes, bytes);
      EXPECT_GE(info->chunk_bytes, bytes);
      EXPECT_EQ(info->tag, tag);
      EXPECT_LE(AddressOf(info->region.address), AddressOf(blocks[i]));
      EXPECT_GE(AddressOf(info->region.address) + info->region.bytes, AddressOf(blocks[i]) + bytes);
    }
  };
  for (std::size_t i = 0; i < blocks.size(); ++i) check(i);
  for (std::size_t i = 0; i < blocks.size(); i += 2) Free(blocks[i]);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 2 == 1) {
      check(i);
    } else {
      EXPECT_TRUE(absl::IsNotFound(allocator_->Describe(blocks[i]).status()));
      EXPECT_TRUE(absl::IsNotFound(allocator_->Describe(Byte(blocks[i], 700)).status()));
    }
  }
  int local = 0;
  EXPECT_TRUE(absl::IsNotFound(allocator_->Describe(&local).status()));
  for (std::size_t i = 1; i < blocks.size(); i += 2) Free(blocks[i]);
}

TEST_P(ConformanceTest, SnapshotCoversThePool) {
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 100; ++i) blocks.push_back(Get(1 + i * 777));
  for (std::size_t i = 0; i < blocks.size(); i += 3) Free(blocks[i]);
  const Snapshot snapshot = allocator_->TakeSnapshot();
  const Stats stats = allocator_->GetStats();
  std::int64_t in_use = 0;
  std::int64_t requested = 0;
  for (const Snapshot::Region& region : snapshot.regions) {
    std::uintptr_t expected = AddressOf(region.range.address);
    for (const Snapshot::Chunk& chunk : region.chunks) {
      EXPECT_EQ(AddressOf(chunk.address), expected);
      expected += chunk.bytes;
      if (chunk.state != ChunkState::kLive) continue;
      in_use += static_cast<std::int64_t>(chunk.bytes);
      requested += static_cast<std::int64_t>(chunk.requested_bytes);
    }
    EXPECT_EQ(expected, AddressOf(region.range.address) + region.range.bytes);
  }
  EXPECT_EQ(in_use, stats.bytes_in_use);
  EXPECT_EQ(requested, stats.requested_bytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 3 != 0) Free(blocks[i]);
  }
}

TEST_P(ConformanceTest, TheLimitMoves) {
  EXPECT_TRUE(absl::IsInvalidArgument(allocator_->SetMemoryLimit(0)));
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(Get(kMiB));
  // A source may have steps that are larger: the first limit that is not refused.
  std::size_t asked = 10 * kMiB;
  while (absl::IsInvalidArgument(allocator_->SetMemoryLimit(asked)) && asked < 100 * kMiB) {
    asked *= 2;
  }
  const auto limit = static_cast<std::size_t>(allocator_->GetStats().bytes_limit);
  EXPECT_LE(limit, asked);
  EXPECT_GT(limit, asked / 2);
  EXPECT_EQ(allocator_->GetStats().limit_source, LimitSource::kSetMemoryLimit);
  // Live blocks stay, and nothing beyond what is held is taken.
  const std::int64_t held = allocator_->GetStats().pool_bytes;
  for (void* block : Fill(kMiB)) blocks.push_back(block);
  EXPECT_LE(allocator_->GetStats().pool_bytes, held);
  for (void* block : blocks) {
    EXPECT_TRUE(allocator_->Describe(block).ok());
    Free(block);
  }
  TrimOptions options;
  options.max_wait = absl::Seconds(10);
  ASSERT_TRUE(allocator_->Trim(options).ok());
  const std::vector<void*> under_limit = Fill(kMiB);
  EXPECT_LE(under_limit.size(), limit / kMiB);
  EXPECT_GE(under_limit.size(), limit / kMiB / 2);
  EXPECT_LE(allocator_->GetStats().pool_bytes, static_cast<std::int64_t>(limit));
  ASSERT_TRUE(allocator_->SetMemoryLimit(100 * kMiB).ok());
  void* const more = Get(kMiB);
  Free(more);
  for (void* block : under_limit) Free(block);
}

TEST_P(ConformanceTest, DestructionWarnsAndGivesMemoryBack) {
  allocator_.reset();
  const absl::StatusOr<MemoryInfo> before = device_->GetMemoryInfo();
  ASSERT_TRUE(before.ok());
  allocator_ = Make("");
  Get(10 * kMiB);
  Get(kMiB);
  allocator_.reset();
  const absl::StatusOr<MemoryInfo> after = device_->GetMemoryInfo();
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->free, before->free);
  bool warned = false;
  for (const std::string& line : Log()) {
    warned |=
        line.find("2 blocks") != std::string::npos && line.find("11 MiB") != std::string::npos;
  }
  EXPECT_TRUE(warned);
}

TEST_P(ConformanceTest, EffectivePolicyIsComplete) {
  const Policy& policy = allocator_->policy();
  EXPECT_TRUE(policy.strategy.has_value());
  EXPECT_TRUE(policy.preallocate.has_value());
  EXPECT_TRUE(policy.stream_mode.has_value());
  ASSERT_TRUE(policy.memory_limit.has_value());
  EXPECT_EQ(static_cast<std::int64_t>(*policy.memory_limit), allocator_->GetStats().bytes_limit);
}

TEST_P(ConformanceTest, WaitsForMemoryIfToldTo) {
  const std::vector<void*> blocks = Fill(kMiB);
  AllocateOptions options;
  options.max_wait = absl::Seconds(60);
  std::thread other([&] {
    absl::SleepFor(absl::Milliseconds(30));
    Free(blocks[3]);
  });
  const absl::StatusOr<void*> block = allocator_->Allocate(kMiB, options);
  other.join();
  EXPECT_TRUE(block.ok()) << block.status();
  options.max_wait = absl::Milliseconds(30);
  const absl::Time start = absl::Now();
  EXPECT_TRUE(absl::IsResourceExhausted(allocator_->Allocate(kMiB, options).status()));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(30));
}

// A block filled with bytes that only its owner writes.
class Pattern {
 public:
  Pattern(void* block, std::size_t bytes, std::uint64_t seed, bool is_readable)
      : block_(block), bytes_(bytes), value_(static_cast<unsigned char>(seed)) {
    if (is_readable) std::memset(block_, value_, bytes_);
  }
  bool IsIntact(bool is_readable) const {
    if (!is_readable) return true;
    const auto* const bytes = static_cast<const unsigned char*>(block_);
    // The first byte is right, and every other equals the one before it.
    return bytes[0] == value_ && std::memcmp(bytes, bytes + 1, bytes_ - 1) == 0;
  }
  void* block() const { return block_; }

 private:
  void* block_;
  std::size_t bytes_;
  unsigned char value_;
};

TEST_P(ConformanceTest, EightThreadsNeverShareAByte) {
  constexpr int kThreads = 8;
  constexpr int kSteps = 1500;
  const bool is_readable = GetParam().memory.is_host_readable;
  Ranges ranges;
  std::mutex handed_over_mutex;
  std::vector<Pattern> handed_over;  // freed by whoever takes them
  std::atomic<std::int64_t> allocated{0};
  std::atomic<std::int64_t> freed{0};
  const auto free_one = [&](const Pattern& pattern) {
    EXPECT_TRUE(pattern.IsIntact(is_readable));
    ranges.Remove(pattern.block());
    Free(pattern.block());
    ++freed;
  };
  const auto work = [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Pattern> own;
    for (int step = 0; step < kSteps; ++step) {
      const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 256 * kKiB : 4 * kKiB);
      AllocateOptions options;
      options.alignment = random() % 16 == 0 ? 64 * kKiB : 1;
      if (void* const block = allocator_->TryAllocate(bytes, options)) {
        ++allocated;
        ranges.Add(block, bytes);
        own.emplace_back(block, bytes, random(), is_readable);
      }
      while (own.size() > 100 || (!own.empty() && random() % 3 == 0)) {
        std::swap(own[random() % own.size()], own.back());
        if (random() % 4 == 0) {
          std::lock_guard<std::mutex> lock(handed_over_mutex);
          handed_over.push_back(own.back());
        } else {
          free_one(own.back());
        }
        own.pop_back();
      }
      std::lock_guard<std::mutex> lock(handed_over_mutex);
      if (!handed_over.empty() && random() % 4 == 0) {
        free_one(handed_over.back());
        handed_over.pop_back();
      }
    }
    for (const Pattern& pattern : own) free_one(pattern);
  };
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  for (const Pattern& pattern : handed_over) free_one(pattern);
  const Stats stats = allocator_->GetStats();
  EXPECT_EQ(stats.num_allocs, allocated);
  EXPECT_EQ(stats.num_frees, freed);
  EXPECT_EQ(stats.bytes_in_use, 0);
  EXPECT_EQ(stats.requested_bytes, 0);
  EXPECT_GT(stats.num_allocs, kThreads * kSteps / 2);
}

// Waiting for frees would be waiting for ever.
TEST_P(ConformanceTest, MoreThanTheLimitFailsAtOnceHoweverLongOneWouldWait) {
  AllocateOptions patient;
  patient.max_wait = absl::InfiniteDuration();
  const auto limit = static_cast<std::size_t>(allocator_->GetStats().bytes_limit);
  for (std::size_t bytes : {limit + 1, 3 * limit, std::numeric_limits<std::size_t>::max() / 2,
                            std::numeric_limits<std::size_t>::max()}) {
    const absl::Time start = absl::Now();
    const absl::StatusOr<void*> block = allocator_->Allocate(bytes, patient);
    EXPECT_TRUE(absl::IsResourceExhausted(block.status())) << block.status();
    EXPECT_EQ(GetOomCause(block.status()), OomCause::kLimit) << bytes;
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  }
}

// A limit that is lowered under a waiting request ends its wait.
TEST_P(ConformanceTest, AWaitEndsWhenTheLimitIsLoweredBelowTheRequest) {
  const auto limit = static_cast<std::size_t>(allocator_->GetStats().bytes_limit);
  const std::vector<void*> blocks = Fill(16 * kMiB);
  std::thread waiting([&] {
    AllocateOptions patient;
    patient.max_wait = absl::InfiniteDuration();
    const absl::StatusOr<void*> block = allocator_->Allocate(limit / 2, patient);
    EXPECT_TRUE(absl::IsResourceExhausted(block.status())) << block.status();
  });
  absl::SleepFor(absl::Milliseconds(5));
  const absl::Status lowered = allocator_->SetMemoryLimit(limit / 4);
  EXPECT_TRUE(lowered.ok()) << lowered;
  waiting.join();
  for (void* block : blocks) Free(block);
}

TEST_P(ConformanceTest, ThreadsThatFreeTheSameBlockDoItOnce) {
  for (int round = 0; round < 50; ++round) {
    void* const block = Get(1000);
    std::atomic<int> succeeded{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] { succeeded += allocator_->Deallocate(block).ok(); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(succeeded, 1);
  }
}

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_CONFORMANCE_CONFORMANCE_SUITE_H_
