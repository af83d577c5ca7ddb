// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's CUDA caching allocator from C++, on a GPU. Flags of its own:
// --expandable (expandable segments), --streams (the trace's streams rather than
// one for all).

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdlib>

#include "gpu_streams.h"
#include "peer_harness.h"

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using hbm_peers::Options;

// PyTorch reads its configuration from the environment, in part before main, so
// the program starts itself again once that is set.
void RestartWithConfiguration(char** argv) {
  constexpr char kValue[] = "expandable_segments:True";
  const char* set = std::getenv("PYTORCH_ALLOC_CONF");
  if (set != nullptr && std::strcmp(set, kValue) == 0) return;
  setenv("PYTORCH_ALLOC_CONF", kValue, 1);
  setenv("PYTORCH_CUDA_ALLOC_CONF", kValue, 1);
  execv("/proc/self/exe", argv);
  std::perror("cannot restart with expandable segments");
  std::exit(1);
}

// There is one such allocator in a process: each object empties its cache first.
class PyTorchPeer {
 public:
  using Block = void*;
  static constexpr Block kNone = nullptr;

  explicit PyTorchPeer(const Options& options) : streams_(options.Has("streams")) {
    static const bool initialized = [] {
      caching::init(c10::cuda::device_count());
      return true;
    }();
    static_cast<void>(initialized);
    caching::emptyCache();
    caching::setMemoryFraction(options.capacity_given ? Fraction(options.capacity) : 1.0, 0);
  }
  ~PyTorchPeer() { caching::emptyCache(); }

  Block Allocate(uint64_t bytes, uint32_t stream) {
    try {
      return caching::raw_alloc_with_stream(bytes, streams_.Get(stream));
    } catch (const std::exception&) {
      return kNone;  // out of memory
    }
  }
  void Free(Block block, uint64_t /*bytes*/, uint32_t /*stream*/) { caching::raw_delete(block); }
  uint64_t PoolBytes() const {
    using c10::CachingAllocator::StatType;
    const auto stats = caching::getDeviceStats(0);
    return static_cast<uint64_t>(
        stats.reserved_bytes[static_cast<size_t>(StatType::AGGREGATE)].current);
  }
  uint64_t Offset(Block block) const { return reinterpret_cast<uint64_t>(block); }
  static void EnterThread() { cudaSetDevice(0); }

 private:
  // The limit is a share of the card; half a byte more keeps it from rounding down.
  static double Fraction(uint64_t capacity) {
    size_t free_bytes = 0;
    size_t total_bytes = 1;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return std::min(1.0, (static_cast<double>(capacity) + 0.5) / static_cast<double>(total_bytes));
  }

  hbm_peers::GpuStreams streams_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!hbm_peers::ParseOptions(argc, argv, &options)) return 2;
  if (options.Has("expandable")) RestartWithConfiguration(argv);
  if (!hbm_peers::HasGpu()) return 3;
  return hbm_peers::RunPeer<PyTorchPeer>(
      options, options.Has("expandable") ? "pytorch_expandable" : "pytorch",
      [](const Options& o) { return std::make_unique<PyTorchPeer>(o); });
}
