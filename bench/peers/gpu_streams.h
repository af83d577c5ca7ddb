// SPDX-License-Identifier: Apache-2.0
//
// Streams for the peers that run on a GPU: one for everything, or one for each of
// the trace's.
//
//   GpuStreams streams(/*as_in_trace=*/true);
//   cudaMallocAsync(&block, bytes, streams.Get(event.stream));

#ifndef HBMALLOC_BENCH_PEERS_GPU_STREAMS_H_
#define HBMALLOC_BENCH_PEERS_GPU_STREAMS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>

namespace hbm_peers {

// False: said why on stderr.
inline bool HasGpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return true;
  std::fprintf(stderr, "no GPU to run on: %s\n",
               error == cudaSuccess ? "none is visible" : cudaGetErrorString(error));
  return false;
}

class GpuStreams {
 public:
  explicit GpuStreams(bool as_in_trace) : count_(as_in_trace ? kMaxStreams : 1) {
    for (uint32_t i = 0; i < count_; ++i) {
      cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking);
    }
  }
  ~GpuStreams() {
    for (uint32_t i = 0; i < count_; ++i) cudaStreamDestroy(streams_[i]);
  }
  GpuStreams(const GpuStreams&) = delete;
  GpuStreams& operator=(const GpuStreams&) = delete;

  cudaStream_t Get(uint32_t stream) const { return streams_[stream % count_]; }
  void Synchronize() const {
    for (uint32_t i = 0; i < count_; ++i) cudaStreamSynchronize(streams_[i]);
  }

 private:
  static constexpr uint32_t kMaxStreams = 16;
  const uint32_t count_;
  cudaStream_t streams_[kMaxStreams] = {};
};

}  // namespace hbm_peers

#endif  // HBMALLOC_BENCH_PEERS_GPU_STREAMS_H_
