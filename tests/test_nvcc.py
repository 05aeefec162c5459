"""Ordinary nvcc programs with the shared runtime start, run and finish, Thrust included."""

import os
import pathlib
import shutil

import pytest

import conftest

SOURCES = sorted((conftest.ROOT / "tests" / "simcuda" / "cu").glob("*.cu"))


def find_nvcc():
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    places = [str(pathlib.Path(home) / "bin") for home in homes if home]
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(places))


NVCC = find_nvcc()
# The simulated device says of itself and of every kernel what its key `arch` says; without it what
# nvcc compiles for when it is not told.
ARCHES = {"default": ([], None), "sm_90": (["-arch=sm_90"], "arch:90")}


@pytest.mark.skipif(NVCC is None, reason="there is no nvcc")
@pytest.mark.skipif(conftest.SANITIZER is not None, reason="nvcc's program is not instrumented")
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_nvcc_program(run, tmp_path, source, arch):
    flags, sim = ARCHES[arch]
    binary = tmp_path / source.stem
    compile_it = [NVCC, "-cudart", "shared", *flags, "-o", binary, source]
    rc, out, err = conftest.execute(compile_it, conftest.plain_env(), 300)
    assert rc == 0, out + err

    expected = run(binary, sim=sim, preload=False)
    assert expected.rc == 0, expected.err
    for conf in (None, "lane_r:false", "backend:off"):
        result = run(binary, sim=sim, conf=conf)
        assert (result.rc, result.out) == (0, expected.out), result.err
