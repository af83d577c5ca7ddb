// SPDX-License-Identifier: Apache-2.0
//
// File: kernels.h
//
// Kernels that write and check a pattern, that copy, and one that takes its time.
//
//   FillPattern(block, words, seed, stream);
//   CheckPattern(block, words, seed, mismatches, stream);   // adds to *mismatches
#ifndef HBMALLOC_TESTS_GPU_KERNELS_H_
#define HBMALLOC_TESTS_GPU_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace hbm::testing {

void FillPattern(void* block, std::size_t words, std::uint32_t seed, cudaStream_t stream);
void CheckPattern(const void* block, std::size_t words, std::uint32_t seed,
                  unsigned long long* mismatches, cudaStream_t stream);
// Both blocks and `bytes` are multiples of 16 bytes.
void CopyBlock(void* to, const void* from, std::size_t bytes, cudaStream_t stream);
// Keeps the stream busy for about this long.
void Spin(long long nanoseconds, cudaStream_t stream);

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_GPU_KERNELS_H_
