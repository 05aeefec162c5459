"""Leak reports while the program runs."""

import errno
import os
import re
import signal

import pytest

import conftest
import leak_report

LANES = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane"),
         pytest.param("backend:off", id="tracking")]
DUMPS = 4 if conftest.SANITIZER else 20


def joined(*items):
    return ",".join(item for item in items if item)


def answers(result):
    assert result.rc == 0, result.err
    return [int(line) for line in result.out.split()]


# --- cachealloc_dump ------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize("conf", LANES)
def test_reports_amid_allocations_agree_with_the_threads_own_counts(run, program, tmp_path, conf,
                                                                    capsys):
    """And no call waits for them for 10 ms, apart from what its thread waits for a core. Whoever it
    waits for may lack one too, but not in half of the reports; the longest wait is printed."""
    result = run([program("dumps"), tmp_path, DUMPS], conf=joined("leak_report:off", conf))

    assert (result.rc, result.err) == (0, "")
    lines = [[int(word) for word in line.split()] for line in result.out.splitlines()]
    assert len(lines) == DUMPS
    for n, (least, most, least_bytes, most_bytes, *_) in enumerate(lines):
        report = leak_report.parse((tmp_path / f"report-{n}").read_text(), at_rest=n % 4 == 3)
        assert report.cause == "dump" and not report.incomplete
        assert max(least, 1000) <= report.count <= most
        assert n % 4 != 3 or (least == most and least_bytes == most_bytes)  # the threads rested
        assert least_bytes <= report.bytes <= most_bytes
        held = [group for group in report.groups if leak_report.places(group)[0] == "hold"]
        assert sum(group.count for group in held) == 1000
        assert sum(group.bytes for group in held) == 2 * sum(1 + i * 37 % 9000 for i in range(500))
    lines = [line for n, line in enumerate(lines) if n % 4 != 3]
    longest, took, without = (sorted(line[i] / 1e6 for line in lines) for i in (-3, -2, -1))
    with capsys.disabled():
        print(f"longest wait amid each report: {longest[0]:.1f} to {longest[-1]:.1f} ms, reports of "
              f"{took[0]:.0f} to {took[-1]:.0f} ms; without: {without[0]:.1f} to {without[-1]:.1f} ms")
    assert longest[len(longest) // 2] < 10 * conftest.SLOWDOWN


def test_a_report_of_nothing_says_so(run, program, tmp_path):
    result = run([program("api_dump"), tmp_path / "first", tmp_path / "second"],
                 conf="leak_report:off")

    assert answers(result) == [0, 0] and result.err == ""
    first, second = (leak_report.parse((tmp_path / name).read_text())
                     for name in ("first", "second"))
    assert (first.bytes, first.count, first.cause) == (0, 0, "dump")
    assert (second.bytes, second.count) == (1000, 1)
    assert leak_report.places(second.groups[0])[0] == "main"


def test_the_report_at_exit_is_there_all_the_same(run, program, tmp_path):
    result = run([program("api_dump"), tmp_path / "first"])

    assert answers(result) == [0]
    report = leak_report.parse(result.err)
    assert (report.bytes, report.cause) == (1000, None)


@pytest.mark.parametrize("leak_report_option", ["stderr", "off"])
def test_without_a_path_it_is_on_stderr(run, program, leak_report_option):
    result = run([program("api_dump"), "-"], conf=f"leak_report:{leak_report_option}")

    assert answers(result) == [0]
    assert re.search(r"^cachealloc\[\d+\]: leak report, cause dump$", result.err, re.M)


def test_without_a_path_it_goes_where_the_option_says(run, program, tmp_path):
    result = run([program("api_dump"), "-", "-"], conf=f"leak_report:{tmp_path}/all-%n")

    assert answers(result) == [0, 0] and result.err == ""
    causes = [leak_report.parse((tmp_path / f"all-{n}").read_text()).cause for n in (1, 2, 3)]
    assert causes == ["dump", "dump", None]


def test_patterns_and_files_that_are_there_are_as_in_the_option(run, program, tmp_path):
    path = tmp_path / "rank-%r"

    result = run([program("api_dump"), path, path], conf="leak_report:off", env={"RANK": "7"})

    assert answers(result) == [0, 0]
    assert "rank-7 exists, so the report is in" in result.err
    assert leak_report.parse((tmp_path / "rank-7").read_text()).bytes == 0
    other, = tmp_path.glob("rank-7.*")
    assert leak_report.parse(other.read_text()).bytes == 1000


def test_what_cannot_be_written_is_answered(run, program, tmp_path):
    paths = ["/cannot-be-there/x", "bad-%z", "x" * 5000, tmp_path / "good"]

    result = run([program("api_dump"), *paths], conf="leak_report:off")

    assert answers(result) == [errno.ENOENT, errno.EINVAL, errno.ENAMETOOLONG, 0]
    assert result.err == ""
    assert leak_report.parse((tmp_path / "good").read_text()).bytes == 1000


def test_the_child_of_a_fork_has_none(run, program, tmp_path):
    result = run([program("api_dump"), tmp_path / "parent", "fork", tmp_path / "child"],
                 conf="leak_report:off")

    assert answers(result) == [0, errno.ENOTSUP]
    assert not (tmp_path / "child").exists()


# --- dump_signal ----------------------------------------------------------------------------------


def signalled(run, program, tmp_path, way, conf="dump_signal:USR1", **kwargs):
    return run([program("dump_signal"), *way.split()],
               conf=f"leak_report:{tmp_path}/leaks-%n,{conf}", cwd=tmp_path, **kwargs)


def found(tmp_path, number):
    report = leak_report.parse((tmp_path / f"leaks-{number}").read_text())
    return report.cause, report.bytes


@pytest.mark.parametrize("name", ["USR1", "SIGUSR1", "usr1", "10"])
def test_a_signal_makes_a_report(run, program, tmp_path, name):
    result = signalled(run, program, tmp_path, "live", f"dump_signal:{name}")

    assert (result.rc, result.out, result.err) == (0, "leaks-1\nleaks-2\n", "")
    assert [found(tmp_path, n) for n in (1, 2, 3)] == [("signal", 1000), ("signal", 2000),
                                                       (None, 2000)]


def test_without_the_option_a_signal_does_what_it_did(run, program, tmp_path):
    assert signalled(run, program, tmp_path, "live", "stats:off").rc == -10


@pytest.mark.parametrize("way", ["own", "later"])
def test_a_handler_of_the_programs_own_stays(run, program, tmp_path, way):
    result = signalled(run, program, tmp_path, way)

    assert (result.rc, result.out) == (0, "heard 1\n")
    assert ("the program has a handler of its own for USR1" in result.err) == (way == "own")
    assert found(tmp_path, 1) == (None, 1000)


def test_the_child_of_a_fork_has_the_signals_default(run, program, tmp_path):
    result = signalled(run, program, tmp_path, "fork")

    assert (result.rc, result.err) == (0, "")
    assert result.out == "child ended by the signal\n" * 2 + "leaks-1\n"
    assert found(tmp_path, 1) == ("signal", 1000)


@pytest.mark.parametrize("way", ["stopped", "returns", "leaves"])
@pytest.mark.parametrize("name", ["TERM", "INT", "XCPU"])
def test_a_signal_that_ends_processes_ends_this_one_with_its_reports(run, program, tmp_path, name,
                                                                     way):
    """Whatever the thread does whose call the signal interrupted."""
    number = signal.Signals[f"SIG{name}"]
    result = signalled(run, program, tmp_path, f"{way} {number}",
                       f"dump_signal:{name},stats:exit,journal:{tmp_path}/live,record:{tmp_path}/trace")

    assert (result.rc, result.out) == (-number, "")
    assert found(tmp_path, 1) == ("signal", 1000)
    assert re.search(r"^  live bytes requested +1000$", result.err, re.M)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["leaks-1", "trace"]


@pytest.mark.parametrize("way", ["own", "later"])
def test_a_handler_for_a_signal_that_ends_processes_stays_too(run, program, tmp_path, way):
    result = signalled(run, program, tmp_path, f"{way} 15", "dump_signal:TERM")

    assert (result.rc, result.out) == (0, "heard 1\n")
    assert found(tmp_path, 1) == (None, 1000)


def test_calls_of_other_threads_go_on_until_it_ends_the_process(run, program, tmp_path):
    """Though main returned: the runtime's own exit handlers would make them fail."""
    result = signalled(run, program, tmp_path, "busy 15", "dump_signal:TERM")

    assert (result.rc, result.out, result.err) == (-signal.SIGTERM, "", "")
    report = leak_report.parse((tmp_path / "leaks-1").read_text())
    assert report.cause == "signal" and report.bytes in (1000, 6000, 11000)


def test_one_that_is_ignored_ends_nothing(run, program, tmp_path):
    result = signalled(run, program, tmp_path, "ignored 1", "dump_signal:HUP")

    assert (result.rc, result.out, result.err) == (0, "leaks-1\n", "")
    assert [found(tmp_path, n) for n in (1, 2)] == [("signal", 1000), (None, 1000)]


def test_a_second_one_does_not_wait_for_a_report_that_is_stuck(run, program):
    """In a pipe that nobody reads; behind it the report would go to stderr."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    try:
        result = run([program("dump_signal"), "again", 15], env=conftest.shortened(4),
                     conf=f"dump_signal:TERM,leak_report:/dev/fd/{writer}", pass_fds=[writer])
    finally:
        os.close(reader)
        os.close(writer)

    assert (result.rc, result.out, result.err) == (-signal.SIGTERM, "", "")


def test_before_the_first_use_of_cuda_the_signal_ends_the_process(run):
    """As the option says: the library does nothing before it."""
    assert run(["sh", "-c", "kill -USR2 $$; sleep 5"], conf="dump_signal:USR2").rc == -signal.SIGUSR2


def test_without_cuda_there_is_no_thread(run, program, tmp_path):
    result = signalled(run, program, tmp_path, "quiet")

    assert (result.rc, result.out, result.err) == (0, "threads 1\n", "")


@pytest.mark.parametrize("name, wrong", [("KILL", "is not understood"), ("9", "is out of range"),
                                         ("SEGV", "is not understood"), ("99", "is out of range"),
                                         ("32", "is out of range"), ("SIG", "is not understood")])
def test_a_signal_that_cannot_be_had_is_refused(run, program, tmp_path, name, wrong):
    result = signalled(run, program, tmp_path, "later", f"dump_signal:{name}")

    assert (result.rc, result.out) == (0, "heard 1\n")
    assert wrong in result.err and "accepted: off, or a signal: HUP, USR1" in result.err
