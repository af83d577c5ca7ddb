// SPDX-License-Identifier: Apache-2.0
//
// What the library takes for granted about the driver. A failure here means that a
// proof in the sources no longer holds.
#include <cuda.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "sources/cuda/driver.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/kernels.h"

namespace hbm::testing {
namespace {

class GpuFactsTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    cudaFree(nullptr);
    driver_ = *sources::cuda::LoadDriver();
  }
  // Whether a capture in global mode outlives the call, made in relaxed mode.
  bool CaptureOutlives(const std::function<void()>& call) const {
    const Stream stream;
    EXPECT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver_->ThreadExchangeStreamCaptureMode(&mode);
    call();
    driver_->ThreadExchangeStreamCaptureMode(&mode);
    cudaGraph_t graph = nullptr;
    const bool outlived = cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess;
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    return outlived;
  }
  const sources::cuda::Driver* driver_ = nullptr;
};

// A destroyed stream's handle may come back for the next one while its work still runs;
// its id does not. So streams are told apart by id, asked for in every call.
TEST_F(GpuFactsTest, AStreamsIdDoesNotComeBack) {
  int came_back = 0;
  int while_it_ran = 0;
  for (int round = 0; round < 100; ++round) {
    cudaStream_t old = nullptr;
    cudaStreamCreateWithFlags(&old, cudaStreamNonBlocking);
    unsigned long long old_id = 0;
    ASSERT_EQ(driver_->StreamGetId(old, &old_id), CUDA_SUCCESS);
    cudaEvent_t done = nullptr;
    cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    Spin(3'000'000, old);
    cudaEventRecord(done, old);
    cudaStreamDestroy(old);
    cudaStream_t next = nullptr;
    cudaStreamCreateWithFlags(&next, cudaStreamNonBlocking);
    unsigned long long next_id = 0;
    ASSERT_EQ(driver_->StreamGetId(next, &next_id), CUDA_SUCCESS);
    EXPECT_NE(next_id, old_id);
    if (next == old) {
      ++came_back;
      while_it_ran += cudaEventQuery(done) == cudaErrorNotReady ? 1 : 0;
    }
    cudaStreamDestroy(next);
    cudaDeviceSynchronize();
    cudaEventDestroy(done);
    cudaGetLastError();
  }
  std::printf("%d of 100 handles came back, %d of them while the old stream's work ran\n",
              came_back, while_it_ran);
}

// And with the allocator: what was freed on a stream that is gone is not given to the
// next one that has its handle before the old one's work is done.
TEST_F(GpuFactsTest, ARecycledHandleIsGivenNothingThatIsInUse) {
  for (const char* policy : {"bfc:memory_limit=64MiB", "elastic:memory_limit=64MiB"}) {
    auto allocator = Make(policy);
    ASSERT_NE(allocator, nullptr);
    const SharedCount mismatches;
    constexpr std::size_t kBytes = std::size_t{8} << 20;
    for (std::uint32_t round = 0; round < 20; ++round) {
      cudaStream_t old = nullptr;
      cudaStreamCreateWithFlags(&old, cudaStreamNonBlocking);
      AllocateOptions options;
      options.stream = StreamRef::FromHandle(old);
      const absl::StatusOr<void*> taken = allocator->Allocate(kBytes, options);
      ASSERT_TRUE(taken.ok()) << policy << ": " << taken.status();
      void* const first = *taken;
      Spin(3'000'000, old);
      FillPattern(first, kBytes / 4, 2 * round, old);
      ASSERT_TRUE(allocator->Deallocate(first).ok());
      cudaStreamDestroy(old);
      cudaStream_t next = nullptr;
      cudaStreamCreateWithFlags(&next, cudaStreamNonBlocking);
      options.stream = StreamRef::FromHandle(next);
      const absl::StatusOr<void*> again = allocator->Allocate(kBytes, options);
      ASSERT_TRUE(again.ok()) << policy << ": " << again.status();
      void* const second = *again;
      FillPattern(second, kBytes / 4, 2 * round + 1, next);
      Spin(6'000'000, next);
      CheckPattern(second, kBytes / 4, 2 * round + 1, mismatches.get(), next);
      ASSERT_TRUE(allocator->Deallocate(second).ok());
      cudaDeviceSynchronize();
      cudaStreamDestroy(next);
    }
    EXPECT_EQ(mismatches.value(), 0U) << policy;
  }
}

TEST_F(GpuFactsTest, WhatIsCalledInACaptureDoesNotSpoilIt) {
  const Stream other;
  CUevent event = nullptr;
  ASSERT_EQ(driver_->EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(driver_->EventRecord(event, other.get()), CUDA_SUCCESS);
  cudaDeviceSynchronize();
  CUdeviceptr block = 0;
  const auto ok = [](CUresult result) { EXPECT_EQ(result, CUDA_SUCCESS); };
  EXPECT_TRUE(CaptureOutlives([&] { ok(driver_->EventQuery(event)); }));
  EXPECT_TRUE(CaptureOutlives([&] { ok(driver_->EventSynchronize(event)); }));
  EXPECT_TRUE(CaptureOutlives([&] { ok(driver_->EventRecord(event, other.get())); }));
  EXPECT_TRUE(CaptureOutlives([&] { ok(driver_->StreamQuery(other.get())); }));
  EXPECT_TRUE(CaptureOutlives([&] { ok(driver_->StreamSynchronize(other.get())); }));
  EXPECT_TRUE(CaptureOutlives([&] { ok(driver_->MemAlloc(&block, 4 << 20)); }));
  EXPECT_TRUE(CaptureOutlives([&] { ok(driver_->MemFree(block)); }));
  EXPECT_TRUE(CaptureOutlives([&] {
    CUstreamCaptureStatus status;
    unsigned long long id = 0;
    driver_->StreamIsCapturing(nullptr, &status);
    ok(driver_->StreamGetId(other.get(), &id));
  }));
  // On a stream that is not captured.
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  ok(driver_->MemPoolCreate(&pool, &properties));
  EXPECT_TRUE(CaptureOutlives(
      [&] { ok(driver_->MemAllocFromPoolAsync(&block, 4 << 20, pool, other.get())); }));
  EXPECT_TRUE(CaptureOutlives([&] { ok(driver_->MemFreeAsync(block, other.get())); }));
  EXPECT_TRUE(CaptureOutlives([&] { ok(driver_->MemPoolTrimTo(pool, 0)); })) << "trim";
  EXPECT_TRUE(CaptureOutlives([&] {
    cuuint64_t value = 0;
    ok(driver_->MemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
  })) << "attribute";
  EXPECT_TRUE(CaptureOutlives([&] {
    EXPECT_NE(driver_->MemAllocFromPoolAsync(&block, std::size_t{1} << 42, pool, other.get()),
              CUDA_SUCCESS);
  })) << "a request that fails";
  ok(driver_->MemPoolDestroy(pool));
  EXPECT_EQ(driver_->EventDestroy(event), CUDA_SUCCESS);
}

// "cuMemFree of what cuMemAlloc gave waits for the work on every stream", on which
// platform relies; to unmap does not.
TEST_F(GpuFactsTest, MemFreeWaitsForKernels) {
  const Stream stream;
  for (int round = 0; round < 5; ++round) {
    CUdeviceptr block = 0;
    ASSERT_EQ(driver_->MemAlloc(&block, 4 << 20), CUDA_SUCCESS);
    cudaEvent_t done = nullptr;
    cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    Spin(40'000'000, stream.get());
    cudaEventRecord(done, stream.get());
    EXPECT_EQ(cudaEventQuery(done), cudaErrorNotReady);
    EXPECT_EQ(driver_->MemFree(block), CUDA_SUCCESS);
    EXPECT_EQ(cudaEventQuery(done), cudaSuccess);
    cudaEventDestroy(done);
    cudaGetLastError();
  }
}

// When a pool sees that a stream has come to a free: only then TrimTo gives it back.
TEST_F(GpuFactsTest, WhatMakesAFreeVisibleToAPool) {
  const auto ok = [](CUresult result) { EXPECT_EQ(result, CUDA_SUCCESS); };
  for (const bool legacy : {true, false}) {
    const Stream made;
    const cudaStream_t stream = legacy ? nullptr : made.get();
    for (const std::string means :
         {"nothing", "query of the stream", "query of an event", "wait for an event",
          "wait for the stream", "wait for the device"}) {
      CUmemoryPool pool = nullptr;
      CUmemPoolProps properties = {};
      properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
      properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      ok(driver_->MemPoolCreate(&pool, &properties));
      CUdeviceptr block = 0;
      ok(driver_->MemAllocFromPoolAsync(&block, 4 << 20, pool, stream));
      ok(driver_->MemFreeAsync(block, stream));
      CUevent event = nullptr;
      ok(driver_->EventCreate(&event, CU_EVENT_DISABLE_TIMING));
      ok(driver_->EventRecord(event, stream));
      if (means == "query of the stream") {
        while (driver_->StreamQuery(stream) == CUDA_ERROR_NOT_READY) {
        }
      } else if (means == "query of an event") {
        while (driver_->EventQuery(event) == CUDA_ERROR_NOT_READY) {
        }
      } else if (means == "wait for an event") {
        ok(driver_->EventSynchronize(event));
      } else if (means == "wait for the stream") {
        ok(driver_->StreamSynchronize(stream));
      } else if (means == "wait for the device") {
        ok(driver_->CtxSynchronize());
      }
      cuuint64_t before = 0;
      cuuint64_t left = 0;
      ok(driver_->MemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &before));
      ok(driver_->MemPoolTrimTo(pool, 0));
      ok(driver_->MemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &left));
      std::printf("%s stream, %s: reserved %llu MiB, %llu MiB after TrimTo(0)\n",
                  legacy ? "default" : "created", means.c_str(),
                  static_cast<unsigned long long>(before >> 20),
                  static_cast<unsigned long long>(left >> 20));
      if (means == "wait for the device") {
        EXPECT_EQ(left, 0U);
      }
      ok(driver_->EventDestroy(event));
      cudaDeviceSynchronize();
      ok(driver_->MemPoolDestroy(pool));
    }
  }
}

}  // namespace
}  // namespace hbm::testing
