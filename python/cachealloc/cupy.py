"""The library as CuPy's allocator of device memory, in place of its memory pool:

    import cachealloc.cupy
    cachealloc.cupy.enable()

Memory is allocated, and freed, in the order of the stream that is CuPy's current one. Where the
library is not preloaded it is opened (cachealloc.open_library).
"""

from typing import Any

import cupy

import cachealloc

__all__ = ["Memory", "allocator", "enable"]


class Memory(cupy.cuda.BaseMemory):
    """Device memory of the library; freed with the last array in it, in the order of the stream that
    it was allocated on."""

    def __init__(self, size: int):
        self.ptr = 0  # for __del__, where what follows fails
        self.size = size
        self.device_id = cupy.cuda.runtime.getDevice()
        self._stream = cupy.cuda.get_current_stream()  # kept, so that it outlives the memory
        try:
            self.ptr = cachealloc.allocate(size, self._stream, self.device_id)
        except MemoryError:
            raise cupy.cuda.memory.OutOfMemoryError(size, cachealloc.stats().live_bytes) from None
        # The thread that drops the last array has another stream by this handle.
        if self.ptr and cachealloc._stream(self._stream) == cachealloc._PER_THREAD:
            cachealloc._function("cachealloc_record_stream")(self.ptr, cachealloc._PER_THREAD)

    def __del__(self, free: Any = cachealloc._release) -> None:
        if self.ptr:
            free(self.ptr, self._stream, self.device_id)
            self.ptr = 0


def allocator(size: int) -> Any:
    """For cupy.cuda.set_allocator and cupy.cuda.using_allocator."""
    return cupy.cuda.MemoryPointer(Memory(size), 0)


def enable() -> None:
    """Makes it CuPy's allocator of device memory. Arrays that there are keep theirs."""
    cachealloc.open_library()
    cupy.cuda.set_allocator(allocator)
