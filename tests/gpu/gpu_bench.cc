// SPDX-License-Identifier: Apache-2.0
//
// The figures that need a GPU, as small tables.
//
//   gpu_bench [pairs] [driver] [preallocation] [launches]      all of them by default
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hbmalloc/hbmalloc.h"
#include "tests/gpu/kernels.h"
#include "tests/gpu/pairs.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMiB = std::size_t{1} << 20;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

std::unique_ptr<hbm::Allocator> Make(const std::string& policy) {
  auto device = hbm::OpenDevice("cuda:0");
  auto made = device.ok() ? hbm::MakeAllocator(*hbm::ParsePolicy(policy), *device)
                          : absl::StatusOr<std::unique_ptr<hbm::Allocator>>(device.status());
  if (made.ok()) return *std::move(made);
  std::fprintf(stderr, "%s: %s\n", policy.c_str(), std::string(made.status().message()).c_str());
  return nullptr;
}

double Percentile(std::vector<double>& values, double percent) {
  std::sort(values.begin(), values.end());
  const auto at = static_cast<std::size_t>(percent / 100 * static_cast<double>(values.size()));
  return values[std::min(at, values.size() - 1)];
}

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

// The driver's own pool, of which nothing is given back meanwhile.
class DriverPool {
 public:
  DriverPool() {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaMemPoolCreate(&pool_, &properties);
    std::uint64_t threshold = ~std::uint64_t{0};
    cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &threshold);
  }
  ~DriverPool() {
    cudaDeviceSynchronize();
    cudaMemPoolDestroy(pool_);
  }
  DriverPool(const DriverPool&) = delete;
  DriverPool& operator=(const DriverPool&) = delete;
  hbm::testing::PairCosts Measure(cudaStream_t stream) {
    return hbm::testing::MeasurePairs(
        [&](std::size_t bytes) {
          void* block = nullptr;
          cudaMallocFromPoolAsync(&block, bytes, pool_, stream);
          return block;
        },
        [&](void* block) { cudaFreeAsync(block, stream); });
  }

 private:
  cudaMemPool_t pool_ = nullptr;
};

// What the host pays for a pair, where no driver is called and where the pool's is: on
// a stream that was made, whose id is asked for each time, and on the default one. The
// best of three rounds, all in turn: clocks change between them.
void Pairs() {
  const cudaStream_t made = NewStream();
  const struct {
    const char* name;
    cudaStream_t handle;
  } streams[] = {{"a created stream", made}, {"the default stream", nullptr}};
  const char* const policies[] = {"bfc:memory_limit=8GiB", "on_demand:memory_limit=8GiB",
                                  "elastic:memory_limit=8GiB,slack=inf",
                                  "cuda_async:memory_limit=8GiB,release_threshold=8GiB"};
  for (const auto& stream : streams) {
    std::vector<std::pair<std::string, hbm::testing::PairCosts>> rows;
    const auto keep = [&](std::size_t row, const std::string& name, hbm::testing::PairCosts costs) {
      if (row == rows.size()) rows.emplace_back(name, costs);
      hbm::testing::PairCosts& best = rows[row].second;
      best.one_block = std::min(best.one_block, costs.one_block);
      best.many_blocks = std::min(best.many_blocks, costs.many_blocks);
    };
    for (int round = 0; round < 3; ++round) {
      std::size_t row = 0;
      for (const std::string policy : policies) {
        const auto allocator = Make(policy);
        if (allocator == nullptr) return;
        hbm::AllocateOptions options;
        options.stream = hbm::StreamRef::FromHandle(stream.handle);
        keep(row++, policy.substr(0, policy.find(':')),
             hbm::testing::MeasurePairs(
                 [&](std::size_t bytes) { return allocator->TryAllocate(bytes, options); },
                 [&](void* block) { allocator->Deallocate(block).IgnoreError(); }));
      }
      keep(row++, "cudaMallocFromPoolAsync and cudaFreeAsync", DriverPool().Measure(stream.handle));
    }
    std::printf("ns per pair, ordered, %-19s %14s %14s\n", stream.name, "one 1 MiB",
                "of 1,000 live");
    for (const auto& [name, costs] : rows) {
      std::printf("%-41s %14.1f %14.1f\n", name.c_str(), costs.one_block, costs.many_blocks);
    }
    std::printf("%-41s %14.1f %14.1f\n\n", "bfc is faster than that by",
                rows.back().second.one_block / rows.front().second.one_block,
                rows.back().second.many_blocks / rows.front().second.many_blocks);
  }
  cudaStreamDestroy(made);
}

// platform against the plain calls, in turn, so that both meet the same weather.
void Driver() {
  const auto allocator = Make("platform:memory_limit=8GiB");
  if (allocator == nullptr) return;
  const cudaStream_t stream = NewStream();
  hbm::AllocateOptions options;
  options.stream = hbm::StreamRef::FromHandle(stream);
  std::printf("\n%-40s %12s %12s %12s\n", "us per pair, median of 40 rounds", "platform",
              "cudaMalloc", "difference");
  for (const std::size_t bytes : {std::size_t{256}, kMiB, 2 * kMiB, 32 * kMiB}) {
    std::vector<double> ours, plain, difference;
    for (int round = 0; round < 40; ++round) {
      constexpr int kPairs = 50;
      auto start = Clock::now();
      for (int i = 0; i < kPairs; ++i) {
        allocator->Deallocate(allocator->TryAllocate(bytes, options)).IgnoreError();
      }
      ours.push_back(MicrosecondsSince(start) / kPairs);
      start = Clock::now();
      for (int i = 0; i < kPairs; ++i) {
        void* block = nullptr;
        cudaMalloc(&block, bytes);
        cudaFree(block);
      }
      plain.push_back(MicrosecondsSince(start) / kPairs);
      difference.push_back(ours.back() - plain.back());
    }
    std::printf("%-40s %12.2f %12.2f %12.2f\n", (std::to_string(bytes) + " bytes").c_str(),
                Percentile(ours, 50), Percentile(plain, 50), Percentile(difference, 50));
  }
  const hbm::Stats stats = allocator->GetStats();
  std::printf("driver calls per pair: %.2f, of %.2f us each\n",
              static_cast<double>(stats.driver_calls) / static_cast<double>(stats.num_allocs),
              static_cast<double>(stats.driver_nanoseconds) / 1e3 /
                  static_cast<double>(stats.driver_calls));
  cudaStreamDestroy(stream);
}

// 75% of the card: our pool, and one cudaMalloc of its size.
void Preallocation() {
  auto device = hbm::OpenDevice("cuda:0");
  if (!device.ok()) return;
  std::printf("\n%-40s %12s %12s %12s\n", "preallocating 75% of the card, ms", "bfc", "cudaMalloc",
              "difference");
  for (int round = 0; round < 5; ++round) {
    auto start = Clock::now();
    auto allocator = hbm::MakeAllocator(*hbm::ParsePolicy("bfc"), *device);
    const double ours = MicrosecondsSince(start) / 1e3;
    if (!allocator.ok()) return;
    const auto bytes = static_cast<std::size_t>((*allocator)->GetStats().pool_bytes);
    allocator->reset();
    void* block = nullptr;
    start = Clock::now();
    const cudaError_t result = cudaMalloc(&block, bytes);
    const double plain = MicrosecondsSince(start) / 1e3;
    cudaFree(block);
    if (result != cudaSuccess) return;
    std::printf("%-40s %12.3f %12.3f %12.3f\n", (std::to_string(bytes / kMiB) + " MiB").c_str(),
                ours, plain, ours - plain);
  }
}

std::vector<double> LaunchLatencies(int count, cudaStream_t stream) {
  std::vector<double> latencies;
  latencies.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const auto start = Clock::now();
    hbm::testing::Spin(0, stream);
    latencies.push_back(MicrosecondsSince(start));
    if (i % 256 == 255) cudaStreamSynchronize(stream);  // the queue is never full
  }
  cudaStreamSynchronize(stream);
  return latencies;
}

// One thread launches kernels, another keeps the allocator's driver calls going.
void Launches() {
  constexpr int kLaunches = 60000;
  std::printf("\n%-40s %8s %8s %8s %8s %9s %12s\n", "another thread's launches, us", "50%", "90%",
              "99%", "99.9%", "most", "driver calls");
  const cudaStream_t stream = NewStream();
  LaunchLatencies(5000, stream);
  const auto row = [&](const char* name, std::int64_t calls) {
    std::vector<double> all = LaunchLatencies(kLaunches, stream);
    const double middle = Percentile(all, 50);
    std::printf("%-40s %8.2f %8.2f %8.2f %8.2f %9.1f ", name, middle, Percentile(all, 90),
                Percentile(all, 99), Percentile(all, 99.9), all.back());
    if (calls == 0) std::printf("%12d\n", 0);
  };
  row("no allocator", 0);
  struct Case {
    const char* name;
    const char* policy;
  };
  for (const Case& each :
       {Case{"bfc, hits", "bfc:memory_limit=2GiB"},
        Case{"elastic, slack=0: pages move", "elastic:memory_limit=2GiB,slack=0"},
        Case{"elastic, create and release (Trim)", "elastic:memory_limit=2GiB"},
        Case{"on_demand, grow and release (Trim)", "on_demand:memory_limit=2GiB"},
        Case{"platform: cudaMalloc and cudaFree", "platform:memory_limit=2GiB"}}) {
    const auto allocator = Make(each.policy);
    if (allocator == nullptr) continue;
    const bool trim = std::strstr(each.name, "Trim") != nullptr;
    std::atomic<bool> stop{false};
    std::thread worker([&] {
      cudaSetDevice(0);
      hbm::AllocateOptions options;
      options.stream = hbm::StreamRef::Synchronized();
      std::vector<void*> live;
      for (std::size_t i = 0; !stop; ++i) {
        void* const block = allocator->TryAllocate((i * 7919 % 61 + 1) * kMiB, options);
        if (block != nullptr) live.push_back(block);
        if (live.size() > 16 || (block == nullptr && !live.empty())) {
          const std::size_t at = i * 31 % live.size();
          allocator->Deallocate(live[at], hbm::StreamRef::Synchronized()).IgnoreError();
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
        }
        if (trim && i % 4 == 3) allocator->Trim().IgnoreError();
      }
      for (void* const block : live) {
        allocator->Deallocate(block, hbm::StreamRef::Synchronized()).IgnoreError();
      }
    });
    row(each.name, 1);
    stop = true;
    worker.join();
    std::printf("%12lld\n", static_cast<long long>(allocator->GetStats().driver_calls));
  }
  cudaStreamDestroy(stream);
}

}  // namespace

int main(int argc, char** argv) {
  if (!hbm::OpenDevice("cuda:0").ok() || cudaSetDevice(0) != cudaSuccess) {
    std::fprintf(stderr, "no usable GPU\n");
    return 1;
  }
  cudaFree(nullptr);
  const auto wanted = [&](const char* name) {
    if (argc == 1) return true;
    return std::any_of(argv + 1, argv + argc,
                       [&](const char* given) { return std::strcmp(given, name) == 0; });
  };
  if (wanted("pairs")) Pairs();
  if (wanted("driver")) Driver();
  if (wanted("preallocation")) Preallocation();
  if (wanted("launches")) Launches();
  return 0;
}
