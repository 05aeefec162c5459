"""The leak report of a program in several formats: the same in each, each in its place."""

import json
import os
import re
import resource
import signal
import subprocess

import pytest

import leak_report
import read_formats

LEAKED = (310173, 7)  # bytes and allocations that leaks.c forgets
ALL = "text+json+pprof+folded+pytorch"
ENDINGS = {"json": ".json", "pprof": ".pprof", "folded": ".folded", "pytorch": ".pickle"}


@pytest.fixture
def reports(tmp_path):
    """An empty directory for them, where the program runs too."""
    path = tmp_path / "reports"
    path.mkdir()
    return path


def leaks(run, program, reports, conf, *arguments, name="leaks", **kwargs):
    result = run([program(name), *arguments], conf=conf, cwd=reports, **kwargs)
    assert result.rc == 0
    return result


def names(reports):
    return {file.name for file in reports.iterdir()}


def check_text(text):
    report = leak_report.parse(text)
    assert (report.bytes, report.count) == LEAKED
    return report


def check(path):
    """That a file is the whole report, in the format that its ending says."""
    if path.suffix == ".json":
        section = json.loads(path.read_text())["sections"]["leaked"]
        assert (section["bytes"], section["count"]) == LEAKED
    elif path.suffix == ".pprof":
        samples = read_formats.pprof_samples(read_formats.pprof(path), "inuse_space")
        assert tuple(sum(sample[i] for sample in samples) for i in range(2)) == LEAKED
    elif path.suffix == ".folded":
        assert sum(size for _, size in read_formats.folded(path)) == LEAKED[0]
    elif path.suffix == ".pickle":
        segments = read_formats.pytorch(path)["segments"]
        assert sum(segment["total_size"] for segment in segments) == LEAKED[0]
    else:
        check_text(path.read_text())


# --- what is in them ------------------------------------------------------------------------------


def frame_names(report, number):
    """The functions at an address, innermost first, or what else names it."""
    frame = report["frames"][number]
    return [place["function"] for place in frame["places"]] or [frame["text"]]


def text_frames(report, numbers):
    return [name for number in numbers for name in frame_names(report, number)]


REPORTS = [("leaks", [], ""), ("leaks", ["threads"], ""), ("leaks", ["stacks", 6], "leak_max:3"),
           ("leaks", [], "leak_min:5000"), ("leaks", [], "stacks:off"), ("multi_ctx", [], ""),
           ("leaks", [], "backend:off")]


@pytest.mark.parametrize("name, arguments, conf", REPORTS)
def test_every_format_says_the_same(run, program, reports, name, arguments, conf):
    result = leaks(run, program, reports, f"leak_report:x,report_format:{ALL},{conf}", *arguments,
                   name=name, sim="devices:2")

    assert result.err == ""
    assert names(reports) == {"x", *(f"x{ending}" for ending in ENDINGS.values())}
    text = leak_report.parse((reports / "x").read_text())
    report = json.loads((reports / "x.json").read_text())
    leaked = report["sections"]["leaked"]
    groups = [(group["bytes"], group["count"], group["device"], group["kind"], group["threads"],
               text_frames(report, group["frames"]) or ["(no call stack)"])
              for group in leaked["groups"]]
    assert (leaked["bytes"], leaked["count"]) == (text.bytes, text.count)
    rest = (text.bytes - sum(group[0] for group in groups),
            text.count - sum(group[1] for group in groups))
    same_pprof(read_formats.pprof(reports / "x.pprof"), groups, rest, text, report)
    same_folded(read_formats.folded(reports / "x.folded"), groups, rest, text)
    same_pytorch(read_formats.pytorch(reports / "x.pickle"), groups, rest, report)


def same_pprof(profile, groups, rest, text, report):
    samples = [(*sample[:5], [name for places in sample[5] for name, _, _ in places])
               for sample in read_formats.pprof_samples(profile, "inuse_space")]
    if rest != (0, 0):
        assert samples.pop() == (*rest, -1, None, [], ["(not listed)"])
    mapped = {number for number, frame in enumerate(report["frames"])
              if not frame["places"] and frame["module"]}
    assert not mapped or len(samples) == len(groups)
    for sample, group in zip(samples, groups, strict=True):
        assert sample[:5] == group[:5]
        bare = {report["frames"][number]["text"] for number in mapped}
        assert sample[5] == [name for name in group[5] if name not in bare]
    types = [name for name, _ in read_formats.pprof_types(profile)]
    assert ("destroyed_space" in types) == (text.destroyed is not None)
    if text.destroyed:
        destroyed = read_formats.pprof_samples(profile, "destroyed_space")
        assert sum(sample[0] for sample in destroyed) == text.destroyed.bytes
    seconds = report["start_s"]
    assert profile.time_nanos == seconds * 10**9


def same_folded(stacks, groups, rest, text):
    destroyed = [stack for stack in stacks if "context destroyed" in stack[0][0]]
    stacks = [stack for stack in stacks if stack not in destroyed]
    if rest[0]:
        assert stacks.pop() == (["(not listed)"], rest[0])
    assert stacks == [([f"device {device}, {kind} memory", *reversed(frames)], size)
                      for size, _, device, kind, _, frames in groups]
    assert sum(size for _, size in destroyed) == (text.destroyed.bytes if text.destroyed else 0)


def same_pytorch(snapshot, groups, rest, report):
    blocks = [(block["size"], segment["device"], segment["frames"][0]["name"],
               [frame["name"] for frame in block["frames"]])
              for segment in snapshot["segments"] for block in segment["blocks"]]
    expected = [(size, device, kind, frames) for size, _, device, kind, _, frames in groups]
    assert sorted(blocks) == sorted(expected)
    assert snapshot["cachealloc"]["not_listed_bytes"] == rest[0]
    assert snapshot["cachealloc"]["pid"] == report["pid"]


def test_pprof_has_the_program_first_and_true_addresses(run, program, reports):
    leaks(run, program, reports, "leak_report:x,report_format:json+pprof")

    profile = read_formats.pprof(reports / "x.pprof")
    report = json.loads((reports / "x.json").read_text())
    texts, first = profile.string_table, profile.mapping[0]
    assert texts[first.filename] == str(program("leaks").resolve())
    notes = subprocess.run(["readelf", "-n", program("leaks")], text=True, check=True,
                           capture_output=True).stdout
    assert f"Build ID: {texts[first.build_id]}\n" in notes
    called = {int(frame["address"], 16) - 1: int(frame["offset"], 16) for frame in report["frames"]}
    for location in profile.location:
        mapping = profile.mapping[location.mapping_id - 1]
        assert location.address - mapping.memory_start == called[location.address]
        assert mapping.memory_start % 4096 == 0


def test_pprof_itself_shows_where(run, program, reports):
    leaks(run, program, reports, "leak_report:x.pprof")

    out = read_formats.pprof_tool("-top", "-cum", "-nodefraction=0", reports / "x.pprof")
    assert "Type: inuse_space" in out and "File: leaks" in out
    assert re.search(r"296\.97kB .* forget_tiles$", out, re.MULTILINE), out
    out = read_formats.pprof_tool("-tags", reports / "x.pprof")
    assert re.search(r"kind: .*\n +293\.0kB .*: device$", out, re.MULTILINE), out


# --- where they are -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENDINGS)
def test_each_format_alone(run, program, reports, name):
    assert leaks(run, program, reports, f"leak_report:x,report_format:{name}").err == ""

    assert names(reports) == {f"x{ENDINGS[name]}"}
    check(reports / f"x{ENDINGS[name]}")


@pytest.mark.parametrize("name", ENDINGS)
def test_a_path_may_say_the_format(run, program, reports, name):
    assert leaks(run, program, reports, f"leak_report:x{ENDINGS[name]}").err == ""

    assert names(reports) == {f"x{ENDINGS[name]}"}
    check(reports / f"x{ENDINGS[name]}")


def test_an_ending_is_not_doubled(run, program, reports):
    leaks(run, program, reports, "leak_report:x.json,report_format:text+json+pprof")

    assert names(reports) == {"x", "x.json", "x.pprof"}
    for file in reports.iterdir():
        check(file)


def test_patterns_come_before_the_ending(run, program, reports):
    leaks(run, program, reports, f"leak_report:%e-%r.%n,report_format:{ALL}", env={"RANK": 4})

    assert names(reports) == {f"leaks-4.1{ending}" for ending in ("", *ENDINGS.values())}
    for file in reports.iterdir():
        check(file)


def test_nothing_is_written_where_nothing_leaked_and_no_place_was_named(run, program, reports):
    result = leaks(run, program, reports, f"report_format:{ALL}", "none")

    assert (result.err, names(reports)) == ("", set())


def test_each_format_can_say_that_nothing_leaked(run, program, reports):
    result = leaks(run, program, reports, f"leak_report:x,report_format:{ALL}", "none")

    assert (result.err, names(reports)) == ("", {"x", *(f"x{end}" for end in ENDINGS.values())})
    assert read_formats.pytorch(reports / "x.pickle")["segments"] == []
    assert read_formats.folded(reports / "x.folded") == []
    profile = read_formats.pprof(reports / "x.pprof")
    assert read_formats.pprof_samples(profile, "inuse_space") == []
    assert sum(sample[0] for sample in read_formats.pprof_samples(profile, "peak_space")) > 0


@pytest.mark.parametrize("conf, text, others", [("", 20, 100), ("leak_max:30", 30, 30),
                                                ("leak_max:300", 120, 120)])
def test_text_lists_fewer_groups_where_no_number_is_given(run, program, reports, conf, text, others):
    leaks(run, program, reports, f"leak_report:x,report_format:{ALL},suppressions_print:true,{conf}",
          120, 120, name="many_stacks")

    said = leak_report.parse((reports / "x").read_text())
    leaked = json.loads((reports / "x.json").read_text())["sections"]["leaked"]
    assert (len(said.groups), len(leaked["groups"])) == (text, others)
    assert said.omitted.get("leak_max", (0, 0)) == (
        120 - text, said.bytes - sum(group.bytes for group in said.groups))
    assert leaked["omitted"]["leak_max"]["groups"] == 120 - others
    assert len(read_formats.folded(reports / "x.folded")) == others + (others < 120)


def test_no_file_is_replaced(run, program, reports):
    for ending in ENDINGS.values():
        (reports / f"x{ending}").write_text("mine")

    result = leaks(run, program, reports, f"leak_report:x,report_format:{ALL}")

    pid = check_text((reports / "x").read_text()).pid
    for ending in ENDINGS.values():
        assert (reports / f"x{ending}").read_text() == "mine"
        (reports / f"x{ending}.{pid}").rename(reports / f"new{ending}")
        check(reports / f"new{ending}")
        assert f"x{ending} exists, so the report is in {reports}/x{ending}.{pid}\n" in result.err
    assert len(result.err.splitlines()) == 4


def test_stderr_takes_the_text_alone(run, program, reports):
    result = leaks(run, program, reports, f"report_format:{ALL}")

    pid = check_text(result.err).pid
    assert names(reports) == {f"cachealloc.{pid}{ending}" for ending in ENDINGS.values()}
    for file in reports.iterdir():
        check(file)
    for name, ending in ENDINGS.items():
        assert (f"warning: leak_report: stderr takes the text alone: the {name} report is in "
                f"{reports}/cachealloc.{pid}{ending}; leak_report:PATH puts it elsewhere\n"
                ) in result.err


def test_one_format_may_go_to_a_descriptor(run, program, reports):
    result = leaks(run, program, reports, "leak_report:/dev/stdout,report_format:json")

    assert (result.err, names(reports)) == ("", set())
    assert json.loads(result.out)["sections"]["leaked"]["bytes"] == LEAKED[0]


def test_of_several_the_text_goes_to_a_descriptor(run, program, reports):
    result = leaks(run, program, reports, "leak_report:/dev/stdout,report_format:folded+text")

    pid = check_text(result.out).pid
    assert "/dev/stdout takes the text alone: the folded report is in" in result.err
    assert names(reports) == {f"cachealloc.{pid}.folded"}


def test_one_format_may_go_to_a_pipe(run, program, reports):
    os.mkfifo(reports / "pipe")
    reader = os.open(reports / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        leaks(run, program, reports, "leak_report:pipe,report_format:pprof")
        (reports / "got.pprof").write_bytes(os.read(reader, 65536))
    finally:
        os.close(reader)
    check(reports / "got.pprof")


# --- what cannot be written -----------------------------------------------------------------------


def test_what_cannot_be_written_is_told_and_is_text_on_stderr(run, program, reports):
    result = leaks(run, program, reports, f"leak_report:no/such,report_format:{ALL}")

    check_text(result.err)
    lines = [line for line in result.err.splitlines() if "cannot write" in line]
    assert [line.partition("cannot write ")[2] for line in lines] == [
        f"{reports}/no/such (No such file or directory): the report goes to stderr",
        *(f"{reports}/no/such{ending} (No such file or directory)" for ending in ENDINGS.values())]
    assert names(reports) == set()


@pytest.mark.parametrize("name", ENDINGS)
def test_each_that_cannot_be_written_is_text_on_stderr(run, program, reports, name):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which Python ignores, and children inherit

    result = leaks(run, program, reports, f"leak_report:x,report_format:{name}", preexec_fn=limit)

    check_text(result.err)
    assert f"cannot write {reports}/x{ENDINGS[name]} (File too large): the report" in result.err
    assert names(reports) == set()


def test_the_others_are_written_where_one_cannot_be(run, program, reports):
    """The name is as long as it may be, until something is added."""
    name = "n" * 255
    result = leaks(run, program, reports, f"leak_report:{name},report_format:text+json")

    assert re.fullmatch(r"cachealloc\[\d+\]: warning: leak_report: cannot write .*/n+\.json "
                        r"\(File name too long\)\n", result.err)
    assert names(reports) == {name}
    check(reports / name)


def test_an_ending_alone_is_no_name(run, program, reports):
    result = leaks(run, program, reports, "leak_report:./,report_format:json")

    check_text(result.err)
    assert f"cannot write {reports}/./.json (Is a directory)" in result.err
    assert names(reports) == set()


def test_a_directory_has_the_others_beside_it(run, program, reports):
    (reports / "d").mkdir()
    result = leaks(run, program, reports, "leak_report:d,report_format:text+json")

    check_text(result.err)
    assert f"cannot write {reports}/d (Is a directory): the report goes to stderr" in result.err
    check(reports / "d.json")
    assert names(reports) == {"d", "d.json"} and not any((reports / "d").iterdir())


def test_a_snapshot_has_the_history_where_there_is_one(run, program, tmp_path):
    path = tmp_path / "x.pickle"
    result = run(program("leaks"), conf=f"leak_report:{path},history:1000", sim="devices:2")

    assert (result.rc, result.err) == (0, "")
    snapshot = read_formats.pytorch(path, has_history=True)
    assert snapshot["segments"] == []
    live = {}
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event
        elif event["action"] == "free_completed":
            del live[event["addr"]]
    assert sum(event["size"] for event in live.values()) == snapshot["cachealloc"]["bytes"]
    assert {event["action"] for event in snapshot["device_traces"][0]} >= {"alloc", "segment_alloc"}
    assert all(any(frame["name"] == "main" for frame in event["frames"])
               for event in live.values())
