# SPDX-License-Identifier: Apache-2.0
"""Numba's device arrays on hbmalloc.

    NUMBA_CUDA_MEMORY_MANAGER=hbmalloc.numba python program.py

Host memory stays Numba's. The policy is HBMALLOC_POLICY's; exporting memory to another
process is refused. Numba names no stream, so a block is free after the legacy default
stream's work, and with it that of every stream made by Numba. A stream that does not wait
for the default one (cuda.external_stream) must be done before its arrays are dropped.
"""
import ctypes
import functools
import weakref

from numba import cuda
from numba.cuda import HostOnlyCUDAMemoryManager, MemoryPointer
from numba.cuda.cudadrv.driver import CudaAPIError

from . import Error, RESOURCE_EXHAUSTED, of_device

_CUDA_ERROR_OUT_OF_MEMORY = 2


class MemoryManager(HostOnlyCUDAMemoryManager):
    interface_version = 1

    def initialize(self):
        self._allocator = of_device(self.context.device.id)

    def memalloc(self, size):
        try:
            block = self._allocator.allocate(max(size, 1))
        except Error as error:
            if error.status != RESOURCE_EXHAUSTED:
                raise
            raise CudaAPIError(_CUDA_ERROR_OUT_OF_MEMORY, str(error)) from error
        return MemoryPointer(weakref.proxy(self.context), ctypes.c_void_p(block), size,
                             finalizer=functools.partial(self._allocator.deallocate, block))

    def get_memory_info(self):
        stats = self._allocator.stats()
        limit = stats["bytes_limit"]
        return cuda.MemoryInfo(free=limit - stats["bytes_in_use"], total=limit)

    def get_ipc_handle(self, memory):
        raise NotImplementedError("hbmalloc.numba exports no memory to other processes")


_numba_memory_manager = MemoryManager
