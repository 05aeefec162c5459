"""What `cachealloc report --diff` says of two runs: what grew, whatever moved in between."""

import json
import subprocess
import sys

import pytest

import conftest
from report_json import bare_frame, frame, group, report, section

SCRIPT = conftest.ROOT / "tools" / "cachealloc-report"
ACCEPTED = 'accepted: JSON leak reports (schema "cachealloc-report", version 1)'

pytestmark = pytest.mark.skipif(conftest.SANITIZER is not None, reason="nothing is compiled")


@pytest.fixture(name="diff")
def _diff(tmp_path):
    """Compares two reports, or lists of them; its own arguments come first."""
    def call(before, after, *arguments, rc=0):
        files = []
        for name, some in (("before.json", before), ("after.json", after)):
            files.append(tmp_path / name)
            files[-1].write_text("".join(map(json.dumps, some if isinstance(some, list)
                                             else [some])))
        result = run("--diff", *arguments, *files)
        assert result.returncode == rc, result.stderr
        return json.loads(result.stdout) if "json" in arguments else result.stdout
    return call


def run(*arguments, **kwargs):
    return subprocess.run([sys.executable, "-B", SCRIPT, *map(str, arguments)], text=True,
                          capture_output=True, timeout=60, check=False, **kwargs)


def one(frames, *groups, **changes):
    return report({"leaked": section(list(groups))}, frames, **changes)


def states(difference, title="leaked"):
    return [(one["state"], one["growth"], [difference["frames"][frame]["text"].split()[0]
                                           for frame in one["frames"]])
            for one in difference["sections"][title]["groups"]]


def test_stacks_of_two_builds_are_the_same_by_functions_and_files(diff):
    before = [frame("grow", 12, file="/build/1/field.cc"), frame("main", 187),
              frame("halo", 5), frame("gone", 6)]
    # Elsewhere, on other lines; what was called is inlined.
    inlined = {**frame("main", 190, inlined=[("grow", 14)]), "address": "0x1234", "offset": "0x99"}
    inlined["places"][0]["file"] = "/build/2/field.cc"
    after = [inlined, {**frame("halo", 7), "build_id": "other"}, frame("new", 1),
             frame("grow", 12, file="other.cc"), frame("main", 190)]

    found = diff(one(before, group([0, 1], 1000, 2), group([2], 500), group([3], 20)),
                 one(after, group([0], 3000, 4), group([1], 400, 2), group([2], 700),
                     group([3, 4], 1)), "--format", "json")

    assert states(found) == [("grown", 2000, ["grow"]), ("new", 700, ["new"]),
                             ("new", 1, ["grow", "main"]), ("gone", -20, ["gone"]),
                             ("shrunk", -100, ["halo"])]
    leaked = found["sections"]["leaked"]
    assert leaked["stacks"] == {"new": 2, "grown": 1, "gone": 1, "shrunk": 1, "same": 0}
    assert (leaked["before"]["bytes"], leaked["after"]["bytes"], leaked["growth"]) == (
        1520, 4101, 2581)
    assert (leaked["before"]["count"], leaked["after"]["count"]) == (4, 8)
    assert leaked["groups"][0]["before"]["count"] == 2 and leaked["groups"][1]["before"] is None


def test_a_frame_without_a_name_is_an_offset_into_one_build(diff):
    def of(offset, build):
        return [{**bare_frame(offset, "/lib/libx.so"), "build_id": build}]
    old = one(of(0x10, "a"), group([0], 10))

    assert states(diff(old, one(of(0x20, "a"), group([0], 10)), "--format", "json")) == [
        ("new", 10, ["libx.so+0x20"]), ("gone", -10, ["libx.so+0x10"])]
    assert states(diff(old, one(of(0x20, "b"), group([0], 13)), "--format", "json")) == [
        ("grown", 3, ["libx.so+0x20"])]


def test_processes_of_a_side_are_added_up_and_kinds_are_not(diff):
    frames = [frame("main")]
    def job(size):
        return [one(frames, group([0], size, device=rank), group([0], 7, kind="pinned"),
                    rank=str(rank), pid=10 + rank, peak_bytes=100 * size) for rank in range(3)]

    found = diff(job(1), job(5), "--format", "json")
    text = diff(job(1), job(5))

    assert states(found) == [("grown", 12, ["main"])]
    assert found["sections"]["leaked"]["stacks"]["same"] == 1
    assert len(found["after"]["processes"]) == 3
    assert (found["before"]["peak_bytes"], found["after"]["peak_bytes"]) == (300, 1500)
    assert "  before: " in text and ": 3 processes\n" in text
    assert "  peak: +1200 bytes (300 -> 1500)\n" in text


def test_the_text_lists_what_grew_first_and_what_shrank_last(diff):
    frames = [frame(f"f{number}", number) for number in range(8)]
    text = diff(one(frames, *(group([n], 100) for n in range(6))),
                one(frames, *(group([n], 100 + 10 * (n - 3)) for n in range(1, 8))), "--most", "2")

    lines = text.splitlines()
    assert lines[0] == "LEAK REPORTS COMPARED"
    assert lines[4:] == [
        "LEAKED: +170 bytes (600 -> 770), +1 allocations (6 -> 7)",
        "  stacks: 2 new, 2 grown, 1 gone, 2 shrunk, 1 same",
        "#1: +140 bytes (0 -> 140), +1 allocations (0 -> 1), device memory, new",
        "    f7 at solver.cc:7",
        "#2: +130 bytes (0 -> 130), +1 allocations (0 -> 1), device memory, new",
        "    f6 at solver.cc:6",
        "(2 more groups that grew, +30 bytes, not listed: --most 2)",
        "#3: -100 bytes (100 -> 0), -1 allocations (1 -> 0), device memory, gone",
        "    f0 at solver.cc:0",
        "#4: -20 bytes (100 -> 80), +0 allocations (1 -> 1), device memory, shrunk",
        "    f1 at solver.cc:1",
        "(1 more group that shrank, -10 bytes, not listed: --most 2)",
    ]


def test_counts_of_allocations_and_temporaries_are_compared(diff):
    frames = [frame("main"), frame("scratch")]
    def counted(times):
        temporary = {**group([1], 100 * times, times), "allocations": times,
                     "temporaries": times - 1}
        allocated = {**section([temporary]), "temporaries": times - 1}
        return report({"leaked": section([]), "allocated": allocated}, frames)

    found = diff(counted(3), counted(10), "--format", "json")["sections"]["allocated"]
    text = diff(counted(3), counted(10))

    assert found["groups"][0]["before"]["temporaries"] == 2
    assert found["groups"][0]["after"] == {"bytes": 1000, "count": 10, "allocations": 10,
                                           "temporaries": 9}
    assert "ALLOCATED IN ALL: +700 bytes (300 -> 1000), +7 allocations (3 -> 10)\n" in text
    assert "  +7 temporaries (2 -> 9)\n" in text
    assert "  allocated in all 3 -> 10, temporaries 2 -> 9\n" in text


def test_a_group_that_may_have_been_too_small_to_be_listed_is_not_said_to_be_new(diff):
    frames = [frame("main"), frame("small")]
    before = report({"leaked": section([group([0], 100)], beyond=(4, 50))}, frames)
    after = one(frames, group([0], 100), group([1], 60))

    found = diff(before, after, "--format", "json")["sections"]["leaked"]
    text = diff(before, after)

    assert [(one["state"], one["certain"]) for one in found["groups"]] == [("new", False)]
    assert found["omitted"]["before"] == {"groups": 4, "bytes": 50}
    assert "device memory, new, or not listed before\n" in text
    assert "(4 groups, 50 bytes, not listed in the reports before: leak_max and leak_min)" in text


def test_what_cannot_be_compared_is_said(diff):
    frames = [frame("main")]
    before = one(frames, group([0], 1), stack_depth=4)
    after = report({"leaked": section([]), "peak": section([group([0], 9)])}, frames)

    found = diff(before, after, "--format", "json")

    assert "peak" not in found["sections"]
    assert [note.partition(" ")[0] for note in found["notes"]] == ["stack_depth", "peak"]
    assert "(stack_depth was not the same (4 and 16)" in diff(before, after)


def test_a_hostile_name_stays_on_its_line(diff):
    frames = [frame("ev\nil\u202e\x1b[31m")]
    text = diff(one(frames), one(frames, group([0], 1)))

    assert "\x1b" not in text and "\u202e" not in text
    assert "    ev\\u000ail\\u202e\\u001b[31m at solver.cc:7\n" in text


@pytest.mark.parametrize("content, wrong", [
    ("", "the file is empty; " + ACCEPTED),
    ("leaked 3 bytes", "not JSON"),
    ("cachealloc[1]: leak report\nLEAK SUMMARY: 1 bytes", "holds a text report"),
    ('{"schema": "cachealloc-diff", "schema_version": 1}', 'its schema is "cachealloc-diff"; '
     + ACCEPTED),
    ('{"schema": "cachealloc-report", "schema_version": 2}', "its schema_version is 2; "
     + ACCEPTED),
    (None, "No such file"),
])
def test_a_file_that_is_no_report_is_named(tmp_path, content, wrong):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(one([frame("main")], group([0], 1))))
    if content is not None:
        bad.write_text(content)

    for files in ((good, bad), (bad, good)):
        result = run("--diff", *files)

        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith(f"cachealloc report: {bad}: ") and wrong in result.stderr


@pytest.mark.parametrize("arguments, wrong", [
    (["--diff", "a.json"], "--diff compares two files, not 1"),
    (["--diff", "a.json", "b.json", "c.json"], "--diff compares two files, not 3"),
    (["--diff", "-", "-"], "stdin is one"),
    (["--diff", "--format", "pdf", "a.json", "b.json"], "'text', 'json', 'html'"),
    (["--diff", "--most", "0", "a.json", "b.json"], "--most must be at least 1"),
    (["--format", "text", "a.json"], "--format is for --diff"),
    (["--most", "3", "a.json"], "--most is for --diff"),
])
def test_a_wrong_command_line_is_refused(tmp_path, arguments, wrong):
    result = run(*arguments, cwd=tmp_path)

    assert (result.returncode, result.stdout) == (2, "") and wrong in result.stderr


def test_it_is_a_command_of_the_launcher_and_writes_where_it_is_told(tmp_path):
    for name, size in (("a.json", 1), ("b.json", 3)):
        (tmp_path / name).write_text(json.dumps(one([frame("main")], group([0], size))))
    result = subprocess.run([conftest.ROOT / "tools" / "cachealloc", "report", "--diff", "--format",
                             "text", "-o", "said", "-", "b.json"], text=True, capture_output=True,
                            input=(tmp_path / "a.json").read_text(), cwd=tmp_path, timeout=60,
                            check=False)

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert "LEAKED: +2 bytes (1 -> 3)" in (tmp_path / "said").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "said"]
