// SPDX-License-Identifier: Apache-2.0
//
// Ends as programs do: with allocators in static objects, blocks that are live, and
// from a thread. gpu_exit.cc starts it and looks at what it printed.
//
//   exit_check return | exit | thread      0: all is well. 77: no GPU.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hbmalloc/hbmalloc.h"

namespace {

struct AtTheEnd {
  bool outlives_driver = false;
  std::vector<std::unique_ptr<hbm::Allocator>> allocators;
  std::vector<std::pair<hbm::Allocator*, void*>> blocks;
  ~AtTheEnd() {
    for (const auto& [allocator, block] : blocks) {
      if (block != nullptr) allocator->Deallocate(block).IgnoreError();
      if (outlives_driver) allocator->TryAllocate(1 << 20);  // and it stays live
      allocator->Trim().IgnoreError();
    }
    allocators.clear();
  }
};

// Made before the driver is loaded, so it dies after it.
AtTheEnd at_the_end{true, {}, {}};
thread_local AtTheEnd at_the_end_of_a_thread;

void Fill(AtTheEnd* objects) {
  for (const char* policy :
       {"bfc:memory_limit=64MiB", "on_demand:memory_limit=64MiB", "platform:memory_limit=64MiB",
        "elastic:memory_limit=64MiB", "cuda_async:memory_limit=64MiB"}) {
    auto device = hbm::OpenDevice("cuda:0");
    if (!device.ok()) std::_Exit(77);
    auto made = hbm::MakeAllocator(*hbm::ParsePolicy(policy), *device);
    if (!made.ok()) std::_Exit(1);
    objects->blocks.emplace_back(made->get(), (*made)->TryAllocate(1 << 20));
    (*made)->Deallocate((*made)->TryAllocate(4096)).IgnoreError();
    objects->allocators.push_back(*std::move(made));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "return";
  Fill(&at_the_end);
  std::thread([] { Fill(&at_the_end_of_a_thread); }).join();
  if (how == "thread") std::thread([] { std::exit(0); }).join();
  if (how == "exit") std::exit(0);
  return 0;
}
