// SPDX-License-Identifier: Apache-2.0
//
// The recorded traces through the public interface, warm: every event is an
// Allocate or a Deallocate with a status. Reports nanoseconds per event.
//
//   trace_benchmark --benchmark_filter='bfc/gpt2.*' --benchmark_repetitions=5
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "hbmalloc/hbmalloc.h"
#include "observe/trace_reader.h"

namespace hbm {
namespace {

const char* const kTraces[] = {"gpt2_train_varlen",
                               "llama_decode_growing_kv",
                               "resnet50_train_varbatch",
                               "gnn_train_vargraph",
                               "moe_train_routed",
                               "mlp_train_multistream",
                               "unet_train_varsize",
                               "xla_train_1",
                               "xla_eager_1",
                               "random_small",
                               "random_mixed",
                               "random_stacked"};

struct Events {
  struct Event {
    std::uint32_t block;
    bool is_free;
    std::uint64_t bytes;
  };
  std::vector<Event> events;
  std::uint32_t blocks = 0;
};

// The trace, and at its end the frees that it leaves out, so that it can be
// played again and again.
const Events& Load(const std::string& name) {
  static auto* const cache = new std::map<std::string, Events>;
  auto [found, is_new] = cache->try_emplace(name);
  Events& events = found->second;
  if (!is_new) return events;
  const auto trace =
      observe::ReadTraceFile(HBMALLOC_SOURCE_DIR "/bench/traces/" + name + ".csv.gz");
  if (!trace.ok()) return events;
  std::vector<bool> live(trace->block_count);
  for (const observe::TraceEvent& event : trace->events) {
    const bool is_free = event.kind == observe::TraceEvent::Kind::kFree;
    live[event.block] = !is_free;
    events.events.push_back({event.block, is_free, event.bytes});
  }
  for (std::uint32_t block = 0; block < trace->block_count; ++block) {
    if (live[block]) events.events.push_back({block, true, 0});
  }
  events.blocks = trace->block_count;
  return events;
}

void Play(const Events& events, Allocator& allocator, std::vector<void*>& blocks) {
  for (const Events::Event& event : events.events) {
    if (event.is_free) {
      allocator.Deallocate(blocks[event.block]).IgnoreError();
    } else {
      blocks[event.block] = allocator.Allocate(event.bytes).value_or(nullptr);
    }
  }
}

void Run(benchmark::State& state, const std::string& spec, const std::string& name) {
  const Events& events = Load(name);
  if (events.events.empty()) return state.SkipWithError("the trace cannot be read");
  const auto device = OpenDevice("sim:40GiB");
  auto allocator = MakeAllocator(*ParsePolicy(spec), *device);
  if (!allocator.ok()) return state.SkipWithError(allocator.status().ToString().c_str());
  std::vector<void*> blocks(events.blocks);
  Play(events, **allocator, blocks);
  for (auto _ : state) Play(events, **allocator, blocks);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(events.events.size()));
  state.counters["ns_per_event"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(events.events.size()) * 1e-9,
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void RegisterAll() {
  const std::pair<const char*, const char*> strategies[] = {
      {"bfc", "bfc:memory_fraction=1"}, {"on_demand", "on_demand:memory_fraction=1"}};
  for (const auto& [label, spec] : strategies) {
    for (const char* trace : kTraces) {
      benchmark::RegisterBenchmark((std::string(label) + "/" + trace).c_str(), Run,
                                   std::string(spec), std::string(trace))
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace hbm

int main(int argc, char** argv) {
  hbm::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
