"""What runs the rows of a table (tests/rows/rows.c) finds each row that is wrong."""

import os
import re
import select
import sys
import time

import pytest

import conftest
import run_rows


def sh(name, script, **how):
    return run_rows.row(name, ["sh", "-c", script], preload=False, **how)


def failures(run, folder, rows, **how):
    """{name: why} of what the test that runs `rows` fails with, and the totals."""
    with pytest.raises(pytest.fail.Exception) as failure:
        run_rows.run_rows(run, folder, rows, **how)
    *said, totals = str(failure.value).splitlines()
    found = (re.match(r"FAILED (.*?): (.*)", line) for line in said)
    return dict(match.groups() for match in found if match), totals


def test_rows_that_are_right_pass_and_give_what_they_say(run, tmp_path):
    rows = [sh(f"row {i}", f"echo ' {i} '; echo loud >&2", answers=["x", str(i)], without=["low"])
            for i in range(20)]

    said = run_rows.run_rows(run, tmp_path, rows, together=3)

    assert said == [f" {i} \n" for i in range(20)]


@pytest.mark.parametrize("together", [1, 3])
def test_every_row_that_is_wrong_is_named_with_what_it_did(run, tmp_path, together):
    rows = [sh("right", "echo a", answers=["a"]),
            sh("another answer", "echo b", answers=["a", "c"]),
            sh("two lines", "echo a; echo a", answers=["a"]),
            sh("no answer", "", answers=["a"]),
            sh("status", "echo a; exit 3", answers=["a"]),
            sh("skips", "exit 77"),
            sh("crash", "kill -SEGV $$"),
            run_rows.row("missing", ["/no/such/program"], preload=False),
            sh("stderr", "echo it cannot be preloaded >&2", without=["cannot be preloaded"]),
            sh("stderr with a zero", r"printf 'a\0it is bad' >&2", without=["bad"]),
            sh("right too", "true")]

    found, totals = failures(run, tmp_path, rows, together=together)

    assert found == {"another answer": 'it says "b", not "a" or "c"',
                     "two lines": 'it says "a', "no answer": 'it says "", not "a"',
                     "status": "exit status 3, not 0", "skips": "exit status 77, not 0",
                     "crash": "ended by signal 11 (Segmentation fault)",
                     "missing": "exit status 127, not 0",
                     "stderr": 'its stderr has "cannot be preloaded"',
                     "stderr with a zero": 'its stderr has "bad"'}
    assert totals == "11 rows, 9 failed"


def test_what_a_wrong_row_wrote_is_shown(run, tmp_path):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)    stdout: good\n    stderr: bad\n"
                                                    r".*cannot start /no/program: No such file"):
        run_rows.run_rows(run, tmp_path, [sh("wrong", "echo good; echo bad >&2; exit 1"),
                                          run_rows.row("none", ["/no/program"], preload=False)],
                          together=1)


def test_what_does_not_end_is_ended_with_all_that_it_started(run, tmp_path):
    """The runner goes on after it."""
    started = time.monotonic()
    rows = [sh("hangs", f"sleep 1000 & echo $! >{tmp_path}/child; wait", limit=3),
            sh("leaves one behind", f"sleep 1000 & echo $! >{tmp_path}/left"), sh("right", "true")]

    found, totals = failures(run, tmp_path / "rows", rows, together=1)

    assert found == {"hangs": f"no end after {3 * conftest.SLOWDOWN} s"}
    assert totals == "3 rows, 1 failed"
    assert time.monotonic() - started < 100
    for name in ("child", "left"):
        assert ends(int((tmp_path / name).read_text()))


def ends(pid):
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([process], [], [], 10)
    os.close(process)
    return bool(ended)


def test_after_a_few_that_do_not_end_the_rest_is_named_as_not_run(run, tmp_path):
    rows = [sh(f"hangs {i}", "exec sleep 1000") for i in range(9)]

    found, totals = failures(run, tmp_path / "one", rows, limit=0.2, together=1)

    assert totals == "9 rows, 9 failed"
    assert found.pop("(5 more rows)") == "not run, after 4 that did not end"
    assert sorted(found) == [f"hangs {i}" for i in range(4)]

    # Side by side, what ends first makes room for another before the fourth has been counted.
    found, totals = failures(run, tmp_path / "four", rows, limit=0.2, together=4)

    assert totals == "9 rows, 9 failed"
    (rest, why), = [item for item in found.items() if item[0].startswith("(")]
    ran = sorted(set(found) - {rest})
    assert 4 <= len(ran) <= 4 + 4 - 1 and ran == [f"hangs {i}" for i in range(len(ran))]
    assert rest == f"({9 - len(ran)} more rows)" and why.startswith("not run, after ")


def test_what_a_test_asserts_itself_is_asked_of_each_row_that_is_not_wrong_anyway(run, tmp_path):
    def judge(out, err):
        assert (out, err) == ("1\n", ""), "not one"

    found, totals = failures(run, tmp_path, [sh("one", "echo 1"), sh("two", "echo 2"),
                                             sh("crash", "kill -9 $$")], judge=judge)

    assert found["two"].startswith("not one")
    assert found["crash"] == "ended by signal 9 (Killed)"
    assert sorted(found) == ["crash", "two"]
    assert totals == "3 rows, 2 failed"


def test_a_row_has_the_environment_that_run_gives(run, tmp_path):
    code = "import os; print(*(os.environ.get(n) for n in ('ALLOC_CONF', 'SIMCUDA', 'LD_PRELOAD')))"
    cmd = [sys.executable, "-c", code]
    for how in ({"preload": False}, {"preload": False, "conf": "a:1", "sim": "b:2"}, {},
                {"conf": "x_runtime_hooks:false,x_warmup:3", "sim": "memory:1G"}):
        expected = run(cmd, **how).out
        said = run_rows.run_rows(run, tmp_path, [run_rows.row("one", cmd, **how)])
        assert said == [expected]


@pytest.mark.parametrize("table", ["row\ta\n", "run\ttrue\n", "row\ta\nrow\tb\n", "row\ta\nlimit\tx\n",
                                   "row\ta\nenv\tA\n", "row\ta\nwords\tA\n", "row\ta\nrun\n"])
def test_a_table_that_is_wrong_is_refused(run, tmp_path, table):
    (tmp_path / "table").write_text(table)

    result = run([run_rows.RUNNER, tmp_path, 1], preload=False)

    assert result.rc == 2 and "rows: line " in result.err
