// SPDX-License-Identifier: Apache-2.0
//
// What the library takes for granted about the driver. A failure here means that a
// proof in the sources no longer holds.
#include <cuda.h>

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

// "A handle that was destroyed can come back for a new stream only after the old
// one's work": what was freed on the old stream is then safe on the new one.
TEST_F(GpuFactsTest, AStreamsHandleDoesNotComeBackBeforeItsWorkIsDone) {
  int came_back = 0;
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
      EXPECT_EQ(cudaEventQuery(done), cudaSuccess) << "its work was still running";
    }
    cudaStreamDestroy(next);
    cudaDeviceSynchronize();
    cudaEventDestroy(done);
    cudaGetLastError();
  }
  RecordProperty("handles_that_came_back", came_back);
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
    driver_->StreamGetId(nullptr, &id);
    ok(driver_->StreamGetId(other.get(), &id));
  }));
  EXPECT_EQ(driver_->EventDestroy(event), CUDA_SUCCESS);
}

}  // namespace
}  // namespace hbm::testing
