// SPDX-License-Identifier: Apache-2.0
//
// What only a GPU can show of elastic: that pages which move under kernels on several
// streams lose no word, that nothing is unmapped under a kernel that still runs, and
// what a kernel's bandwidth is over memory in many handles.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/gpu/kernels.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr long long kLongKernelNanoseconds = 300'000'000;

// A source that hides when work is done: elastic without its rule.
class HastySource final : public MemorySource {
 public:
  explicit HastySource(std::shared_ptr<MemorySource> inner) : inner_(std::move(inner)) {}
  std::string_view Name() const override { return inner_->Name(); }
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override { return inner_->GetMemoryInfo(); }
  std::size_t Granularity() const override { return inner_->Granularity(); }
  absl::StatusOr<MemoryRange> AllocateRegion(std::size_t bytes) override {
    return inner_->AllocateRegion(bytes);
  }
  absl::Status ReleaseRegion(MemoryRange region) override { return inner_->ReleaseRegion(region); }
  VirtualMemory* virtual_memory() override { return inner_->virtual_memory(); }
  Timeline* timeline() override { return nullptr; }

 private:
  const std::shared_ptr<MemorySource> inner_;
};

class ElasticGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice("cuda:0");
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *device;
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    for (cudaStream_t& stream : streams_) {
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    }
  }
  void TearDown() override {
    for (cudaStream_t stream : streams_) {
      if (stream != nullptr) cudaStreamDestroy(stream);
    }
  }
  std::unique_ptr<Allocator> Make(const std::string& policy) {
    auto allocator = MakeAllocator(*ParsePolicy(policy), device_);
    EXPECT_TRUE(allocator.ok()) << allocator.status();
    return allocator.ok() ? *std::move(allocator) : nullptr;
  }
  std::unique_ptr<Allocator> MakeWithoutTheRule(const std::string& policy_text) {
    const Policy policy = *ParsePolicy(policy_text);
    auto source = std::make_shared<HastySource>(*device_->MakeSource(policy));
    auto allocator = MakeAllocator(policy, source);
    EXPECT_TRUE(allocator.ok()) << allocator.status();
    return allocator.ok() ? *std::move(allocator) : nullptr;
  }
  AllocateOptions On(std::size_t stream) const {
    AllocateOptions options;
    options.stream = StreamRef::FromHandle(streams_[stream]);
    return options;
  }

  std::shared_ptr<Device> device_;
  cudaStream_t streams_[4] = {};
};

// One word of memory that kernels count in and the host reads.
class Counter {
 public:
  Counter() {
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocManaged(&memory, sizeof(unsigned long long), cudaMemAttachGlobal),
              cudaSuccess);
    count_ = static_cast<unsigned long long*>(memory);
    *count_ = 0;
  }
  ~Counter() { cudaFree(count_); }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;
  unsigned long long* get() { return count_; }

 private:
  unsigned long long* count_;
};

TEST_F(ElasticGpuTest, NoWordIsLostWhilePagesMoveUnderFourStreams) {
  struct Block {
    void* address;
    std::size_t words;
    std::uint32_t seed;
    std::size_t stream;
  };
  auto allocator = Make("elastic:memory_limit=64MiB,slack=0");
  ASSERT_NE(allocator, nullptr);
  std::atomic<int> moved{0};
  ASSERT_TRUE(allocator
                  ->SetRegionCallback([&](const RegionChange& change) {
                    if (change.kind == RegionChange::Kind::kUnmapping) ++moved;
                    return true;
                  })
                  .ok());
  Counter wrong;
  std::mt19937 random(7);
  std::vector<Block> live;
  std::size_t live_bytes = 0;
  const auto free_one = [&] {
    std::swap(live[random() % live.size()], live.back());
    const Block block = live.back();
    live.pop_back();
    live_bytes -= block.words * 4;
    CheckPattern(block.address, block.words, block.seed, wrong.get(), streams_[block.stream]);
    EXPECT_TRUE(allocator->Deallocate(block.address).ok());
  };
  int given = 0;
  for (std::uint32_t step = 0; step < 12000; ++step) {
    // Some pages each, larger by turns: what one phase scattered the next wants whole.
    const std::size_t unit = (3 * kMiB / 2) << (step / 40 % 3);
    const std::size_t words = (unit / 2 + random() % unit) / 4;
    while (!live.empty() && (live_bytes + words * 4 > 56 * kMiB || random() % 3 == 0)) free_one();
    const std::size_t stream = random() % 4;
    const auto block = allocator->Allocate(words * 4, On(stream));
    if (!block.ok()) continue;
    ++given;
    FillPattern(*block, words, step, streams_[stream]);
    if (step % 64 == 0) Spin(200'000, streams_[stream]);
    live.push_back({*block, words, step, stream});
    live_bytes += words * 4;
  }
  while (!live.empty()) free_one();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(*wrong.get(), 0U);
  EXPECT_GT(given, 6000);
  EXPECT_GT(moved, 1000);
  const Stats stats = allocator->GetStats();
  std::printf("%d blocks, %d handles moved, %lld waits of %.1f ms in all\n", given, moved.load(),
              static_cast<long long>(stats.num_waits),
              static_cast<double>(stats.wait_nanoseconds) / 1e6);
}

// A buffer is freed on one stream while a long kernel and one that writes it are still
// to come, and its pages are wanted on another. Returns what went wrong, or "".
std::string WantPagesUnderALongKernel(Allocator& allocator, cudaStream_t first, cudaStream_t second,
                                      bool* taken_early) {
  AllocateOptions on_first;
  on_first.stream = StreamRef::FromHandle(first);
  AllocateOptions on_second;
  on_second.stream = StreamRef::FromHandle(second);
  void* const buffer = allocator.TryAllocate(40 * kMiB, on_first);
  // Behind it, so that a larger block cannot begin where the buffer lies: what streams
  // share is then pages, not addresses, which one mode lets them have at once.
  void* const wall = allocator.TryAllocate(2 * kMiB, on_first);
  if (buffer == nullptr || wall == nullptr) return "no buffer";
  FillPattern(buffer, 10 * kMiB, 1, first);
  if (cudaStreamSynchronize(first) != cudaSuccess) return "the first fill failed";
  const auto start = std::chrono::steady_clock::now();
  Spin(kLongKernelNanoseconds, first);
  FillPattern(buffer, 10 * kMiB, 2, first);
  if (!allocator.Deallocate(buffer).ok()) return "the buffer was not freed";
  // It does not fit where the buffer lies, so that handles would have to move.
  void* early = allocator.TryAllocate(48 * kMiB, on_second);
  *taken_early = early != nullptr;
  const absl::StatusOr<void*> block =
      early != nullptr ? absl::StatusOr<void*>(early) : allocator.Allocate(48 * kMiB, on_second);
  const auto took = std::chrono::steady_clock::now() - start;
  if (!block.ok()) return std::string(block.status().message());
  if (took < std::chrono::nanoseconds(kLongKernelNanoseconds)) *taken_early = true;
  FillPattern(*block, 12 * kMiB, 3, second);
  Counter wrong;
  CheckPattern(*block, 12 * kMiB, 3, wrong.get(), second);
  const cudaError_t done = cudaDeviceSynchronize();
  if (done != cudaSuccess) return cudaGetErrorString(done);
  if (*wrong.get() != 0) return "words were lost";
  if (!allocator.Deallocate(*block).ok()) return "the block was not freed";
  if (!allocator.Deallocate(wall).ok()) return "the wall was not freed";
  return "";
}

constexpr char kTightPolicy[] = "elastic:memory_limit=64MiB,slack=0";

TEST_F(ElasticGpuTest, NothingIsTakenUnderALongKernel) {
  for (const char* mode : {"single", "ordered"}) {
    auto allocator = Make(std::string(kTightPolicy) + ",stream_mode=" + mode);
    ASSERT_NE(allocator, nullptr);
    bool taken_early = true;
    EXPECT_EQ(WantPagesUnderALongKernel(*allocator, streams_[0], streams_[1], &taken_early), "");
    EXPECT_FALSE(taken_early) << mode;
    EXPECT_GE(allocator->GetStats().num_waits, 1) << mode;
  }
}

// The same without the rule kills the context, so it has a process of its own.
TEST_F(ElasticGpuTest, TheSameIsSeenToGoWrongWithoutTheRule) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto allocator = MakeWithoutTheRule(kTightPolicy);
        bool taken_early = false;
        const std::string wrong =
            WantPagesUnderALongKernel(*allocator, streams_[0], streams_[1], &taken_early);
        std::fprintf(stderr, "taken early: %d, then: %s\n", taken_early, wrong.c_str());
        std::_Exit(taken_early && !wrong.empty() ? 3 : 0);
      },
      ::testing::ExitedWithCode(3), "taken early: 1");
}

// Gigabytes per second of the copy kernel, reading and writing; the best of several.
double CopyRate(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  cudaEvent_t begin;
  cudaEvent_t end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  float best = 1e30F;
  for (int i = 0; i < 12; ++i) {
    cudaEventRecord(begin, stream);
    CopyBlock(to, from, bytes, stream);
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    if (i > 1) best = std::min(best, milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return 2.0 * static_cast<double>(bytes) / (static_cast<double>(best) * 1e6);
}

// Blocks of many sizes come and go, so that the two large ones get used handles.
double CopyRateOverMovedPages(Allocator& allocator, std::size_t bytes, const AllocateOptions& on,
                              cudaStream_t stream) {
  std::mt19937 random(3);
  std::vector<void*> live;
  for (int i = 0; i < 600; ++i) {
    if (void* block = allocator.TryAllocate((1 + random() % 80) * kMiB, on)) live.push_back(block);
    if (live.size() > 100) {
      std::swap(live[random() % live.size()], live.back());
      allocator.Deallocate(live.back()).IgnoreError();
      live.pop_back();
    }
  }
  for (void* block : live) allocator.Deallocate(block).IgnoreError();
  cudaDeviceSynchronize();
  const auto from = allocator.Allocate(bytes, on);
  const auto to = allocator.Allocate(bytes, on);
  EXPECT_TRUE(from.ok() && to.ok());
  if (!from.ok() || !to.ok()) return 0;
  std::printf("  %lld handles\n", static_cast<long long>(allocator.GetStats().num_regions));
  return CopyRate(*to, *from, bytes, stream);
}

TEST_F(ElasticGpuTest, AKernelCopiesAsFastAsOverCudaMalloc) {
  constexpr std::size_t kBytes = 4096 * kMiB;
  void* from = nullptr;
  void* to = nullptr;
  ASSERT_EQ(cudaMalloc(&from, kBytes), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&to, kBytes), cudaSuccess);
  const double plain = CopyRate(to, from, kBytes, streams_[0]);
  cudaFree(from);
  cudaFree(to);
  double rate[2] = {};
  int i = 0;
  for (const char* policy : {"elastic:memory_limit=16GiB", "elastic:memory_limit=16GiB,slack=0"}) {
    auto allocator = Make(policy);
    ASSERT_NE(allocator, nullptr);
    rate[i] = CopyRateOverMovedPages(*allocator, kBytes, On(0), streams_[0]);
    std::printf("%-40s %8.0f GB/s, %.3f of cudaMalloc's %.0f GB/s\n", policy, rate[i],
                rate[i] / plain, plain);
    ++i;
  }
  EXPECT_GE(rate[0], 0.98 * plain);
}

}  // namespace
}  // namespace hbm::testing
