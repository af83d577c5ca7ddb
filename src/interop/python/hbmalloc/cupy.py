# SPDX-License-Identifier: Apache-2.0
"""CuPy on hbmalloc, instead of CuPy's pool.

    import hbmalloc.cupy
    hbmalloc.cupy.install()

The policy is HBMALLOC_POLICY's. A block belongs to the stream that is CuPy's current one
when it is allocated, and is free after that stream's work at the time of its free; the
stream lives as long. Out of memory is cupy.cuda.memory.OutOfMemoryError, caused by an
hbmalloc.Error with the report.
"""
import ctypes

import cupy

from . import Error, RESOURCE_EXHAUSTED, address_of, library, of_device

_UNKNOWN = 2  # the C functions say why they fail, but give no status

_STREAM = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


@_STREAM
def _current_stream(device):
    return cupy.cuda.get_current_stream(device).ptr


# A program may drop a stream before the blocks that were allocated on it.
_stream_of_block = {}


# What it needs is bound here: blocks are freed until the interpreter's very end.
def _make_free(pop=_stream_of_block.pop, free=library.hbm_cupy_free):
    def free_block(_, block, device):
        stream = pop(block, None)  # before the address can be given out again
        free(None, block, device)
        del stream
    return _FREE(free_block)


_free = _make_free()


def allocator():
    """CuPy's allocator of C functions. Its `malloc` gives 0 when there is no memory, which
    CuPy takes for a block, and keeps no stream alive: use this module's `malloc`."""
    return cupy.cuda.memory.CFunctionAllocator(
        address_of(_current_stream), address_of(library.hbm_cupy_malloc), address_of(_free),
        (_current_stream, _free))


_allocator = allocator()


def malloc(size):
    """For cupy.cuda.set_allocator."""
    pointer = _allocator.malloc(size)
    if pointer.ptr:
        _stream_of_block[pointer.ptr] = cupy.cuda.get_current_stream()
    elif size:
        _raise_last(size)
    return pointer


def _raise_last(size):
    if not library.hbm_last_oom_cause():
        raise Error(_UNKNOWN)
    cause = Error(RESOURCE_EXHAUSTED)
    stats = of_device(cupy.cuda.device.get_device_id()).stats()
    raise cupy.cuda.memory.OutOfMemoryError(
        size, stats["bytes_in_use"], stats["bytes_limit"]) from cause


def install():
    cupy.cuda.set_allocator(malloc)
