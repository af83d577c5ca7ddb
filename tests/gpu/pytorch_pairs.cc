// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's CUDA caching allocator from C++, by the same requests as gpu_bench.
// run.sh builds it where PyTorch is.
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <cstdio>

#include "pairs.h"

int main() {
  namespace caching = c10::cuda::CUDACachingAllocator;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::fprintf(stderr, "no usable GPU\n");
    return 1;
  }
  cudaSetDevice(0);
  caching::init(count);
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const hbm::testing::PairCosts costs = hbm::testing::MeasurePairs(
      [&](std::size_t bytes) { return caching::raw_alloc_with_stream(bytes, stream); },
      [](void* block) { caching::raw_delete(block); });
  std::printf("%-40s %14.1f %14.1f\n", "PyTorch's caching allocator", costs.one_block,
              costs.many_blocks);
  return 0;
}
