"""The library as Numba's manager of device memory:

    NUMBA_CUDA_MEMORY_MANAGER=cachealloc.numba python3 program.py

or, before the first use of the GPU:

    import cachealloc.numba
    cachealloc.numba.enable()

Numba allocates on no stream of its own: its memory is in the order of the legacy default stream, and
a free is behind all work of its context, as the plain one is. Where the library is not preloaded it
is opened (cachealloc.open_library).
"""

import ctypes
from typing import Any

from numba import cuda
from numba.cuda import MemoryPointer
from numba.cuda.cudadrv import driver
from numba.cuda.cudadrv.driver import NumbaCUDAMemoryManager

import cachealloc

__all__ = ["MemoryManager", "enable"]


def _free(pointer: int, device: int) -> None:
    """Behind all work: an array may have been used on every stream."""
    cachealloc._function("cachealloc_record_stream")(pointer, cachealloc._PER_THREAD)
    cachealloc._release(pointer, 0, device)


class MemoryManager(NumbaCUDAMemoryManager):
    """Device memory of the library; host memory, and all else, is as Numba has it."""

    def initialize(self) -> None:
        super().initialize()
        cachealloc.open_library()

    def memalloc(self, size: int) -> Any:
        device = self.context.device.id
        address = cachealloc.allocate(size, 0, device)

        def finalize() -> None:
            _free(address, device)

        return MemoryPointer(self.context, ctypes.c_void_p(address), size, finalizer=finalize)


_numba_memory_manager = MemoryManager  # what NUMBA_CUDA_MEMORY_MANAGER asks a module for


def _has_contexts() -> bool:
    """Whether Numba has used the GPU: a context keeps the manager that it began with."""
    devices = getattr(driver.driver, "devices", {})
    return any(getattr(device, "primary_context", None) for device in devices.values())


def enable() -> None:
    """Makes it Numba's memory manager; a second call does nothing. Error: Numba has used the GPU,
    and would go on without it."""
    if getattr(driver, "_memory_manager", None) is MemoryManager:
        return
    if _has_contexts():
        raise cachealloc.Error(
            "cachealloc.numba.enable: Numba has used the GPU, and keeps its memory manager after "
            "that: call it before, or set NUMBA_CUDA_MEMORY_MANAGER=cachealloc.numba")
    cachealloc.open_library()
    cuda.set_memory_manager(MemoryManager)
