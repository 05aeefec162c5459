"""record:PATH writes a trace of the program's allocations that replays; off it does nothing."""

import json
import re

import pytest

HEADER = "op,id,size,stream,t"


def events(path):
    """The rows as (op, id, size, stream, t)."""
    head, *rows = path.read_text().splitlines()
    assert head == HEADER
    return [(row[0], *map(int, row[1:])) for row in (line.split(",") for line in rows)]


def check(rows):
    """What must hold of every trace. Ids and bytes of what is live at its end."""
    live, seen = {}, set()
    for op, name, size, _, _ in rows:
        if op == "a":
            assert name not in seen and size > 0
            seen.add(name)
            live[name] = size
        else:
            assert op == "f" and size == 0
            del live[name]
    return live


def test_the_trace_has_what_the_program_did(run, program, tmp_path):
    path = tmp_path / "trace.csv"

    result = run([program("leaks")], conf=f"record:{path},leak_report:off")

    assert (result.rc, result.err) == (0, "")
    # Managed and pinned memory is not the pool's for device memory.
    assert sorted(check(events(path)).values()) == [77, 100000, 100000, 100000]


@pytest.mark.parametrize("conf", ["", ",x_runtime_hooks:false", ",thread_cache:0", ",backend:off"])
@pytest.mark.parametrize("cmd", [["threads", 8, 500], ["async", "streams", 200], ["mix", 3000, 100]],
                         ids=lambda cmd: cmd[0])
def test_what_was_recorded_replays(run, build, program, tmp_path, cmd, conf):
    path = tmp_path / "trace.csv"

    result = run([program(cmd[0]), *cmd[1:]], conf=f"record:{path},leak_report:off{conf}",
                 timeout=120)

    assert result.rc == 0, result.err
    rows = events(path)
    check(rows)
    replayed = run([build / "replay", "--json", "--policy", "cachealloc", path], timeout=120)
    assert replayed.rc == 0, replayed.err
    row, = json.loads(replayed.out)
    assert row["allocations"] == sum(op == "a" for op, *_ in rows) > 100


def test_off_by_default(run, program, tmp_path):
    run([program("leaks")], conf="leak_report:off", cwd=tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_full_trace_says_so_once_and_is_whole(run, program, tmp_path):
    path = tmp_path / "trace.csv"

    result = run([program("pairs"), "hot", 600000], conf=f"record:{path}", timeout=120)

    assert result.rc == 0
    assert len(re.findall("record: the trace is full", result.err)) == 1
    rows = events(path)
    assert 999000 <= len(rows) <= 1000000
    check(rows)


def test_every_process_has_a_trace_of_its_own(run, program, tmp_path):
    run([program("life_children"), "before"], conf=f"record:{tmp_path}/trace,leak_report:off")

    assert sorted(sum(check(events(path)).values()) for path in tmp_path.iterdir()) == [1111, 2222]


def test_no_file_is_replaced(run, program, tmp_path):
    (tmp_path / "trace.csv").write_text("mine")

    result = run([program("leaks")], conf=f"record:{tmp_path}/trace.csv,leak_report:off,log:info")

    assert (tmp_path / "trace.csv").read_text() == "mine"
    other, = tmp_path.glob("trace.csv.*")
    assert f"record: {tmp_path}/trace.csv exists, so the trace is in {other}\n" in result.err
    assert sum(check(events(other)).values()) == 300077


def test_a_name_that_is_numbered_may_be_taken(run, program, tmp_path):
    for number in (1, 2):
        assert run([program("leaks")], conf=f"record:{tmp_path}/%n,leak_report:off").err == ""
        assert (tmp_path / str(number)).exists()


def test_a_relative_path_begins_where_the_program_was_at_first(run, program, tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()

    run(["sh", "-c", f'{{ echo alloc 3 5000; echo chdir {tmp_path}/b; }} | "$0"',
         program("published")], conf="record:trace,leak_report:off", cwd=tmp_path / "a")

    assert sum(check(events(tmp_path / "a/trace")).values()) == 15000
    assert list((tmp_path / "b").iterdir()) == []


@pytest.mark.parametrize("pattern, wrong", [
    ("%z", "has an unknown pattern %z"), ("x%", "ends in a lone %"),
    ("%q{NOT_SET}", "names a variable that is not set, NOT_SET")])
def test_a_wrong_path_is_named_and_nothing_recorded(run, program, tmp_path, pattern, wrong):
    result = run([program("leaks")], conf=f"record:{tmp_path}/{pattern},leak_report:off")

    assert result.rc == 0
    message, = result.err.splitlines()
    for piece in ("warning: ALLOC_CONF character 8: record:", wrong, "accepted: off", "stays off"):
        assert piece in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/no/such/directory/trace", "/dev/full"])
def test_what_cannot_be_written_is_told(run, program, path):
    result = run([program("leaks")], conf=f"record:{path},leak_report:off")

    assert result.rc == 0
    message, = result.err.splitlines()
    assert f"record: cannot write {path} (" in message


def test_a_folder_is_told_as_such(run, program, tmp_path):
    result = run([program("leaks")], conf=f"record:{tmp_path},leak_report:off")

    assert result.rc == 0
    assert f"record: cannot write {tmp_path} (Is a directory)" in result.err
