// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "tests/examples/runtime/kernels.h"

namespace runtime {
namespace {

class HostKernels final : public Kernels {
 public:
  void* stream(int number) override {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number + 3));
  }
  void WaitForOther(int /*waiter*/, int /*other*/) override {}
  void Fill(float* out, std::size_t count, float value) override { std::fill_n(out, count, value); }
  void AddOne(const float* in, float* out, std::size_t count) override {
    std::transform(in, in + count, out, [](float value) { return value + 1; });
  }
  void Sum(const float* in, std::size_t count, double* sum) override {
    *sum = std::accumulate(in, in + count, 0.0);
  }
  double Read(const double* value) override { return *value; }
};

}  // namespace

std::unique_ptr<Kernels> MakeHostKernels() { return std::make_unique<HostKernels>(); }

}  // namespace runtime
