"""Processes, threads and ends: the program behaves as it does without the shim, and the leak report
is there exactly where it belongs."""

import os
import platform
import re
import shutil
import sys
import time

import pytest

import conftest
import leak_report

LANES = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane")]
OWN_SIGNALS = pytest.mark.skipif(conftest.SANITIZER is not None,
                                 reason="a sanitizer's run-time handles that signal itself")
# The frames that a cancelled thread leaves behind stay poisoned, and its stack is used once more:
# the plain program dies of it.
CANCELS = pytest.mark.skipif(conftest.SANITIZER == "asan",
                             reason="its run-time finds fault with any cancelled thread")
OWN_STACK = pytest.mark.skipif(conftest.SANITIZER is not None,
                               reason="a sanitizer's frames need more")
JOINS_FIRST = pytest.mark.skipif(conftest.SANITIZER == "tsan",
                                 reason="its run-time cannot join the first thread")


def joined(*items):
    return ",".join(item for item in items if item)


def leaks(reports):
    """(bytes, allocations) of each report, in the order of their bytes."""
    parsed = [leak_report.parse(text) for text in reports]
    assert None not in parsed
    return sorted((report.bytes, report.count) for report in parsed if not report.said_nothing)


def unchanged(run, cmd, tmp_path, conf=None, sim=None):
    """Runs it with and without the shim: what can be seen of it is the same. What was reported, by
    every process that came of it."""
    expected = run(cmd, preload=False, sim=sim)
    result = run(cmd, conf=joined(f"leak_report:{tmp_path}/leaks-%p", conf), sim=sim)
    assert (result.rc, result.out, result.err) == (expected.rc, expected.out, expected.err)
    return expected, leaks(path.read_text() for path in tmp_path.glob("leaks-*"))


# --- children -------------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", LANES)
def test_a_child_forked_before_cuda_has_a_report_of_its_own(run, program, tmp_path, conf):
    expected, found = unchanged(run, [program("life_children"), "before"], tmp_path, conf)

    assert (expected.rc, expected.out) == (4, "child 3\n"), expected.err
    assert found == [(1111, 1), (2222, 1)]


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("how, end", [
    *((how, end) for how in ("fork", "_Fork", "clone") for end in ("exit", "_exit", "exec")),
    ("vfork", "_exit"), ("vfork", "exec"), ("spawn", "exec")])
def test_a_child_made_after_cuda_changes_nothing(run, program, tmp_path, how, end, conf):
    """Not even where the parent has a thread of ours. Only the child of a raw clone goes on with
    CUDA, which no process may do that had a second thread: a lock that it held inside the driver or
    the C library stays taken."""
    cmd = [program("life_children"), "after", how, end]

    thread = None if how == "clone" else "decay:10ms"
    expected, found = unchanged(run, cmd, tmp_path, joined(conf, thread))

    status = {"exit": 5, "_exit": 6, "exec": 8}[end]
    assert expected.rc == 4 and f"child {status}\n" in expected.out, expected.err
    assert found == [(2222, 1)] + ([(3333, 1)] if end == "exec" else [])


@pytest.mark.parametrize("conf", LANES)
def test_the_child_of_a_fork_has_no_statistics(run, program, conf):
    """It does nothing that there are figures for."""
    result = run([program("life_children"), "after", "fork", "exit"],
                 conf=joined(conf, "stats:exit"))

    assert result.rc == 4, result.err
    assert result.err.count(": statistics") == 1


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.skipif(conftest.SANITIZER == "tsan", reason="it refuses forks amid threads")
def test_forks_amid_allocations_leave_no_lock_taken_in_the_child(run, program, tmp_path, conf):
    expected, found = unchanged(run, [program("life_children"), "storm"], tmp_path, conf)

    assert (expected.rc, expected.out) == (4, "done\n"), expected.err
    assert found == [(2222, 1)]


def eventually(condition, seconds=20 * conftest.SLOWDOWN):
    """For a process that is nobody's child: there is nothing to wait for but its traces."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("conf", LANES)
def test_a_daemon_reports_to_its_file_and_nowhere_else(run, program, tmp_path, conf):
    cmd = [program("life_children"), "daemon", tmp_path / "daemon.log"]

    result = run(cmd, conf=joined(f"leak_report:{tmp_path}/leaks-%p", conf))

    assert (result.rc, result.out, result.err) == (4, "child 0\n", "")
    eventually(lambda: any("_start" in path.read_text() for path in tmp_path.glob("leaks-*")))
    assert leaks(path.read_text() for path in tmp_path.glob("leaks-*")) == [(4444, 1)]
    assert (tmp_path / "daemon.log").read_text() == "at work\n"


# --- ends -----------------------------------------------------------------------------------------

SILENT = [("term", -15), ("kill", -9),
          pytest.param("abort", -6, marks=OWN_SIGNALS), pytest.param("segv", -11, marks=OWN_SIGNALS)]


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("way, status", SILENT)
def test_an_end_by_a_signal_is_unchanged_and_silent(run, program, tmp_path, way, status, conf):
    expected, found = unchanged(run, [program("life_ends"), way], tmp_path,
                                joined(conf, "stats:exit,decay:10ms"))

    assert expected.rc == status
    assert found == []


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("way, status, found", [
    ("return", 4, (2222, 1)), ("exit", 4, (2222, 1)), ("atexit", 4, (3000, 1)),
    ("_exit", 4, (2222, 1)), ("_Exit", 4, (2222, 1)), ("quick_exit", 4, (2222, 1)),
    ("handled", 7, (2222, 1)),
    pytest.param("pthread_exit", 0, (3222, 2), marks=JOINS_FIRST),
    pytest.param("small", 4, (2222, 1), marks=OWN_STACK),
    pytest.param("lowered", 4, (2222, 1), marks=OWN_STACK),
    pytest.param("cancelled", 4, (2222, 1), marks=CANCELS)])
def test_an_end_of_its_own_is_unchanged_and_reported(run, program, tmp_path, way, status, found, conf):
    expected, reports = unchanged(run, [program("life_ends"), way], tmp_path, conf)

    assert expected.rc == status, expected.err
    assert reports == [found]


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("sim, codes, found", [("ends:late", "0 0\n", (3000, 1)),
                                               ("ends:exit", "4 4\n", (2222, 1))],
                         ids=["late", "exit"])
def test_a_handler_older_than_cuda_is_answered_as_the_driver_does_and_reported(
        run, program, tmp_path, sim, codes, found, conf):
    """The driver has ended by then, or a driver that ends later has not."""
    expected, reports = unchanged(run, [program("life_ends"), "early"], tmp_path, conf, sim=sim)

    assert (expected.rc, expected.out) == (4, codes), expected.err
    assert reports == [found]


@pytest.mark.parametrize("conf", LANES)
def test_threads_may_allocate_while_main_returns(run, program, tmp_path, conf):
    cmd = [program("life_ends"), "running"]

    for _ in range(5):
        result = run(cmd, conf=joined(f"leak_report:{tmp_path}/leaks-%p", conf))
        assert (result.rc, result.out, result.err) == (4, "threads at work\n", "")

    reports = [leak_report.parse(path.read_text()) for path in tmp_path.glob("leaks-*")]
    assert len(reports) == 5
    # What the threads held at that moment is among it. The moment is another one for each shard, so
    # that one thread's successive allocations may be in several.
    for report in reports:
        assert report.incomplete or (report.bytes >= 2222 and report.count <= 16), vars(report)


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.skipif(conftest.SANITIZER is not None,
                    reason="its run-time takes locks at exit that the interrupted code may hold")
@pytest.mark.parametrize("journal", [False, True])
def test_exit_in_a_signal_handler_amid_allocations_does_not_hang(run, program, tmp_path, conf,
                                                                 journal):
    """Without stacks: to name functions takes malloc, which the handler may have interrupted."""
    for microseconds in range(500, 10_500, 1000):
        result = run([program("life_ends"), "interrupted", microseconds],
                     conf=joined(conf, "stacks:off", journal and f"journal:{tmp_path}/%p"),
                     timeout=20)
        assert (result.rc, result.out) == (9, "")


@pytest.mark.skipif(conftest.SANITIZER is not None,
                    reason="its run-time takes locks at exit that the interrupted code may hold")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="a handler is not told from others")
@pytest.mark.parametrize("preload", [False, True], ids=["plain", "shim"])
@pytest.mark.parametrize("conf", [None, "stacks:off"])
def test_exit_in_a_signal_handler_amid_malloc_does_not_hang(run, program, conf, preload):
    """A report that names functions with their lines needs malloc, whose lock is taken there."""
    for microseconds in range(500, 10_500, 500):
        result = run([program("life_ends"), "amid", microseconds], conf=conf, preload=preload,
                     timeout=20)
        assert (result.rc, result.out) == (9, "")
        assert ("LEAK SUMMARY" in result.err) == preload


@pytest.mark.parametrize("conf", LANES)
def test_statistics_asked_for_in_a_signal_handler_do_not_hang(run, program, conf):
    """Nor does the report at exit, which asks for the same."""
    result = run([program("life_ends"), "asked", 1000], conf=joined(conf, "stacks:off"))

    assert (result.rc, result.out) == (9, "")


@pytest.mark.parametrize("conf", LANES)
def test_libraries_free_after_the_report(run, program, shim, conf):
    """Before and after it they get the same answers."""
    libraries = [*conftest.SANITIZER_PRELOAD, shim, program("plugin_frees.so")]
    result = run(program("life_ends"), conf=conf, env={"LD_PRELOAD": " ".join(map(str, libraries))})

    assert result.rc == 4, result.err
    assert result.err.endswith("freed\n")
    assert leaks([result.err]) == [(2222 + 12345, 2)]


@pytest.mark.parametrize("conf", LANES)
def test_the_end_makes_no_cuda_call(run, program, conf):
    silent = run(program("life_ends"), conf=joined(conf, "leak_report:off"), stats=True)
    result = run(program("life_ends"), conf=joined(conf, "stats:exit"), stats=True)

    assert "LEAK SUMMARY" in result.err and "statistics" in result.err
    assert result.sim["calls"] == silent.sim["calls"]


# --- the state a process is in when it ends -------------------------------------------------------


@pytest.mark.parametrize("conf", [None, "stats:exit"])
@pytest.mark.parametrize("way", ["closed", "full", "pipe"])
def test_a_stderr_that_takes_nothing_does_no_harm(run, program, way, conf):
    result = run([program("life_ends"), way], conf=conf)

    assert (result.rc, result.out, result.err) == (4, "", "")


# Runs a program in the background of a terminal that stops who writes there from it; its status.
IN_BACKGROUND = """
import fcntl, os, pty, sys, termios
if os.getsid(0) != os.getpid():
    os.setsid()
master, terminal = pty.openpty()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
mode = termios.tcgetattr(terminal)
mode[3] |= termios.TOSTOP
termios.tcsetattr(terminal, termios.TCSANOW, mode)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    os.dup2(terminal, 2)
    os.execv(sys.argv[1], sys.argv[1:])
os.close(terminal)
_, status = os.waitpid(child, os.WUNTRACED)
print("stopped" if os.WIFSTOPPED(status) else os.WEXITSTATUS(status))
os.kill(child, 9) if os.WIFSTOPPED(status) else None
"""


def test_a_terminal_that_stops_who_writes_from_the_background_stops_no_report(run, program, shim):
    for end in conftest.terminal():
        os.close(end)
    preload = " ".join(map(str, [*conftest.SANITIZER_PRELOAD, shim]))
    start = [sys.executable, "-c", IN_BACKGROUND, "/usr/bin/env", f"LD_PRELOAD={preload}",
             program("life_ends")]

    result = run(start, preload=False)

    assert (result.rc, result.out) == (0, "4\n"), result.err


def test_a_full_device_is_told(run, program):
    result = run(program("life_ends"), conf="leak_report:/dev/full")

    assert (result.rc, result.out) == (4, "")
    assert re.search(r"cachealloc\[\d+\]: warning: leak_report: cannot write /dev/full", result.err)
    assert "LEAK SUMMARY" in result.err


def test_no_report_in_a_file_that_got_the_number_of_stderr(run, program, tmp_path):
    """Started without a stderr, the program opens its results as descriptor 2."""
    results = tmp_path / "results"
    start = ["bash", "-c", 'exec 2>&-; exec "$0" "$@"', program("life_ends"), "reused", results]

    result = run(start, conf="stats:exit,print:true,no_such_key:1")

    assert (result.rc, result.out) == (4, "")
    assert results.read_text() == "results\n"


def test_no_report_in_a_file_that_took_the_place_of_stderr(run, program, tmp_path):
    results = tmp_path / "results"

    result = run([program("life_ends"), "replaced", results], conf="stats:exit")

    assert (result.rc, result.out) == (4, "")
    assert results.read_text() == "results\n"


def test_a_report_file_may_get_the_number_of_stderr(run, program, tmp_path):
    start = ["bash", "-c", 'exec 2>&-; exec "$0"', program("life_ends")]

    assert run(start, conf=f"leak_report:{tmp_path}/leaks").rc == 4

    assert leaks([(tmp_path / "leaks").read_text()]) == [(2222, 1)]


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "leak_report:/cannot-be-opened"])
def test_the_report_needs_no_descriptor(run, program, conf):
    expected = run([program("life_ends"), "descriptors"], preload=False)
    assert (expected.rc, expected.out, expected.err) == (4, "", "")

    result = run([program("life_ends"), "descriptors"], conf=conf)

    assert (result.rc, result.out) == (4, "")
    assert leaks([result.err]) == [(2222, 1)]


def test_the_report_needs_no_file_system(run, program, tmp_path):
    result = run([program("life_ends"), "chroot", tmp_path])

    assert (result.rc, result.out) == (4, "")
    assert leaks([result.err]) == [(2222, 1)]


# --- threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", LANES)
def test_five_hundred_threads_at_once(run, program, tmp_path, conf):
    expected, found = unchanged(run, [program("life_threads"), "many"], tmp_path, conf)

    assert (expected.rc, expected.out) == (4, "done\n"), expected.err
    assert found == [(25000, 250)]


@pytest.mark.parametrize("conf", LANES)
def test_a_thread_works_on_in_its_last_destructor(run, program, tmp_path, conf):
    rounds = 1000 if conftest.SANITIZER else 5000  # each takes ten times as long there
    expected, found = unchanged(run, [program("life_threads"), "late", rounds], tmp_path, conf)

    assert (expected.rc, expected.out) == (4, "done\n"), expected.err
    assert found == [(1600, 16)]


@pytest.mark.parametrize("conf", LANES)
def test_what_ended_threads_freed_serves_the_next_ones(run, program, conf):
    result = run([program("life_threads"), "cached"], conf=conf, stats=True)

    assert (result.rc, result.out, result.err) == (4, "done\n", "")
    assert result.sim["devices"][0]["peak_bytes"] <= 128 << 20


@CANCELS
@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("case", ["cancelled", "pending", "first"])
@pytest.mark.parametrize("journal", [False, True])
def test_a_cancelled_thread_leaves_no_lock_taken(run, program, tmp_path, case, conf, journal):
    """Nor does it end in a call of ours, where the plain program's thread would not have ended."""
    expected, found = unchanged(run, [program("life_threads"), case], tmp_path,
                                joined(conf, "reuse_wait:1ms",
                                       journal and f"journal:{tmp_path}/journal-%p"))

    assert expected.rc == 4, expected.err
    assert found == ([(1 << 15, 1)] if "all of it" in expected.out else [])


# Which only the library calls there, and which may be where a thread is cancelled [hw].
# The simulator sleeps in them, which is such a place.
OWN_CALLS = ("cuCtxRecordEvent", "cuEventRecord", "cuEventQuery", "cuEventSynchronize",
             "cuStreamWaitEvent", "cuMemPoolTrimTo", "cuCtxPushCurrent_v2")


@CANCELS
@pytest.mark.parametrize("conf", ["backend:async", "backend:async,x_runtime_hooks:false", "free_sync:true"])
def test_a_cancelled_thread_does_not_end_in_a_driver_call_of_ours(run, program, tmp_path, conf):
    expected, _ = unchanged(run, [program("life_threads"), "pending"], tmp_path, conf,
                            sim=",".join(f"latency:{call}=60000" for call in OWN_CALLS))

    assert (expected.rc, expected.out) == (4, "cancelled at all of it\ndone\n")


@CANCELS
@pytest.mark.parametrize("conf", [*LANES, "debug:redzone"])
def test_a_cancelled_thread_finishes_its_reset(run, program, tmp_path, conf):
    """Which under the shim waits for those that are in the driver."""
    expected, _ = unchanged(run, [program("life_threads"), "reset"], tmp_path, conf,
                            sim="latency:cuMemAlloc_v2=300000000")

    assert (expected.rc, expected.out) == (4, "cancelled at all of it\ndone\n")


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.skipif(conftest.SANITIZER == "tsan", reason="it does not see the loader's lock")
def test_modules_that_come_and_go_in_many_threads(run, program, tmp_path, conf):
    cmd = [program("life_plugins_host"), program("plugin_alloc.so"), 8, 20]

    expected, found = unchanged(run, cmd, tmp_path, conf)

    assert (expected.rc, expected.out) == (4, "done\n"), expected.err
    assert found == [(160 * 12345, 160)]


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="two modules with the same variables")
@pytest.mark.parametrize("first", [0, 1])
def test_a_second_copy_of_the_library_is_told(run, program, shim, tmp_path, first):
    """One of the system's and one of the user's, say: neither tracks what goes to the runtime."""
    (tmp_path / "own").mkdir()
    copy = tmp_path / "own" / "libcachealloc.so"
    shutil.copy(shim, copy)
    front, behind = [(copy, shim), (shim, copy)][first]

    result = run([program("versioned"), 1], env={"LD_PRELOAD": f"{front} {behind}"})

    assert (result.rc, result.out) == (0, "")
    line, = result.err.splitlines()
    assert f"warning: {behind} is loaded too: " in line


def test_a_program_that_opens_the_library_and_closes_it_ends_as_it_would(run, program, shim):
    result = run([program("life_opens_host"), shim], preload=False,
                 env={"LD_PRELOAD": " ".join(conftest.SANITIZER_PRELOAD)})

    assert (result.rc, result.out) == (4, "closed\n"), result.err


# --- rights ---------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes programs of another group's")
@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time refuses such programs")
def test_the_environment_does_not_configure_a_program_with_other_rights(run, program, shim,
                                                                        tmp_path):
    secure = tmp_path / "secure"
    shutil.copy(program("life_secure_host"), secure)
    conf = "print:true,no_such_key:1,leak_report:/tmp/chosen-by-the-caller"
    heard = run([secure, shim, "any"], conf=conf, preload=False)
    assert heard.rc == 4 and "ALLOC_CONF=" in heard.err  # else this tests nothing
    os.chown(secure, -1, 65534)
    os.chmod(secure, 0o2755)

    result = run([secure, shim], conf=conf, preload=False)

    assert (result.rc, result.out, result.err) == (4, "", "")
    result = run([secure, shim, "leak"], conf=conf, preload=False)
    assert (result.rc, result.out) == (4, "")
    assert leaks([result.err]) == [(4, 1)] and "warning" not in result.err
