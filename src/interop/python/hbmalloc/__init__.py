# SPDX-License-Identifier: Apache-2.0
"""hbmalloc's shared library for Python, through ctypes.

    import hbmalloc
    allocator = hbmalloc.Allocator("elastic:slack=0.1", "cuda:0")
    block = allocator.allocate(1 << 20)
    print(allocator.stats()["pool_bytes"])
    allocator.deallocate(block)

hbmalloc.torch, hbmalloc.cupy and hbmalloc.numba make it the allocator of these. The library
is libhbmalloc.so beside this file, or else as the loader finds it; HBMALLOC_LIBRARY names
another one.
"""
import ctypes
import os
import pathlib

STATS = (
    "num_allocs bytes_in_use peak_bytes_in_use largest_alloc_size bytes_limit bytes_reserved "
    "peak_bytes_reserved largest_free_block_bytes pool_bytes peak_pool_bytes "
    "peak_allocated_bytes requested_bytes peak_requested_bytes num_frees num_failures "
    "num_regions highest_used_bytes pending_bytes num_waits wait_nanoseconds driver_calls "
    "driver_nanoseconds").split()


RESOURCE_EXHAUSTED = 8  # the status of out of memory


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [(name, ctypes.c_int64) for name in STATS]


class TrimResult(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("struct_size", "released", "pending", "pinned")]


def library_path():
    beside = pathlib.Path(__file__).with_name("libhbmalloc.so")
    return os.environ.get("HBMALLOC_LIBRARY") or (str(beside) if beside.exists() else "libhbmalloc.so")


def _load():
    loaded = ctypes.CDLL(library_path())
    handle, address, size = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    for name, arguments, result in (
            ("hbm_last_error", [], ctypes.c_char_p),
            ("hbm_version_string", [], ctypes.c_char_p),
            ("hbm_policy", [handle], ctypes.c_char_p),
            ("hbm_allocator_create", [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(handle)],
             ctypes.c_int32),
            ("hbm_allocator_destroy", [handle], ctypes.c_int32),
            ("hbm_allocate", [handle, size, size, address, ctypes.POINTER(address)], ctypes.c_int32),
            ("hbm_deallocate", [handle, address, address], ctypes.c_int32),
            ("hbm_record_use", [handle, address, address], ctypes.c_int32),
            ("hbm_get_stats", [handle, ctypes.POINTER(Stats)], ctypes.c_int32),
            ("hbm_reset_peak_stats", [handle], ctypes.c_int32),
            ("hbm_trim", [handle, address, ctypes.POINTER(TrimResult)], ctypes.c_int32),
            ("hbm_set_memory_limit", [handle, size], ctypes.c_int32),
            ("hbm_write_snapshot", [handle, ctypes.c_char_p, ctypes.c_int32], ctypes.c_int32),
            ("hbm_last_oom_cause", [], ctypes.c_int32),
            ("hbm_torch_allocator", [ctypes.c_int], handle),
            ("hbm_cupy_malloc", [address, size, ctypes.c_int], address),
            ("hbm_cupy_free", [address, address, ctypes.c_int], None)):
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


library = _load()


class Error(RuntimeError):
    """A status that is not OK; `status` is its number."""

    def __init__(self, status):
        super().__init__(library.hbm_last_error().decode())
        self.status = status


def check(status):
    if status != 0:
        raise Error(status)


def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value


class Allocator:
    """An allocator of the library. Given a handle, one that is somebody else's."""

    def __init__(self, policy=None, device="cuda:0", handle=None):
        self._owned = handle is None
        self._handle = ctypes.c_void_p(handle)
        if self._owned:
            check(library.hbm_allocator_create(
                None if policy is None else policy.encode(), device.encode(),
                ctypes.byref(self._handle)))

    @property
    def policy(self):
        return library.hbm_policy(self._handle).decode()

    def allocate(self, size, alignment=0, stream=None):
        block = ctypes.c_void_p()
        check(library.hbm_allocate(self._handle, size, alignment, stream, ctypes.byref(block)))
        return block.value or 0

    def deallocate(self, block, stream=None):
        check(library.hbm_deallocate(self._handle, block, stream))

    def record_use(self, block, stream):
        check(library.hbm_record_use(self._handle, block, stream))

    def stats(self):
        stats = Stats(struct_size=ctypes.sizeof(Stats))
        check(library.hbm_get_stats(self._handle, ctypes.byref(stats)))
        return {name: getattr(stats, name) for name in STATS}

    def reset_peak_stats(self):
        check(library.hbm_reset_peak_stats(self._handle))

    def trim(self):
        """Gives idle memory back to the device; how many bytes."""
        result = TrimResult(struct_size=ctypes.sizeof(TrimResult))
        check(library.hbm_trim(self._handle, None, ctypes.byref(result)))
        return result.released

    def set_memory_limit(self, size):
        check(library.hbm_set_memory_limit(self._handle, size))

    def write_snapshot(self, path, kind="json"):
        kinds = {"json": 0, "pytorch_pickle": 1, "prometheus": 2}
        check(library.hbm_write_snapshot(self._handle, os.fsencode(path), kinds[kind]))

    def destroy(self):
        if self._owned:
            check(library.hbm_allocator_destroy(self._handle))
            self._owned = False


def of_device(device):
    """The allocator that PyTorch and CuPy share on a device; it is made if need be."""
    handle = library.hbm_torch_allocator(device)
    if not handle:
        raise RuntimeError(library.hbm_last_error().decode())
    return Allocator(handle=handle)
