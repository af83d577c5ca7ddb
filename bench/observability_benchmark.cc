// SPDX-License-Identifier: Apache-2.0
//
// What watching an allocator costs: each figure is nanoseconds per event, an
// allocation or a free, of bfc on a simulated device. Subtract NotWatched's.
//
//   observability_benchmark --benchmark_repetitions=5
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "hbmalloc/hbmalloc.h"
#include "observe/trace_recorder.h"

namespace hbm {
namespace {

constexpr int kBurst = 10'000;  // pairs; the ring holds three times as many
const char kTrace[] = "/tmp/hbmalloc_observability_benchmark.csv";

std::unique_ptr<Allocator> Make(const std::string& fields) {
  auto allocator =
      MakeAllocator(*ParsePolicy("bfc:memory_fraction=1" + fields), *OpenDevice("sim:1TiB"));
  return allocator.ok() ? *std::move(allocator) : nullptr;
}

// Something to look for among.
std::vector<void*> Fill(Allocator& allocator) {
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 2000; ++i) blocks.push_back(*allocator.Allocate(1000 + 700 * i));
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    allocator.Deallocate(blocks[i]).IgnoreError();
    blocks[i] = nullptr;
  }
  return blocks;
}

void Pairs(Allocator& allocator, int pairs) {
  for (int i = 0; i < pairs; ++i) {
    allocator.Deallocate(*allocator.Allocate(static_cast<std::size_t>(1000 + (i & 1023) * 256)))
        .IgnoreError();
  }
}

void SetRate(benchmark::State& state) {
  state.counters["ns/event"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kBurst * 2,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Run(benchmark::State& state, Allocator& allocator) {
  const std::vector<void*> blocks = Fill(allocator);
  for (auto _ : state) Pairs(allocator, kBurst);
  for (void* const block : blocks) allocator.Deallocate(block).IgnoreError();
  SetRate(state);
}

void NotWatched(benchmark::State& state) { Run(state, *Make("")); }
BENCHMARK(NotWatched);

// The caller's part: the ring takes it all, and is emptied outside the time.
void TraceCaller(benchmark::State& state) {
  {
    const auto allocator = Make(std::string(",trace=") + kTrace);
    const auto recorder = observe::TraceRecorder::Open(kTrace);
    const std::vector<void*> blocks = Fill(*allocator);
    for (auto _ : state) {
      Pairs(*allocator, kBurst);
      state.PauseTiming();
      (*recorder)->Flush();
      state.ResumeTiming();
    }
    for (void* const block : blocks) allocator->Deallocate(block).IgnoreError();
    SetRate(state);
  }
  std::remove(kTrace);
}
BENCHMARK(TraceCaller);

// Without a pause for the writer: what the slower of the two can do.
void TraceSustained(benchmark::State& state) { Run(state, *Make(",trace=/dev/null")); }
BENCHMARK(TraceSustained)->UseRealTime();

void TraceSustainedGzip(benchmark::State& state) {
  const std::string path = std::string(kTrace) + ".gz";
  Run(state, *Make(",trace=" + path));
  std::remove(path.c_str());
}
BENCHMARK(TraceSustainedGzip)->UseRealTime();

void Means(benchmark::State& state) { Run(state, *Make(",means=true")); }
BENCHMARK(Means);

void EventCallbackThatDoesNothing(benchmark::State& state) {
  const auto allocator = Make("");
  allocator->SetEventCallback([](const Event&) {});
  Run(state, *allocator);
}
BENCHMARK(EventCallbackThatDoesNothing);

// Reading, with 100,000 live blocks and as many free chunks.
template <typename Read>
void Reads(benchmark::State& state, Read read) {
  const auto allocator = Make("");
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 200'000; ++i) blocks.push_back(*allocator->Allocate(256 + i % 5000));
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    allocator->Deallocate(blocks[i]).IgnoreError();
    blocks[i] = nullptr;
  }
  for (auto _ : state) read(*allocator);
  for (void* const block : blocks) allocator->Deallocate(block).IgnoreError();
}
void ReadStats(benchmark::State& state) {
  Reads(state, [](Allocator& allocator) { benchmark::DoNotOptimize(allocator.GetStats()); });
}
BENCHMARK(ReadStats);
void ReadFigures(benchmark::State& state) {
  Reads(state, [](Allocator& allocator) { benchmark::DoNotOptimize(allocator.GetFigures()); });
}
BENCHMARK(ReadFigures);
void ReadSnapshot(benchmark::State& state) {
  Reads(state, [](Allocator& allocator) { benchmark::DoNotOptimize(allocator.TakeSnapshot()); });
}
BENCHMARK(ReadSnapshot)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace hbm

BENCHMARK_MAIN();
