// SPDX-License-Identifier: Apache-2.0
//
// hbmalloc through the same loop as its peers, so that a ratio between the two has
// nothing else in it. Flags of its own: --policy=SPEC (bfc), --device=SPEC (sim,
// of the capacity; on a GPU cuda:0), --name=NAME (in the results; the policy).

#include "hbmalloc/allocator.h"
#include "hbmalloc/device.h"
#include "hbmalloc/policy.h"
#include "peer_harness.h"

namespace {

using hbm_peers::Options;

class HbmallocPeer {
 public:
  using Block = void*;
  static constexpr Block kNone = nullptr;

  explicit HbmallocPeer(const Options& options) {
    const std::string device = options.Get("device", "sim:" + std::to_string(options.capacity));
    std::string policy = options.Get("policy", "bfc");
    if (policy.find("memory_fraction") == std::string::npos) {
      policy += policy.find(':') == std::string::npos ? ":" : ",";
      policy += "memory_fraction=1";
    }
    auto opened = hbm::OpenDevice(device);
    Check(opened.status());
    auto parsed = hbm::ParsePolicy(policy);
    Check(parsed.status());
    auto made = hbm::MakeAllocator(*parsed, *opened);
    Check(made.status());
    allocator_ = *std::move(made);
  }

  Block Allocate(uint64_t bytes, uint32_t /*stream*/) {
    absl::StatusOr<void*> block = allocator_->Allocate(bytes);
    return block.ok() ? *block : kNone;
  }
  void Free(Block block, uint64_t /*bytes*/, uint32_t /*stream*/) {
    if (!allocator_->Deallocate(block).ok()) failed_frees_.fetch_add(1);
  }
  uint64_t PoolBytes() const { return static_cast<uint64_t>(allocator_->GetStats().pool_bytes); }
  uint64_t Offset(Block block) const { return reinterpret_cast<uint64_t>(block); }
  static void EnterThread() {}

  ~HbmallocPeer() {
    if (failed_frees_ != 0) std::fprintf(stderr, "some frees failed\n");
  }

 private:
  static void Check(const absl::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(3);
  }

  std::unique_ptr<hbm::Allocator> allocator_;
  std::atomic<uint64_t> failed_frees_{0};
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!hbm_peers::ParseOptions(argc, argv, &options)) return 2;
  const std::string name = options.Get("name", "hbmalloc " + options.Get("policy", "bfc"));
  return hbm_peers::RunPeer<HbmallocPeer>(
      options, name, [](const Options& o) { return std::make_unique<HbmallocPeer>(o); });
}
