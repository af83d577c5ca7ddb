# SPDX-License-Identifier: Apache-2.0
"""CuPy on hbmalloc, instead of CuPy's pool.

    import hbmalloc.cupy
    hbmalloc.cupy.install()

The policy is HBMALLOC_POLICY's. Blocks belong to CuPy's current stream.
"""
import ctypes

import cupy

from . import address_of, library

_STREAM = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)


@_STREAM
def _current_stream(device):
    return cupy.cuda.get_current_stream(device).ptr


def allocator():
    return cupy.cuda.memory.CFunctionAllocator(
        address_of(_current_stream), address_of(library.hbm_cupy_malloc),
        address_of(library.hbm_cupy_free), _current_stream)


def install():
    cupy.cuda.set_allocator(allocator().malloc)
