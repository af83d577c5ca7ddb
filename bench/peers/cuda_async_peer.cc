// SPDX-License-Identifier: Apache-2.0
//
// The driver's stream-ordered allocator, on a GPU: cudaMallocFromPoolAsync from a
// pool of its own whose release threshold is unlimited. Flags of its own: --streams
// (the trace's streams rather than one for all).

#include <cuda_runtime_api.h>

#include "gpu_streams.h"
#include "peer_harness.h"

namespace {

using hbm_peers::Options;

class CudaAsyncPeer {
 public:
  using Block = void*;
  static constexpr Block kNone = nullptr;

  explicit CudaAsyncPeer(const Options& options) : streams_(options.Has("streams")) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = 0;
    if (options.capacity_given) properties.maxSize = options.capacity;
    Check(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate");
    uint64_t keep_all = UINT64_MAX;
    Check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_all),
          "cudaMemPoolAttrReleaseThreshold");
  }
  ~CudaAsyncPeer() {
    streams_.Synchronize();
    cudaMemPoolDestroy(pool_);
  }

  Block Allocate(uint64_t bytes, uint32_t stream) {
    void* block = nullptr;
    if (cudaMallocFromPoolAsync(&block, bytes, pool_, streams_.Get(stream)) == cudaSuccess) {
      return block;
    }
    cudaGetLastError();  // out of memory: forget it
    return kNone;
  }
  void Free(Block block, uint64_t /*bytes*/, uint32_t stream) {
    cudaFreeAsync(block, streams_.Get(stream));
  }
  uint64_t PoolBytes() const {
    uint64_t bytes = 0;
    cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes);
    return bytes;
  }
  uint64_t Offset(Block block) const { return reinterpret_cast<uint64_t>(block); }
  static void EnterThread() { cudaSetDevice(0); }

 private:
  static void Check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
    std::exit(3);
  }

  hbm_peers::GpuStreams streams_;
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!hbm_peers::ParseOptions(argc, argv, &options)) return 2;
  if (!hbm_peers::HasGpu()) return 3;
  return hbm_peers::RunPeer<CudaAsyncPeer>(options, "cuda_malloc_async", [](const Options& o) {
    return std::make_unique<CudaAsyncPeer>(o);
  });
}
