#!/usr/bin/env python3
"""Steps of PyTorch, CuPy or JAX, as measure.py runs them: frameworks.py WHAT SECONDS

Prints one line of JSON: per case the median of a step in ms, the memory that the GPU has in use
after the steps in MiB, and what was computed, which must be the same under every allocator. WHAT:
training, pairs (PyTorch), cupy, jax; `seen` counts launches of PyTorch and of what it calls. Several
batch shapes in turn are a case of its own: a cache by sizes has the hardest time there.
`frameworks.py sees PACKAGE` leaves 0 where it is there and has a GPU: some go on without one.
"""

import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

SEED = 1


def held_mib():
    """As the card counts it: memory that a cache holds for reuse is in use."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, text=True, capture_output=True)
    except OSError:
        return 0.0
    return float(asked.stdout.split()[0]) if asked.returncode == 0 else 0.0


def forget():
    """What a case leaves in the library's cache is not the next one's."""
    library = ctypes.CDLL(None)
    if hasattr(library, "cachealloc_trim"):
        library.cachealloc_trim()


def timed(step, wait, seconds, count):
    """The median ms of at least `count` steps; as many results, so that they can be compared."""
    times, results, end = [], [], time.monotonic() + seconds
    while len(results) < count or time.monotonic() < end:
        begin = time.perf_counter()
        result = step(len(times))
        wait()
        times.append((time.perf_counter() - begin) * 1e3)
        if len(results) < count:
            results.append(result)
    return statistics.median(times[count // 2:]), results


# --- PyTorch --------------------------------------------------------------------------------------


def transformer(torch):
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
                                torch.nn.Linear(512, 512))
    shapes = [(16, 256), (24, 192), (8, 512), (12, 320), (20, 224)]
    return model, [(batch, length, 512) for batch, length in shapes]


def cnn(torch):
    def block(before, after):
        return torch.nn.Sequential(torch.nn.Conv2d(before, after, 3, padding=1),
                                   torch.nn.BatchNorm2d(after), torch.nn.ReLU(),
                                   torch.nn.Conv2d(after, after, 3, stride=2, padding=1),
                                   torch.nn.BatchNorm2d(after), torch.nn.ReLU())

    class Mean(torch.nn.Module):  # pooling has no deterministic backward
        def forward(self, x):
            return x.mean((2, 3))

    model = torch.nn.Sequential(block(3, 64), block(64, 128), block(128, 256), block(256, 512),
                                Mean(), torch.nn.Linear(512, 512))
    return model, [(32, 3, size, size) for size in (128, 160, 96, 144, 112)]


def deterministic(torch):
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Fills all that is allocated, which no program outside of tests wants.
    if hasattr(torch.utils, "deterministic"):
        torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    # Ways of attention whose backward is not deterministic; older releases lack the second.
    for name in ("enable_mem_efficient_sdp", "enable_cudnn_sdp"):
        if hasattr(torch.backends.cuda, name):
            getattr(torch.backends.cuda, name)(False)


def train(torch, what, shapes_used, seconds, device="cuda"):
    torch.manual_seed(SEED)
    model, shapes = what(torch)
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator(device=device).manual_seed(SEED)

    def step(number):
        shape = shapes[number % shapes_used]
        data = torch.randn(shape, device=device, generator=generator)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    ms, losses = timed(step, wait, seconds, 10)
    return {"step_ms": ms, "result": losses, "held_mib": held_mib()}


def training(seconds):
    import torch
    deterministic(torch)
    found = {}
    for what in (transformer, cnn):
        for name, shapes_used in (("one shape", 1), ("five shapes", 5)):
            found[f"{what.__name__}, {name}"] = train(torch, what, shapes_used, seconds / 4)
            torch.cuda.empty_cache()  # everything is freed: train() has ended
            forget()
    return found


def pairs(seconds):
    import torch
    torch.cuda.init()
    found = {}
    sizes = [("256 B", 256), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("256 MiB", 256 << 20)]
    for name, size in sizes:
        def step(number):
            for _ in range(1000):
                torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(size))
        ms, _ = timed(step, lambda: None, seconds / len(sizes), 3)
        found[f"{name}, 1,000 pairs"] = {"step_ms": ms, "result": None, "held_mib": 0}
    return found


# --- launches: those that a graph has, and those that came by the wrappers of libcachealloc -------


def kernels_of(graph):
    """How many kernels a captured graph has, by its handle."""
    driver = ctypes.CDLL("libcuda.so.1")
    count, kind, kernels = ctypes.c_size_t(0), ctypes.c_int(0), 0
    graph = ctypes.c_void_p(graph)
    if driver.cuGraphGetNodes(graph, None, ctypes.byref(count)):
        raise RuntimeError("cuGraphGetNodes")
    nodes = (ctypes.c_void_p * count.value)()
    if driver.cuGraphGetNodes(graph, nodes, ctypes.byref(count)):
        raise RuntimeError("cuGraphGetNodes")
    for node in nodes:
        if driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)):
            raise RuntimeError("cuGraphNodeGetType")
        kernels += kind.value == 0  # CU_GRAPH_NODE_TYPE_KERNEL
    return kernels


def launches_seen():
    """By the debug build of libcachealloc (shim/cuda/seen.h); 0 without it."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "cachealloc_seen"):
        return 0
    library.cachealloc_seen.restype = ctypes.c_ulong
    return library.cachealloc_seen(b"cuLaunch") - library.cachealloc_seen(b"cuLaunchHostFunc")


def tables_asked():
    """The tables of functions that cuGetExportTable was asked for."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "cachealloc_seen_tables"):
        return []
    tables = (ctypes.c_ubyte * 16 * 256)()
    library.cachealloc_seen_tables.restype = ctypes.c_size_t
    count = min(library.cachealloc_seen_tables(tables, ctypes.c_size_t(256)), 256)
    return sorted({bytes(tables[i]).hex() for i in range(count)})


def captured(torch, work):
    """{"made": kernels that the graph of it has, "seen": launches by the wrappers meanwhile}"""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # code is loaded, choices are made
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    before = launches_seen()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return {"made": kernels_of(graph.raw_cuda_graph()), "seen": launches_seen() - before}


def group_of_one(torch):
    path = f"/tmp/frameworks-{os.getpid()}"
    torch.distributed.init_process_group("nccl", init_method=f"file://{path}", rank=0, world_size=1)
    if os.path.exists(path):
        os.unlink(path)


def seen(seconds):
    """Each in turn; one that stops says why, and is no reason not to try the others."""
    import torch
    x = torch.ones(64, 64, device="cuda")
    image = torch.ones(4, 8, 32, 32, device="cuda")
    weight = torch.ones(8, 8, 3, 3, device="cuda")
    parameter = torch.ones(64, 64, device="cuda", requires_grad=True)
    functional = torch.nn.functional

    def step():
        y = functional.layer_norm(functional.gelu(parameter * x), (64,))
        parameter.grad, = torch.autograd.grad(y.square().mean(), parameter)

    def reduce():
        if not torch.distributed.is_initialized():
            group_of_one(torch)
        torch.distributed.all_reduce(x)

    cases = {
        "elementwise": lambda: (x * 2 + 1).sum(),
        "sort": lambda: x.flatten().sort(),
        "forward and backward": step,
        "cuBLAS": lambda: x @ x,
        "cuDNN": lambda: functional.conv2d(image, weight),
        "cuFFT": lambda: torch.fft.fft(x),
        "NCCL": reduce,
    }
    found = {}
    for name, work in cases.items():
        try:
            found[name] = captured(torch, work)
        except Exception as error:  # of any of the libraries
            found[name] = {"stopped": str(error).splitlines()[0][:200]}
    found["cuGetExportTable"] = tables_asked()
    return found


# --- CuPy, JAX ------------------------------------------------------------------------------------


def cupy_steps(seconds):
    import cupy
    if os.environ.get("CUPY_POOL_OFF"):
        cupy.cuda.set_allocator(None)
        cupy.cuda.set_pinned_memory_allocator(None)
    found = {}
    for name, count in (("1 MiB", 1 << 18), ("64 MiB", 1 << 24)):
        x = cupy.arange(count, dtype=cupy.float32) / count

        def step(number):
            y = x * 2 + number
            z = y * y - x
            return float((z + y).max())

        ms, results = timed(step, cupy.cuda.runtime.deviceSynchronize, seconds / 2, 10)
        found[name] = {"step_ms": ms, "result": results, "held_mib": held_mib()}
        forget()
    return found


def jax_steps(seconds):
    import jax
    import jax.numpy as jnp
    found = {}
    for name, count in (("1 MiB", 1 << 18), ("64 MiB", 1 << 24)):
        x = jnp.arange(count, dtype=jnp.float32) / count

        def step(number):
            y = x * 2 + number
            z = y * y - x
            return float(jnp.max(z + y))

        ms, results = timed(step, lambda: None, seconds / 2, 10)
        found[name] = {"step_ms": ms, "result": results, "held_mib": held_mib()}
        forget()
    return found


WHAT = {
    "training": training,
    "pairs": pairs,
    "seen": seen,
    "cupy": cupy_steps,
    "jax": jax_steps,
}


def sees(package):
    """Whether the package is there and would run on a GPU."""
    if package == "torch":
        import torch
        return torch.cuda.is_available()
    if package == "cupy":
        import cupy
        return cupy.cuda.runtime.getDeviceCount() > 0
    import jax  # takes the CPU where it has no plugin for the GPU
    return jax.default_backend() == "gpu"


if __name__ == "__main__":
    if sys.argv[1] == "sees":
        sys.exit(0 if sees(sys.argv[2]) else f"{sys.argv[2]} sees no GPU")
    print(json.dumps(WHAT[sys.argv[1]](float(sys.argv[2]))))
