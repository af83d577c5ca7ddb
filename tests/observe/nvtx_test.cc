// SPDX-License-Identifier: Apache-2.0
//
// With a profiler attached, calls are ranges; with one that cannot be loaded, or with
// none, nothing changes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "hbmalloc/hbmalloc.h"

namespace hbm {
namespace {

void AllocateAndExit(const char* library, const std::string& log) {
  setenv("NVTX_INJECTION64_PATH", library, 1);
  setenv("HBMALLOC_NVTX_LOG", log.c_str(), 1);
  const auto allocator = MakeAllocator(*ParsePolicy("bfc"), *OpenDevice("sim:1GiB"));
  void* const block = *(*allocator)->Allocate(1000);
  const bool freed = (*allocator)->Deallocate(block).ok();
  const bool trimmed = (*allocator)->Trim().ok();
  std::exit(freed && trimmed ? 0 : 1);
}

std::string RangesWith(const char* library) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  // The test's own: others run at the same time.
  const std::string log = std::string(::testing::TempDir()) + "/hbm_nvtx_" +
                          ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".log";
  std::remove(log.c_str());
  EXPECT_EXIT(AllocateAndExit(library, log), ::testing::ExitedWithCode(0), "");
  std::stringstream text;
  text << std::ifstream(log).rdbuf();
  std::remove(log.c_str());
  return text.str();
}

#ifdef HBMALLOC_NVTX_INJECTION
TEST(NvtxDeathTest, CallsAreRangesOfOneDomain) {
  EXPECT_EQ(RangesWith(HBMALLOC_NVTX_INJECTION),
            "domain hbmalloc\npush allocate\npop \npush free\npop \npush trim\npop \n");
}
#endif

TEST(NvtxDeathTest, AProfilerThatCannotBeLoadedChangesNothing) {
  EXPECT_EQ(RangesWith("/no/such/profiler.so"), "");
  EXPECT_EQ(RangesWith(""), "");
}

}  // namespace
}  // namespace hbm
