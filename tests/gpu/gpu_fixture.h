// SPDX-License-Identifier: Apache-2.0
//
// File: gpu_fixture.h
//
// What the tests on a real GPU share: they are skipped, with the reason, where there
// is none.
//
//   TEST_F(GpuTest, Something) { auto allocator = Make("bfc:memory_limit=64MiB"); ... }
#ifndef HBMALLOC_TESTS_GPU_GPU_FIXTURE_H_
#define HBMALLOC_TESTS_GPU_GPU_FIXTURE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"

namespace hbm::testing {

inline std::string WhyNoGpu() {
  const absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice("cuda:0");
  return device.ok() ? "" : std::string(device.status().message());
}

inline void* GpuTake(Allocator& allocator, std::size_t bytes, cudaStream_t stream) {
  AllocateOptions options;
  options.stream = StreamRef::FromHandle(stream);
  return allocator.TryAllocate(bytes, options);
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoGpu();
    if (!why.empty()) GTEST_SKIP() << why;
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  static std::unique_ptr<Allocator> Make(const std::string& policy, int device = 0) {
    auto allocator =
        MakeAllocator(*ParsePolicy(policy), *OpenDevice("cuda:" + std::to_string(device)));
    EXPECT_TRUE(allocator.ok()) << policy << ": " << allocator.status();
    return allocator.ok() ? *std::move(allocator) : nullptr;
  }
};

// A stream that the legacy default stream does not wait for.
class Stream {
 public:
  Stream() { cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  StreamRef ref() const { return StreamRef::FromHandle(stream_); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A counter that kernels add to and the host reads.
class SharedCount {
 public:
  SharedCount() {
    void* shared = nullptr;
    EXPECT_EQ(cudaMallocManaged(&shared, sizeof(unsigned long long), cudaMemAttachGlobal),
              cudaSuccess);
    value_ = static_cast<unsigned long long*>(shared);
    *value_ = 0;
  }
  ~SharedCount() { cudaFree(value_); }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;
  unsigned long long* get() const { return value_; }
  // Once the device is done.
  unsigned long long value() const { return *value_; }

 private:
  unsigned long long* value_ = nullptr;
};

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_GPU_GPU_FIXTURE_H_
