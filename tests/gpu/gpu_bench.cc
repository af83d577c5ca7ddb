// SPDX-License-Identifier: Apache-2.0
//
// A few figures that need a GPU, as one small table: nanoseconds per pair of
// allocate and free, the better of five rounds.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>

#include "hbmalloc/hbmalloc.h"

namespace {

double Best(int pairs, const std::function<void()>& pair) {
  double best = 1e30;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < pairs; ++i) pair();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / pairs);
  }
  return best;
}

std::unique_ptr<hbm::Allocator> Make(const char* policy) {
  auto device = hbm::OpenDevice("cuda:0");
  if (!device.ok()) return nullptr;
  auto made = hbm::MakeAllocator(*hbm::ParsePolicy(policy), *device);
  return made.ok() ? *std::move(made) : nullptr;
}

void Row(const char* what, double nanoseconds) { std::printf("%-44s %12.1f\n", what, nanoseconds); }

}  // namespace

int main() {
  auto bfc = Make("bfc:memory_limit=1GiB");
  auto platform = Make("platform:memory_limit=1GiB");
  auto async = Make("cuda_async:memory_limit=1GiB,release_threshold=1GiB");
  if (bfc == nullptr || platform == nullptr || async == nullptr) {
    std::fprintf(stderr, "no usable GPU\n");
    return 1;
  }
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  hbm::AllocateOptions options;
  options.stream = hbm::StreamRef::FromHandle(stream);
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const auto pair = [&](hbm::Allocator& allocator) {
    return [&] { allocator.Deallocate(allocator.TryAllocate(kBytes, options)).IgnoreError(); };
  };
  cudaMemPool_t pool;
  cudaDeviceGetDefaultMemPool(&pool, 0);
  std::uint64_t threshold = std::uint64_t{1} << 30;
  cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold);
  std::printf("%-44s %12s\n", "1 MiB, ordered, one stream", "ns per pair");
  Row("bfc", Best(100000, pair(*bfc)));
  Row("cuda_async", Best(5000, pair(*async)));
  Row("cudaMallocAsync and cudaFreeAsync", Best(5000, [&] {
        void* block = nullptr;
        cudaMallocAsync(&block, kBytes, stream);
        cudaFreeAsync(block, stream);
      }));
  Row("platform", Best(500, pair(*platform)));
  Row("cudaMalloc and cudaFree", Best(500, [&] {
        void* block = nullptr;
        cudaMalloc(&block, kBytes);
        cudaFree(block);
      }));
  cudaStreamDestroy(stream);
  return 0;
}
