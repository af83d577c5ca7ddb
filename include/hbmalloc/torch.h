// SPDX-License-Identifier: Apache-2.0
//
// File: torch.h
//
// What the shared library gives PyTorch's CUDAPluggableAllocator, and CuPy's
// CFunctionAllocator: plain functions over one allocator per device, which is made at
// the device's first request.
//
//   allocator = torch.cuda.memory.CUDAPluggableAllocator(
//       "libhbmalloc.so", "hbm_torch_allocate", "hbm_torch_free")
//   torch.cuda.memory.change_current_allocator(allocator)
//
// hbmalloc/torch.py sets the other functions too. The policy is HBMALLOC_POLICY's; if it
// is not set, "elastic:memory_fraction=1,slack=0.04,reuse_wait=100ms". docs/pytorch.md has
// the limits.
#ifndef HBMALLOC_TORCH_H_
#define HBMALLOC_TORCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "hbmalloc/c_api.h"
#include "hbmalloc/visibility.h"

extern "C" {

// PyTorch takes any pointer for memory, null too, so what fails throws: a std::exception
// whose text is the report, which PyTorch raises as RuntimeError. Also in a forked child,
// where CUDA cannot be used.
HBM_PUBLIC void* hbm_torch_allocate(std::ptrdiff_t bytes, int device, void* stream);
// Failures are warned about. In a forked child nothing happens.
HBM_PUBLIC void hbm_torch_free(void* block, std::ptrdiff_t bytes, int device, void* stream);

// For CUDAPluggableAllocator's setters.
HBM_PUBLIC void hbm_torch_init(int device_count);
HBM_PUBLIC void hbm_torch_empty_cache();
HBM_PUBLIC void hbm_torch_set_memory_fraction(double fraction, int device);
HBM_PUBLIC void* hbm_torch_base_allocation(void* address, std::size_t* bytes);
HBM_PUBLIC void hbm_torch_record_stream(void* block, void* stream);

// PyTorch says which pool is captured, but not on which stream: this is asked.
using hbm_torch_stream_function = void* (*)(int device);
HBM_PUBLIC void hbm_torch_set_current_stream_function(hbm_torch_stream_function function);
using hbm_torch_pool = std::pair<unsigned long long, unsigned long long>;  // NOLINT(runtime/int)
HBM_PUBLIC void hbm_torch_begin_allocate_to_pool(int device, hbm_torch_pool pool,
                                                 std::function<bool(void*)> filter);
HBM_PUBLIC void hbm_torch_end_allocate_to_pool(int device, hbm_torch_pool pool);
HBM_PUBLIC void hbm_torch_release_pool(int device, hbm_torch_pool pool);

// The device's allocator for the functions of c_api.h; it must not be destroyed. Null,
// and hbm_last_error says why, if it cannot be made.
HBM_PUBLIC hbm_allocator* hbm_torch_allocator(int device);

// For CuPy's CFunctionAllocator. Null on failure, and hbm_last_error says why. CuPy names
// no stream: `context` is null (the legacy default stream) or a
// hbm_torch_stream_function that is asked for it.
HBM_PUBLIC void* hbm_cupy_malloc(void* context, std::size_t bytes, int device);
HBM_PUBLIC void hbm_cupy_free(void* context, void* block, int device);

}  // extern "C"

#endif  // HBMALLOC_TORCH_H_
