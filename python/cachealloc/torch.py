"""The library as PyTorch's allocator of device memory, in place of its caching allocator:

    import cachealloc.torch
    cachealloc.torch.enable()  # before the first use of the GPU

Where the library is not preloaded it is opened (cachealloc.open_library); then it has expandable
segments where PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF asks PyTorch for them and the options
do not say otherwise. PyTorch's own functions for statistics then tell what the library has, as far
as memory_stats() below says.
"""

import ctypes
import os
import re
from typing import Any, Dict, Optional

import torch

import cachealloc

__all__ = ["enable", "enabled", "memory_stats"]

_allocator: Optional[Any] = None

# What the allocator calls beside allocation and free, by the setter of PyTorch's that takes it.
_SETTERS = {"set_record_stream_fn": "cachealloc_torch_record_stream",
            "set_begin_allocate_to_pool": "cachealloc_torch_begin_pool",
            "set_end_allocate_to_pool_fn": "cachealloc_torch_end_pool",
            "set_release_pool": "cachealloc_torch_release_pool",
            "set_reset_fn": "cachealloc_trim"}  # torch.cuda.empty_cache

_EXPANDABLE = "expandable_segments:true"

# void torchCheckFail(const char *function, const char *file, uint32_t line, const char *message)
_THROWS = "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"


def enabled() -> bool:
    """Whether enable() was called."""
    return _allocator is not None


def enable() -> None:
    """Makes the library PyTorch's allocator; a second call does nothing. Error: PyTorch has used the
    GPU or has another allocator, and takes none after that; or it is built without CUDA."""
    global _allocator
    if enabled():
        return
    if not torch.version.cuda or not hasattr(torch.cuda.memory, "CUDAPluggableAllocator"):
        raise cachealloc.Error(f"cachealloc.torch.enable: PyTorch {torch.__version__} takes no "
                               "allocator: accepted is 2.0 or later, built for CUDA")
    if cachealloc._library() is None:
        _follow_pytorch()
    path = cachealloc.open_library()
    made = torch.cuda.memory.CUDAPluggableAllocator(path, "cachealloc_torch_alloc",
                                                    "cachealloc_torch_free")
    plugin = made.allocator()
    for setter, name in _SETTERS.items():
        if hasattr(plugin, setter):  # PyTorch has more of them from version to version
            getattr(plugin, setter)(cachealloc._address_of(name))
    try:
        torch.cuda.memory.change_current_allocator(made)
    except RuntimeError as error:
        raise cachealloc.Error(
            "cachealloc.torch.enable: PyTorch has used the GPU, or has another allocator, and takes "
            f"no other one after that: call it before the first tensor on the GPU ({error})"
        ) from None
    throws = _find_throws()
    if throws:
        cachealloc._function("cachealloc_torch_on_refusal")(throws)
    torch.cuda.memory.memory_stats_as_nested_dict = memory_stats
    torch.cuda.memory_stats_as_nested_dict = memory_stats
    _allocator = made


def _follow_pytorch() -> None:
    """The library reads its options when it is opened."""
    def settings(*names: str) -> str:
        return ",".join(os.environ.get(name, "") for name in names)

    asked = settings("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    options = settings("ALLOC_CONF", "CACHEALLOC_CONF")
    if re.search(r"\bexpandable_segments\s*:\s*True\b", asked) and \
            "expandable_segments" not in options:
        own = os.environ.get("CACHEALLOC_CONF")
        os.environ["CACHEALLOC_CONF"] = f"{own},{_EXPANDABLE}" if own else _EXPANDABLE


def _find_throws() -> int:
    """The function by which PyTorch raises a RuntimeError; 0 where there is none. Without it PyTorch
    would take out of memory for an empty tensor at address 0."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        function = getattr(ctypes.CDLL(library), _THROWS)
    except (AttributeError, OSError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def memory_stats(device: Any = None) -> Dict[str, Any]:
    """What torch.cuda.memory_stats() is made of, so that memory_allocated(), memory_reserved() and
    their maxima answer: of the whole process, all devices together, whatever `device` says. Peaks
    are since the start: torch.cuda.reset_peak_memory_stats() raises as PyTorch has it."""
    now = cachealloc.stats()

    def figure(current: int, peak: int) -> Dict[str, Dict[str, int]]:
        return {"all": {"current": current, "peak": peak}}

    return {"allocated_bytes": figure(now.live_bytes, now.live_peak_bytes),
            "active_bytes": figure(now.block_bytes or now.live_bytes, now.live_peak_bytes),
            "reserved_bytes": figure(now.reserved_bytes, now.reserved_peak_bytes),
            "allocation": {"all": {"current": now.live_allocations, "allocated": now.alloc_calls,
                                   "freed": now.free_calls}},
            "segment": {"all": {"current": now.segments, "allocated": now.upstream_allocs,
                                "freed": now.upstream_frees}},
            "num_ooms": now.out_of_memory}
