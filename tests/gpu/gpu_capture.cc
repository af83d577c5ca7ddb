// SPDX-License-Identifier: Apache-2.0
//
// Real CUDA graphs, launched again and again beside work that would write over their
// memory if it could.
#include <cuda.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/kernels.h"

namespace hbm::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr const char* kPolicies[] = {"bfc:memory_limit=96MiB", "on_demand:memory_limit=96MiB",
                                     "platform:memory_limit=96MiB", "elastic:memory_limit=96MiB",
                                     "cuda_async:memory_limit=96MiB"};

// Null where there was none: a kernel that was given null would end the process.
void* TakeInCapture(Allocator& allocator, std::size_t bytes, cudaStream_t stream) {
  AllocateOptions options;
  options.stream = StreamRef::FromHandle(stream);
  const absl::StatusOr<void*> block = allocator.Allocate(bytes, options);
  EXPECT_TRUE(block.ok()) << block.status();
  return block.value_or(nullptr);
}
void FreeInCapture(Allocator& allocator, void* block) {
  const absl::Status freed = allocator.Deallocate(block);
  EXPECT_TRUE(freed.ok()) << freed;
}

// What a graph does: blocks that are written, checked and freed, one of them from
// before, on two streams of which the second joins.
void Work(Allocator& allocator, cudaStream_t stream, cudaStream_t side, void* before,
          unsigned long long* mismatches) {
  constexpr std::size_t kWords = kMiB / 4;
  FillPattern(before, kWords, 1, stream);
  void* const first = TakeInCapture(allocator, kMiB, stream);
  if (first == nullptr) return;
  FillPattern(first, kWords, 2, stream);
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, stream);
  cudaStreamWaitEvent(side, event, 0);
  void* const aside = TakeInCapture(allocator, 3 * kMiB, side);
  if (aside == nullptr) return;
  FillPattern(aside, 3 * kWords, 3, side);
  CheckPattern(aside, 3 * kWords, 3, mismatches, side);
  FreeInCapture(allocator, aside);
  CheckPattern(first, kWords, 2, mismatches, stream);
  FreeInCapture(allocator, first);
  void* const second = TakeInCapture(allocator, kMiB, stream);  // the same place, perhaps
  if (second == nullptr) return;
  FillPattern(second, kWords, 4, stream);
  Spin(20'000, stream);
  CheckPattern(second, kWords, 4, mismatches, stream);
  CheckPattern(before, kWords, 1, mismatches, stream);
  FreeInCapture(allocator, second);
  FreeInCapture(allocator, before);
  cudaEventRecord(event, side);
  cudaStreamWaitEvent(stream, event, 0);
  cudaEventDestroy(event);
}

// Launches it, with others writing to whatever they are given meanwhile.
void LaunchBesideOthers(Allocator& allocator, cudaGraphExec_t graph, cudaStream_t captured,
                        cudaStream_t launch, unsigned long long* mismatches) {
  std::mt19937 random(9);
  const Stream made[2];
  const cudaStream_t streams[] = {captured, made[0].get(), made[1].get()};
  for (int i = 0; i < 300; ++i) {
    const cudaStream_t stream = streams[random() % 3];
    const std::size_t words = random() % kMiB + 64;
    void* const block = GpuTake(allocator, words * 4, stream);
    if (block != nullptr) FillPattern(block, words, 100 + static_cast<std::uint32_t>(i), stream);
    if (i % 3 == 0) {
      ASSERT_EQ(cudaGraphLaunch(graph, launch), cudaSuccess);
    }
    if (block != nullptr) {
      CheckPattern(block, words, 100 + static_cast<std::uint32_t>(i), mismatches, stream);
      EXPECT_TRUE(allocator.Deallocate(block).ok());
    }
    if (i % 40 == 39) allocator.Trim().IgnoreError();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

unsigned long long MismatchesOfAGraph(Allocator& allocator, bool with_pool) {
  const SharedCount mismatches;
  const Stream stream;
  const Stream side;
  const Stream launch;
  void* const before = GpuTake(allocator, kMiB, stream.get());
  // So that all three are known before the capture.
  for (const Stream* each : {&side, &launch}) {
    EXPECT_TRUE(allocator.Deallocate(GpuTake(allocator, 4096, each->get())).ok());
  }
  CapturePool pool;
  if (with_pool) {
    const auto begun = allocator.BeginCapturePool(stream.ref());
    EXPECT_TRUE(begun.ok()) << begun.status();
    pool = begun.value_or(CapturePool{});
  }
  EXPECT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  Work(allocator, stream.get(), side.get(), before, mismatches.get());
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  if (with_pool) {
    EXPECT_TRUE(allocator.EndCapturePool(pool).ok());
  }
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  if (exec != nullptr)
    LaunchBesideOthers(allocator, exec, stream.get(), launch.get(), mismatches.get());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  if (with_pool) {
    EXPECT_TRUE(allocator.ReleaseCapturePool(pool, launch.ref()).ok());
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return mismatches.value();
}

class GpuCaptureTest : public GpuTest {};

TEST_F(GpuCaptureTest, AGraphsMemoryIsItsOwnUntilItsPoolIsReleased) {
  for (const char* policy : kPolicies) {
    auto allocator = Make(policy);
    ASSERT_NE(allocator, nullptr);
    EXPECT_EQ(MismatchesOfAGraph(*allocator, true), 0U) << policy;
    const Stats stats = allocator->GetStats();
    EXPECT_EQ(stats.requested_bytes, 0) << policy;
    EXPECT_EQ(stats.bytes_in_use, 0) << policy;
  }
}

TEST_F(GpuCaptureTest, TheSameGraphIsWrittenOverWithoutAPool) {
  auto allocator = Make("bfc:memory_limit=96MiB");
  ASSERT_NE(allocator, nullptr);
  EXPECT_GT(MismatchesOfAGraph(*allocator, false), 0U);
}

// Everything that a request may do, with other threads at work, during one capture.
TEST_F(GpuCaptureTest, NothingSpoilsACapture) {
  for (const char* policy : kPolicies) {
    for (const cudaStreamCaptureMode mode :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
      auto allocator = Make(policy);
      ASSERT_NE(allocator, nullptr);
      const Stream stream;
      const Stream other;
      const SharedCount mismatches;
      std::vector<void*> before;
      for (int i = 0; i < 8; ++i) {
        before.push_back(GpuTake(*allocator, 2 * kMiB, i % 2 == 0 ? stream.get() : other.get()));
      }
      Spin(50'000'000, other.get());
      for (std::size_t i = 0; i < 8; i += 2) allocator->Deallocate(before[i]).IgnoreError();
      for (std::size_t i = 1; i < 4; i += 2) {
        // platform waits for the stream in a free.
        allocator->Deallocate(before[i]).IgnoreError();
      }
      const absl::StatusOr<CapturePool> pool = allocator->BeginCapturePool(stream.ref());
      ASSERT_TRUE(pool.ok()) << policy << ": " << pool.status();
      ASSERT_EQ(cudaStreamBeginCapture(stream.get(), mode), cudaSuccess);
      std::atomic<bool> stop{false};
      std::thread neighbour([&] {
        cudaSetDevice(0);
        while (!stop) {
          void* const block = GpuTake(*allocator, kMiB, other.get());
          if (block != nullptr) allocator->Deallocate(block).IgnoreError();
          allocator->Trim().IgnoreError();
        }
      });
      for (int i = 0; i < 40; ++i) {  // more than there is
        void* const block = GpuTake(*allocator, 5 * kMiB, stream.get());
        if (block == nullptr) continue;
        FillPattern(block, 5 * kMiB / 4, 5, stream.get());
        if (i % 2 == 0) {
          EXPECT_TRUE(allocator->Deallocate(block).ok()) << policy;
        }
        if (i % 10 == 0) allocator->Trim().IgnoreError();
      }
      stop = true;
      neighbour.join();
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess) << policy << mode;
      cudaGraphDestroy(graph);
      cudaGetLastError();
      EXPECT_TRUE(allocator->EndCapturePool(*pool).ok());
      EXPECT_TRUE(allocator->ReleaseCapturePool(*pool, StreamRef::Synchronized()).ok());
      const LogSink sink = SetLogSink(nullptr);  // blocks are live still
      allocator.reset();
      SetLogSink(sink);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
  }
}

}  // namespace
}  // namespace hbm::testing
