"""The library as PyTorch's allocator, in a process of its own: plugin_checks.py CASE. Prints what
test_plugin_torch.py looks at; needs PyTorch, and PYTHONPATH with python/."""

import ctypes
import sys

import cachealloc
import cachealloc.torch
import torch


def live():
    stats = cachealloc.stats()
    return stats.live_allocations, stats.live_bytes


def basic():
    cachealloc.torch.enable()
    cachealloc.torch.enable()
    held = torch.ones(1000, device="cuda")
    assert live() == (1, 4000), live()
    info = cachealloc.info(held.data_ptr())
    assert info.kind_name == "async" and info.bytes == 4000
    assert torch.cuda.memory_allocated() == 4000 <= torch.cuda.max_memory_allocated()
    assert torch.cuda.memory_reserved() >= 4000
    first = torch.empty(1 << 20, device="cuda").data_ptr()
    assert torch.empty(1 << 20, device="cuda").data_ptr() == first
    del held
    torch.cuda.empty_cache()
    assert live() == (0, 0), live()


def late():
    torch.ones(1, device="cuda")
    try:
        cachealloc.torch.enable()
    except cachealloc.Error as error:
        assert "before the first tensor" in str(error), error
    else:
        raise AssertionError("it was taken")


def full():
    cachealloc.torch.enable()
    try:
        torch.empty(1 << 45, device="cuda")
    except RuntimeError as error:
        assert "out of memory" in str(error), error
    else:
        raise AssertionError("there was memory")
    torch.ones(10, device="cuda")


def streams():
    """What another stream still uses does not come back on the first one."""
    cachealloc.torch.enable()
    side = torch.cuda.Stream()
    tensor = torch.ones(1 << 20, device="cuda")
    address = tensor.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(1 << 30)
        tensor.mul_(2)
    tensor.record_stream(side)
    del tensor
    again = torch.empty(1 << 20, device="cuda")
    assert again.data_ptr() != address or side.query()
    torch.cuda.synchronize()


def graph():
    """What a graph has is not handed out while it is there, and the graph finds its memory."""
    cachealloc.torch.enable()
    source = torch.full((1 << 18,), 3.0, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        between = source + 1
        inner = between.data_ptr()
        result = between * 2
        del between
    taken = [torch.empty(1 << 18, device="cuda") for _ in range(8)]
    assert inner not in [one.data_ptr() for one in taken]
    assert result.data_ptr() not in [one.data_ptr() for one in taken]
    graph.replay()
    torch.cuda.synchronize()
    del graph, result, taken
    cachealloc.trim()
    assert live()[0] == 1, live()


def leak():
    cachealloc.torch.enable()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch.ones(12345, device="cuda")))


{"basic": basic, "late": late, "full": full, "streams": streams, "graph": graph,
 "leak": leak}[sys.argv[1]]()
print("done", "preloaded" if cachealloc.preloaded() else "opened", cachealloc.stats().alloc_calls)
