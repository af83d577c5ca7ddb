// SPDX-License-Identifier: Apache-2.0
//
// A library that holds all of hbmalloc, to be loaded and unloaded.
#include <thread>

#include "hbmalloc/hbmalloc.h"

namespace {

bool Use(const char* policy) {
  const auto device = hbm::OpenDevice("host:64MiB");
  auto allocator = hbm::MakeAllocator(*hbm::ParsePolicy(policy), *device);
  if (!allocator.ok()) return false;
  bool good = true;
  std::thread([&] {
    hbm::ScopedTag scope(hbm::RegisterTag("plugin"));
    void* const block = (*allocator)->TryAllocate(100'000);
    good = block != nullptr && (*allocator)->Deallocate(block).ok();
  }).join();
  return good && !(*allocator)->Allocate(std::size_t{1} << 40).ok();
}

}  // namespace

extern "C" int UseEverything() {
  hbm::SetLogSink(nullptr);
  for (const char* policy : {"bfc", "on_demand", "platform", "elastic", "bfc:thread_cache=true",
                             "bfc:debug=guard+poison+leaks+stacks"}) {
    if (!Use(policy)) return 1;
  }
  return 0;
}
