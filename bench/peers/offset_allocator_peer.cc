// SPDX-License-Identifier: Apache-2.0
//
// OffsetAllocator: two-level segregated fit over offsets, as an example of the
// TLSF family. It keeps no addresses and no pool of its own: the whole capacity is
// its pool. Offsets are 32 bits, so they count units of 256 bytes here. It is not
// thread-safe; with several threads a mutex guards it.

#include <cstring>
#include <mutex>
#include <string>

#include "offset_allocator_extracted.inc"  // written by CMake from the package
#include "peer_harness.h"

namespace {

using hbm_peers::Options;

constexpr uint64_t kUnit = 256;
constexpr uint32_t kMaxBlocks = 128 * 1024;  // the package's own default

class OffsetAllocatorPeer {
 public:
  struct Block {
    uint32_t offset;
    uint32_t metadata;
    friend bool operator==(Block a, Block b) { return a.offset == b.offset; }
    friend bool operator!=(Block a, Block b) { return !(a == b); }
  };
  static constexpr Block kNone{::Allocation::NO_SPACE, ::Allocation::NO_SPACE};

  explicit OffsetAllocatorPeer(const Options& options)
      : pool_bytes_(options.capacity),
        locked_(options.threads > 1),
        allocator_(static_cast<uint32_t>(options.capacity / kUnit), kMaxBlocks) {}

  Block Allocate(uint64_t bytes, uint32_t /*stream*/) {
    const uint32_t units = static_cast<uint32_t>((bytes + kUnit - 1) / kUnit);
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (locked_) lock.lock();
    const ::Allocation got = allocator_.allocate(units);
    return {got.offset, got.metadata};
  }
  void Free(Block block, uint64_t /*bytes*/, uint32_t /*stream*/) {
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (locked_) lock.lock();
    allocator_.free({block.offset, block.metadata});
  }
  uint64_t PoolBytes() const { return pool_bytes_; }
  uint64_t Offset(Block block) const { return block.offset * kUnit; }
  static void EnterThread() {}

 private:
  const uint64_t pool_bytes_;
  const bool locked_;
  std::mutex mutex_;
  ::Allocator allocator_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!hbm_peers::ParseOptions(argc, argv, &options)) return 2;
  return hbm_peers::RunPeer<OffsetAllocatorPeer>(options, "offset_allocator", [](const Options& o) {
    return std::make_unique<OffsetAllocatorPeer>(o);
  });
}
