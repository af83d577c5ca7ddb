// SPDX-License-Identifier: Apache-2.0
//
// The C functions: what they do, and that nothing a caller passes harms.
#include "hbmalloc/c_api.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class CApi : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(hbm_allocator_create("on_demand:memory_fraction=1", "host:64MiB", &a_), HBM_OK)
        << hbm_last_error();
  }
  void TearDown() override { EXPECT_EQ(hbm_allocator_destroy(a_), HBM_OK); }

  void* Allocate(std::size_t bytes) {
    void* block = nullptr;
    EXPECT_EQ(hbm_allocate(a_, bytes, 0, nullptr, &block), HBM_OK) << hbm_last_error();
    return block;
  }
  hbm_stats Stats() {
    hbm_stats stats = HBM_INIT(hbm_stats);
    EXPECT_EQ(hbm_get_stats(a_, &stats), HBM_OK);
    return stats;
  }

  hbm_allocator* a_ = nullptr;
};

TEST_F(CApi, AllocatesUsableMemoryAndFreesIt) {
  void* const block = Allocate(kMiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 256, 0u);
  std::memset(block, 0x5a, kMiB);
  EXPECT_EQ(Stats().requested_bytes, static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(hbm_deallocate(a_, block, nullptr), HBM_OK);
  EXPECT_EQ(Stats().requested_bytes, 0);
  EXPECT_EQ(Stats().num_frees, 1);
  EXPECT_STREQ(
      hbm_policy(a_),
      "on_demand:memory_fraction=1,preallocate=false,memory_limit=64MiB,stream_mode=single");
}

TEST_F(CApi, ZeroBytesAreNullAndOk) {
  void* block = &block;
  EXPECT_EQ(hbm_allocate(a_, 0, 0, nullptr, &block), HBM_OK);
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(hbm_deallocate(a_, nullptr, nullptr), HBM_OK);
}

TEST_F(CApi, OptionsSayAlignmentAndTag) {
  hbm_allocate_options options = HBM_INIT(hbm_allocate_options);
  options.bytes = 1000;
  options.alignment = 4096;
  options.tag = hbm_register_tag("weights of the C test");
  void* block = nullptr;
  ASSERT_EQ(hbm_allocate_ex(a_, &options, &block), HBM_OK) << hbm_last_error();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 4096, 0u);
  hbm_block_info info = HBM_INIT(hbm_block_info);
  ASSERT_EQ(hbm_describe(a_, static_cast<char*>(block) + 999, &info), HBM_OK) << hbm_last_error();
  EXPECT_EQ(info.address, block);
  EXPECT_EQ(info.requested_bytes, 1000u);
  EXPECT_EQ(info.tag, options.tag);
  EXPECT_EQ(hbm_deallocate(a_, block, HBM_STREAM_SYNCHRONIZED), HBM_OK);
  EXPECT_EQ(hbm_describe(a_, block, &info), HBM_NOT_FOUND);
}

TEST_F(CApi, OutOfMemoryHasACauseAndAReport) {
  void* block = &block;
  EXPECT_EQ(hbm_allocate(a_, 65 * kMiB, 0, nullptr, &block), HBM_RESOURCE_EXHAUSTED);
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(hbm_last_oom_cause(), HBM_OOM_LIMIT);
  EXPECT_NE(std::string(hbm_last_error()).find("65"), std::string::npos) << hbm_last_error();
  EXPECT_EQ(hbm_allocate(a_, 1, 3, nullptr, &block), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_last_oom_cause(), HBM_OOM_NONE);
}

TEST_F(CApi, TrimAndLimitMoveThePool) {
  void* const block = Allocate(8 * kMiB);
  EXPECT_EQ(hbm_deallocate(a_, block, nullptr), HBM_OK);
  ASSERT_GE(Stats().pool_bytes, static_cast<std::int64_t>(8 * kMiB));
  hbm_trim_result result = HBM_INIT(hbm_trim_result);
  ASSERT_EQ(hbm_trim(a_, nullptr, &result), HBM_OK) << hbm_last_error();
  EXPECT_GE(result.released, 8 * kMiB);
  EXPECT_EQ(Stats().pool_bytes, 0);
  EXPECT_EQ(hbm_trim(a_, nullptr, nullptr), HBM_OK);
  EXPECT_EQ(hbm_set_memory_limit(a_, 4 * kMiB), HBM_OK) << hbm_last_error();
  void* more = nullptr;
  EXPECT_EQ(hbm_allocate(a_, 6 * kMiB, 0, nullptr, &more), HBM_RESOURCE_EXHAUSTED);
}

TEST_F(CApi, SnapshotsAreWritten) {
  void* const block = Allocate(kMiB);
  const std::string path = ::testing::TempDir() + "c_api_snapshot";
  const auto text = [&](std::int32_t format) {
    EXPECT_EQ(hbm_write_snapshot(a_, path.c_str(), format), HBM_OK) << hbm_last_error();
    std::stringstream read;
    read << std::ifstream(path).rdbuf();
    return read.str();
  };
  EXPECT_EQ(text(HBM_SNAPSHOT_JSON).front(), '{');
  EXPECT_EQ(text(HBM_SNAPSHOT_PYTORCH_PICKLE).front(), '\x80');
  EXPECT_NE(text(HBM_SNAPSHOT_PROMETHEUS).find("# HELP"), std::string::npos);
  EXPECT_EQ(hbm_write_snapshot(a_, path.c_str(), 3), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_write_snapshot(a_, "/no such folder/file", 0), HBM_UNAVAILABLE);
  EXPECT_NE(std::string(hbm_last_error()).find("/no such folder/file"), std::string::npos);
  EXPECT_EQ(hbm_deallocate(a_, block, nullptr), HBM_OK);
}

struct Cache {
  hbm_allocator* allocator;
  void* block;
  int calls;
};

TEST_F(CApi, CallbacksAreCalledWithTheirContext) {
  Cache cache = {a_, Allocate(40 * kMiB), 0};
  const hbm_low_memory_function evict = [](const hbm_low_memory* low, void* context) {
    Cache& kept = *static_cast<Cache*>(context);
    EXPECT_EQ(low->struct_size, sizeof(hbm_low_memory));
    EXPECT_EQ(low->bytes, 50 * kMiB);
    ++kept.calls;
    const bool freed = kept.block != nullptr;
    EXPECT_EQ(hbm_deallocate(kept.allocator, kept.block, nullptr), HBM_OK);
    kept.block = nullptr;
    return freed ? 1 : 0;
  };
  ASSERT_EQ(hbm_set_low_memory_callback(a_, evict, &cache), HBM_OK);
  std::vector<int> kinds;
  const hbm_event_function note = [](const hbm_event* event, void* context) {
    static_cast<std::vector<int>*>(context)->push_back(event->kind);
  };
  ASSERT_EQ(hbm_set_event_callback(a_, note, &kinds), HBM_OK);
  ASSERT_EQ(hbm_trim(a_, nullptr, nullptr), HBM_OK);
  void* block = nullptr;
  (void)hbm_allocate(a_, 50 * kMiB, 0, nullptr, &block);
  EXPECT_GE(cache.calls, 1);
  EXPECT_EQ(cache.block, nullptr);
  ASSERT_GE(kinds.size(), 2u);
  EXPECT_EQ(kinds.front(), HBM_EVENT_TRIM);
  ASSERT_EQ(hbm_set_event_callback(a_, nullptr, nullptr), HBM_OK);
  ASSERT_EQ(hbm_set_low_memory_callback(a_, nullptr, nullptr), HBM_OK);
  const std::size_t before = kinds.size();
  EXPECT_EQ(hbm_deallocate(a_, block, nullptr), HBM_OK);
  EXPECT_EQ(kinds.size(), before);
}

TEST_F(CApi, NullAndWildArgumentsAreRefused) {
  void* block = nullptr;
  EXPECT_EQ(hbm_allocate(nullptr, 1, 0, nullptr, &block), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_allocate(a_, 1, 0, nullptr, nullptr), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_allocate_ex(a_, nullptr, &block), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_allocator_create("bfc", "host:64MiB", nullptr), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_get_stats(a_, nullptr), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_get_fragmentation(a_, nullptr), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_describe(a_, &block, nullptr), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_write_snapshot(a_, nullptr, 0), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_begin_capture_pool(a_, nullptr, nullptr), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_end_capture_pool(a_, 77), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_deallocate(a_, &block, nullptr), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_device_memory("host", nullptr, nullptr), HBM_INVALID_ARGUMENT);
  hbm_allocate_options options = HBM_INIT(hbm_allocate_options);
  options.flags = 8;
  EXPECT_EQ(hbm_allocate_ex(a_, &options, &block), HBM_INVALID_ARGUMENT);
  options.flags = 0;
  options.max_wait_ns = -2;
  EXPECT_EQ(hbm_allocate_ex(a_, &options, &block), HBM_INVALID_ARGUMENT);
  EXPECT_STREQ(hbm_status_name(-5), "no status of this library");
  EXPECT_STREQ(hbm_status_name(HBM_DATA_LOSS), "data loss");
  EXPECT_EQ(hbm_register_tag(nullptr), 0u);
}

TEST(CApiCreate, BadNamesAreExplained) {
  hbm_allocator* a = nullptr;
  EXPECT_EQ(hbm_allocator_create("bfc:memory_fractoin=1", "host", &a), HBM_INVALID_ARGUMENT);
  EXPECT_NE(std::string(hbm_last_error()).find("memory_fractoin"), std::string::npos);
  EXPECT_EQ(hbm_allocator_create("bfc", "toaster", &a), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(a, nullptr);
}

TEST(CApiCreate, ADestroyedAllocatorIsRefused) {
  hbm_allocator* a = nullptr;
  ASSERT_EQ(hbm_allocator_create("bfc", "sim:1GiB", &a), HBM_OK) << hbm_last_error();
  EXPECT_EQ(hbm_allocator_destroy(a), HBM_OK);
  void* block = nullptr;
  EXPECT_EQ(hbm_allocate(a, 1, 0, nullptr, &block), HBM_INVALID_ARGUMENT);
  EXPECT_EQ(hbm_allocator_destroy(a), HBM_INVALID_ARGUMENT);
  EXPECT_STREQ(hbm_policy(a), "");
  EXPECT_EQ(hbm_allocator_destroy(nullptr), HBM_OK);
}

// A caller that was compiled with an older or a newer header.
TEST_F(CApi, StructsOfOtherVersionsWork) {
  struct Older {
    std::size_t struct_size;
    std::int64_t num_allocs;
    std::int64_t canary;
  } older = {2 * sizeof(std::size_t), -1, -1};
  ASSERT_EQ(hbm_get_stats(a_, reinterpret_cast<hbm_stats*>(&older)), HBM_OK);
  EXPECT_EQ(older.num_allocs, 0);
  EXPECT_EQ(older.canary, -1);

  struct Newer {
    hbm_stats stats;
    std::int64_t added;
  } newer = {};
  newer.stats.struct_size = sizeof(Newer);
  newer.added = -1;
  ASSERT_EQ(hbm_get_stats(a_, &newer.stats), HBM_OK);
  EXPECT_EQ(newer.added, 0);
  EXPECT_EQ(newer.stats.struct_size, sizeof(Newer));

  struct NewerOptions {
    hbm_allocate_options options;
    std::uint64_t added;
  } options = {};
  options.options.struct_size = sizeof(NewerOptions);
  options.options.bytes = 1;
  void* block = nullptr;
  EXPECT_EQ(hbm_allocate_ex(a_, &options.options, &block), HBM_OK) << hbm_last_error();
  EXPECT_EQ(hbm_deallocate(a_, block, nullptr), HBM_OK);
  options.added = 1;
  EXPECT_EQ(hbm_allocate_ex(a_, &options.options, &block), HBM_INVALID_ARGUMENT);
  hbm_stats unset = {};
  EXPECT_EQ(hbm_get_stats(a_, &unset), HBM_INVALID_ARGUMENT);
}

}  // namespace
