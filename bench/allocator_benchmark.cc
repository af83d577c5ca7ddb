// SPDX-License-Identifier: Apache-2.0
//
// One thread: what an allocation and a free cost by size, order, alignment and
// state of the pool.
//
//   allocator_benchmark --benchmark_filter='Random.*'
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "hbmalloc/hbmalloc.h"

namespace hbm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::unique_ptr<Allocator> Make(const std::string& spec) {
  auto allocator = MakeAllocator(*ParsePolicy(spec), *OpenDevice("sim:1TiB"));
  return allocator.ok() ? *std::move(allocator) : nullptr;
}
std::unique_ptr<Allocator> MakeBfc() { return Make("bfc:memory_fraction=1"); }

void Free(Allocator& allocator, std::vector<void*>& blocks) {
  for (void* block : blocks) allocator.Deallocate(block).IgnoreError();
  blocks.clear();
}

void BM_AllocateFree(benchmark::State& state) {
  const auto allocator = MakeBfc();
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    allocator->Deallocate(*allocator->Allocate(bytes)).IgnoreError();
  }
  state.SetItemsProcessed(state.iterations() * 2);
}
BENCHMARK(BM_AllocateFree)->RangeMultiplier(16)->Range(256, std::int64_t{1} << 30);

enum Order { kLifo, kFifo, kRandom };

// A thousand blocks of mixed sizes, freed in one of three orders.
void BM_Order(benchmark::State& state) {
  const auto allocator = MakeBfc();
  std::mt19937_64 random(1);
  std::vector<void*> blocks;
  for (auto _ : state) {
    for (int i = 0; i < 1000; ++i) blocks.push_back(*allocator->Allocate(1 + random() % kMiB));
    if (state.range(0) == kLifo) std::reverse(blocks.begin(), blocks.end());
    if (state.range(0) == kRandom) std::shuffle(blocks.begin(), blocks.end(), random);
    Free(*allocator, blocks);
  }
  state.SetItemsProcessed(state.iterations() * 2000);
}
BENCHMARK(BM_Order)->ArgName("lifo0_fifo1_random2")->Arg(kLifo)->Arg(kFifo)->Arg(kRandom);

// Replaces one of many live blocks at a time.
void BM_RandomReplace(benchmark::State& state) {
  const auto allocator = MakeBfc();
  std::mt19937_64 random(1);
  std::vector<void*> blocks;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    blocks.push_back(*allocator->Allocate(1 + random() % kMiB / 4));
  }
  for (auto _ : state) {
    void*& block = blocks[random() % blocks.size()];
    allocator->Deallocate(block).IgnoreError();
    block = *allocator->Allocate(1 + random() % kMiB / 4);
  }
  Free(*allocator, blocks);
  state.SetItemsProcessed(state.iterations() * 2);
}
BENCHMARK(BM_RandomReplace)->RangeMultiplier(10)->Range(1000, 1'000'000);

// Every allocation splits a chunk, and every free joins three.
void BM_SplitCoalesce(benchmark::State& state) {
  const auto allocator = MakeBfc();
  std::vector<void*> walls;
  std::vector<void*> holes;
  for (int i = 0; i < 512; ++i) {
    holes.push_back(*allocator->Allocate(64 * 1024));
    walls.push_back(*allocator->Allocate(256));
  }
  Free(*allocator, holes);
  for (auto _ : state) {
    for (int i = 0; i < 512; ++i) holes.push_back(*allocator->Allocate(16 * 1024));
    for (std::size_t i = 0; i < holes.size(); i += 2) allocator->Deallocate(holes[i]).IgnoreError();
    for (std::size_t i = 1; i < holes.size(); i += 2) allocator->Deallocate(holes[i]).IgnoreError();
    holes.clear();
  }
  state.SetItemsProcessed(state.iterations() * 1024);
}
BENCHMARK(BM_SplitCoalesce);

void BM_Alignment(benchmark::State& state) {
  const auto allocator = MakeBfc();
  AllocateOptions options;
  options.alignment = static_cast<std::size_t>(state.range(0));
  std::mt19937_64 random(1);
  std::vector<void*> blocks(1000);
  for (auto _ : state) {
    void*& block = blocks[random() % blocks.size()];
    allocator->Deallocate(block).IgnoreError();
    block = *allocator->Allocate(1 + random() % kMiB, options);
  }
  Free(*allocator, blocks);
  state.SetItemsProcessed(state.iterations() * 2);
}
BENCHMARK(BM_Alignment)->RangeMultiplier(16)->Range(256, 2 << 20);

// From nothing to 1 GiB in blocks of 1 MiB, and all given back.
void BM_Growth(benchmark::State& state) {
  const auto allocator = Make("on_demand:memory_fraction=1");
  std::vector<void*> blocks;
  for (auto _ : state) {
    for (int i = 0; i < 1024; ++i) blocks.push_back(*allocator->Allocate(kMiB));
    Free(*allocator, blocks);
    benchmark::DoNotOptimize(allocator->Trim().ok());
  }
  state.SetItemsProcessed(state.iterations() * 2048);
}
BENCHMARK(BM_Growth);

// RMM's random_allocations: sizes up to range(0) MiB, 73% allocations, at most
// 16,000 MiB live.
void BM_RandomAllocations(benchmark::State& state) {
  const auto allocator = MakeBfc();
  std::default_random_engine engine;
  std::uniform_int_distribution<std::size_t> size(1,
                                                  static_cast<std::size_t>(state.range(0)) * kMiB);
  std::uniform_int_distribution<int> percent(0, 99);
  std::vector<std::pair<void*, std::size_t>> live;
  std::size_t live_bytes = 0;
  const auto free_one = [&] {
    std::swap(live[engine() % live.size()], live.back());
    allocator->Deallocate(live.back().first).IgnoreError();
    live_bytes -= live.back().second;
    live.pop_back();
  };
  for (auto _ : state) {
    for (std::int64_t i = 0; i < state.range(1); ++i) {
      const std::size_t bytes = size(engine);
      if (live.empty() || (percent(engine) < 73 && live_bytes + bytes <= 16'000 * kMiB)) {
        live.emplace_back(allocator->TryAllocate(bytes), bytes);
        live_bytes += bytes;
      } else {
        free_one();
      }
    }
    while (!live.empty()) free_one();
  }
  state.SetItemsProcessed(state.iterations() * state.range(1));
}
BENCHMARK(BM_RandomAllocations)
    ->ArgNames({"max_mib", "n"})
    ->ArgsProduct({{1, 4, 64, 256, 1024, 4096}, {1000, 100'000}});

}  // namespace
}  // namespace hbm

BENCHMARK_MAIN();
