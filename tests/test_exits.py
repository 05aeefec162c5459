"""Ends that skip destructors: the report is there, once, nothing hangs and the status is the
program's."""

import platform
import subprocess

import pytest

import conftest
import leak_report

KNOWN_HANDLERS = pytest.mark.skipif(platform.machine() != "x86_64",
                                    reason="a handler is not told from others")
LANES = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane")]


def joined(*items):
    return ",".join(item for item in items if item)


def reported(tmp_path):
    """The reports that were written as asked by `destination`, as (bytes, allocations)."""
    parsed = [leak_report.parse(path.read_text()) for path in tmp_path.glob("leaks-*")]
    assert None not in parsed
    return [(report.bytes, report.count) for report in parsed]


def destination(tmp_path):
    return f"leak_report:{tmp_path}/leaks-%n"


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("way", ["_exit", "_Exit"])
@pytest.mark.parametrize("status", [0, 1, 77 + 256, 255])
def test_the_report_comes_before_the_end_and_the_status_is_the_programs(run, program, tmp_path, way,
                                                                        status, conf):
    if status & 255 == 77:
        status += 1  # which would skip
    result = run([program("exits"), way, status], conf=joined(destination(tmp_path), conf))

    assert (result.rc, result.out, result.err) == (status & 255, "", "")
    assert reported(tmp_path) == [(2222, 1)]


def test_functions_are_named_without_debug_information(run, program):
    """By the symbol table of the file, local functions too, with the offset for addr2line."""
    result = run([program("exits"), "_exit", 4])

    group, = leak_report.parse(result.err).groups
    assert leak_report.places(group)[:2] == ["leak_here", "main"]
    assert group.frames[0].startswith("leak_here (exits+0x")
    assert all(" at " not in frame for frame in group.frames)


def test_the_offset_is_the_one_that_the_full_report_names(run, program):
    """Where that knows no lines: the last frame of a program is its start, which has none."""
    full = leak_report.parse(run([program("exits")]).err).groups[0]
    quick = leak_report.parse(run([program("exits"), "_exit", 4]).err).groups[0]

    assert len(full.frames) == len(quick.frames)
    assert full.frames[-1].startswith("_start (exits+0x") and quick.frames[-1] == full.frames[-1]


def test_handlers_of_quick_exit_come_before_the_report(run, program, tmp_path):
    result = run([program("exits"), "quick"], conf=destination(tmp_path))

    assert (result.rc, result.err) == (4, "")
    assert reported(tmp_path) == [(3000, 1)]


def test_the_statistics_are_there_too(run, program):
    result = run([program("exits"), "_exit", 4], conf="leak_report:off,stats:exit")

    assert result.rc == 4
    assert result.err.count(": statistics") == 1


@pytest.mark.parametrize("conf", LANES)
def test_nothing_is_written_where_nothing_leaked(run, program, conf):
    result = run([program("exits"), "_exit", 4], conf=joined("leak_report:off", conf))

    assert (result.rc, result.out, result.err) == (4, "", "")


# A library that leaks in two functions, and who opens it, may remove its file, and ends by _exit.
LEAKING = """
#include <cuda_runtime_api.h>
#define LEAK(name, bytes) static __attribute__((noinline)) void name(void) \\
    { void *p; if (cudaMalloc(&p, bytes)) __builtin_trap(); __asm__ volatile(""); }
LEAK(leak_first_tiles, 1000)
LEAK(leak_others, 3000)
void enter(void) { leak_first_tiles(); leak_others(); __asm__ volatile(""); }
"""
OPENING = """
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    void *module = dlopen(argv[1], RTLD_NOW);
    ((void (*)(void))dlsym(module, "enter"))();
    if (argc > 2)
        remove(argv[1]);
    _exit(0);
}
"""


@pytest.fixture
def opened(run, tmp_path):
    """opened(name, change, *arguments): what runs a library of that name, its bytes changed by
    `change`, has for a report, and its innermost frames by bytes."""
    def leaves(name, change, *arguments, conf=""):
        library = ["-L", conftest.BUILD / "simcuda", "-lcudart"]
        (tmp_path / "module.c").write_text(LEAKING)
        (tmp_path / "host.c").write_text(OPENING)
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-isystem", conftest.cuda_include(), "-o",
                        tmp_path / name, tmp_path / "module.c", *library], check=True)
        (tmp_path / name).write_bytes(change((tmp_path / name).read_bytes()))
        subprocess.run(["gcc", "-o", tmp_path / "host", tmp_path / "host.c", "-Wl,--no-as-needed",
                        *library, "-ldl"], check=True)
        result = run([tmp_path / "host", tmp_path / name, *arguments],
                     conf=joined("report_format:text", conf))
        assert result.rc == 0
        report = leak_report.parse(result.err)
        return result.err, {group.bytes: group.frames[0] for group in report.groups}

    return leaves


OTHER_COMPILATION = pytest.mark.skipif(conftest.SANITIZER is not None,
                                       reason="a module of another compilation")


@OTHER_COMPILATION
def test_names_are_escaped_in_what_is_written_in_a_handler_too(opened):
    said, frames = opened("x (v2).so", conf="suppressions_print:true",
                          change=lambda code: code.replace(b"_first_tiles", b"\x1b[31m\n (a+1)"))

    assert frames[1000].startswith(r"leak\x1b[31m\x0a (a+1) (x (v2).so+0x")
    assert frames[3000].startswith("leak_others (x (v2).so+0x")
    assert r"leak:^leak\x1b[31m\x0a (a+1)$ kind=device" in said.splitlines()
    assert all(line.isprintable() for line in said.splitlines())


@OTHER_COMPILATION
def test_functions_of_a_file_that_is_gone_are_told_apart(opened, tmp_path):
    said, frames = opened("gone.so", bytes, "remove")

    assert sorted(frames) == [1000, 3000] and "deleted" not in said
    assert all(frame.startswith("gone.so+0x") for frame in frames.values())
    assert len(set(frames.values())) == 2


# 200 leaks in as many functions, whose symbol table is slow to read.
SLOW_NAMES = """
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <sys/syscall.h>
#include <unistd.h>
ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
    if (bytes > 2000)
        usleep(150000);
    return syscall(SYS_pread64, fd, to, bytes, offset);
}
#define LEAK(n) __attribute__((noipa)) void leak_##n(void) \\
    { void *p; if (cudaMalloc(&p, 1000 * (n - 99))) __builtin_trap(); __asm__ volatile(""); }
#define CALL(n) leak_##n();
#define TEN(M, n) M(n##0) M(n##1) M(n##2) M(n##3) M(n##4) M(n##5) M(n##6) M(n##7) M(n##8) M(n##9)
#define ALL(M) TEN(M, 10) TEN(M, 11) TEN(M, 12) TEN(M, 13) TEN(M, 14) TEN(M, 15) TEN(M, 16) \\
    TEN(M, 17) TEN(M, 18) TEN(M, 19) TEN(M, 20) TEN(M, 21) TEN(M, 22) TEN(M, 23) TEN(M, 24) \\
    TEN(M, 25) TEN(M, 26) TEN(M, 27) TEN(M, 28) TEN(M, 29)
ALL(LEAK)
int main(void)
{
    ALL(CALL)
    _exit(0);
}
"""


@OTHER_COMPILATION
def test_names_do_not_hold_up_the_end_and_the_largest_leaks_have_theirs(run, tmp_path):
    (tmp_path / "host.c").write_text(SLOW_NAMES)
    subprocess.run(["gcc", "-O1", "-rdynamic", "-isystem", conftest.cuda_include(), "-o",
                    tmp_path / "host", tmp_path / "host.c", "-L", conftest.BUILD / "simcuda",
                    "-lcudart"], check=True)

    result = run(tmp_path / "host", conf="leak_max:200,peak:off", timeout=20)

    groups = leak_report.parse(result.err).groups
    assert result.rc == 0 and len(groups) == 200
    assert groups[0].frames[0].startswith("leak_299 (host+0x")
    assert groups[-1].frames[0].startswith("host+0x")
    last = result.err.splitlines()[-1]
    assert last.endswith(" frames are module and offset alone: there was no time for all names)")


# --- once -----------------------------------------------------------------------------------------


def test_an_end_in_an_exit_handler_has_one_report(run, program, tmp_path):
    result = run([program("exits"), "nested"], conf=joined(destination(tmp_path), "stats:exit"))

    assert result.rc == 5
    assert result.err.count(": statistics") == 1
    assert reported(tmp_path) == [(2222, 1)]


def test_an_end_after_the_report_has_no_second_one(run, program, tmp_path):
    """In the destructor of a library, which comes after ours."""
    result = run([program("exits"), "exit", program("plugin_leaves.so")],
                 conf=joined(destination(tmp_path), "stats:exit"))

    assert result.rc == 8
    assert result.err.count(": statistics") == 1
    assert reported(tmp_path) == [(2222, 1)]


# --- where nothing may be waited for --------------------------------------------------------------


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.skipif(conftest.SANITIZER is not None,
                    reason="its run-time takes locks at exit that the interrupted code may hold")
def test_a_handler_that_interrupts_anything_does_not_hang(run, program, tmp_path, conf):
    """The pool, the heap and the loader among it, in two threads. What is written is whole."""
    for microseconds in range(500, 12_500, 500):
        result = run([program("exits"), "interrupted", microseconds],
                     conf=joined(destination(tmp_path), conf), timeout=20)
        assert (result.rc, result.out, result.err) == (9, "", "")

    found = [leak_report.parse(path.read_text()) for path in tmp_path.glob("leaks-*")]
    assert len(found) >= 12  # the first ones end before there is CUDA
    for report in found:
        assert report.incomplete or report.bytes >= 2222, vars(report)


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its frames are larger")
@pytest.mark.parametrize("conf", [None, "stats:exit"])
@pytest.mark.parametrize("way", ["fault", "fault-exit",
                                 pytest.param("disarmed", marks=KNOWN_HANDLERS),
                                 pytest.param("disarmed-exit", marks=KNOWN_HANDLERS)])
def test_a_handler_on_a_small_stack_of_its_own_has_a_report(run, program, tmp_path, way, conf):
    """Not much larger than it must be without the library."""
    least = next(spare for spare in range(0, 65536, 256)
                 if run([program("exits"), way, spare], preload=False).rc == 7)

    result = run([program("exits"), way, least + 512], conf=joined(destination(tmp_path), conf))

    assert result.rc == 7
    assert reported(tmp_path) == [(2222, 1)]


def test_a_handler_that_interrupts_the_report_ends_the_process(run, program):
    result = run([program("exits"), "blocked"], timeout=20)

    assert result.rc == 7


@pytest.mark.parametrize("conf", LANES)
def test_another_thread_may_end_the_process(run, program, tmp_path, conf):
    for _ in range(5):
        result = run([program("exits"), "thread"], conf=joined(destination(tmp_path), conf),
                     timeout=20)
        assert (result.rc, result.err) == (6, "")

    assert len(reported(tmp_path)) == 5


def test_a_report_that_takes_long_is_whole_and_that_of_the_end_follows(run, program, tmp_path):
    result = run([program("exits"), "amid", 6, tmp_path / "leaks-dump"],
                 conf=joined(destination(tmp_path), f"journal:{tmp_path}/journal"))

    assert (result.rc, result.err) == (4, "")
    assert reported(tmp_path) == [(2222, 1)] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["leaks-1", "leaks-dump"]


def test_a_report_that_does_not_end_holds_up_nothing_else(run, program, tmp_path):
    """The journal goes, the trace and the statistics come, and the leak is in the status."""
    result = run([program("exits"), "amid-quick", 600, tmp_path / "leaks-dump"], timeout=20,
                 conf=joined(destination(tmp_path), f"journal:{tmp_path}/journal", "stats:exit",
                             f"record:{tmp_path}/trace", "leak_exitcode:23"))

    assert result.rc == 23
    warning, statistics = result.err.splitlines()[:2]
    assert "another report is not done yet (1 allocations are live)" in warning
    assert statistics.endswith(": statistics")
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


@pytest.mark.parametrize("conf", LANES)
def test_the_child_of_a_vfork_touches_nothing(run, program, tmp_path, conf):
    result = run([program("exits"), "vfork"], conf=joined(destination(tmp_path), conf))

    assert (result.rc, result.err) == (4, "")
    assert reported(tmp_path) == [(3222, 2)]


def test_ends_of_programs_without_cuda_are_unchanged(run):
    code = "import os, sys; os._exit(int(sys.argv[1]))"
    for status in (0, 3):
        result = run(["python3", "-c", code, status], conf="stats:exit,print:true")
        assert (result.rc, result.out, result.err) == (status, "", "")


# --- leak_exitcode --------------------------------------------------------------------------------


def ended(run, program, how, status, bytes_leaked, *conf, **kwargs):
    return run([program("exit_status"), how, status, bytes_leaked],
               conf=joined("leak_report:off", *conf), **kwargs)


@pytest.mark.parametrize("how", ["exit", "return", "_exit", "handler", "fork"])
@pytest.mark.parametrize("status, leaked, expected", [(0, 100, 23), (3, 100, 3), (0, 0, 0),
                                                      (3, 0, 3), (256, 100, 23)])
def test_a_leak_fails_a_program_that_would_succeed(run, program, how, status, leaked, expected):
    assert ended(run, program, how, status, leaked, "leak_exitcode:23").rc == expected
    assert ended(run, program, how, status, leaked).rc == status & 255


def test_the_report_is_there_too(run, program):
    result = run([program("exit_status"), "exit", 0, 100], conf="leak_exitcode:23")

    assert result.rc == 23
    assert leak_report.parse(result.err).bytes == 100


def test_what_lies_in_buffers_arrives(run, program):
    assert ended(run, program, "stdio", 0, 100, "leak_exitcode:23").out == "buffered"
    assert ended(run, program, "destructor", 0, 100, "leak_exitcode:23").out == "destroyed"


def test_destructors_of_libraries_run(run, program, shim):
    """Also those that come after ours, and what they leave in buffers arrives."""
    libraries = [*conftest.SANITIZER_PRELOAD, shim, program("plugin_last.so")]

    result = ended(run, program, "exit", 0, 100, "leak_exitcode:23",
                   env={"LD_PRELOAD": " ".join(map(str, libraries))})

    assert (result.rc, result.out) == (23, "last")


def test_a_thread_that_reads_stdin_does_not_hold_up_the_end(run, program):
    plain = run(["timeout", 5, program("exit_status"), "reader", 0, 100], preload=False)
    if plain.rc == 124:
        pytest.skip("this libc's exit waits for that thread, without us too")

    result = ended(run, program, "reader", 0, 100, "leak_exitcode:23", timeout=20)

    assert (result.rc, result.out) == (23, "buffered")


@pytest.mark.parametrize("value", ["256", "-1", "yes"])
def test_a_status_that_cannot_be_had_is_refused(run, program, value):
    result = ended(run, program, "exit", 0, 100, f"leak_exitcode:{value}")

    assert result.rc == 0
    assert "leak_exitcode" in result.err and "accepted: 0 to 255" in result.err
