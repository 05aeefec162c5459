"""The library as the allocator of the real PyTorch, Numba and RMM, on the simulated CUDA.

PLUGIN_TORCH and PLUGIN_PACKAGES name Pythons that have PyTorch, and numba-cuda or RMM; a test
whose package is in neither is skipped. Nothing is downloaded. tests/test_adaptors.py has what needs
none of them.
"""

import os
import subprocess

import pytest

import conftest
import leak_report

SIM = "devices:1,memory:16G,arch:90"
CASES = ["basic", "late", "full", "streams", "graph", "leak"]


def python_with(variable, package):
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no Python with {package}")
    if subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode:
        pytest.skip(f"{python} has no {package}")
    return python


@pytest.fixture(params=["preloaded", "opened"])
def plugin(request, run):
    """plugin(python, *arguments) runs it with the module, the library preloaded or to be opened."""
    def started(python, *arguments):
        return run([python, "-B", *arguments], sim=SIM, timeout=120,
                   conf="oom_report:off,suppressions_builtin:false",
                   preload=request.param == "preloaded",
                   env={"PYTHONPATH": conftest.ROOT / "python",
                        "CACHEALLOC_LIBRARY": conftest.SHIM})
    started.how = request.param
    return started


@pytest.mark.parametrize("case", CASES)
def test_pytorch_allocates_by_the_library(plugin, case):
    python = python_with("PLUGIN_TORCH", "torch")
    result = plugin(python, conftest.ROOT / "tests/torch/plugin_checks.py", case)

    assert result.rc == 0, result.err
    assert f"done {plugin.how}" in result.out
    if case == "leak":
        assert (12345 * 4, 1) in leak_report.parse(result.err).totals.values(), result.err
        assert "plugin_checks.py" in result.err


def test_numba_allocates_by_the_library(plugin):
    python = python_with("PLUGIN_PACKAGES", "numba.cuda")
    result = plugin(python, "-c", """if True:
        import cachealloc.numba
        cachealloc.numba.enable()
        import numpy
        from numba import cuda
        array = cuda.to_device(numpy.arange(1000))
        address = array.__cuda_array_interface__["data"][0]
        assert cachealloc.info(address).bytes == 8000
        assert cachealloc.stats().live_allocations == 1
        assert list(array.copy_to_host()) == list(range(1000))
        assert cuda.current_context().get_memory_info().total > 1 << 30
        del array
        assert cachealloc.stats().live_allocations == 0
    """)

    assert result.rc == 0, result.err


def test_rmm_allocates_by_the_library(plugin):
    """The resource itself: RMM's buffers stop at cuGetExportTable on the simulated CUDA."""
    python = python_with("PLUGIN_PACKAGES", "rmm")
    result = plugin(python, "-c", """if True:
        import cachealloc.rmm
        resource = cachealloc.rmm.resource(0)
        address = resource.allocate(100000)
        assert cachealloc.info(address).bytes == 100000
        try:
            resource.allocate(1 << 45)
        except MemoryError:
            pass
        else:
            raise AssertionError("there was memory")
        resource.deallocate(address, 100000)
        assert cachealloc.stats().live_allocations == 0
    """)

    assert result.rc == 0, result.err
