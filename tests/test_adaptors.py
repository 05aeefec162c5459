"""cachealloc.torch, .cupy, .numba and .rmm with stand-ins for what they serve: each calls its package
as that documents it. The real packages are in test_plugin_torch.py."""

import textwrap

import pytest

import conftest

TORCH = """
    import ctypes
    setters = {}
    class _Plugin:
        used = False
        def __getattr__(self, name):
            if not name.startswith("set_"):
                raise AttributeError(name)
            return lambda address: setters.__setitem__(name, address)
    class CUDAPluggableAllocator:
        def __init__(self, path, alloc, free):
            library = ctypes.CDLL(path)
            self.alloc, self.free = library[alloc], library[free]
            self.alloc.restype = ctypes.c_void_p
            self.alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
            self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
            self.plugin = _Plugin()
        def allocator(self):
            return self.plugin
    class memory:
        current = None
        used = False
        CUDAPluggableAllocator = CUDAPluggableAllocator
        def change_current_allocator(made):
            if memory.used:
                raise RuntimeError("Can't swap an already initialized allocator")
            memory.current = made
    class cuda:
        memory = memory
    class version:
        cuda = None
    __version__ = "2.15.0+cpu"
"""
CUPY = """
    class OutOfMemoryError(MemoryError):
        def __init__(self, size, total):
            super().__init__(f"{size} bytes, {total} allocated")
    class Stream:
        ptr = 0
    class cuda:
        class BaseMemory: pass
        class MemoryPointer:
            def __init__(self, memory, offset):
                self.mem, self.ptr = memory, memory.ptr + offset
        class memory:
            OutOfMemoryError = OutOfMemoryError
        class runtime:
            getDevice = staticmethod(lambda: 0)
        get_current_stream = staticmethod(Stream)
    allocator = []
    cuda.set_allocator = staticmethod(allocator.append)
"""
RMM = """
    class mr:
        current = None
        class CallbackMemoryResource:
            def __init__(self, allocate, deallocate):
                self.allocate, self.deallocate = allocate, deallocate
        def set_current_device_resource(resource):
            mr.current = resource
"""
NUMBA = {"__init__": "", "cuda/__init__": """
    from numba.cuda.cudadrv import driver
    def set_memory_manager(manager):
        driver._memory_manager = manager
    class MemoryPointer:
        def __init__(self, context, pointer, size, owner=None, finalizer=None):
            self.pointer, self.size, self.finalizer = pointer, size, finalizer
        def __del__(self):
            self.finalizer()
""", "cuda/cudadrv/__init__": "", "cuda/cudadrv/driver": """
    import types
    driver = types.SimpleNamespace(devices={})
    _memory_manager = None
    class NumbaCUDAMemoryManager:
        def __init__(self, *, context):
            self.context = context
        def initialize(self): pass
"""}
PROGRAMS = {
    "torch": (TORCH, """
        import cachealloc.torch, torch
        memory = torch.cuda.memory
        try:
            cachealloc.torch.enable()
        except cachealloc.Error as error:
            assert "PyTorch 2.15.0+cpu takes no allocator: accepted is 2.0" in str(error)
        else:
            raise AssertionError("it was taken")
        torch.version.cuda = "13.2"
        memory.used = True
        try:
            cachealloc.torch.enable()
        except cachealloc.Error as error:
            assert "before the first tensor" in str(error)
        assert not cachealloc.torch.enabled()
        memory.used = False
        cachealloc.torch.enable()
        cachealloc.torch.enable()
        assert set(torch.setters) == {"set_record_stream_fn", "set_begin_allocate_to_pool",
            "set_end_allocate_to_pool_fn", "set_release_pool", "set_reset_fn"}
        assert all(torch.setters.values())
        address = memory.current.alloc(1000, 0, None)
        stats = memory.memory_stats_as_nested_dict()
        assert stats["allocated_bytes"]["all"]["current"] == 1000
        memory.current.free(address, 1000, 0, None)
    """),
    "cupy": (CUPY, """
        import cachealloc.cupy, cupy
        cachealloc.cupy.enable()
        pointer = cupy.allocator[0](1000)
        address = pointer.ptr
        assert cachealloc.info(address).bytes == 1000
        try:
            cupy.allocator[0](1 << 45)
        except cupy.OutOfMemoryError as error:
            assert "1000 allocated" in str(error)
        del pointer
    """),
    "numba": (NUMBA, """
        import cachealloc.numba, numba.cuda, types
        from numba.cuda.cudadrv import driver
        device = driver.driver.devices[0] = types.SimpleNamespace(id=0, primary_context=object())
        try:
            cachealloc.numba.enable()
        except cachealloc.Error as error:
            assert "set NUMBA_CUDA_MEMORY_MANAGER=cachealloc.numba" in str(error)
        assert driver._memory_manager is None
        device.primary_context = None
        cachealloc.numba.enable()
        assert driver._memory_manager is cachealloc.numba._numba_memory_manager
        device.primary_context = object()
        cachealloc.numba.enable()
        manager = driver._memory_manager(context=types.SimpleNamespace(device=device))
        manager.initialize()
        memory = manager.memalloc(1000)
        address = memory.pointer.value
        assert memory.size == 1000 and cachealloc.info(address).bytes == 1000
        del memory
    """),
    "rmm": (RMM, """
        import cachealloc.rmm, rmm
        cachealloc.rmm.enable()
        class Stream:
            def __cuda_stream__(self):
                return 0, 2
        address = rmm.mr.current.allocate(1000, Stream())
        assert cachealloc.info(address).bytes == 1000
        rmm.mr.current.deallocate(address, 1000, Stream())
    """),
}


@pytest.fixture(params=["preloaded", "opened"])
def adapt(request, run, tmp_path):
    """adapt(name, library=None) runs the program of a stand-in."""
    def adapted(name, library=conftest.SHIM, preload=request.param == "preloaded"):
        stand_in, text = PROGRAMS[name]
        files = stand_in if isinstance(stand_in, dict) else {"__init__": stand_in}
        for file, content in files.items():
            path = tmp_path / name / f"{file}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(content))
        return run(["/usr/bin/python3", "-B", "-c", textwrap.dedent(text) + textwrap.dedent("""
            assert cachealloc.info(address) is None
            assert cachealloc.stats().live_allocations == 0
            print("done", cachealloc.preloaded())
        """)], preload=preload, conf="oom_report:off", env={
            "PYTHONPATH": f"{conftest.ROOT / 'python'}:{tmp_path}", "CACHEALLOC_LIBRARY": library})
    adapted.preloads = request.param == "preloaded"
    return adapted


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_package_asks_for_comes_from_the_library(adapt, name):
    result = adapt(name)

    assert result.rc == 0, result.err
    assert result.out == f"done {adapt.preloads}\n"


@pytest.mark.parametrize("asked, conf, grows", [
    ("garbage_collection_threshold:0.8, expandable_segments:True", "", True),
    ("expandable_segments:False", "", False), ("", "", False),
    ("expandable_segments:True", "expandable_segments:false", False)])
def test_an_opened_library_has_expandable_segments_where_pytorch_was_to(run, tmp_path, asked, conf,
                                                                        grows):
    (tmp_path / "torch.py").write_text(textwrap.dedent(TORCH))
    result = run(["/usr/bin/python3", "-B", "-c", textwrap.dedent("""
        import cachealloc.torch, torch
        torch.version.cuda = "13.2"
        cachealloc.torch.enable()
        current = torch.cuda.memory.current
        current.free(current.alloc(256 << 20, 0, None), 256 << 20, 0, None)
    """)], preload=False, conf=conf, stats=True, env={
        "PYTHONPATH": f"{conftest.ROOT / 'python'}:{tmp_path}", "CACHEALLOC_LIBRARY": conftest.SHIM,
        "PYTORCH_CUDA_ALLOC_CONF": asked, "CACHEALLOC_CONF": "log:warn"})

    assert (result.rc, result.err) == (0, "")
    assert (result.sim["calls"].get("cuMemAddressReserve", 0) > 0) == grows


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_the_library_enable_says_where_it_looked(adapt, name, tmp_path):
    if adapt.preloads:
        return
    result = adapt(name, library=tmp_path / "none.so")

    assert result.rc == 1
    assert f"{tmp_path / 'none.so'}, which CACHEALLOC_LIBRARY names" in result.err


def test_another_library_is_not_taken_for_it(run):
    library = conftest.BUILD / "simcuda" / "libcuda.so.1"
    result = run(["/usr/bin/python3", "-B", "-c", "import cachealloc; cachealloc.open_library()"],
                 preload=False, env={"PYTHONPATH": conftest.ROOT / "python",
                                     "CACHEALLOC_LIBRARY": library})

    assert result.rc == 1
    assert result.err.endswith(f"Error: {library} has no cachealloc_alloc: it is not "
                               "libcachealloc.so, or an older one\n")
