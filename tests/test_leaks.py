"""The exit report: right figures, readable stacks, and nothing where nothing leaked."""

import json
import re
import shutil
import subprocess

import pytest

import conftest
import leak_report

# What leaks.c forgets: (bytes, count) by kind and in the order of the groups.
TOTALS = {(0, "device"): (300077, 4), (0, "pinned"): (4096, 1), (0, "managed"): (6000, 2)}
GROUPS = [(300000, 3, "device", "forget_tiles"), (6000, 2, "managed", "forget_tables"),
          (4096, 1, "pinned", "forget_tiles"), (77, 1, "device", "forget_tables")]
EVERYWHERE = [None, "x_runtime_hooks:false", "backend:off"]


def leaks(run, program, conf=None, *arguments, **kwargs):
    result = run([program("leaks"), *arguments], conf=conf, **kwargs)
    assert (result.rc, result.out) == (0, "")
    return result


@pytest.mark.parametrize("conf", EVERYWHERE)
def test_report_gives_totals_and_places(run, program, conf):
    report = leak_report.parse(leaks(run, program, conf).err)

    assert (report.bytes, report.count, report.stacks) == (310173, 7, 2)
    assert report.totals == TOTALS
    assert [(group.bytes, group.count, group.kind) for group in report.groups] == [
        group[:3] for group in GROUPS]
    for group, expected in zip(report.groups, GROUPS):
        places = leak_report.places(group)
        assert expected[3] in places and "main" in places
        assert any(re.search(rf"^{expected[3]} at \S*leaks\.c:\d+", frame)
                   for frame in group.frames), group.frames
    assert report.omitted == {}


def test_report_is_all_there_is_on_stderr(run, program):
    first = leaks(run, program).err.splitlines()[0]

    assert leak_report.HEADER.match(first)


def test_stacks_begin_at_the_program(run, program):
    """Our own frames are left out: the innermost is the program's or the runtime's."""
    for group in leak_report.parse(leaks(run, program).err).groups:
        assert not any("libcachealloc" in frame for frame in group.frames)


@pytest.mark.parametrize("conf", EVERYWHERE)
def test_nothing_is_said_when_nothing_leaked(run, program, conf):
    assert leaks(run, program, conf, "none").err == ""


def test_other_programs_leak_nothing(run, program):
    """Everything freed, and so all of it cached."""
    assert run([program("kinds")]).err == ""
    assert run([program("pinned")]).err == ""


def test_report_off(run, program):
    assert leaks(run, program, "leak_report:off").err == ""


def test_report_goes_to_a_path_with_the_process_id(run, program, tmp_path):
    result = leaks(run, program, f"leak_report:{tmp_path}/leaks-%p.txt")

    assert result.err == ""
    files = list(tmp_path.glob("leaks-*.txt"))
    assert len(files) == 1
    report = leak_report.parse(files[0].read_text())
    assert (report.bytes, report.count) == (310173, 7)
    assert files[0].name == f"leaks-{report.pid}.txt"


def test_report_to_a_path_that_cannot_be_written_ends_well(run, program, tmp_path):
    result = leaks(run, program, f"leak_report:{tmp_path}/no/such/directory")

    assert len(result.err.splitlines()) >= 1  # said, and that is all: the exit status is 0


def test_small_groups_are_counted_not_listed(run, program):
    report = leak_report.parse(leaks(run, program, "leak_min:5000").err)

    assert [group.bytes for group in report.groups] == [300000, 6000]
    assert report.omitted == {"leak_min": (2, 4173)}
    assert (report.bytes, report.count) == (310173, 7)


def test_groups_beyond_the_most_are_counted_not_listed(run, program):
    report = leak_report.parse(leaks(run, program, "leak_max:1").err)

    assert [group.bytes for group in report.groups] == [300000]
    assert report.omitted == {"leak_max": (3, 10173)}


def test_without_stacks_there_are_figures_still(run, program):
    report = leak_report.parse(leaks(run, program, "stacks:off").err)

    assert report.totals == TOTALS
    assert report.stacks == 0
    assert not any("forget" in frame for group in report.groups for frame in group.frames)


@pytest.mark.parametrize("depth", [1, 2])
def test_stacks_end_at_the_depth(run, program, depth):
    report = leak_report.parse(leaks(run, program, f"stack_depth:{depth}").err)

    assert report.groups
    for group in report.groups:
        assert 1 <= len(group.frames) <= depth


def test_a_frame_is_named_after_the_call(run, program):
    """The address that a call returns to may be another function's."""
    group, = leak_report.parse(leaks(run, program, None, "last").err).groups
    places = leak_report.places(group)

    assert places[:places.index("main")][-2:] == ["forget_and_leave", "forget_last"]


@pytest.mark.parametrize("conf", EVERYWHERE)
def test_every_stack_is_a_group(run, program, conf):
    report = leak_report.parse(leaks(run, program, conf, "stacks", 6).err)

    assert [group.bytes for group in report.groups] == [6000, 5000, 4000, 3000, 2000, 1000]
    assert report.stacks == 6
    depths = [leak_report.places(group).count("forget_at_depth") for group in report.groups]
    assert depths == [6, 5, 4, 3, 2, 1]


def test_one_function_is_one_group_whatever_the_lines(run, program):
    group, = leak_report.parse(leaks(run, program, None, "lines").err).groups

    assert (group.bytes, group.count) == (800, 4)
    assert (group.smallest, group.largest) == (100, 300)
    assert group.last > group.first


def test_a_group_shows_its_own_lines(run, program):
    """Two kinds of memory in two lines of one function."""
    source = (conftest.ROOT / "tests" / "preload" / "leaks.c").read_text().splitlines()
    groups = leak_report.parse(leaks(run, program).err).groups

    for group, call in ((groups[0], "cudaMalloc("), (groups[2], "cudaMallocHost(")):
        frame, = [frame for frame in group.frames if frame.startswith("forget_tiles at ")]
        assert call in source[int(frame.rpartition(":")[2]) - 1]


def test_depth_tells_how_many_functions_tell_groups_apart(run, program):
    group, = leak_report.parse(leaks(run, program, "leak_depth:1", "stacks", 6).err).groups
    assert (group.bytes, group.count, len(group.frames)) == (21000, 6, 1)
    assert leak_report.places(group) == ["forget_at_depth"]

    groups = leak_report.parse(leaks(run, program, "leak_depth:3", "stacks", 6).err).groups
    assert [(group.bytes, group.count) for group in groups] == [(18000, 4), (2000, 1), (1000, 1)]


@pytest.mark.parametrize("ends", [[], ["_exit"]], ids=["names", "quick-names"])
def test_frames_inside_a_framework_are_one_line(run, program, tmp_path, ends):
    """In text: JSON has them all, and tells which they are."""
    def first_group(conf):
        result = run([program("frameworks"), *ends], conf=f"suppressions_builtin:false,{conf}")
        return leak_report.parse(result.err).groups[0]

    folded = first_group("").frames
    each = first_group("fold:off").frames
    run([program("frameworks"), *ends],
        conf=f"suppressions_builtin:false,leak_report:{tmp_path}/x.json")
    report = json.loads((tmp_path / "x.json").read_text())
    whole = [report["frames"][number]
             for number in report["sections"]["leaked"]["groups"][0]["frames"]]

    inner = "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate_uncached"
    at = folded.index(f"{inner} < at::cuda::getCUDABlasLtWorkspace (frameworks)")
    assert folded[:at] + each[at:at + 2] + folded[at + 1:] == each
    assert [frame["text"] for frame in whole] == each
    assert [number for number, frame in enumerate(whole) if "fold" in frame] == [at, at + 1]


def test_threads_are_named(run, program):
    threads, main = leak_report.parse(leaks(run, program, None, "threads").err).groups

    assert (threads.bytes, threads.count, threads.thread_count) == (7000, 7, 7)
    assert threads.threads == ["loader", "saver", "worker"]
    assert (main.thread_count, main.threads) == (1, ["renamed"])
    assert main.first == main.last < threads.first


def test_groups_of_one_size_come_in_an_order_that_runs_share(run, program):
    """Whatever the addresses were."""
    command, conf = [program("many_stacks"), 64, 64], "leak_max:64,peak:off"
    first, second = (run(command, conf=conf).err.splitlines()[1:] for _ in range(2))

    assert sum(line.startswith("#") for line in first) == 64
    assert first == second


def test_a_forked_child_does_not_report_its_parents_memory(run, program):
    result = run(program("forks"))

    assert result.rc == 0, result.err
    report = leak_report.parse(result.err)  # refuses a second one
    assert (report.bytes, report.count) == (5555, 1)


@pytest.mark.parametrize("conf", EVERYWHERE)
def test_many_leaks_of_one_place_are_one_group(run, program, conf):
    report = leak_report.parse(leaks(run, program, conf, "many", 10000).err)

    assert [(group.bytes, group.count) for group in report.groups] == [(5120000, 10000)]


@pytest.mark.parametrize("conf", EVERYWHERE)
def test_what_a_reset_took_along_is_reported_apart(run, program, conf):
    """multi_ctx leaves 100 buffers to cudaDeviceReset, and nothing to the program's end."""
    report = leak_report.parse(run(program("multi_ctx"), conf, sim="devices:2").err)

    assert (report.bytes, report.count, report.stacks) == (0, 0, 0)
    assert report.groups == []
    assert report.destroyed.bytes == sum(1000 + i * 31457 for i in range(100))
    assert [(group.count, group.device) for group in report.destroyed.groups] == [(100, 0)]
    assert "allocate_on_first" in leak_report.places(report.destroyed.groups[0])


@pytest.mark.skipif(shutil.which("localedef") is None, reason="localedef makes the locale")
def test_the_programs_locale_changes_no_figure(run, program, tmp_path):
    made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", tmp_path / "de_DE.UTF-8"],
                          capture_output=True)
    if made.returncode != 0:
        pytest.skip("localedef has no de_DE")

    result = run(program("localized"), env={"LOCPATH": tmp_path, "LC_ALL": "de_DE.UTF-8"})

    assert result.rc == 0
    assert re.search(r"^PEAK: .*, \d+\.\d{3} s after the start$", result.err, re.MULTILINE)
