# SPDX-License-Identifier: Apache-2.0
"""PyTorch on hbmalloc.

    import hbmalloc.torch
    hbmalloc.torch.install()          # before PyTorch's first use of the GPU
    ...
    print(hbmalloc.torch.stats())     # torch.cuda.memory_stats has no figures then

or below PyTorch's own allocator, for one pool:

    pool = torch.cuda.MemPool(hbmalloc.torch.pluggable().allocator())
    with torch.cuda.use_mem_pool(pool): ...

The policy is HBMALLOC_POLICY's.
"""
import ctypes

import torch

from . import address_of, library, library_path, of_device

_STREAM = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)


@_STREAM
def _current_stream(device):
    return torch.cuda.current_stream(device).cuda_stream


def pluggable():
    """The allocator, with every function that PyTorch has a setter for."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        library_path(), "hbm_torch_allocate", "hbm_torch_free")
    setters = allocator.allocator()
    library.hbm_torch_set_current_stream_function(_current_stream)
    for setter, function in (
            ("set_init_fn", "hbm_torch_init"),
            ("set_reset_fn", "hbm_torch_empty_cache"),
            ("set_memory_fraction_fn", "hbm_torch_set_memory_fraction"),
            ("set_base_alloc_fn", "hbm_torch_base_allocation"),
            ("set_record_stream_fn", "hbm_torch_record_stream"),
            ("set_begin_allocate_to_pool", "hbm_torch_begin_allocate_to_pool"),
            ("set_end_allocate_to_pool_fn", "hbm_torch_end_allocate_to_pool"),
            ("set_release_pool", "hbm_torch_release_pool")):
        getattr(setters, setter)(address_of(getattr(library, function)))
    return allocator


def install():
    """Makes it the allocator of the whole process."""
    torch.cuda.memory.change_current_allocator(pluggable())


def stats(device=0):
    return of_device(device).stats()
