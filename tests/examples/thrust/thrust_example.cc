// SPDX-License-Identifier: Apache-2.0
//
// Sorts and sums with Thrust in an allocator's memory:
//   thrust_example [--strategy=elastic] [--device=host:1GiB]
// On the host it is built with Thrust's C++ system, on a GPU with its CUDA system.
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cstdio>
#include <memory>
#include <string>

#include "hbmalloc/hbmalloc.h"
#include "tests/examples/thrust/thrust_allocator.h"

namespace {

constexpr int kCount = 1 << 20;

bool Sort(hbm::Allocator& allocator) {
  using Values = thrust::device_vector<int, HbmThrustAllocator<int>>;
  Values values(kCount, HbmThrustAllocator<int>(&allocator));
  thrust::sequence(values.begin(), values.end(), kCount, -1);  // kCount, ..., 1
  if (allocator.GetStats().requested_bytes < static_cast<std::int64_t>(kCount * sizeof(int))) {
    return false;
  }
#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
  // The sort's temporary storage too.
  HbmThrustAllocator<char> temporary(&allocator);
  thrust::sort(thrust::cuda::par(temporary), values.begin(), values.end());
#else
  thrust::sort(values.begin(), values.end());
#endif
  const Values copy = values;
  const thrust::host_vector<int> sorted(copy.begin(), copy.end());
  for (int i = 0; i < kCount; ++i) {
    if (sorted[static_cast<std::size_t>(i)] != i + 1) return false;
  }
  return thrust::reduce(copy.begin(), copy.end(), 0LL) == (kCount + 1LL) * kCount / 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::string strategy = "elastic";
  std::string device = "host:1GiB";
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag.rfind("--strategy=", 0) == 0) strategy = flag.substr(11);
    if (flag.rfind("--device=", 0) == 0) device = flag.substr(9);
  }
  const auto policy = hbm::ParsePolicy(strategy);
  const auto opened = hbm::OpenDevice(device);
  if (!policy.ok() || !opened.ok()) {
    std::printf("%s\n", (policy.ok() ? opened.status() : policy.status()).ToString().c_str());
    return 1;
  }
  const auto allocator = hbm::MakeAllocator(*policy, *opened);
  if (!allocator.ok()) {
    std::printf("%s\n", allocator.status().ToString().c_str());
    return 1;
  }
  const bool sorted = Sort(**allocator);
  const bool empty = (*allocator)->GetStats().requested_bytes == 0;
  std::printf("%s: %d values sorted, %s\n", sorted && empty ? "ok" : "FAILED", kCount,
              empty ? "nothing is left" : "memory is left");
  return sorted && empty ? 0 : 1;
}
