"""Whose unwinder the program has is unchanged by the one that we open (DESIGN 8)."""

import platform
import re
import subprocess

import pytest

import conftest
import leak_report

pytestmark = [pytest.mark.skipif(conftest.SANITIZER is not None, reason="one run-time at a time"),
              pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is for it")]

# An allocation from code without a description, made at run time: libunwind is asked.
ALLOCATES = """
#include <cuda_runtime_api.h>
#include <string.h>
#include <sys/mman.h>
static void allocate(void)
{
    void *pointer;
    cudaMalloc(&pointer, 1000);
    cudaFree(pointer);
}
static void allocate_from_unknown_code(void)
{
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    ((void (*)(void (*)(void)))page)(allocate);
}
"""
HOST = ALLOCATES + """
#include <dlfcn.h>
int main(void)
{
    allocate_from_unknown_code();
    return dlopen("libunwind.so.8", RTLD_LAZY | RTLD_NOLOAD) == NULL;
}
"""


@pytest.mark.parametrize("sanitizer", ["asan", "ubsan"])
def test_a_sanitized_program_is_served(run, tmp_path, sanitizer):
    """Its run-time ends the program when a library is opened with RTLD_DEEPBIND."""
    (tmp_path / "host.c").write_text(HOST)
    flag = {"asan": "address", "ubsan": "undefined"}[sanitizer]
    subprocess.run(["gcc", f"-fsanitize={flag}", "-isystem", conftest.cuda_include(), "-o",
                    tmp_path / "host", tmp_path / "host.c", f"-L{conftest.BUILD / 'simcuda'}",
                    "-lcudart", "-ldl"], check=True)
    library = subprocess.run(["gcc", f"-print-file-name=lib{sanitizer}.so"], text=True, check=True,
                             capture_output=True).stdout.strip()

    result = run(tmp_path / "host", conf="stats:exit",
                 env={"LD_PRELOAD": f"{library} {conftest.SHIM}"})

    assert result.rc == 0, result.err
    assert re.search(r"^  call stacks by +eh_frame$", result.err, re.MULTILINE), result.err


MODULE = ALLOCATES + """
extern "C" int work(void)
{
    allocate_from_unknown_code();
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

    result = run([tmp_path / "host", tmp_path / "module.so"],
                 env={"LD_PRELOAD": shim, "LD_DEBUG": "bindings"})

    assert result.rc == 7, result.err
    assert re.search(r"binding file \S*libunwind\.so\.8 ", result.err)
    bound, = re.findall(r"libstdc\+\+\S* \[0\] to (\S+) \[0\]: .*`_Unwind_RaiseException'",
                        result.err)
    return re.match("[a-z_]+", bound.rpartition("/")[2])[0]


def test_exceptions_stay_libgcc_s_where_libunwind_is_open(run, tmp_path):
    assert who_unwinds(run, tmp_path, conftest.SHIM) == "libgcc_s"


# As of libunwind before 1.5: the addresses of the calls.
OLD_UNWINDER = """
#define _GNU_SOURCE
#include <execinfo.h>
int unw_backtrace(void **frames, int most)
{
    int count = backtrace(frames, most);
    for (int i = 0; i < count; i++)
        frames[i] = (char *)frames[i] - 1;
    return count;
}
"""
LEAKS = ALLOCATES.replace("    cudaFree(pointer);\n", "") + """
int main(void)
{
    allocate_from_unknown_code();
    return 0;
}
"""


def test_an_old_libunwind_does_not_shift_stacks(run, tmp_path):
    (tmp_path / "old.c").write_text(OLD_UNWINDER)
    (tmp_path / "leaks.c").write_text(LEAKS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libunwind.so.8", "-o",
                    tmp_path / "libunwind.so.8", tmp_path / "old.c"], check=True)
    subprocess.run(["gcc", "-g", "-isystem", conftest.cuda_include(), "-o", tmp_path / "leaks",
                    tmp_path / "leaks.c", f"-L{conftest.BUILD / 'simcuda'}", "-lcudart"],
                   check=True)

    result = run(tmp_path / "leaks",
                 env={"LD_LIBRARY_PATH": f"{tmp_path}:{conftest.BUILD / 'simcuda'}"})

    group, = leak_report.parse(result.err).groups
    assert leak_report.places(group)[0] == "allocate", result.err
