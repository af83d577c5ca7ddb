// SPDX-License-Identifier: Apache-2.0
//
// File: kernels.h
//
// The work of the example runtime, on a GPU or on the CPU.
#ifndef HBMALLOC_TESTS_EXAMPLES_RUNTIME_KERNELS_H_
#define HBMALLOC_TESTS_EXAMPLES_RUNTIME_KERNELS_H_

#include <cstddef>
#include <memory>

namespace runtime {

// Stream 0 computes, stream 1 sums up.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual void* stream(int number) = 0;
  virtual void WaitForOther(int waiter, int other) = 0;
  virtual void Fill(float* out, std::size_t count, float value) = 0;        // stream 0
  virtual void AddOne(const float* in, float* out, std::size_t count) = 0;  // stream 0
  virtual void Sum(const float* in, std::size_t count, double* sum) = 0;    // stream 1
  virtual double Read(const double* value) = 0;                             // waits for stream 1
};

std::unique_ptr<Kernels> MakeHostKernels();
// Null if there are none.
std::unique_ptr<Kernels> MakeGpuKernels();

}  // namespace runtime

#endif  // HBMALLOC_TESTS_EXAMPLES_RUNTIME_KERNELS_H_
