"""How calls reach us, whoever looks them up and however (design.md 3)."""

import shutil
import subprocess

import pytest

import conftest
import leak_report

LANES = [None, "x_runtime_hooks:false"]
POOLED = 50  # upstream allocations at most, for a thousand calls that the pool can serve


def preloaded(*libraries):
    words = conftest.SANITIZER_PRELOAD + [str(library) for library in libraries]
    return {"LD_PRELOAD": " ".join(words)}


@pytest.mark.parametrize("conf", LANES)
def test_versioned_symbols_are_bound_to_us(run, program, conf):
    symbols = subprocess.run(["readelf", "-W", "--dyn-syms", program("versioned")], text=True,
                             check=True, capture_output=True).stdout
    assert "cudaMalloc@libcudart.so." in symbols  # else this tests nothing

    result = run([program("versioned"), 1000], conf=conf, stats=True)

    assert (result.rc, result.err) == (0, "")
    assert result.sim["calls"]["cuMemAlloc_v2"] < POOLED
    assert result.sim["calls"].get("cuMemFree_v2", 0) < POOLED


def test_the_simulator_counts_every_call_without_us(run, program):
    result = run([program("versioned"), 1000], preload=False, stats=True)

    assert result.rc == 0
    assert result.sim["calls"]["cuMemAlloc_v2"] == 1000
    assert result.sim["calls"]["cuMemFree_v2"] == 1000


def check_plugin(result):
    assert result.rc == 0, result.err
    assert result.sim["calls"]["cuMemAlloc_v2"] < POOLED
    report = leak_report.parse(result.err)
    assert (report.bytes, report.count) == (12345, 1)
    assert "plugin_work" in leak_report.places(report.groups[0])


@pytest.mark.parametrize("conf", LANES)
def test_a_local_module_of_a_host_without_cudart_is_served(run, program, conf):
    check_plugin(run([program("plugin_host"), program("plugin_alloc.so")], conf=conf, stats=True))


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.skipif(conftest.SANITIZER is not None, reason="python is not instrumented")
def test_a_python_extension_is_served(run, program, conf):
    code = f"import ctypes; ctypes.CDLL({str(program('plugin_alloc.so'))!r}).plugin_work(1000)"
    check_plugin(run([shutil.which("python3"), "-c", code], conf=conf, stats=True))


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "backend:off", "stacks:off"])
def test_a_constructor_may_wait_for_a_thread_that_allocates_first(run, program, conf):
    """The loader's lock is held meanwhile, and CUDA is in use: the plain call needs it no more."""
    for preload in (False, True):
        result = run([program("opens_plugin"), program("plugin_starts.so")], timeout=20,
                     preload=preload, conf=conf if preload else None)
        assert (result.rc, result.out) == (0, "done\n"), result.err


# Who comes before us and asks for the next function does not get itself from us.
@pytest.mark.parametrize("conf", LANES)
def test_a_local_module_is_served_behind_an_interposer(run, program, shim, conf):
    check_plugin(run([program("plugin_host"), program("plugin_alloc.so")], conf=conf, stats=True,
                     env=preloaded(program("plugin_wraps.so"), shim)))


@pytest.mark.parametrize("conf", LANES)
def test_a_local_module_runs_behind_another_copy(run, program, shim, tmp_path, conf):
    copy = shutil.copy(shim, tmp_path / shim.name)

    result = run([program("plugin_host"), program("plugin_alloc.so")], conf=conf,
                 env=preloaded(copy, shim))

    assert result.rc == 0, result.err
    assert f"{shim} is loaded too" in result.err


def test_dlsym_is_unchanged(run, program):
    for preload in (False, True):
        result = run(program("next_dlsym"), preload=preload)
        assert (result.rc, result.out, result.err) == (0, "done\n", "")


@pytest.mark.parametrize("order", ["before", "after"])
def test_another_interposer_finds_the_next_one(run, program, shim, order):
    libraries = [shim, program("plugin_next.so")]
    if order == "after":
        libraries.reverse()

    result = run(program("next_dlsym"), env=preloaded(*libraries))

    assert (result.rc, result.out, result.err) == (0, "next: done\n", "")


# Somebody else's dlsym behind ours.
@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time looks names up as it starts")
@pytest.mark.parametrize("conf", LANES)
def test_what_another_dlsym_answers_is_the_driver_s_to_us(run, program, shim, conf):
    result = run([program("versioned"), 1000], conf=conf, stats=True,
                 env=preloaded(shim, program("plugin_dlsym.so")))

    assert result.rc == 0, result.err
    calls = result.sim["calls"]["cuMemAlloc_v2"]
    assert result.out == f"allocations: {calls}\n" and 0 < calls < POOLED


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="python is not instrumented")
def test_what_another_dlsym_answers_is_so_without_cuda_too(run, program, shim):
    code = "import ctypes; print(ctypes.CDLL('libc.so.6').somebodys())"
    for libraries in ([program("plugin_dlsym.so")], [shim, program("plugin_dlsym.so")]):
        result = run([shutil.which("python3"), "-c", code], preload=False,
                     env=preloaded(*libraries))
        assert (result.rc, result.out, result.err) == (0, "7\n", "")


def asks(run, program, library):
    """What a library that is preloaded behind the shim is told."""
    result = run(program("next_dlsym"), env=preloaded(conftest.SHIM, library))
    assert result.rc == 0, result.err
    return dict(line.split(": ") for line in result.out.splitlines() if ": " in line)


def test_a_library_behind_us_finds_the_next_one(run, program):
    """Which is the driver's own function; by the driver's handle it gets ours, as everybody."""
    told = asks(run, program, program("plugin_asks.so"))

    assert told == {"handle": conftest.SHIM.name, "next": "libcuda.so.1"}


def test_ucx_patches_the_driver_and_not_us(run, program, tmp_path):
    shutil.copy(program("plugin_asks.so"), tmp_path / "libucm_cuda.so.0")

    told = asks(run, program, tmp_path / "libucm_cuda.so.0")

    assert told == {"handle": "libcuda.so.1", "next": "libcuda.so.1"}


RANGES = """
#include <cuda.h>
#include <stdio.h>
void plugin_work(unsigned bytes)
{
    CUcontext context;
    CUdeviceptr p[3], base = 0;
    size_t size = 0;
    int known = cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 &&
                cuCtxSetCurrent(context) == 0;
    for (int i = 0; known && i < 3; i++)
        known = cuMemAlloc(&p[i], bytes) == 0;
    for (int i = 0; known && i < 3; i++) {
        known = cuMemGetAddressRange(&base, &size, p[i] + 10) == 0 &&
                cuMemGetAddressRange(NULL, NULL, p[i]) == 0;
        printf("%d %zu ", base == p[i], size);
    }
    for (int i = 0; known && i < 3; i++)
        cuMemFree(p[i]);
}
"""


@pytest.mark.parametrize("conf", [*LANES, "backend:off"])
def test_ucx_is_told_the_range_of_what_is_freed_alone(run, program, tmp_path, conf):
    """Others, of UCX too, are told the segment's."""
    (tmp_path / "ranges.c").write_text(RANGES)
    for name in "libucm_cuda.so.0", "libuct_cuda.so.0":
        subprocess.run(["gcc", "-shared", "-fPIC", "-isystem", conftest.cuda_include(), "-o",
                        tmp_path / name, tmp_path / "ranges.c",
                        conftest.BUILD / "simcuda" / "libcuda.so.1"], check=True)
    hooks, others = (run([program("plugin_host"), tmp_path / name], conf=conf)
                     for name in ("libucm_cuda.so.0", "libuct_cuda.so.0"))

    assert (hooks.rc, hooks.out, hooks.err) == (0, "1 1000 " * 3, "")
    assert others.rc == 0 and (others.out == hooks.out) == (conf == "backend:off")


OWN_FUNCTION = """
#define _GNU_SOURCE
#include <dlfcn.h>
int cuMemAlloc_v2(void) { return 7; }
int main(void)
{
    int (*found)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    return found ? found() : 1;
}
"""


def test_a_program_finds_a_function_of_its_own(run, tmp_path):
    (tmp_path / "own.c").write_text(OWN_FUNCTION)
    subprocess.run(["gcc", "-rdynamic", "-o", tmp_path / "own", tmp_path / "own.c", "-ldl"],
                   check=True)
    for preload in (False, True):
        assert run(tmp_path / "own", preload=preload).rc == 7


def test_a_driver_that_was_closed_is_called_no_more(run, program, tmp_path):
    """One that does go away; the simulated one stays."""
    (tmp_path / "closing.c").write_text("int cuHere; int cuMemAlloc_v2(void) { return 7; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o",
                    tmp_path / "libcuda.so.1", tmp_path / "closing.c"], check=True)
    for preload in (False, True):
        result = run(program("drv_reopen_host"), preload=preload,
                     env={"LD_LIBRARY_PATH": tmp_path})
        assert (result.rc, result.out, result.err) == (0, "7\n7\n7\n", "")


MODULE = """
#include <cuda_runtime_api.h>
int work(void)
{
    int mine = 0;
    void *pointer = 0;
    if (cudaRuntimeGetVersion(&mine) != cudaSuccess || cudaMalloc(&pointer, 1000) != cudaSuccess ||
        cudaFree(pointer) != cudaSuccess)
        return 1;
    /* The runtime that refuses it is the one that remembers it. */
    if (cudaMalloc(&pointer, (size_t)1 << 60) != cudaErrorMemoryAllocation)
        return 2;
    return cudaGetLastError() == cudaErrorMemoryAllocation ? 0 : 3;
}
"""
TWO_RUNTIMES = """
#include <dlfcn.h>
int work(void);
int main(int argc, char **argv)
{
    void *module = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; module && i < 3; i++) {
        int here = work(), there = ((int (*)(void))dlsym(module, "work"))();
        if (here || there)
            return 10 * here + there;
    }
    return module ? 0 : 99;
}
"""


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its runtimes are instrumented")
@pytest.mark.parametrize("conf", LANES)
def test_each_module_calls_its_own_runtime(run, tmp_path, conf):
    """The program's is another one than its module's."""
    for name, text in (("module.c", MODULE), ("host.c", TWO_RUNTIMES)):
        (tmp_path / name).write_text(text)
    include = conftest.cuda_include()
    subprocess.run(["gcc", "-shared", "-fPIC", "-isystem", include, "-o", tmp_path / "module.so",
                    tmp_path / "module.c", conftest.BUILD / "simcuda" / "libcudart.so.12"], check=True)
    subprocess.run(["gcc", "-isystem", include, "-o", tmp_path / "host", tmp_path / "host.c",
                    tmp_path / "module.c", f"-L{conftest.BUILD / 'simcuda'}", "-lcudart", "-ldl"],
                   check=True)
    for preload in (False, True):
        result = run([tmp_path / "host", tmp_path / "module.so"], preload=preload, conf=conf)
        assert (result.rc, result.err) == (0, "")


def test_before_runtime_12_memory_comes_from_the_device_that_was_set(run, program):
    """cudaSetDevice reaches the driver only with the next call."""
    for preload in (False, True):
        result = run(program("setdevice"), preload=preload, sim="runtime:11,devices:3")
        assert (result.rc, result.err) == (0, "")


def test_procaddr_answers_as_the_driver_does(run, program):
    expected = run([program("drv_procaddr"), 500], preload=False, stats=True)
    result = run([program("drv_procaddr"), 500], stats=True)

    assert expected.rc == 0, expected.err
    assert (result.rc, result.out, result.err) == (0, expected.out, "")
    assert expected.sim["calls"]["cuMemAlloc_v2"] == 1000
    assert result.sim["calls"]["cuMemAlloc_v2"] < POOLED


def test_both_lanes_count_an_allocation_once(run, program):
    """A miss passes lane R, the runtime and lane D: it is one call of the program."""
    for conf in ("stats:exit", "stats:exit,x_runtime_hooks:false"):
        result = run([program("versioned"), 1000], conf=conf)
        assert any(line.split()[-1:] == ["1000"] for line in result.err.splitlines()
                   if "allocation calls" in line), result.err
