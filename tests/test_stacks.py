"""Call stacks are told as they are, whichever way they are found (design.md 7)."""

import math
import platform
import subprocess

import pytest

import conftest
import leak_report

# Frames of ROOM bytes, and code whose addresses are the same whatever ROOM is: what is known of a
# frame is known by its return address.
MODULE = """
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include "cachealloc.h"
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
        printf("%zx\\n", address);
        if (dlclose(module))
            return 2;
    }
    return 0;
}
"""


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "backend:off", "stack_depth:64"])
def test_stacks_that_start_alike_are_told_apart(run, program, conf):
    result = run(program("same_start"), conf=conf)

    assert (result.rc, result.out) == (0, ""), result.err
    assert leak_report.nothing_leaked(result.err), result.err


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time makes system calls")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other unwinders' stacks")
@pytest.mark.parametrize("stack", ["thread", "coroutine", "bare", "many", "signal"])
def test_no_system_call_is_made_for_a_stack_whichever_it_is(run, program, stack):
    result = run([program("unwatched_stacks"), stack])

    if result.rc == 77:
        pytest.skip("the kernel filters no system calls")
    assert result.rc == 0, (result.rc, result.err)


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


# Two functions whose addresses are the same: one has a frame pointer, the other has something else
# in that register. By what is true of the first one an unwinder reads the second one's stack at an
# address that is none. They are called from code without a description.
FRAME = """
.globl enter
.type enter, @function
enter:
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
.if FRAMED
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
.else
    xor %ebp, %ebp
    nop
.endif
    call *%rdi
    pop %rbp
    .cfi_def_cfa %rsp, 8
    ret
    .cfi_endproc
"""
FRAME_HOST = """
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "cachealloc.h"
static void *above;
static void allocate(void)
{
    void *pointer, *stack[4];
    cachealloc_info_t info = {.size = sizeof(info), .stack = stack, .stack_capacity = 4};
    if (cudaMalloc(&pointer, 1000) || cachealloc_info(pointer, &info) || info.stack_count != 4 ||
        stack[2] != above || cudaFree(pointer))
        abort();
}
static void (*enter)(void (*)(void));
static __attribute__((noinline)) void through(void)
{
    enter(allocate);
    __asm__ volatile("after_enter:");
}
int main(int argc, char **argv)
{
    extern char after_enter[];
    /* push %rbp; mov %rsp, %rbp; call *%rdi; pop %rbp; ret */
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
    void *made = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, code, sizeof code);
    mprotect(made, 4096, PROT_READ | PROT_EXEC);
    above = after_enter;
    for (int i = 0; i < 10; i++) {
        void *module = dlopen(argv[1 + i % (argc - 1)], RTLD_NOW);
        size_t address = (size_t)dlsym(module, "enter");
        printf("%zx\\n", address);
        enter = (void (*)(void (*)(void)))address;
        ((void (*)(void (*)(void)))made)(through);
        if (dlclose(module))
            return 2;
    }
    return 0;
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its frames")
@pytest.mark.skipif(conftest.SANITIZER is not None, reason="modules of another compilation")
def test_a_library_in_another_ones_place_does_not_end_the_program(run, tmp_path):
    (tmp_path / "module.s").write_text(FRAME)
    (tmp_path / "host.c").write_text(FRAME_HOST)
    modules = [tmp_path / f"module{framed}.so" for framed in (1, 0)]
    for framed, module in zip((1, 0), modules):
        subprocess.run(["gcc", f"-Wa,--defsym,FRAMED={framed}", "-shared", "-o", module,
                        tmp_path / "module.s"], check=True)
    subprocess.run(["gcc", "-O2", "-fno-optimize-sibling-calls", "-DCACHEALLOC_WEAK", "-o",
                    tmp_path / "host", tmp_path / "host.c", "-I", conftest.ROOT / "include",
                    "-isystem", conftest.cuda_include(), "-L", conftest.BUILD / "simcuda",
                    "-lcudart", "-ldl"], check=True)

    result = run([tmp_path / "host", *modules])

    assert result.rc == 0, (result.rc, result.err)
    assert len(set(result.out.split())) == 1  # else this shows nothing


# Libraries that leak. They are as large as each other, so that the next one gets the place of the
# one that was closed; return addresses must differ, since stacks are told apart by them alone.
LEAKING = """
#include <cuda_runtime_api.h>
void NAME(size_t bytes)
{
    void *pointer;
    __asm__ volatile(".skip " ROOM ", 0x90");
    if (cudaMalloc(&pointer, bytes))
        __builtin_trap();
}
"""
CLOSING = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        void *module = dlopen(argv[i], RTLD_NOW);
        void (*leak)(size_t) = (void (*)(size_t))dlsym(module, argv[i + 1]);
        printf("%zx\\n", (size_t)leak);
        leak(1000 * (size_t)i);
        if (dlclose(module) || dlopen(argv[i], RTLD_NOW | RTLD_NOLOAD))
            return 2;
    }
    return 0;
}
"""


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="modules of another compilation")
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_library_that_was_closed_is_named(run, tmp_path, is_gone):
    (tmp_path / "module.c").write_text(LEAKING)
    (tmp_path / "host.c").write_text(CLOSING)
    library = ["-L", conftest.BUILD / "simcuda", "-lcudart"]
    names = ["leak_first", "leak_second"]
    for room, name in zip((16, 64), names):
        subprocess.run(["gcc", "-g", "-O1", f"-DNAME={name}", f'-DROOM="{room}"', "-shared", "-fPIC",
                        "-isystem", conftest.cuda_include(), "-o", tmp_path / f"{name}.so",
                        tmp_path / "module.c", *library], check=True)
    host = CLOSING.replace("return 0;", 'return remove(argv[1]);') if is_gone else CLOSING
    (tmp_path / "host.c").write_text(host)
    subprocess.run(["gcc", "-o", tmp_path / "host", tmp_path / "host.c", "-Wl,--no-as-needed",
                    *library, "-ldl"], check=True)

    arguments = [word for name in names for word in (tmp_path / f"{name}.so", name)]
    result = run([tmp_path / "host", *arguments])

    assert result.rc == 0, result.err
    report = leak_report.parse(result.err)
    frames = {group.bytes: group.frames[0] for group in report.groups}
    if is_gone:
        assert frames[1000].startswith("leak_first.so+0x"), frames
    else:
        assert frames[1000] == "leak_first at module.c:7"
    assert frames[3000] == "leak_second at module.c:7", frames
    first, second = (int(line, 16) // 4096 for line in result.out.split())
    assert first == second  # else this shows less


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="modules of another compilation")
def test_a_library_that_was_closed_is_not_taken_for_the_one_in_its_place(run, tmp_path):
    """Where names come by symbol tables: out of memory, and after _exit."""
    host = CLOSING.replace("return 0;", """dlopen(argv[3], RTLD_NOW);
        void *none;
        fflush(stdout);
        _exit(cudaMalloc(&none, (size_t)1 << 45) != 2);""")
    (tmp_path / "module.c").write_text(LEAKING)
    (tmp_path / "host.c").write_text(
        "#include <unistd.h>\nint cudaMalloc(void **, size_t);\n" + host)
    library = ["-L", conftest.BUILD / "simcuda", "-lcudart"]
    names = ["leak_first", "leak_second"]
    for room, name in zip((16, 64), names):
        subprocess.run(["gcc", "-O1", f"-DNAME={name}", f'-DROOM="{room}"', "-shared", "-fPIC",
                        "-isystem", conftest.cuda_include(), "-o", tmp_path / f"{name}.so",
                        tmp_path / "module.c", *library], check=True)
    subprocess.run(["gcc", "-o", tmp_path / "host", tmp_path / "host.c", "-Wl,--no-as-needed",
                    *library, "-ldl"], check=True)

    arguments = [word for name in names for word in (tmp_path / f"{name}.so", name)]
    result = run([tmp_path / "host", *arguments], conf="oom_report:60s")

    assert result.rc == 0, result.err
    held = result.err[result.err.index("#1: "):].splitlines()
    first = next(i for i, line in enumerate(held) if " 1000 bytes in 1 allocations" in line)
    assert held[first + 2].startswith("    leak_first.so+0x"), held
    frames = {group.bytes: group.frames[0] for group in leak_report.parse(result.err).groups}
    assert frames[1000].startswith("leak_first.so+0x"), frames
    assert frames[3000].startswith("leak_second (leak_second.so+0x"), frames  # open again
    first, second = (int(line, 16) // 4096 for line in result.out.split())
    assert first == second  # else this shows less


def assert_as_often(found, number, size, every):
    """5 sigma: less than one run in a million fails by chance."""
    chance = 1 - math.exp(-size / every)
    assert abs(found - number * chance) <= 5 * math.sqrt(number * chance * (1 - chance)), found


@pytest.mark.parametrize("conf", ["", "x_runtime_hooks:false", "backend:off", "thread_cache:0"])
@pytest.mark.parametrize("number, size", [(20000, 1000), (1000, 200000), (200, 4000000)])
def test_stacks_are_sampled_by_bytes(run, program, conf, number, size):
    result = run([program("sampled"), number, size], conf=f"stacks:sample:128K,{conf}")

    assert result.rc == 0, result.err
    assert_as_often(int(result.out), number, size, 128 * 1024)


def test_where_stacks_are_sampled_the_totals_are_right(run, program):
    number, size, every = 20000, 512, 16384
    result = run([program("leaks"), "many", number], conf="stacks:sample:16K")

    report = leak_report.parse(result.err)
    assert report.sampled == "16K"
    assert (report.bytes, report.count, report.stacks) == (number * size, number, 1)
    without, having = report.groups
    assert without.frames == ["(no call stack)"]
    assert having.frames[0].startswith("forget_many")
    assert without.count + having.count == number
    assert_as_often(having.count, number, size, every)


@pytest.mark.parametrize("stacks", ["all", "off"])
def test_where_stacks_are_not_sampled_nothing_is_said_of_it(run, program, stacks):
    report = leak_report.parse(run([program("leaks"), "many", 10], conf=f"stacks:{stacks}").err)

    assert report.sampled is None
    assert report.stacks == (stacks == "all")
