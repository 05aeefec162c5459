"""Ordinary nvcc programs with the shared runtime start, run and finish, Thrust included."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import conftest
from matrix import tools

pytestmark = pytest.mark.other_build
SOURCES = sorted((conftest.ROOT / "simcuda" / "cu").glob("*.cu"))


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
@pytest.mark.parametrize("source", [
    pytest.param(path, id=path.name, marks=[pytest.mark.long] * ("thrust" in path.name))
    for path in SOURCES])
def test_nvcc_program(run, source, arch):
    flags, sim = ARCHES[arch]
    binary = tools.nvcc(source.name, *flags)()

    expected = run(binary, sim=sim, preload=False)
    assert expected.rc == 0, expected.err
    for conf in (None, "x_runtime_hooks:false", "backend:off"):
        result = run(binary, sim=sim, conf=conf)
        assert (result.rc, result.out) == (0, expected.out), result.err


# --- kernels as text, which the driver compiles ---------------------------------------------------

PTXAS = NVCC and shutil.which("ptxas", path=str(pathlib.Path(NVCC).resolve().parent))
# Low, so that drivers of many years take it; programmatic launches came later.
LOW, LATER = ("6.0", 50), ("7.8", 90)
PTX = [("tests/random/kernels.c", LOW), ("tests/bench/busy.c", LOW), ("tests/gpu/facts_hold.c", LOW),
       ("tests/gpu/facts_gate.c", LOW), ("tests/gpu/facts_seen.c", LOW),
       ("tests/gpu/facts_programmatic.c", LATER)]


@pytest.mark.skipif(not PTXAS, reason="there is no ptxas")
@pytest.mark.parametrize("source, oldest", PTX)
def test_ptx_assembles(tmp_path, source, oldest):
    include = conftest.execute([conftest.ROOT / "scripts" / "deps.sh", "--cuda-include"],
                               conftest.plain_env(), 60)[1].strip()
    rc, text, err = conftest.execute(["gcc", "-E", "-P", "-D_GNU_SOURCE", "-I", conftest.ROOT, "-I",
                                      include, conftest.ROOT / source], conftest.plain_env(), 60)
    assert rc == 0, err
    literals, = re.findall(r'static const char \w+\[\] =\s*("\.version.*?");', text, re.S)
    image = tmp_path / "image.ptx"
    image.write_text("".join(re.findall(r'"(.*?)"', literals)).replace("\\n", "\n"))
    version, target = oldest
    assert image.read_text().startswith(f".version {version}\n.target sm_{target}\n")
    for arch in (arch for arch in (80, 90, 100) if arch >= target):
        rc, out, err = conftest.execute([PTXAS, f"-arch=sm_{arch}", "-o", tmp_path / "image", image],
                                        conftest.plain_env(), 60)
        assert rc == 0, out + err


# --- the hardware suite's programs (tests/gpu/programs), as make built them -----------------------

BUILT = conftest.BUILD / "programs"
PROGRAMS = sorted((conftest.ROOT / "tests" / "gpu" / "programs").glob("*.cu"))
needs_programs = pytest.mark.skipif(
    NVCC is None or conftest.BUILD.name != "build" or not (BUILT / "shared").exists(),
    reason="there is no nvcc beside the headers, or this is not the release build")


@needs_programs
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("source", PROGRAMS, ids=lambda path: path.name)
def test_program_of_the_hardware_suite(run, source, arch):
    binary = BUILT / "shared" / source.stem
    for preload, conf in ((False, None), (True, None), (True, "x_runtime_hooks:false")):
        result = run([binary, 2, "dry"], sim=f"arch:{arch},kernel_ns:5000", conf=conf,
                     preload=preload)
        assert result.rc == 0, result.err
        assert json.loads(result.out)["check"] == "not looked at"


@needs_programs
@pytest.mark.parametrize("name", ["cg", "graph", "once"])
def test_what_the_programs_check_is_not_always_right(run, name):
    """Kernels of the simulator do nothing, which a check must notice that is told to look."""
    result = run([BUILT / "shared" / name, 2], sim="arch:90", preload=False)
    assert result.rc == 1 and json.loads(result.out)["check"] == "failed"


@needs_programs
def test_programs_run_where_the_kit_does():
    """docs/internals/testing.md promises it from glibc 2.34 on."""
    for binary in [*BUILT.iterdir(), *(BUILT / "shared").iterdir()]:
        if binary.is_file():
            symbols = subprocess.run(["readelf", "-W", "--dyn-syms", binary], text=True, check=True,
                                     capture_output=True).stdout
            versions = [int(minor) for minor in re.findall(r"@GLIBC_2\.(\d+)", symbols)]
            assert max(versions) <= 34, binary
