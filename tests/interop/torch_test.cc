// SPDX-License-Identifier: Apache-2.0
//
// The functions that PyTorch and CuPy call, over the host's memory: what PyTorch does with
// them is checked on a GPU by tests/gpu/pytorch_test.py.
#include "hbmalloc/torch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "gtest/gtest.h"
#include "interop/torch_devices.h"

namespace {

constexpr std::ptrdiff_t kMiB = 1 << 20;
void* const kStream = reinterpret_cast<void*>(std::uintptr_t{0x30});

class Torch : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("HBMALLOC_POLICY", "on_demand:memory_fraction=1", 1);
    hbm::interop::SetDeviceSpecForTest("host:64MiB");
  }
  static hbm_stats Stats(int device = 0) {
    hbm_stats stats = HBM_INIT(hbm_stats);
    EXPECT_EQ(hbm_get_stats(hbm_torch_allocator(device), &stats), HBM_OK) << hbm_last_error();
    return stats;
  }
};

TEST_F(Torch, DevicesHaveAllocatorsOfTheirOwn) {
  void* const a = hbm_torch_allocate(kMiB, 0, kStream);
  void* const b = hbm_torch_allocate(2 * kMiB, 3, kStream);
  std::memset(a, 1, kMiB);
  std::memset(b, 2, 2 * kMiB);
  EXPECT_EQ(Stats(0).requested_bytes, kMiB);
  EXPECT_EQ(Stats(3).requested_bytes, 2 * kMiB);
  std::size_t bytes = 0;
  EXPECT_EQ(hbm_torch_base_allocation(static_cast<char*>(b) + 77, &bytes), b);
  EXPECT_GE(bytes, static_cast<std::size_t>(2 * kMiB));
  EXPECT_EQ(hbm_torch_base_allocation(&bytes, nullptr), nullptr);
  hbm_torch_record_stream(a, kStream);
  hbm_torch_record_stream(nullptr, kStream);
  hbm_torch_free(a, kMiB, 0, kStream);
  hbm_torch_free(b, 2 * kMiB, 3, kStream);
  hbm_torch_free(nullptr, 0, 3, kStream);
  EXPECT_EQ(Stats(3).requested_bytes, 0);
  EXPECT_EQ(hbm_torch_allocate(0, 0, kStream), nullptr);
}

TEST_F(Torch, WithoutAPolicyItIsTheOneOfThePages) {
  unsetenv("HBMALLOC_POLICY");
  hbm_allocator* const allocator = hbm_torch_allocator(5);
  setenv("HBMALLOC_POLICY", "on_demand:memory_fraction=1", 1);
  ASSERT_NE(allocator, nullptr) << hbm_last_error();
  const std::string policy = hbm_policy(allocator);
  EXPECT_EQ(policy.rfind("elastic:", 0), 0U) << policy;
  for (const char* part : {"memory_fraction=1", "slack=0.04", "reuse_wait=100ms"}) {
    EXPECT_NE(policy.find(part), std::string::npos) << policy;
  }
}

TEST_F(Torch, FailuresThrowWhatPyTorchShows) {
  try {
    (void)hbm_torch_allocate(100 * kMiB, 0, kStream);
    FAIL() << "no exception";
  } catch (const std::exception& error) {
    EXPECT_EQ(std::string(error.what()).find("CUDA out of memory"), 0u) << error.what();
    EXPECT_NE(std::string(error.what()).find("100 MiB"), std::string::npos) << error.what();
  }
  EXPECT_THROW((void)hbm_torch_allocate(1, -1, kStream), std::exception);
  EXPECT_THROW((void)hbm_torch_allocate(1, 100000, kStream), std::exception);
  EXPECT_THROW(hbm_torch_set_memory_fraction(1.5, 0), std::exception);
  EXPECT_EQ(hbm_torch_allocator(-1), nullptr);
}

TEST_F(Torch, EmptyCacheAndFractionReachTheAllocator) {
  hbm_torch_free(hbm_torch_allocate(8 * kMiB, 5, kStream), 8 * kMiB, 5, kStream);
  EXPECT_GE(Stats(5).pool_bytes, 8 * kMiB);
  hbm_torch_empty_cache();
  EXPECT_EQ(Stats(5).pool_bytes, 0);
  hbm_torch_set_memory_fraction(0.125, 5);
  EXPECT_EQ(Stats(5).bytes_limit, 8 * kMiB);
}

TEST_F(Torch, AGraphsMemoryIsKeptUntilItsPoolIsReleased) {
  const hbm_torch_pool pool{0, 1};
  EXPECT_THROW(hbm_torch_begin_allocate_to_pool(0, pool, {}), std::exception);
  hbm_torch_set_current_stream_function([](int) { return kStream; });
  hbm_torch_begin_allocate_to_pool(0, pool, [](void*) { return true; });
  void* const block = hbm_torch_allocate(kMiB, 0, kStream);
  hbm_torch_end_allocate_to_pool(0, pool);
  hbm_torch_free(block, kMiB, 0, kStream);
  void* const other = hbm_torch_allocate(kMiB, 0, kStream);
  EXPECT_NE(other, block);
  hbm_torch_free(other, kMiB, 0, kStream);
  hbm_torch_release_pool(0, pool);
  hbm_torch_release_pool(0, pool);
  EXPECT_EQ(Stats(0).pending_bytes, 0);
}

TEST_F(Torch, CuPyGetsNullAndAReason) {
  void* const block = hbm_cupy_malloc(nullptr, kMiB, 0);
  ASSERT_NE(block, nullptr);
  hbm_cupy_free(nullptr, block, 0);
  EXPECT_EQ(hbm_cupy_malloc(nullptr, 100 * kMiB, 0), nullptr);
  EXPECT_EQ(hbm_last_oom_cause(), HBM_OOM_LIMIT);
}

TEST_F(Torch, AForkedChildIsToldSoAndFreesNothing) {
  void* const block = hbm_torch_allocate(kMiB, 0, kStream);
  const pid_t child = fork();
  if (child == 0) {
    hbm_torch_free(block, kMiB, 0, kStream);
    const bool told =
        hbm_torch_allocator(0) == nullptr && std::strstr(hbm_last_error(), "forked") != nullptr;
    try {
      (void)hbm_torch_allocate(1, 0, kStream);
    } catch (const std::exception&) {
      _exit(told ? 0 : 1);
    }
    _exit(2);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Stats(0).requested_bytes, kMiB);
  hbm_torch_free(block, kMiB, 0, kStream);
}

}  // namespace
