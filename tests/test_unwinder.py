"""Whose unwinder the program has is unchanged: none is opened, and none asked (design.md 8)."""

import platform
import random
import re
import subprocess

import pytest

import conftest

pytestmark = [pytest.mark.skipif(conftest.SANITIZER is not None, reason="one run-time at a time"),
              pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is for it")]

# An allocation from code without a description, made at run time.
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
    return dlopen("libunwind.so.8", RTLD_LAZY | RTLD_NOLOAD) != NULL;
}
"""


@pytest.mark.parametrize("sanitizer", ["asan", "ubsan"])
def test_a_sanitized_program_is_served(run, tmp_path, sanitizer):
    """Its run-time ends the program over what some ways to open a library do."""
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
    bound, = re.findall(r"libstdc\+\+\S* \[0\] to (\S+) \[0\]: .*`_Unwind_RaiseException'",
                        result.err)
    return re.match("[a-z_]+", bound.rpartition("/")[2])[0]


def test_exceptions_stay_libgcc_s(run, tmp_path):
    assert who_unwinds(run, tmp_path, conftest.SHIM) == "libgcc_s"


# A module with an unwind table, and what it is called with: code made at run time.
DAMAGED = ALLOCATES + """
static void deeper(int levels)
{
    volatile char room[64];
    room[0] = 1;
    if (levels)
        deeper(levels - 1);
    else
        allocate_from_unknown_code();
    room[1] = room[0];
}
void work(int levels)
{
    allocate();
    deeper(levels);
    __asm__ volatile("");
}
"""
DAMAGED_HOST = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        void *module = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        fprintf(stderr, "%s\\n", argv[i]);
        if (module)
            ((void (*)(int))dlsym(module, "work"))(2);
        else
            puts(dlerror());
    }
    return 0;
}
"""
DAMAGED_MODULES = 150


def sections(path, *names):
    """(offset in the file, bytes) of each."""
    listing = subprocess.run(["readelf", "-SW", path], text=True, check=True, capture_output=True)
    found = {}
    for line in listing.stdout.splitlines():
        fields = line.rpartition("] ")[2].split()
        if len(fields) > 4 and fields[0] in names:
            found[fields[0]] = int(fields[3], 16), int(fields[4], 16)
    return [found[name] for name in names]


def test_a_damaged_unwind_table_does_not_end_the_program(run, tmp_path):
    """One byte of a module's is enough for libunwind, and for glibc's backtrace."""
    whole = tmp_path / "whole.so"
    (tmp_path / "module.c").write_text(DAMAGED)
    (tmp_path / "host.c").write_text(DAMAGED_HOST)
    subprocess.run(["gcc", "-O1", "-fPIC", "-shared", "-isystem", conftest.cuda_include(), "-o",
                    whole, tmp_path / "module.c", f"-L{conftest.BUILD / 'simcuda'}", "-lcudart"],
                   check=True)
    subprocess.run(["gcc", "-o", tmp_path / "host", tmp_path / "host.c", "-ldl"], check=True)
    places = [at + i for at, size in sections(whole, ".eh_frame", ".eh_frame_hdr")
              for i in range(size)]
    rng = random.Random(20)
    paths = []
    for i in range(DAMAGED_MODULES):
        image = bytearray(whole.read_bytes())
        for place in rng.sample(places, 1 if i % 3 else 3):
            image[place] ^= rng.randrange(1, 256)
        paths.append(tmp_path / f"{i}.so")
        paths[-1].write_bytes(image)

    result = run([tmp_path / "host", *paths])

    assert (result.rc, result.out) == (0, ""), result.err[-300:]
