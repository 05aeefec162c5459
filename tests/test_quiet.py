"""Where CUDA is not used nothing may change: we ride in every child of the program."""

import os
import shutil
import statistics
import time

import pytest

import conftest

CONFS = [None, "no_such_key:1,max_split:banana", "stats:exit,help:true,print:true"]
MAKEFILE = "all: one two\none:\n\t@echo one\ntwo:\n\techo $$((1 + 1))\n"



def same(run, cmd, conf=None, **kwargs):
    expected = run(cmd, preload=False, **kwargs)
    result = run(cmd, conf=conf, **kwargs)
    assert (result.rc, result.out, result.err) == (expected.rc, expected.out, expected.err)
    return expected


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("cmd", [
    ["bash", "-c", "ls / | cat"],
    ["bash", "-c", "echo out; echo err >&2; (exit 3); x=$(printf %s a); test $x = a; exit 7"],
    ["python3", "-c", "pass"],
    ["python3", "-c", "import subprocess; print(subprocess.check_output(['echo', 'x']))"],
    ["python3", "-c", "import ctypes; print(ctypes.CDLL(None).getpid() > 0)"],
    ["python3", "-c", "raise SystemExit(9)"],
], ids=lambda cmd: " ".join(cmd)[:30])
def test_ordinary_programs_are_unchanged(run, cmd, conf):
    same(run, [shutil.which(cmd[0])] + cmd[1:], conf)


@pytest.mark.parametrize("conf", CONFS)
def test_make_is_unchanged(run, tmp_path, conf):
    (tmp_path / "Makefile").write_text(MAKEFILE)

    same(run, ["make", "-n"], conf, cwd=tmp_path)
    assert same(run, ["make"], conf, cwd=tmp_path).out == "one\necho $((1 + 1))\n2\n"


def test_exceptions_go_where_they_went(run, program):
    expected = same(run, program("throws"))

    assert (expected.rc, expected.err) == (3, "")
    assert "22 destroyed" in expected.out


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="a sanitizer brings its own")
def test_no_library_and_no_thread_is_added(run, shim):
    code = "import os; print(open('/proc/self/maps').read(), len(os.listdir('/proc/self/task')))"

    result = run([shutil.which("python3"), "-c", code])

    assert shim.name in result.out  # else this tests nothing
    for library in ("libcuda", "libunwind", "libdw", "libelf"):
        assert library not in result.out
    assert result.out.split()[-1] == "1"


@pytest.mark.alone
@pytest.mark.skipif(conftest.SANITIZER is not None, reason="a sanitizer slows it down")
def test_start_up_costs_under_a_millisecond(shim):
    command = shutil.which("true")
    plain = conftest.plain_env()
    walls, busy = {False: [], True: []}, {False: [], True: []}
    for i in range(2 * 101):
        preload = i % 2 == 1
        env = plain | {"LD_PRELOAD": str(shim)} if preload else plain
        start = time.perf_counter()
        pid = os.posix_spawn(command, [command], env)
        _, status, used = os.wait4(pid, 0)
        assert status == 0
        walls[preload].append(time.perf_counter() - start)
        busy[preload].append(used.ru_utime + used.ru_stime)

    # What a busy machine adds to the time that passes is not in that of the processor, nor in the
    # shortest of many runs, which tells of sleeps.
    assert statistics.median(busy[True]) - statistics.median(busy[False]) < 0.001
    assert min(walls[True]) - min(walls[False]) < 0.001
