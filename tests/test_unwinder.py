"""Whose unwinder the program has is unchanged by the one that we open (DESIGN 8)."""

import re
import subprocess

import pytest

import conftest

pytestmark = pytest.mark.skipif(conftest.SANITIZER is not None, reason="one run-time at a time")

HOST = """
#include <cuda_runtime_api.h>
int main(void)
{
    void *pointer;
    return cudaMalloc(&pointer, 1000) != cudaSuccess || cudaFree(pointer) != cudaSuccess;
}
"""


@pytest.mark.parametrize("sanitizer", ["asan", "ubsan"])
def test_a_sanitized_program_is_served(run, tmp_path, sanitizer):
    """Its run-time ends the program when a library is opened with RTLD_DEEPBIND."""
    (tmp_path / "host.c").write_text(HOST)
    flag = {"asan": "address", "ubsan": "undefined"}[sanitizer]
    subprocess.run(["gcc", f"-fsanitize={flag}", "-isystem", conftest.cuda_include(), "-o",
                    tmp_path / "host", tmp_path / "host.c", f"-L{conftest.BUILD / 'simcuda'}",
                    "-lcudart"], check=True)
    library = subprocess.run(["gcc", f"-print-file-name=lib{sanitizer}.so"], text=True, check=True,
                             capture_output=True).stdout.strip()

    result = run(tmp_path / "host", conf="stats:exit",
                 env={"LD_PRELOAD": f"{library} {conftest.SHIM}"})

    assert result.rc == 0, result.err
    assert re.search(r"^  call stacks by +libunwind$", result.err, re.MULTILINE), result.err


MODULE = """
#include <cuda_runtime_api.h>
extern "C" int work(void)
{
    void *pointer = nullptr;
    cudaMalloc(&pointer, 1000); // from now on there is an unwinder of ours
    cudaFree(pointer);
    try {
        throw 7;
    } catch (int thrown) {
        return thrown;
    }
}
"""
C_HOST = """
#include <dlfcn.h>
int main(int argc, char **argv)
{
    void *module = dlopen(argv[argc - 1], RTLD_LAZY);
    return module ? ((int (*)(void))dlsym(module, "work"))() : 1;
}
"""


def who_unwinds(run, tmp_path, shim):
    """Whose function a C++ module of a C program throws with."""
    (tmp_path / "module.cc").write_text(MODULE)
    (tmp_path / "host.c").write_text(C_HOST)
    subprocess.run(["g++", "-shared", "-fPIC", "-isystem", conftest.cuda_include(), "-o",
                    tmp_path / "module.so", tmp_path / "module.cc",
                    f"-L{conftest.BUILD / 'simcuda'}", "-lcudart"], check=True)
    subprocess.run(["gcc", "-o", tmp_path / "host", tmp_path / "host.c", "-ldl"], check=True)

    result = run([tmp_path / "host", tmp_path / "module.so"], conf="stats:exit",
                 env={"LD_PRELOAD": shim, "LD_DEBUG": "bindings"})

    assert result.rc == 7, result.err
    assert re.search(r"^  call stacks by +libunwind$", result.err, re.MULTILINE)
    bound, = re.findall(r"libstdc\+\+\S* \[0\] to (\S+) \[0\]: .*`_Unwind_RaiseException'",
                        result.err)
    return re.match("[a-z_]+", bound.rpartition("/")[2])[0]


def test_exceptions_stay_libgcc_s_where_libunwind_is_open(run, tmp_path):
    assert who_unwinds(run, tmp_path, conftest.SHIM) == "libgcc_s"
