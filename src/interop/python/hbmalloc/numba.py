# SPDX-License-Identifier: Apache-2.0
"""Numba's device arrays on hbmalloc.

    NUMBA_CUDA_MEMORY_MANAGER=hbmalloc.numba python program.py

Host memory stays Numba's. The policy is HBMALLOC_POLICY's; exporting memory to another
process is refused.
"""
import ctypes

from numba import cuda
from numba.cuda import HostOnlyCUDAMemoryManager, MemoryPointer

from . import of_device


class MemoryManager(HostOnlyCUDAMemoryManager):
    interface_version = 1

    def initialize(self):
        self._allocator = of_device(self._device())

    def memalloc(self, size):
        block = self._allocator.allocate(size)
        free = self._allocator.deallocate
        return MemoryPointer(cuda.current_context(), ctypes.c_uint64(block), size,
                             finalizer=lambda: free(block))

    def get_memory_info(self):
        stats = self._allocator.stats()
        limit = stats["bytes_limit"]
        return cuda.MemoryInfo(free=limit - stats["bytes_in_use"], total=limit)

    def get_ipc_handle(self, memory):
        raise NotImplementedError("hbmalloc.numba exports no memory to other processes")

    def reset(self):
        super().reset()

    def _device(self):
        return self.context.device.id


_numba_memory_manager = MemoryManager
