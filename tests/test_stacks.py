"""Call stacks are told as they are, whichever way they are found (DESIGN 7)."""

import subprocess

import pytest

import conftest
import leak_report

# Frames of ROOM bytes, and code that differs in its addresses: libunwind itself knows a frame by its
# return address for as long as a thread lives.
MODULE = """
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include "cachealloc.h"
#define TEXT(number) TEXT_(number)
#define TEXT_(number) #number
static void *expected[3];
static volatile int sink;
static __attribute__((noinline)) void allocate(void)
{
    void *pointer, *stack[3];
    cachealloc_info_t info = {.size = sizeof(info), .stack = stack, .stack_capacity = 3};
    expected[1] = __builtin_return_address(0);
    if (cudaMalloc(&pointer, 1000) || cachealloc_info(pointer, &info) || info.stack_count != 3 ||
        stack[1] != expected[1] || stack[2] != expected[2] || cudaFree(pointer))
        abort();
    sink++;
}
static __attribute__((noinline)) void between(void)
{
    volatile char room[ROOM];
    __asm__ volatile(".skip " TEXT(ROOM) " / 64, 0x90");
    room[sizeof(room) - 1] = 0;
    expected[2] = __builtin_return_address(0);
    allocate();
    sink += room[sizeof(room) - 1];
}
size_t work(void)
{
    for (int i = 0; i < 40; i++)
        between();
    return (size_t)work;
}
"""
HOST = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    for (int i = 0; i < 10; i++) {
        void *module = dlopen(argv[1 + i % (argc - 1)], RTLD_NOW);
        size_t address = ((size_t(*)(void))dlsym(module, "work"))();
        printf("%zx\\n", address / 4096);
        if (dlclose(module))
            return 2;
    }
    return 0;
}
"""


@pytest.mark.parametrize("conf", [None, "lane_r:false", "backend:off", "stack_depth:64"])
def test_stacks_that_start_alike_are_told_apart(run, program, conf):
    result = run(program("same_start"), conf=conf)

    assert (result.rc, result.out) == (0, ""), result.err
    assert leak_report.nothing_leaked(result.err), result.err


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="modules of another compilation")
def test_a_module_in_another_ones_place_has_stacks_of_its_own(run, tmp_path):
    (tmp_path / "module.c").write_text(MODULE)
    (tmp_path / "host.c").write_text(HOST)
    library = ["-L", conftest.BUILD / "simcuda", "-lcudart"]
    modules = [tmp_path / f"module{room}.so" for room in (512, 1024)]
    for room, module in zip((512, 1024), modules):
        subprocess.run(["gcc", "-O2", f"-DROOM={room}", "-DCACHEALLOC_WEAK", "-shared", "-fPIC",
                        "-I", conftest.ROOT / "include", "-isystem", conftest.cuda_include(), "-o",
                        module, tmp_path / "module.c", *library], check=True)
    # The runtime stays, so that the modules alone come and go.
    subprocess.run(["gcc", "-o", tmp_path / "host", tmp_path / "host.c", "-Wl,--no-as-needed",
                    *library, "-ldl"], check=True)

    result = run([tmp_path / "host", *modules])

    assert result.rc == 0, result.err
    assert len(set(result.out.split())) == 1  # else this shows nothing
