// SPDX-License-Identifier: Apache-2.0
//
// What each debug check costs: an allocation and a free of one size, on the host.
//   build/release/bench/debug_benchmark
#include <string>

#include "benchmark/benchmark.h"
#include "hbmalloc/hbmalloc.h"

namespace {

void AllocateAndFree(benchmark::State& state, const std::string& checks) {
  const auto device = hbm::OpenDevice("host:256MiB");
  const auto policy = hbm::ParsePolicy("bfc:debug=" + checks);
  const auto allocator = hbm::MakeAllocator(*policy, *device);
  if (!allocator.ok()) {
    state.SkipWithError("no allocator");
    return;
  }
  const auto bytes = static_cast<std::size_t>(state.range(0));
  while (state.KeepRunning()) {
    void* const block = (*allocator)->TryAllocate(bytes);
    benchmark::DoNotOptimize(block);
    (*allocator)->Deallocate(block).IgnoreError();
  }
}

#define HBM_CHECKS(name, checks) \
  BENCHMARK_CAPTURE(AllocateAndFree, name, checks)->Arg(1 << 10)->Arg(64 << 10)->Arg(1 << 20)
HBM_CHECKS(none, "none");
HBM_CHECKS(leaks, "leaks");
HBM_CHECKS(guard, "guard");
HBM_CHECKS(poison, "poison");
HBM_CHECKS(stacks, "stacks");
HBM_CHECKS(all, "guard+poison+leaks+stacks");

}  // namespace

BENCHMARK_MAIN();
