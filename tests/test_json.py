"""The report as JSON: as its schema says, and the same as the text."""

import json
import re
import subprocess
import time

import pytest

import conftest
import leak_report

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads((conftest.ROOT / "tests" / "report.schema.json").read_text())

REPORTS = [("leaks", [], ""), ("leaks", ["stacks", 6], ""), ("leaks", ["lines"], "x_runtime_hooks:false"),
           ("leaks", ["threads"], ""), ("leaks", ["many", 500], "backend:off"),
           ("leaks", [], "leak_max:1"), ("leaks", [], "leak_min:5000"), ("leaks", [], "stacks:off"),
           ("leaks", ["last"], "leak_depth:2"), ("leaks", ["none"], ""), ("multi_ctx", [], ""),
           ("tiles", [], "")]


def path_of(program, name):
    return conftest.BUILD / "demo" / name if name == "tiles" else program(name)


def json_report(run, command, conf, path, **kwargs):
    """What the program leaves in `path`, None where that is nothing."""
    result = run(command, conf=f"{conf},leak_report:{path}", sim="devices:2", **kwargs)
    assert (result.rc, result.err) == (0, "")
    if not path.exists():
        return None
    report = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(SCHEMA).validate(report)
    return report


def same_section(section, text, report):
    """Every figure that the text has."""
    assert (section["bytes"], section["count"], section["stacks"]) == (
        text.bytes, text.count, text.stacks)
    assert len(section["groups"]) == len(text.groups)
    for one, other in zip(section["groups"], text.groups):
        for key in ("bytes", "count", "device", "kind", "smallest", "largest", "first", "last",
                    "threads", "thread_count"):
            assert one[key] == getattr(other, key), key
        functions = [function for number in one["frames"]
                     for function in report["frames"][number]["text"].split(" < ")]
        assert functions == [line for line in other.frames if line != "(no call stack)"]
    omitted = {option: (left["groups"], left["bytes"])
               for option, left in section["omitted"].items() if left["groups"]}
    assert omitted == text.omitted
    totals = {(total["device"], total["kind"]): (total["bytes"], total["count"])
              for total in section["totals"]}
    assert sum(total[0] for total in totals.values()) == section["bytes"]
    assert not text.totals or totals == text.totals


def test_the_schema_is_one():
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name, arguments, conf", REPORTS)
def test_json_says_what_the_text_says(run, program, tmp_path, name, arguments, conf):
    command = [path_of(program, name), *arguments]
    text = leak_report.parse(run(command, conf=conf, sim="devices:2").err)
    report = json_report(run, command, conf, tmp_path / "report.json", env={"RANK": 7})

    if text is None:  # a file says so
        leaked = report["sections"].pop("leaked")
        assert (leaked["bytes"], leaked["count"], leaked["groups"]) == (0, 0, [])
        assert set(report["sections"]) == {"peak"} and report["sections"]["peak"]["bytes"] > 0
        return
    assert (report["program"], report["rank"], report["cause"]) == (name, "7", "exit")
    assert set(report["sections"]) == {"leaked", "peak"} | (
        {"destroyed"} if text.destroyed else set())
    same_section(report["sections"]["leaked"], text, report)
    peak = report["sections"]["peak"]
    assert (peak["bytes"], peak["count"], peak["stacks"]) == (
        text.peak.bytes, text.peak.count, text.peak.stacks)
    assert peak["bytes"] == report["peak_bytes"] <= report["peak_at_most"]
    if text.destroyed:
        same_section(report["sections"]["destroyed"], text.destroyed, report)


def test_frames_have_their_parts(run, program, tmp_path):
    report = json_report(run, program("leaks"), "", tmp_path / "report.json")
    group = report["sections"]["leaked"]["groups"][0]
    frame = report["frames"][group["frames"][0]]

    assert frame["module"] == str(program("leaks").resolve())
    place, = frame["places"]
    assert place["function"] == "forget_tiles" and place["file"].endswith("/leaks.c")
    assert frame["text"] == f"forget_tiles at leaks.c:{place['line']}"
    notes = subprocess.run(["readelf", "-n", program("leaks")], text=True, check=True,
                           capture_output=True).stdout
    assert f"Build ID: {frame['build_id']}\n" in notes
    line = subprocess.run(["addr2line", "-e", program("leaks"), frame["offset"]], text=True,
                          check=True, capture_output=True).stdout
    assert line.split()[0].endswith(f"leaks.c:{place['line']}")


def test_suppressed_groups_and_rules_are_told(run, program, tmp_path):
    rules = tmp_path / "known.supp"
    rules.write_text("leak:forget_tables\nleak:nowhere\n")
    conf = f"suppressions:{rules}"
    text = leak_report.parse(run(program("leaks"), conf=conf).err)
    report = json_report(run, program("leaks"), conf, tmp_path / "report.json")

    same_section(report["sections"]["leaked"], text, report)
    suppressed = report["sections"]["suppressed"]
    assert (suppressed["bytes"], suppressed["count"], suppressed["stacks"]) == (
        text.suppressed.bytes, text.suppressed.count, text.suppressed.stacks) == (6077, 3, 1)
    assert [(group["bytes"], group["count"]) for group in suppressed["groups"]] == [
        (6000, 2), (77, 1)]
    assert report["suppressions"] == [
        {"rule": "leak:forget_tables", "line": 1, "groups": 2, "count": 3, "bytes": 6077},
        {"rule": "leak:nowhere", "line": 2, "groups": 0, "count": 0, "bytes": 0}]


def test_the_pool_is_told(run, program, tmp_path):
    report = json_report(run, program("leaks"), "", tmp_path / "report.json")

    pool = report["pool"]
    assert not pool["incomplete"]
    assert pool["live_blocks"] >= 300077
    assert pool["reserved"] >= pool["live_blocks"] + pool["pending"] + pool["ready"]
    assert report["peak_at_most"] >= report["peak_bytes"] >= report["sections"]["leaked"]["bytes"]


def test_what_cannot_be_written_is_text_on_stderr(run, program, tmp_path):
    result = run(program("leaks"), conf=f"leak_report:{tmp_path}/no/such.json")

    assert result.rc == 0
    assert leak_report.parse(result.err).bytes == 310173


def test_the_timeline_and_the_times_of_groups_rise(run, program, tmp_path):
    report = json_report(run, program("leaks"), "", tmp_path / "report.json")

    points = report["timeline"]
    assert [point["sequence"] for point in points] == sorted(
        point["sequence"] for point in points)
    # Not when the report was written: names take their time.
    assert points[0]["sequence"] == 1 and points[-1]["ns"] == report["now_ns"]
    assert points[-1]["live"] == report["sections"]["leaked"]["bytes"]
    assert points[-1]["reserved"] == report["pool"]["reserved"]
    assert time.time() - 3600 < report["start_s"] <= time.time()
    for group in report["sections"]["leaked"]["groups"]:
        assert 0 < group["first_ns"] <= group["last_ns"] <= report["now_ns"]
        assert (group["first_ns"] < group["last_ns"]) == (group["first"] < group["last"])


@pytest.mark.parametrize("conf", ["", "x_runtime_hooks:false"])
def test_the_history_has_the_last_events(run, program, tmp_path, conf):
    """The last allocations and frees of each address follow each other, and what is never freed
    leaked."""
    report = json_report(run, program("leaks"), f"history:100000,{conf}", tmp_path / "report.json")
    events = report["history"]
    live = {}
    for event in events:
        if event["event"] == "alloc":
            assert event["address"] not in live
            live[event["address"]] = event
        elif event["event"] == "free":
            assert event["bytes"] == live.pop(event["address"])["bytes"]

    assert report["history_dropped"] == 0
    assert [event["ns"] for event in events] == sorted(event["ns"] for event in events)
    assert events[-1]["ns"] <= report["now_ns"]
    leaked = report["sections"]["leaked"]
    assert (len(live), sum(event["bytes"] for event in live.values())) == (
        leaked["count"], leaked["bytes"])
    assert {event["event"] for event in events} >= {"alloc", "free", "segment"}
    for event in events:
        if event["event"] in ("alloc", "free"):
            names = [report["frames"][frame]["text"] for frame in event["frames"]]
            assert any(name.startswith("main") for name in names), names
            assert event["thread"] == "leaks"


def test_an_old_event_makes_room_for_a_new_one(run, program, tmp_path):
    report = json_report(run, program("leaks"), "history:5", tmp_path / "report.json")

    assert len(report["history"]) == 5
    assert report["history_dropped"] > 0


def test_the_peak_is_told_where_nothing_leaked_too(run, program, tmp_path):
    """What the program holds for a while is gone in the end."""
    report = json_report(run, [program("leaks"), "none"], "peak:always", tmp_path / "report.json")

    assert report["sections"]["leaked"]["count"] == 0
    peak = report["sections"]["peak"]
    assert 0 < peak["bytes"] == report["peak_bytes"]
    assert 0 < report["peak_ns"] <= report["now_ns"]
    assert run([program("leaks"), "none"]).err == ""
    assert "peak" not in json_report(run, program("leaks"), "peak:off",
                                     tmp_path / "off.json")["sections"]


def test_the_peak_of_live_bytes_is_named_an_upper_bound(run, program, tmp_path):
    """With several threads it is one: what they have to spare counts."""
    result = run(program("leaks"), conf=f"stats:exit,leak_report:{tmp_path}/leaks.json")

    shown, = re.findall(r"^  live bytes requested, peak at most +(\d+)$", result.err, re.M)
    assert int(shown) == json.loads((tmp_path / "leaks.json").read_text())["peak_at_most"]
    schema = json.loads((conftest.ROOT / "tests" / "report.schema.json").read_text())
    assert schema["properties"]["peak_at_most"]["description"].startswith("Upper bound ")
    header = (conftest.ROOT / "include" / "cachealloc.h").read_text()
    assert re.search(r"/\* An upper bound of [^/]+\*/\s+uint64_t live_peak_bytes;", header)


def test_the_last_allocation_and_the_peak_have_their_own_time(run, program, tmp_path):
    """Neither the report's, nor that of the free before which the peak is noted."""
    # The answers are awaited, so that what the program takes to start is not in the half seconds.
    script = ('mkfifo in out; "$0" <in >out & exec 3>in 4<out;'
              ' for command in "alloc 3 5000" "free 1"; do'
              '   echo "$command" >&3; read -r ok <&4; sleep 0.5; done; exec 3>&-; wait')
    report = json_report(run, ["sh", "-c", script, program("published")], "",
                         tmp_path / "report.json", cwd=tmp_path)

    group, = report["sections"]["leaked"]["groups"]
    assert 0 < group["first_ns"] <= group["last_ns"] <= report["peak_ns"]
    assert report["peak_ns"] <= report["now_ns"] - 10**9
    assert report["sections"]["peak"]["bytes"] == 15000


def obeyed(run, program, conf, path, *commands):
    """The report of a program that did so."""
    lines = "\n".join(commands)
    return json_report(run, ["sh", "-c", f'printf "{lines}\n" | "$0"', program("published")], conf,
                       path)


def test_a_peak_that_is_hardly_higher_than_the_last_is_told_exactly(run, program, tmp_path):
    report = obeyed(run, program, "", tmp_path / "report.json", "alloc 3 100000", "alloc 1 10",
                    "free 1", "alloc 1 15", "free 1", "alloc 1 12", "free 2")

    assert report["peak_bytes"] == report["sections"]["peak"]["bytes"] == 300015
    assert report["peak_at_most"] == 300015


def test_allocations_and_temporaries_are_counted_with_a_history(run, program, tmp_path):
    """All of them, however few events are kept, and whether anything of their group leaked."""
    commands = ["alloc 3 1000", "free 1", *["alloc 1 5000", "free 1"] * 4, "alloc 2 10", "free 2"]
    counted = obeyed(run, program, "history:1", tmp_path / "counted.json", *commands)
    plain = obeyed(run, program, "", tmp_path / "plain.json", *commands)

    leaked, = counted["sections"]["leaked"]["groups"]
    all_of_them, = counted["sections"]["allocated"]["groups"]
    assert (leaked["count"], leaked["allocations"], leaked["temporaries"]) == (2, 9, 6)
    assert (all_of_them["count"], all_of_them["bytes"]) == (9, 23020)
    assert counted["sections"]["allocated"]["temporaries"] == 6
    assert len(counted["history"]) == 1
    assert "allocated" not in plain["sections"]
    assert "temporaries" not in plain["sections"]["leaked"]["groups"][0]


def test_each_phase_from_mark_to_mark_has_its_peak(run, program, tmp_path):
    report = obeyed(run, program, "", tmp_path / "report.json", "alloc 1 1000", "alloc 1 7000",
                    "free 1", "mark low", "alloc 1 50", "free 1", "mark high", "alloc 2 4000",
                    "free 2")

    phases = report["phases"]
    assert [(phase["name"], phase["peak_bytes"], phase["exact"]) for phase in phases] == [
        (None, 8000, True), ("low", 1050, True), ("high", 9000, True)]
    assert [phase["ended_ns"] for phase in phases] == [
        *(mark["ns"] for mark in report["marks"]), report["now_ns"]]
    assert [phase["ns"] for phase in phases[1:]] == [mark["ns"] for mark in report["marks"]]
    assert report["peak_bytes"] == report["peak_at_most"] == 9000


def test_that_stacks_were_sampled_is_told(run, program, tmp_path):
    report = json_report(run, program("leaks"), "stacks:sample:1M", tmp_path / "report.json")

    assert report["stacks_sampled"] == 1 << 20


def test_an_out_of_memory_is_an_event(run, program, tmp_path):
    path = tmp_path / "report.json"
    result = run([program("oom"), "device"], sim="memory:64M",
                 conf=f"history:1000,leak_report:{path},peak:always")

    assert (result.rc, result.err) == (0, "")
    report = json.loads(path.read_text())
    event, = (event for event in report["history"] if event["event"] == "oom")
    assert (event["bytes"], event["device"], event["kind"]) == (50 << 20, 0, "device")
    assert any(report["frames"][frame]["text"].startswith("ask at oom.c")
               for frame in event["frames"])
