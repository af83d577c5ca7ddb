// SPDX-License-Identifier: Apache-2.0
//
// The workloads of RMM's own benchmarks, on RMM's resources and on hbmalloc behind
// hbmalloc/cccl.h, each called through RMM's type-erased reference.
//
//   rmm_workloads [--out=FILE] [--passes=N] [--quick]
//
// random: RMM's RANDOM_ALLOCATIONS_BENCH. N allocations of 1 to M MiB on the default
// stream, 73 of 100 steps allocate, the others free one at random, at most 16,000 MiB
// live. streams: like its MULTI_STREAM_ALLOCATIONS_BENCH, on 8 streams in turn a
// temporary of a random size is allocated, written by the GPU and freed. Host time per
// allocation or free; each resource is new, its first pass is told apart. The GPU's work
// is waited for outside the clock.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda/memory_resource>
#include <functional>
#include <memory>
#include <random>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/resource_ref.hpp>
#include <string>
#include <vector>

#include "hbmalloc/cccl.h"
#include "hbmalloc/device.h"
#include "hbmalloc/policy.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kAlignment = 256;
constexpr size_t kMostLive = 16000 * kMiB;
// Passes after this many seconds are left out.
constexpr double kLongestSeconds = 1;
// What RMM's benchmarks give their pools.
constexpr double kPartOfMemory = 0.5;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

size_t PoolBytes() {
  size_t free = 0;
  size_t total = 0;
  cudaMemGetInfo(&free, &total);
  return static_cast<size_t>(kPartOfMemory * static_cast<double>(free)) / kMiB * kMiB;
}

using Resource = cuda::mr::any_resource<cuda::mr::device_accessible>;

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

Resource Hbmalloc(const std::string& policy) {
  auto device = hbm::OpenDevice("cuda:0");
  if (!device.ok()) Fail(device.status().ToString());
  auto parsed = hbm::ParsePolicy(policy);
  if (!parsed.ok()) Fail(parsed.status().ToString());
  auto allocator = hbm::MakeAllocator(*parsed, *device);
  if (!allocator.ok()) Fail(allocator.status().ToString());
  return hbm::CcclResource(std::shared_ptr<hbm::Allocator>(*std::move(allocator)));
}

Resource Make(const std::string& name) {
  const rmm::mr::cuda_memory_resource upstream;
  if (name == "rmm_pool") return rmm::mr::pool_memory_resource(upstream, PoolBytes());
  if (name == "rmm_pool_growing") return rmm::mr::pool_memory_resource(upstream, 0);
  if (name == "rmm_arena") return rmm::mr::arena_memory_resource(upstream, PoolBytes());
  if (name == "rmm_cuda_async") return rmm::mr::cuda_async_memory_resource();
  return Hbmalloc(name.substr(name.find(' ') + 1));
}

struct Block {
  void* address;
  size_t bytes;
};

// Both return the number of allocations and frees.
size_t Random(rmm::device_async_resource_ref resource, int count, size_t largest) {
  std::mt19937 random(1);
  std::uniform_int_distribution<size_t> size(1, largest / kMiB);
  const cuda::stream_ref stream{cudaStream_t{nullptr}};
  std::vector<Block> live;
  live.reserve(static_cast<size_t>(count));
  size_t live_bytes = 0;
  size_t done = 0;
  for (int made = 0; made < count || !live.empty(); ++done) {
    const size_t bytes = size(random) * kMiB;
    const bool chosen = live.empty() || random() % 100 < 73;
    if (made < count && chosen && (live.empty() || live_bytes + bytes <= kMostLive)) {
      live.push_back({resource.allocate(stream, bytes, kAlignment), bytes});
      live_bytes += bytes;
      ++made;
      continue;
    }
    std::swap(live[random() % live.size()], live.back());
    resource.deallocate(stream, live.back().address, live.back().bytes, kAlignment);
    live_bytes -= live.back().bytes;
    live.pop_back();
  }
  return done;
}

size_t Streams(rmm::device_async_resource_ref resource, int count, size_t largest,
               const std::vector<cudaStream_t>& streams) {
  std::mt19937 random(1);
  std::uniform_int_distribution<size_t> size(4096, largest);
  for (int i = 0; i < count; ++i) {
    const cudaStream_t stream = streams[static_cast<size_t>(i) % streams.size()];
    const size_t bytes = size(random);
    void* const block = resource.allocate(cuda::stream_ref(stream), bytes, kAlignment);
    cudaMemsetAsync(block, i, bytes, stream);
    resource.deallocate(cuda::stream_ref(stream), block, bytes, kAlignment);
  }
  return 2 * static_cast<size_t>(count);
}

struct Workload {
  std::string name;
  std::function<size_t(rmm::device_async_resource_ref)> run;
};

struct Figures {
  double first_ns = 0;
  double warm_ns = 0;  // median of the other passes
};

Figures Measure(const Workload& workload, Resource& resource, int passes) {
  std::vector<double> ns;
  const double began = Now();
  for (int pass = 0; pass < passes; ++pass) {
    // Two at least: one cold, one warm.
    if (pass >= 2 && Now() - began > kLongestSeconds) break;
    cudaDeviceSynchronize();
    const double start = Now();
    const size_t steps = workload.run(resource);
    ns.push_back((Now() - start) * 1e9 / static_cast<double>(steps));
  }
  cudaDeviceSynchronize();
  Figures figures;
  figures.first_ns = ns.front();
  std::sort(ns.begin() + 1, ns.end());
  figures.warm_ns = ns[1 + (ns.size() - 1) / 2];
  return figures;
}

std::vector<Workload> Workloads(bool quick, const std::vector<cudaStream_t>& streams) {
  std::vector<Workload> workloads;
  for (const size_t largest : {1u, 16u}) {
    workloads.push_back(
        {"streams " + std::to_string(streams.size()) + " x " + std::to_string(largest) + " MiB",
         [=](auto resource) { return Streams(resource, 4000, largest * kMiB, streams); }});
  }
  for (const int count : {1000, 10000}) {
    for (const size_t largest : {1u, 4u, 64u, 256u, 1024u, 4096u}) {
      if (count > 1000 && (quick || largest > 64)) continue;
      workloads.push_back(
          {"random " + std::to_string(count) + " x " + std::to_string(largest) + " MiB",
           [=](auto resource) { return Random(resource, count, largest * kMiB); }});
    }
  }
  return workloads;
}

const char* const kResources[] = {"rmm_pool",
                                  "rmm_pool_growing",
                                  "rmm_arena",
                                  "rmm_cuda_async",
                                  "hbmalloc bfc:memory_fraction=0.5",
                                  "hbmalloc on_demand:memory_fraction=1",
                                  "hbmalloc elastic:memory_fraction=1",
                                  "hbmalloc elastic:memory_fraction=1,slack=inf"};

// One row for each resource; JSON too, if there is a file.
void Run(const Workload& workload, int passes, std::FILE* file) {
  double pool_ns = 0;
  for (const std::string name : kResources) {
    Figures figures;
    try {
      Resource resource = Make(name);
      figures = Measure(workload, resource, passes);
    } catch (const std::exception& error) {
      std::printf("%-26s %-44s FAILED: %.120s\n", workload.name.c_str(), name.c_str(),
                  error.what());
      cudaDeviceSynchronize();
      continue;
    }
    if (name == "rmm_pool") pool_ns = figures.warm_ns;
    std::printf("%-26s %-44s %10.0f %10.0f %9.3f\n", workload.name.c_str(), name.c_str(),
                figures.first_ns, figures.warm_ns, pool_ns == 0 ? 0 : figures.warm_ns / pool_ns);
    std::fflush(stdout);
    if (file == nullptr) continue;
    std::fprintf(file, "%s\n {\"workload\": \"%s\", \"resource\": \"%s\", ",
                 std::ftell(file) == 1 ? "" : ",", workload.name.c_str(), name.c_str());
    std::fprintf(file, "\"first_ns\": %.1f, \"warm_ns\": %.1f}", figures.first_ns, figures.warm_ns);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string out;
  int passes = 6;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag.rfind("--out=", 0) == 0) out = flag.substr(6);
    if (flag.rfind("--passes=", 0) == 0) passes = std::max(2, std::atoi(flag.c_str() + 9));
    if (flag == "--quick") quick = true;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no GPU to run on\n");
    return 3;
  }
  cudaFree(nullptr);
  std::vector<cudaStream_t> streams(8);
  for (cudaStream_t& stream : streams) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  std::FILE* const file = out.empty() ? nullptr : std::fopen(out.c_str(), "w");
  if (file != nullptr) std::fprintf(file, "[");
  std::printf("%-26s %-44s %10s %10s %9s\n", "workload", "resource", "first ns", "warm ns",
              "of pool");
  for (const Workload& workload : Workloads(quick, streams)) Run(workload, passes, file);
  if (file != nullptr) {
    std::fprintf(file, "\n]\n");
    std::fclose(file);
  }
  for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
  return 0;
}
