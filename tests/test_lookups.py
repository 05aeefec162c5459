"""Whoever looks a name up hears what he hears without the shim (design.md 3): every kind of look-up of
names that are there, that are not, and that only the shim has."""

import re
import shutil
import subprocess

import pytest

import conftest


def answers(result):
    """Who says that nothing was found is no part of the answer, nor is a sanitizer's file name."""
    assert result.rc == 0, result.err
    assert result.err == ""
    out = re.sub(r"\S+(?=: undefined symbol: )", "X", result.out)
    return re.sub(r"(?<=san\.so)[.0-9]+", "", out).splitlines()


def same(run, cmd, **kwargs):
    expected = answers(run(cmd, preload=False, **kwargs))
    found = answers(run(cmd, **kwargs))
    assert [pair for pair in zip(expected, found) if pair[0] != pair[1]] == []
    assert len(expected) == len(found)
    return expected


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false"])
@pytest.mark.parametrize("sim", [None, "driver:12020", "without:cuGetProcAddress_v2"])
def test_every_look_up_answers_as_without_the_shim(run, program, sim, conf):
    lines = same(run, [program("lookups")], sim=sim, conf=conf)

    # What the program means to ask, so that it goes on asking it.
    assert 'driver "cuMemAlloc_v2": libcuda.so.1, -' in lines
    assert 'everywhere "cuMemAlloc_v2": NULL, X: undefined symbol: cuMemAlloc_v2' in lines
    assert 'everywhere "cudaMalloc": libcudart.so.13, -' in lines
    assert 'runtime "cudaMalloc"libcudart.so.13: libcudart.so.13, -' in lines
    assert any(line.startswith('v2 "cuNoSuchFunction" 12000 0: ') for line in lines)
    assert any(line.startswith('entry point "" 12000: ') for line in lines)


def test_a_driver_open_for_everybody_is_found_everywhere(run, program):
    lines = same(run, [program("lookups"), "global"])

    assert 'next "cuMemAlloc_v2": libcuda.so.1, -' in lines
    assert 'everywhere, before "cuMemAlloc_v2": NULL, X: undefined symbol: cuMemAlloc_v2' in lines


OLD_DRIVER = """
int cuInit(unsigned flags) { return (int)flags; }
int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes) { return !address || !bytes; }
int cuMemFree_v2(unsigned long long address) { return !address; }
"""


@pytest.mark.parametrize("how", ["names", "global"])
def test_what_only_the_shim_has_is_not_there(run, program, tmp_path, how):
    """A driver from before most of what we wrap."""
    (tmp_path / "old.c").write_text(OLD_DRIVER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o",
                    tmp_path / "libcuda.so.1", tmp_path / "old.c"], check=True)

    lines = same(run, [program("lookups"), how],
                 env={"LD_LIBRARY_PATH": f"{tmp_path}:{conftest.BUILD / 'simcuda'}"})

    assert 'driver "cuMemAlloc_v2": libcuda.so.1, -' in lines
    assert 'driver "cuGreenCtxCreate": NULL, X: undefined symbol: cuGreenCtxCreate' in lines
    assert 'program "cuGreenCtxCreate": NULL, X: undefined symbol: cuGreenCtxCreate' in lines


def test_a_program_without_cuda_finds_none(run, program):
    same(run, [program("lookups_host")])


MODULE = """
#define _GNU_SOURCE
#include <dlfcn.h>
int work(void)
{
    int (*allocate)(void **, unsigned long) =
        (int (*)(void **, unsigned long))dlsym(RTLD_DEFAULT, "cudaMalloc");
    int (*release)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cudaFree");
    void *pointer;
    for (int i = 0; allocate && release && i < 1000; i++)
        if (allocate(&pointer, 1000) || release(pointer))
            return 2;
    return allocate && release;
}
"""
PYTHON = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).work())"
python = pytest.mark.skipif(conftest.SANITIZER is not None, reason="python is not instrumented")


@python
@pytest.mark.parametrize("runtime, found", [(["-lcudart"], "1\n"), ([], "0\n")],
                         ids=["with", "without"])
def test_a_local_module_finds_what_it_brought_along(run, tmp_path, runtime, found):
    """It sees more than the program does: its own runtime."""
    (tmp_path / "module.c").write_text(MODULE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "module.so", tmp_path / "module.c",
                    "-Wl,--no-as-needed", f"-L{conftest.BUILD / 'simcuda'}", *runtime], check=True)
    cmd = [shutil.which("python3"), "-c", PYTHON, tmp_path / "module.so"]

    assert run(cmd, preload=False).out == found
    result = run(cmd, stats=bool(runtime))
    assert (result.rc, result.out, result.err) == (0, found, "")
    if runtime:
        assert result.sim["calls"]["cuMemAlloc_v2"] < 50


@python
@pytest.mark.parametrize("name", ["cudaMalloc", "cuMemAlloc_v2", "cachealloc_no_such_name"])
def test_an_interpreter_without_cuda_finds_none(run, name):
    code = f"import ctypes; print(hasattr(ctypes.CDLL(None), {name!r}))"

    for preload in (False, True):
        result = run([shutil.which("python3"), "-c", code], preload=preload)
        assert (result.rc, result.out, result.err) == (0, "False\n", "")
