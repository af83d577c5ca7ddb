// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "tests/examples/runtime/kernels.h"

namespace runtime {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 264;

__global__ void FillKernel(float* out, std::size_t count, float value) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    out[i] = value;
  }
}

__global__ void AddOneKernel(const float* in, float* out, std::size_t count) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    out[i] = in[i] + 1;
  }
}

__global__ void SumKernel(const float* in, std::size_t count, double* sum) {
  double part = 0;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    part += in[i];
  }
  atomicAdd(sum, part);
}

class GpuKernels final : public Kernels {
 public:
  GpuKernels() {
    for (cudaStream_t& stream : streams_) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
  }
  ~GpuKernels() override {
    cudaDeviceSynchronize();
    cudaEventDestroy(event_);
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }
  void* stream(int number) override { return streams_[number]; }
  void WaitForOther(int waiter, int other) override {
    cudaEventRecord(event_, streams_[other]);
    cudaStreamWaitEvent(streams_[waiter], event_, 0);
  }
  void Fill(float* out, std::size_t count, float value) override {
    FillKernel<<<kBlocks, kThreads, 0, streams_[0]>>>(out, count, value);
  }
  void AddOne(const float* in, float* out, std::size_t count) override {
    AddOneKernel<<<kBlocks, kThreads, 0, streams_[0]>>>(in, out, count);
  }
  void Sum(const float* in, std::size_t count, double* sum) override {
    cudaMemsetAsync(sum, 0, sizeof(double), streams_[1]);
    SumKernel<<<kBlocks, kThreads, 0, streams_[1]>>>(in, count, sum);
  }
  double Read(const double* value) override {
    double read = -1;  // no sum is: what a failed copy leaves
    cudaMemcpyAsync(&read, value, sizeof(read), cudaMemcpyDeviceToHost, streams_[1]);
    cudaStreamSynchronize(streams_[1]);
    return read;
  }

 private:
  cudaStream_t streams_[2] = {};
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::unique_ptr<Kernels> MakeGpuKernels() { return std::make_unique<GpuKernels>(); }

}  // namespace runtime
