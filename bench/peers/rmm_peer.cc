// SPDX-License-Identifier: Apache-2.0
//
// RMM's pool and arena, on a GPU, called through its own type-erased reference as
// its users do. Flags of its own: --resource=pool|arena, --streams (the trace's
// streams rather than one for all). The pool starts empty and grows, unless a
// capacity is given: then that is its first and greatest size. The arena always
// takes its whole size at the start: the capacity.

#include <atomic>
#include <optional>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/resource_ref.hpp>

#include "gpu_streams.h"
#include "peer_harness.h"

namespace {

using hbm_peers::Options;

constexpr size_t kAlignment = 256;

// cudaMalloc, counted: what lies between RMM and the device is its pool.
class CountingUpstream {
 public:
  explicit CountingUpstream(std::atomic<uint64_t>* bytes) : pool_bytes_(bytes) {}

  void* allocate(cuda::stream_ref stream, size_t bytes, size_t alignment) {
    void* block = upstream_.allocate(stream, bytes, alignment);
    pool_bytes_->fetch_add(bytes);
    return block;
  }
  void deallocate(cuda::stream_ref stream, void* block, size_t bytes, size_t alignment) noexcept {
    pool_bytes_->fetch_sub(bytes);
    upstream_.deallocate(stream, block, bytes, alignment);
  }
  void* allocate_sync(size_t bytes, size_t alignment) {
    void* block = upstream_.allocate_sync(bytes, alignment);
    pool_bytes_->fetch_add(bytes);
    return block;
  }
  void deallocate_sync(void* block, size_t bytes, size_t alignment) noexcept {
    pool_bytes_->fetch_sub(bytes);
    upstream_.deallocate_sync(block, bytes, alignment);
  }
  bool operator==(const CountingUpstream& other) const noexcept {
    return pool_bytes_ == other.pool_bytes_;
  }
  bool operator!=(const CountingUpstream& other) const noexcept { return !(*this == other); }
  friend constexpr void get_property(const CountingUpstream&,
                                     cuda::mr::device_accessible) noexcept {}

 private:
  rmm::mr::cuda_memory_resource upstream_;
  std::atomic<uint64_t>* pool_bytes_;
};

class RmmPeer {
 public:
  using Block = void*;
  static constexpr Block kNone = nullptr;

  explicit RmmPeer(const Options& options) : streams_(options.Has("streams")) {
    CountingUpstream upstream(&pool_bytes_);
    if (options.Get("resource", "pool") == "arena") {
      arena_.emplace(upstream, options.capacity);
      resource_.emplace(*arena_);
    } else {
      const size_t first = options.capacity_given ? options.capacity : 0;
      pool_.emplace(upstream, first,
                    options.capacity_given ? std::optional<size_t>(first) : std::nullopt);
      resource_.emplace(*pool_);
    }
  }

  Block Allocate(uint64_t bytes, uint32_t stream) {
    try {
      return resource_->allocate(cuda::stream_ref(streams_.Get(stream)), bytes, kAlignment);
    } catch (const std::exception&) {
      return kNone;  // out of memory
    }
  }
  void Free(Block block, uint64_t bytes, uint32_t stream) {
    resource_->deallocate(cuda::stream_ref(streams_.Get(stream)), block, bytes, kAlignment);
  }
  uint64_t PoolBytes() const { return pool_bytes_.load(std::memory_order_relaxed); }
  uint64_t Offset(Block block) const { return reinterpret_cast<uint64_t>(block); }
  static void EnterThread() { cudaSetDevice(0); }

 private:
  std::atomic<uint64_t> pool_bytes_{0};  // outlives the resources, which give back at their end
  hbm_peers::GpuStreams streams_;
  std::optional<rmm::mr::pool_memory_resource> pool_;
  std::optional<rmm::mr::arena_memory_resource> arena_;
  std::optional<rmm::device_async_resource_ref> resource_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!hbm_peers::ParseOptions(argc, argv, &options)) return 2;
  if (!hbm_peers::HasGpu()) return 3;
  const std::string resource = options.Get("resource", "pool");
  if (resource != "pool" && resource != "arena") {
    std::fprintf(stderr, "--resource=%s: it is pool or arena\n", resource.c_str());
    return 2;
  }
  return hbm_peers::RunPeer<RmmPeer>(options, "rmm_" + resource,
                                     [](const Options& o) { return std::make_unique<RmmPeer>(o); });
}
