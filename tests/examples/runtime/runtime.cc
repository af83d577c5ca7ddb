// SPDX-License-Identifier: Apache-2.0
//
// A small runtime: a graph of kernels on two streams, whose buffers come from the strategy
// that the command line names.
//
//   runtime [--strategy=elastic] [--device=host:1GiB] [--layers=8] [--steps=20]
//
// A step is a forward pass that keeps its activations and a backward pass that frees
// them; its size is drawn. The second stream sums each activation up meanwhile. Every sum
// is checked. On a GPU (where the program is built with nvcc's kernels) the work is
// asynchronous; without one it is done at once by the CPU.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "hbmalloc/buffer.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/examples/runtime/kernels.h"

namespace {

struct Flags {
  std::string strategy = "elastic";
  std::string device = "host:1GiB";
  int layers = 8;
  int steps = 20;
};

bool Take(std::string_view argument, std::string_view name, std::string* value) {
  if (argument.substr(0, name.size()) != name) return false;
  *value = std::string(argument.substr(name.size()));
  return true;
}

bool Parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    std::string number;
    if (Take(argv[i], "--strategy=", &flags->strategy)) continue;
    if (Take(argv[i], "--device=", &flags->device)) continue;
    if (Take(argv[i], "--layers=", &number)) {
      flags->layers = std::atoi(number.c_str());
    } else if (Take(argv[i], "--steps=", &number)) {
      flags->steps = std::atoi(number.c_str());
    } else {
      std::fprintf(stderr, "%s: give --strategy=, --device=, --layers= or --steps=\n", argv[i]);
      return false;
    }
  }
  return flags->layers > 0 && flags->steps > 0;
}

class Runtime {
 public:
  Runtime(hbm::Allocator* allocator, runtime::Kernels* kernels)
      : allocator_(*allocator), kernels_(*kernels) {}

  // One forward and one backward pass over `count` floats a layer; false, with a line on
  // stderr, if a sum is wrong or there is no memory.
  bool Step(int layers, std::size_t count, float seed) {
    std::vector<hbm::Buffer> activations;
    std::vector<hbm::Buffer> sums;
    const auto main = hbm::StreamRef::FromHandle(kernels_.stream(0));
    const auto side = hbm::StreamRef::FromHandle(kernels_.stream(1));
    for (int layer = 0; layer < layers; ++layer) {
      if (!Push(&activations, count * sizeof(float), main)) return false;
      if (!Push(&sums, sizeof(double), side)) return false;
      float* const out = static_cast<float*>(activations.back().data());
      if (layer == 0) {
        kernels_.Fill(out, count, seed);
      } else {
        kernels_.AddOne(static_cast<float*>(activations[activations.size() - 2].data()), out,
                        count);
      }
      // The side stream reads what the main one wrote: it waits, and the block is kept
      // until it has read.
      kernels_.WaitForOther(/*waiter=*/1, /*other=*/0);
      kernels_.Sum(out, count, static_cast<double*>(sums.back().data()));
      if (!activations.back().RecordUse(side).ok()) return false;
    }
    while (!activations.empty()) activations.pop_back();  // backward: last in, first out
    return Check(sums, count, seed);
  }

 private:
  bool Push(std::vector<hbm::Buffer>* list, std::size_t bytes, hbm::StreamRef stream) {
    hbm::AllocateOptions options;
    options.stream = stream;
    absl::StatusOr<hbm::Buffer> buffer = hbm::Buffer::Allocate(allocator_, bytes, options);
    if (!buffer.ok()) {
      std::fprintf(stderr, "%s\n", std::string(buffer.status().message()).c_str());
      return false;
    }
    list->push_back(*std::move(buffer));
    return true;
  }

  bool Check(const std::vector<hbm::Buffer>& sums, std::size_t count, float seed) {
    for (std::size_t layer = 0; layer < sums.size(); ++layer) {
      const double sum = kernels_.Read(static_cast<const double*>(sums[layer].data()));
      const double expected =
          static_cast<double>(count) * (static_cast<double>(seed) + static_cast<double>(layer));
      if (std::abs(sum - expected) > 1e-9 * expected) {
        std::fprintf(stderr, "layer %zu: the sum is %.17g instead of %.17g\n", layer, sum,
                     expected);
        return false;
      }
    }
    return true;
  }

  hbm::Allocator& allocator_;
  runtime::Kernels& kernels_;
};

int Run(const Flags& flags) {
  const absl::StatusOr<hbm::Policy> policy = hbm::ParsePolicy(flags.strategy);
  if (!policy.ok()) return std::fprintf(stderr, "%s\n", policy.status().ToString().c_str()), 2;
  const absl::StatusOr<std::shared_ptr<hbm::Device>> device = hbm::OpenDevice(flags.device);
  if (!device.ok()) return std::fprintf(stderr, "%s\n", device.status().ToString().c_str()), 2;
  const std::unique_ptr<runtime::Kernels> kernels =
      (*device)->IsCuda() ? runtime::MakeGpuKernels() : runtime::MakeHostKernels();
  if (kernels == nullptr) return std::fprintf(stderr, "built without GPU kernels\n"), 2;
  const absl::StatusOr<std::unique_ptr<hbm::Allocator>> allocator =
      hbm::MakeAllocator(*policy, *device);
  if (!allocator.ok())
    return std::fprintf(stderr, "%s\n", allocator.status().ToString().c_str()), 1;

  Runtime run(allocator->get(), kernels.get());
  std::mt19937 draw(7);
  for (int step = 0; step < flags.steps; ++step) {
    const std::size_t count = std::uniform_int_distribution<std::size_t>(1000, 1 << 20)(draw);
    if (!run.Step(flags.layers, count, static_cast<float>(step + 1))) return 1;
  }
  const hbm::Stats stats = (*allocator)->GetStats();
  std::printf(
      "ok: %d steps, %lld allocations, peak live %.1f MiB, peak pool %.1f MiB (%.3f)\n",
      flags.steps, static_cast<long long>(stats.num_allocs),
      static_cast<double>(stats.peak_requested_bytes) / (1 << 20),
      static_cast<double>(stats.peak_pool_bytes) / (1 << 20),
      static_cast<double>(stats.peak_pool_bytes) / static_cast<double>(stats.peak_requested_bytes));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  return Parse(argc, argv, &flags) ? Run(flags) : 2;
}
