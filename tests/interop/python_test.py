#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package over the host's memory, without CuPy, Numba and a GPU.

HBMALLOC_LIBRARY names the library. CuPy and Numba are stood in for by what their
documentation says of the interfaces that are used; an installed Numba is used too.
tests/gpu/pytorch_test.py runs with the real ones.
"""
import ctypes
import gc
import importlib
import os
import pathlib
import sys
import types
import unittest
import weakref

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "src" / "interop" / "python"))
import hbmalloc  # noqa: E402

MIB = 1 << 20


class Module(types.ModuleType):
    """A module of what is given, and its submodules."""

    def __init__(self, name, **content):
        super().__init__(name)
        self.__dict__.update(content)
        sys.modules[name] = self
        for key, value in content.items():
            if isinstance(value, dict):
                setattr(self, key, Module(f"{name}.{key}", **value))


class FakeStream:
    def __init__(self, ptr, log):
        self.ptr = ptr
        weakref.finalize(self, log.append, ("destroyed", ptr))


class FakeCuPy:
    """CFunctionAllocator calls C functions by address, and takes 0 for a block too."""

    def __init__(self):
        fake = self
        self.log = []
        self.current = FakeStream(0, [])

        class OutOfMemoryError(MemoryError):
            def __init__(self, size, total, limit=0):
                super().__init__(size, total, limit)

        class Block:
            def __init__(self, ptr, free):
                self.ptr, self._free = ptr, free

            def __del__(self):
                if self.ptr:
                    self._free(self.ptr)

        class CFunctionAllocator:
            def __init__(self, param, malloc, free, owner):
                self._owner = owner
                address, size = ctypes.c_void_p, ctypes.c_size_t
                self._malloc = ctypes.CFUNCTYPE(address, address, size, ctypes.c_int)(malloc)
                free = ctypes.CFUNCTYPE(None, address, address, ctypes.c_int)(free)
                self._param, self._free = param, lambda block: free(param, block, 0)

            def malloc(self, size):
                return Block(self._malloc(self._param, size, 0) or 0 if size else 0, self._free)

        Module("cupy", cuda={
            "get_current_stream": lambda device=-1: fake.current,
            "set_allocator": lambda malloc: setattr(fake, "malloc", malloc),
            "memory": {"CFunctionAllocator": CFunctionAllocator, "OutOfMemoryError": OutOfMemoryError},
            "device": {"get_device_id": lambda: 0}})
        self.OutOfMemoryError = OutOfMemoryError


class CuPyTest(unittest.TestCase):
    def setUp(self):
        self.cupy = FakeCuPy()
        self.host = hbmalloc.Allocator("elastic", "host:64MiB")
        log, context_type = self.cupy.log, ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)

        def malloc(context, size, device):
            try:
                block = self.host.allocate(size)
            except hbmalloc.Error:
                return None
            log.append(("allocated", context_type(context)(device) or 0))
            return block

        def free(_, block, device):
            log.append(("freed", device))
            self.host.deallocate(block)
        address = ctypes.c_void_p
        self.kept = hbmalloc.library.hbm_cupy_malloc, hbmalloc.library.hbm_cupy_free
        hbmalloc.library.hbm_cupy_malloc = ctypes.CFUNCTYPE(
            address, address, ctypes.c_size_t, ctypes.c_int)(malloc)
        hbmalloc.library.hbm_cupy_free = ctypes.CFUNCTYPE(None, address, address, ctypes.c_int)(free)
        sys.modules.pop("hbmalloc.cupy", None)
        self.ours = importlib.import_module("hbmalloc.cupy")
        self.ours.of_device = lambda device: self.host
        self.ours.install()

    def tearDown(self):
        hbmalloc.library.hbm_cupy_malloc, hbmalloc.library.hbm_cupy_free = self.kept

    def test_blocks_come_and_go(self):
        block = self.cupy.malloc(5 * MIB)
        ctypes.memset(block.ptr, 7, 5 * MIB)
        self.assertEqual(self.host.stats()["requested_bytes"], 5 * MIB)
        del block
        self.assertEqual(self.host.stats()["requested_bytes"], 0)
        self.assertEqual(self.cupy.malloc(0).ptr, 0)

    def test_out_of_memory_is_cupys_and_says_why(self):
        with self.assertRaises(self.cupy.OutOfMemoryError) as raised:
            self.cupy.malloc(1 << 40)
        self.assertEqual(raised.exception.args[0], 1 << 40)
        self.assertEqual(raised.exception.__cause__.status, 8)
        self.assertIn("limit", str(raised.exception.__cause__))

    def test_a_stream_outlives_its_blocks(self):
        self.cupy.current = FakeStream(64, self.cupy.log)
        block = self.cupy.malloc(MIB)
        self.cupy.current = FakeStream(0, [])
        gc.collect()
        self.assertEqual(self.cupy.log, [("allocated", 64)])
        del block
        gc.collect()
        self.assertEqual(self.cupy.log, [("allocated", 64), ("freed", 0), ("destroyed", 64)])


def fake_numba():
    """MemoryPointer turns a ctypes.c_void_p into an integer, and leaves others alone."""

    class MemoryPointer:
        def __init__(self, context, pointer, size, owner=None, finalizer=None):
            self.device_pointer = pointer.value if isinstance(pointer, ctypes.c_void_p) else pointer
            self.size = size
            self._finalizer = weakref.finalize(self, finalizer)

        @property
        def device_pointer_value(self):
            return int(self.device_pointer)

    class HostOnlyCUDAMemoryManager:
        def __init__(self, context):
            self.context = context

    class CudaAPIError(Exception):
        def __init__(self, code, msg):
            super().__init__(code, msg)
            self.code = code

    Module("numba", cuda={
        "MemoryPointer": MemoryPointer, "HostOnlyCUDAMemoryManager": HostOnlyCUDAMemoryManager,
        "MemoryInfo": lambda free, total: (free, total),
        "cudadrv": {"driver": {"CudaAPIError": CudaAPIError}}})


class Context:
    class device:
        id = 0


class NumbaTest(unittest.TestCase):
    def run_with(self, module):
        host = hbmalloc.Allocator("elastic", "host:64MiB")
        module.of_device = lambda device: host
        context = Context()
        manager = module._numba_memory_manager(context=context)
        self.assertEqual(manager.interface_version, 1)
        manager.initialize()
        block = manager.memalloc(3 * MIB)
        address = block.device_pointer_value
        ctypes.memset(address, 9, 3 * MIB)
        self.assertEqual(host.stats()["requested_bytes"], 3 * MIB)
        free, total = manager.get_memory_info()
        self.assertEqual(total - free, host.stats()["bytes_in_use"])
        empty = manager.memalloc(0)
        self.assertNotEqual(empty.device_pointer_value, 0)
        with self.assertRaises(sys.modules["numba.cuda.cudadrv.driver"].CudaAPIError) as raised:
            manager.memalloc(1 << 40)
        self.assertEqual(raised.exception.code, 2)
        del block, empty
        gc.collect()
        self.assertEqual(host.stats()["requested_bytes"], 0)
        with self.assertRaises(NotImplementedError):
            manager.get_ipc_handle(None)

    def test_as_documented(self):
        others = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "numba"}
        try:
            fake_numba()
            sys.modules.pop("hbmalloc.numba", None)
            self.run_with(importlib.import_module("hbmalloc.numba"))
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] == "numba"]:
                del sys.modules[name]
            sys.modules.update(others)

    def test_installed(self):
        sys.modules.pop("hbmalloc.numba", None)
        try:
            module = importlib.import_module("hbmalloc.numba")
        except ImportError:
            self.skipTest("Numba is not installed")
        self.run_with(module)


class PackageTest(unittest.TestCase):
    def test_an_allocator_of_its_own(self):
        allocator = hbmalloc.Allocator("elastic:slack=0.1", "host:64MiB")
        self.assertTrue(allocator.policy.startswith("elastic"))
        block = allocator.allocate(MIB, alignment=4096)
        self.assertEqual(block % 4096, 0)
        allocator.deallocate(block)
        self.assertGreater(allocator.trim(), 0)
        with self.assertRaises(hbmalloc.Error) as raised:
            allocator.allocate(1 << 40)
        self.assertEqual(raised.exception.status, hbmalloc.RESOURCE_EXHAUSTED)
        allocator.destroy()


if __name__ == "__main__":
    if not os.environ.get("HBMALLOC_LIBRARY"):
        sys.exit("HBMALLOC_LIBRARY is not set")
    unittest.main()
