// SPDX-License-Identifier: Apache-2.0
//
// What only a GPU can show: the conformance suite on real memory, and real kernels
// that would see a wrong reuse.
#include <cuda_runtime_api.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/conformance/conformance_suite.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/kernels.h"

namespace hbm::testing {
namespace {

// Without a GPU the suite is empty, which is allowed.
std::vector<Subject> GpuSubjects() {
  if (!WhyNoGpu().empty()) return {};
  return Subjects(
      {"bfc:memory_limit=256MiB", "on_demand:memory_limit=256MiB", "platform:memory_limit=256MiB",
       "elastic:memory_limit=256MiB", "cuda_async:memory_limit=256MiB"},
      {{"cuda:0"}});
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ConformanceTest);
INSTANTIATE_TEST_SUITE_P(Gpu, ConformanceTest, ::testing::ValuesIn(GpuSubjects()), SubjectName);

// Thousands of blocks on four streams. Each block is filled, kept busy, checked and
// freed while that work is in flight; a reuse out of order shows as a mismatch.
unsigned long long CountMismatches(Allocator& allocator, int steps) {
  constexpr std::size_t kWords = (std::size_t{256} << 10) / 4;
  std::vector<cudaStream_t> streams(4);
  for (cudaStream_t& stream : streams) {
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  void* shared = nullptr;
  EXPECT_EQ(cudaMallocManaged(&shared, sizeof(unsigned long long), cudaMemAttachGlobal),
            cudaSuccess);
  auto* const mismatches = static_cast<unsigned long long*>(shared);
  *mismatches = 0;
  std::mt19937 random(11);
  for (int step = 0; step < steps; ++step) {
    const cudaStream_t stream = streams[random() % streams.size()];
    AllocateOptions options;
    options.stream = StreamRef::FromHandle(stream);
    const std::size_t words = random() % kWords + 64;
    void* const block = allocator.TryAllocate(words * 4, options);
    if (block == nullptr) continue;  // the pool is full: others go on
    const auto seed = static_cast<std::uint32_t>(step);
    FillPattern(block, words, seed, stream);
    if (step % 4 == 0) Spin(200'000, stream);
    CheckPattern(block, words, seed, mismatches, stream);
    EXPECT_TRUE(allocator.Deallocate(block).ok());
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const unsigned long long count = *mismatches;
  cudaFree(mismatches);
  for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
  return count;
}

TEST_F(GpuTest, FourStreamsSeeNoWrongReuse) {
  for (const char* policy :
       {"bfc:memory_limit=8MiB", "on_demand:memory_limit=8MiB", "platform:memory_limit=64MiB",
        "elastic:memory_limit=8MiB", "cuda_async:memory_limit=256MiB"}) {
    auto allocator = Make(policy);
    ASSERT_NE(allocator, nullptr);
    EXPECT_EQ(CountMismatches(*allocator, 4000), 0U) << policy;
  }
}

TEST_F(GpuTest, TheSameWorkShowsWrongReuseWithoutTheRule) {
  auto allocator = Make("bfc:memory_limit=8MiB,stream_mode=single");
  ASSERT_NE(allocator, nullptr);
  EXPECT_GT(CountMismatches(*allocator, 4000), 0U);
}

TEST_F(GpuTest, HitsDoNotSpoilACapture) {
  auto allocator = Make("bfc:memory_limit=64MiB");
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  AllocateOptions options;
  options.stream = StreamRef::FromHandle(stream);
  void* const first = allocator->TryAllocate(1 << 20, options);
  ASSERT_TRUE(allocator->Deallocate(first).ok());
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  void* const block = allocator->TryAllocate(1 << 20, options);
  ASSERT_NE(block, nullptr);
  FillPattern(block, 1 << 18, 1, stream);
  EXPECT_TRUE(allocator->Deallocate(block).ok());
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace hbm::testing
