// SPDX-License-Identifier: Apache-2.0
//
// Works on a GPU for a while with every strategy, and writes what observability
// gives of it: a trace, and the exports that check_exports.py reads.
//
//   gpu_exports FOLDER
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "hbmalloc/hbmalloc.h"

namespace hbm {
namespace {

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void Work(Allocator& allocator) {
  const TagId tags[] = {TagId{}, RegisterTag("weights"), RegisterTag("activations")};
  std::mt19937_64 random(1);
  std::vector<void*> live;
  for (int i = 0; i < 4000; ++i) {
    if (live.size() < 100 || (live.size() < 400 && random() % 2 == 0)) {
      AllocateOptions options;
      options.tag = tags[random() % 3];
      void* const block = allocator.TryAllocate(1 + random() % (8 << 20), options);
      if (block != nullptr) live.push_back(block);
    } else {
      const std::size_t at = random() % live.size();
      allocator.Deallocate(live[at]).IgnoreError();
      live[at] = live.back();
      live.pop_back();
    }
  }
  if (allocator.Allocate(std::size_t{1} << 44).ok()) std::printf("16 TiB were given\n");
  for (std::size_t i = live.size() / 2; i < live.size(); ++i) {
    allocator.Deallocate(live[i]).IgnoreError();
  }
  live.resize(live.size() / 2);
}

int Main(const std::string& folder) {
  int failures = 0;
  for (const std::string strategy : {"bfc", "on_demand", "platform", "cuda_async", "elastic"}) {
    const std::string at = folder + "/" + strategy;
    const auto policy = ParsePolicy(strategy + ":memory_limit=4GiB,trace=" + at + ".csv.gz");
    const auto device = OpenDevice("cuda:0");
    if (!device.ok()) return std::printf("%s\n", device.status().ToString().c_str()), 77;
    const auto allocator = MakeAllocator(*policy, *device);
    if (!allocator.ok()) {
      std::printf("%s: %s\n", strategy.c_str(), allocator.status().ToString().c_str());
      ++failures;
      continue;
    }
    EventHistory history(100'000);
    (*allocator)->SetEventCallback(history.Callback());
    Work(**allocator);
    AllocatorState state = CaptureState(**allocator, "cuda:0");
    state.events = history.Entries();
    Write(at + ".json", ToJson(state));
    Write(at + ".pickle", ToPyTorchPickle({state}));
    Write(at + ".prom", ToPrometheus({state}));
    Write(at + ".timeline.json", ToChromeTrace({{"cuda:0", state.events}}));
    std::printf("%s: %zu events, %lld driver calls, external fragmentation %.3f\n",
                strategy.c_str(), state.events.size(),
                static_cast<long long>(state.stats.driver_calls), state.figures.device.external);
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace hbm

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: gpu_exports FOLDER\n"), 2;
  hbm::SetLogSink(nullptr);
  return hbm::Main(argv[1]);
}
