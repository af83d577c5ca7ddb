// SPDX-License-Identifier: Apache-2.0
//
// The original BFC, as shipped in TensorFlow's wheel, over addresses only.
//
// Its regions come as hbmalloc's `sim` device hands them out, so that both place
// every block alike: the first region at offset 0, each rounded up to 2 MiB, the
// next one 2 MiB after the end of the last, and none that would take the sum over
// the capacity. Flags of its own: --growth (preallocation off).

#include "absl/log/globals.h"
#include "peer_harness.h"
#include "xla/tsl/framework/allocator.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace {

using hbm_peers::Options;

constexpr uint64_t kBase = uint64_t{1} << 44;
constexpr size_t kAlignment = 64;

// Addresses without memory. Regions are never freed before the end, as in XLA.
class AddressOnly : public tsl::SubAllocator {
 public:
  AddressOnly(uint64_t capacity, uint64_t* pool_bytes)
      : SubAllocator({}, {}), capacity_(capacity), pool_bytes_(pool_bytes) {}

  void* Alloc(size_t /*alignment*/, size_t num_bytes, size_t* bytes_received) override {
    const uint64_t bytes =
        (num_bytes + hbm_peers::kGranule - 1) / hbm_peers::kGranule * hbm_peers::kGranule;
    *bytes_received = 0;
    if (bytes > capacity_ - *pool_bytes_) return nullptr;
    void* region = reinterpret_cast<void*>(next_);
    next_ += bytes + hbm_peers::kGranule;
    *pool_bytes_ += bytes;
    *bytes_received = bytes;
    return region;
  }

  void Free(void* /*ptr*/, size_t num_bytes) override { *pool_bytes_ -= num_bytes; }
  bool SupportsCoalescing() const override { return false; }

 private:
  const uint64_t capacity_;
  uint64_t* const pool_bytes_;
  uint64_t next_ = kBase;
};

class TensorFlowBfc {
 public:
  using Block = void*;
  static constexpr Block kNone = nullptr;

  explicit TensorFlowBfc(const Options& options) {
    tsl::BFCAllocator::Options bfc;
    bfc.allow_growth = options.Has("growth");
    bfc.allow_retry_on_failure = false;
    bfc.garbage_collection = false;
    bfc.fragmentation_fraction = 0;
    allocator_ = std::make_unique<tsl::BFCAllocator>(
        std::make_unique<AddressOnly>(options.capacity, &pool_bytes_), options.Limit(), "peer",
        bfc);
    // Its pool comes with the first request. Taken here, its cost is that of
    // creating the allocator, and the first pass shows the events alone.
    if (!bfc.allow_growth) allocator_->DeallocateRaw(allocator_->AllocateRaw(kAlignment, 1));
  }

  Block Allocate(uint64_t bytes, uint32_t /*stream*/) {
    return allocator_->AllocateRaw(kAlignment, bytes);
  }
  void Free(Block block, uint64_t /*bytes*/, uint32_t /*stream*/) {
    allocator_->DeallocateRaw(block);
  }
  uint64_t PoolBytes() const { return pool_bytes_; }
  uint64_t Offset(Block block) const { return reinterpret_cast<uint64_t>(block) - kBase; }
  static void EnterThread() {}

 private:
  uint64_t pool_bytes_ = 0;  // outlives the allocator, whose end frees its regions
  std::unique_ptr<tsl::BFCAllocator> allocator_;
};

}  // namespace

int main(int argc, char** argv) {
  // It logs each failure at length; the harness counts them.
  absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal);
  Options options;
  if (!hbm_peers::ParseOptions(argc, argv, &options)) return 2;
  return hbm_peers::RunPeer<TensorFlowBfc>(
      options, options.Has("growth") ? "tensorflow_bfc_growth" : "tensorflow_bfc",
      [](const Options& o) { return std::make_unique<TensorFlowBfc>(o); });
}
