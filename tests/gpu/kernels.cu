// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

namespace hbm::testing {
namespace {

__device__ std::uint32_t Word(std::size_t at, std::uint32_t seed) {
  return static_cast<std::uint32_t>(at) * 2654435761u ^ seed;
}

__global__ void Fill(std::uint32_t* block, std::size_t words, std::uint32_t seed) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    block[i] = Word(i, seed);
  }
}

__global__ void Check(const std::uint32_t* block, std::size_t words, std::uint32_t seed,
                      unsigned long long* mismatches) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    if (block[i] != Word(i, seed)) atomicAdd(mismatches, 1ULL);
  }
}

__global__ void Copy(uint4* to, const uint4* from, std::size_t count) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    to[i] = from[i];
  }
}

__global__ void SpinFor(long long nanoseconds) {
  unsigned long long start;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  for (unsigned long long now = start;
       now - start < static_cast<unsigned long long>(nanoseconds);) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  }
}

}  // namespace

void FillPattern(void* block, std::size_t words, std::uint32_t seed, cudaStream_t stream) {
  Fill<<<32, 256, 0, stream>>>(static_cast<std::uint32_t*>(block), words, seed);
}

void CheckPattern(const void* block, std::size_t words, std::uint32_t seed,
                  unsigned long long* mismatches, cudaStream_t stream) {
  Check<<<32, 256, 0, stream>>>(static_cast<const std::uint32_t*>(block), words, seed, mismatches);
}

void CopyBlock(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  Copy<<<132 * 16, 512, 0, stream>>>(static_cast<uint4*>(to), static_cast<const uint4*>(from),
                                     bytes / sizeof(uint4));
}

void Spin(long long nanoseconds, cudaStream_t stream) { SpinFor<<<1, 1, 0, stream>>>(nanoseconds); }

}  // namespace hbm::testing
