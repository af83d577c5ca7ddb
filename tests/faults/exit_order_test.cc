// SPDX-License-Identifier: Apache-2.0
//
// The end of a process: the driver shuts down before static objects die, and before
// threads that still run. Nothing crashes, hangs or prints.
#if defined(HBMALLOC_HAVE_CUDA)

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "sources/cuda/cuda_device.h"
#include "tests/support/fake_driver.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr const char* kPolicies[] = {"bfc",
                                     "on_demand",
                                     "platform",
                                     "elastic",
                                     "cuda_async",
                                     "bfc:memory_kind=unified",
                                     "platform:memory_kind=pinned_host"};

FakeDriver* the_driver = nullptr;

// Dies when the process ends, after everything that was registered later.
struct AtTheEnd {
  std::vector<std::unique_ptr<Allocator>> allocators;
  std::vector<std::pair<Allocator*, void*>> live;
  ~AtTheEnd() {
    for (const auto& [allocator, block] : live) {
      if (block != nullptr) allocator->Deallocate(block).IgnoreError();
      allocator->TryAllocate(kMiB);
      allocator->Trim().IgnoreError();
    }
    allocators.clear();
  }
};

void FillWithAllocators(AtTheEnd* objects) {
  for (const char* policy : kPolicies) {
    Policy parsed = *ParsePolicy(policy);
    parsed.memory_limit = 16 * kMiB;
    auto device = sources::OpenCudaDevice("cuda:0", the_driver->table());
    auto made = MakeAllocator(parsed, *device);
    if (!made.ok()) std::abort();
    AllocateOptions options;
    options.stream = the_driver->CreateStream();
    Allocator& allocator = **made;
    objects->live.emplace_back(&allocator, allocator.TryAllocate(kMiB, options));
    allocator.TryAllocate(kMiB);  // still live at the end
    allocator.Deallocate(allocator.TryAllocate(kMiB)).IgnoreError();
    objects->allocators.push_back(*std::move(made));
  }
}

// Static objects die after the driver.
void ExitAfterShutdown(CUresult result, bool from_thread) {
  the_driver = new FakeDriver;
  static CUresult the_result;
  the_result = result;
  static AtTheEnd objects;
  std::atexit([] { the_driver->FailEverything(the_result); });
  FillWithAllocators(&objects);
  if (from_thread) {
    std::thread([] { std::exit(0); }).join();
  }
  std::exit(0);
}

TEST(ExitOrderDeathTest, StaticObjectsOutliveTheDriverQuietly) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const CUresult result : {CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
    EXPECT_EXIT(ExitAfterShutdown(result, false), ::testing::ExitedWithCode(0),
                ::testing::Eq(std::string()));
    EXPECT_EXIT(ExitAfterShutdown(result, true), ::testing::ExitedWithCode(0),
                ::testing::Eq(std::string()));
  }
}

}  // namespace
}  // namespace hbm::testing

#endif  // HBMALLOC_HAVE_CUDA
