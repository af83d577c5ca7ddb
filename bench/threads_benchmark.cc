// SPDX-License-Identifier: Apache-2.0
//
// Many threads on one allocator, by the patterns of well-known programs. Each
// runs with the plain lock and with the per-thread cache, with 1 to 16 threads;
// items per second are those of all threads together.
//
//   threads_benchmark --benchmark_counters_tabular=true
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "hbmalloc/hbmalloc.h"

namespace hbm {
namespace {

std::unique_ptr<Allocator> Make(bool cached) {
  const std::string spec =
      std::string("bfc:memory_fraction=1") + (cached ? ",thread_cache=true" : "");
  auto allocator = MakeAllocator(*ParsePolicy(spec), *OpenDevice("sim:1TiB"));
  return allocator.ok() ? *std::move(allocator) : nullptr;
}

// From 256 bytes to 64 KiB, each power of two as likely as the next.
std::size_t Size(std::mt19937& random) {
  const unsigned shift = random() % 8;
  return (std::size_t{256} << shift) + random() % (256u << shift);
}

// What the threads of one run share: made by the first, ended by the last.
struct Run {
  std::unique_ptr<Allocator> allocator;
  std::vector<std::atomic<void*>> slots = std::vector<std::atomic<void*>>(16 * 1024);
};
Run* run = nullptr;

void SetUp(const benchmark::State& state) {
  run = new Run;
  run->allocator = Make(state.range(0) != 0);
}
void TearDown(const benchmark::State&) {
  for (std::atomic<void*>& slot : run->slots) run->allocator->Deallocate(slot).IgnoreError();
  delete run;
  run = nullptr;
}

// Each thread replaces blocks of its own.
void BM_Own(benchmark::State& state) {
  std::mt19937 random(static_cast<unsigned>(state.thread_index()));
  std::array<void*, 64> blocks{};
  for (auto _ : state) {
    void*& block = blocks[random() % blocks.size()];
    run->allocator->Deallocate(block).IgnoreError();
    block = run->allocator->Allocate(Size(random)).value_or(nullptr);
  }
  for (void* block : blocks) run->allocator->Deallocate(block).IgnoreError();
  state.SetItemsProcessed(state.iterations() * 2);
}

// larson: a server's requests; most blocks are freed by another thread than the one
// that allocated them.
void BM_Larson(benchmark::State& state) {
  std::mt19937 random(static_cast<unsigned>(state.thread_index()));
  for (auto _ : state) {
    void* const block = run->allocator->Allocate(Size(random)).value_or(nullptr);
    run->allocator->Deallocate(run->slots[random() % run->slots.size()].exchange(block))
        .IgnoreError();
  }
  state.SetItemsProcessed(state.iterations() * 2);
}

// xmalloc-test: half the threads only allocate, the others only free. Blocks go
// over in batches.
void BM_Xmalloc(benchmark::State& state) {
  constexpr std::size_t kBatch = 64;
  using Batch = std::array<void*, kBatch>;
  std::mt19937 random(static_cast<unsigned>(state.thread_index()));
  const bool alone = state.threads() == 1;
  const bool produces = state.thread_index() % 2 == 0;
  // One mailbox for each pair of threads.
  std::atomic<void*>& mailbox = run->slots[static_cast<std::size_t>(state.thread_index() / 2) * 16];
  const auto free_batch = [&](void* full) {
    const std::unique_ptr<Batch> batch(static_cast<Batch*>(full));
    for (void* block : *batch) run->allocator->Deallocate(block).IgnoreError();
  };
  std::int64_t items = 0;
  for (auto _ : state) {
    if (produces) {
      auto batch = std::make_unique<Batch>();
      for (void*& block : *batch) {
        block = run->allocator->Allocate(Size(random)).value_or(nullptr);
      }
      items += std::int64_t{kBatch};
      // A mailbox that nobody emptied: its batch is freed here.
      if (void* const full = mailbox.exchange(batch.release())) {
        free_batch(full);
        items += std::int64_t{kBatch};
      }
    }
    if (!produces || alone) {
      if (void* const full = mailbox.exchange(nullptr)) {
        free_batch(full);
        items += std::int64_t{kBatch};
      } else {
        std::this_thread::yield();
      }
    }
  }
  if (void* const full = mailbox.exchange(nullptr)) free_batch(full);
  state.SetItemsProcessed(items);
}

// mstress: phases of growth, with some blocks that migrate to other threads and
// some that live long.
void BM_Mstress(benchmark::State& state) {
  std::mt19937 random(static_cast<unsigned>(state.thread_index()));
  std::vector<void*> blocks;
  std::int64_t items = 0;
  for (auto _ : state) {
    for (int i = 0; i < 100; ++i) {
      blocks.push_back(run->allocator->Allocate(Size(random)).value_or(nullptr));
      if (random() % 4 == 0) {
        blocks.back() = run->slots[random() % 1024].exchange(blocks.back());
      }
    }
    while (blocks.size() > random() % 200) {
      run->allocator->Deallocate(blocks.back()).IgnoreError();
      blocks.pop_back();
      ++items;
    }
    items += 100;
  }
  for (void* block : blocks) run->allocator->Deallocate(block).IgnoreError();
  state.SetItemsProcessed(items);
}

// alloc-test: sizes by a Pareto distribution, blocks of the thread's own.
void BM_AllocTest(benchmark::State& state) {
  std::mt19937 random(static_cast<unsigned>(state.thread_index()));
  std::vector<void*> blocks(1024);
  for (auto _ : state) {
    const double unit = (static_cast<double>(random()) + 1.0) / 4294967296.0;
    const double bytes = std::min(256.0 / std::pow(unit, 1.0 / 1.16), 1048576.0);
    void*& block = blocks[random() % blocks.size()];
    run->allocator->Deallocate(block).IgnoreError();
    block = run->allocator->Allocate(static_cast<std::size_t>(bytes)).value_or(nullptr);
  }
  for (void* block : blocks) run->allocator->Deallocate(block).IgnoreError();
  state.SetItemsProcessed(state.iterations() * 2);
}

#define HBM_THREADS(name)       \
  BENCHMARK(name)               \
      ->ArgName("thread_cache") \
      ->Arg(0)                  \
      ->Arg(1)                  \
      ->Setup(SetUp)            \
      ->Teardown(TearDown)      \
      ->ThreadRange(1, 16)      \
      ->UseRealTime()
HBM_THREADS(BM_Own);
HBM_THREADS(BM_Larson);
HBM_THREADS(BM_Xmalloc);
HBM_THREADS(BM_Mstress);
HBM_THREADS(BM_AllocTest);

}  // namespace
}  // namespace hbm

BENCHMARK_MAIN();
