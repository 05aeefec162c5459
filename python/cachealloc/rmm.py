"""The library as a memory resource of RMM:

    import cachealloc.rmm
    cachealloc.rmm.enable()  # or rmm.mr.set_per_device_resource(0, cachealloc.rmm.resource(0))

Memory is in the order of the stream that RMM names. Where the library is not preloaded it is opened
(cachealloc.open_library).
"""

from typing import Any

import rmm

import cachealloc

__all__ = ["enable", "resource"]


def resource(device: int = -1) -> Any:
    """A memory resource for one device, -1 for the current one of each call."""
    cachealloc.open_library()

    def allocate(size: int, stream: Any) -> int:
        return cachealloc.allocate(size, stream, device)

    def free(pointer: int, size: int, stream: Any) -> None:
        cachealloc._release(pointer, stream, device)

    return rmm.mr.CallbackMemoryResource(allocate, free)


def enable() -> None:
    """Makes it RMM's resource of the current device."""
    rmm.mr.set_current_device_resource(resource())
