// SPDX-License-Identifier: Apache-2.0
//
// Fixed workloads for counting instructions per event, where time cannot be
// measured reliably. check_instructions.py runs it under callgrind, which counts
// only inside MeasuredEvents.
//
//   instructions llama          the recorded llama_decode_growing_kv, first pass
//   instructions random 1000    random sizes and frees with 1000 blocks live
//   instructions warm TRACE POLICY
//                               any recorded trace on any strategy, second pass:
//                               what the first one took from the device is there
//
// Prints the number of events, and how long each took (callgrind slows that down).
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hbmalloc/hbmalloc.h"
#include "observe/trace_reader.h"

namespace hbm {
namespace {

struct Event {
  std::uint32_t block;
  std::uint32_t is_free;
  std::uint64_t bytes;
};

struct Workload {
  std::vector<Event> setup;
  std::vector<Event> measured;
  std::uint32_t blocks = 0;
};

Workload FromTrace(const std::string& name) {
  Workload workload;
  const auto trace =
      observe::ReadTraceFile(HBMALLOC_SOURCE_DIR "/bench/traces/" + name + ".csv.gz");
  if (!trace.ok()) {
    std::fprintf(stderr, "%s\n", trace.status().ToString().c_str());
    std::exit(2);
  }
  workload.blocks = trace->block_count;
  for (const observe::TraceEvent& event : trace->events) {
    workload.measured.push_back(
        {event.block, event.kind == observe::TraceEvent::Kind::kFree, event.bytes});
  }
  return workload;
}

// Sizes from 256 bytes to 1 MiB, each power of two as likely as the next; the
// block that is freed is any.
Workload Random(std::uint32_t live) {
  Workload workload;
  workload.blocks = live;
  std::mt19937_64 random(1);
  const auto size = [&] {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    return static_cast<std::uint64_t>(std::exp2(8.0 + 12.0 * unit));
  };
  for (std::uint32_t block = 0; block < live; ++block) {
    workload.setup.push_back({block, 0, size()});
  }
  const auto replace = [&](std::vector<Event>& events, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto block = static_cast<std::uint32_t>(random() % live);
      events.push_back({block, 1, 0});
      events.push_back({block, 0, size()});
    }
  };
  replace(workload.setup, 3 * live);  // into the steady state
  replace(workload.measured, 100'000);
  return workload;
}

__attribute__((noinline)) void MeasuredEvents(const std::vector<Event>& events,
                                              Allocator& allocator, std::vector<void*>& blocks) {
  for (const Event& event : events) {
    if (event.is_free != 0) {
      allocator.Deallocate(blocks[event.block]).IgnoreError();
    } else {
      blocks[event.block] = allocator.Allocate(event.bytes).value_or(nullptr);
    }
  }
}

__attribute__((noinline)) void SetUp(const std::vector<Event>& events, Allocator& allocator,
                                     std::vector<void*>& blocks) {
  for (const Event& event : events) {
    if (event.is_free != 0) {
      allocator.Deallocate(std::exchange(blocks[event.block], nullptr)).IgnoreError();
    } else {
      blocks[event.block] = allocator.TryAllocate(event.bytes);
    }
  }
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: instructions llama | random LIVE_BLOCKS | warm TRACE POLICY\n");
    return 2;
  }
  const std::string name = argv[1];
  const bool is_warm = name == "warm" && argc > 3;
  const Workload workload = name == "random" && argc > 2
                                ? Random(static_cast<std::uint32_t>(std::atoi(argv[2])))
                                : FromTrace(is_warm ? argv[2] : "llama_decode_growing_kv");
  SetLogSink(nullptr);
  const auto policy = ParsePolicy(is_warm ? argv[3] : "bfc:memory_fraction=1");
  if (!policy.ok()) return 2;
  auto allocator = MakeAllocator(*policy, *OpenDevice("sim:2TiB"));
  if (!allocator.ok()) return 2;
  std::vector<void*> blocks(workload.blocks);
  SetUp(workload.setup, **allocator, blocks);
  if (is_warm) {
    SetUp(workload.measured, **allocator, blocks);
    for (void*& block : blocks) {
      (*allocator)->Deallocate(std::exchange(block, nullptr)).IgnoreError();
    }
  }
  const auto start = std::chrono::steady_clock::now();
  MeasuredEvents(workload.measured, **allocator, blocks);
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
  const auto events = static_cast<double>(workload.measured.size());
  std::printf("events: %zu\nns_per_event: %.1f\n", workload.measured.size(),
              elapsed.count() / events);
  return 0;
}

}  // namespace
}  // namespace hbm

int main(int argc, char** argv) { return hbm::Main(argc, argv); }
