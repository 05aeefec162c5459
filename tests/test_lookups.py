"""Whoever looks a name up hears what he hears without the shim (DESIGN 3): every kind of look-up of
names that are there, that are not, and that only the shim has."""

import re
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


@pytest.mark.parametrize("conf", [None, "lane_r:false"])
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
