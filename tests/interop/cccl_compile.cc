// SPDX-License-Identifier: Apache-2.0
//
// The resource is what CCCL wants, and works as one; run on a simulated device.
#include <cstdio>
#include <memory>
#include <new>
#include <string>

#include "hbmalloc/cccl.h"
#include "hbmalloc/device.h"

static_assert(cuda::mr::synchronous_resource<hbm::CcclResource>, "");
static_assert(cuda::mr::resource<hbm::CcclResource>, "");
static_assert(cuda::mr::resource_with<hbm::CcclResource, cuda::mr::device_accessible>, "");
static_assert(!cuda::mr::resource_with<hbm::CcclResource, cuda::mr::host_accessible>, "");

int main() {
  std::shared_ptr<hbm::Allocator> allocator =
      *hbm::MakeAllocator(*hbm::ParsePolicy("elastic"), *hbm::OpenDevice("sim:1GiB"));
  hbm::CcclResource resource(allocator);
  const cuda::stream_ref stream{cudaStream_t{}};
  cuda::mr::any_resource<cuda::mr::device_accessible> any(resource);
  void* const a = any.allocate(stream, 1 << 20, 256);
  void* const b = resource.allocate_sync(4096, 4096);
  const bool held = allocator->GetStats().requested_bytes == (1 << 20) + 4096;
  any.deallocate(stream, a, 1 << 20, 256);
  resource.deallocate_sync(b, 4096, 4096);
  bool thrown = false;
  try {
    (void)resource.allocate(stream, std::size_t{2} << 30);
  } catch (const std::bad_alloc& error) {
    thrown = std::string(error.what()).find("out of memory") != std::string::npos;
  }
  const bool equal = resource == hbm::CcclResource(allocator);
  const bool ok = held && thrown && equal && allocator->GetStats().requested_bytes == 0;
  std::puts(ok ? "ok" : "failed");
  return ok ? 0 : 1;
}
