"""Out of memory: what is said before the program is told, and what it may do about it itself."""

import re
import sys
import types

import pytest

import conftest
import leak_report
from leak_report import DETAILS, TOTAL


LANES = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane"),
         pytest.param("backend:off", id="tracking")]
SIM = "memory:64M"
MIB = 1 << 20
HEAD = re.compile(r"^cachealloc\[(\d+)\]: warning: out of memory: (\d+) bytes, device (\d+), "
                  r"(\w+) memory$")
POOL = re.compile(r"^pool: (\d+) bytes reserved: (\d+) live, (\d+) pending, (\d+) cached in blocks "
                  r"of up to (\d+) \((\d+)% fragmented\), (\d+) kept for other processes$")
GROUP = re.compile(r"^#(\d+): (\d+) bytes in (\d+) allocations, device (\d+), (\w+) memory$")
HELD = re.compile(r"^HELD: (\d+) bytes in (\d+) allocations, (\d+) stacks$")


def joined(*items):
    return ",".join(item for item in items if item)


def oom(run, program, way, conf=None, sim=SIM, report="60s", **kwargs):
    return run([program("oom"), way], sim=sim,
               conf=joined("leak_report:off", f"oom_report:{report}", conf), **kwargs)


def parse(text):
    """The reports in `text`, which has nothing else."""
    reports, frames = [], None
    for line in text.splitlines():
        if match := HEAD.match(line):
            frames = []
            reports.append(types.SimpleNamespace(bytes=int(match[2]), device=int(match[3]),
                                                 kind=match[4], frames=frames, groups=[], hints=[],
                                                 lines={}))
        elif match := GROUP.match(line):
            frames = []
            reports[-1].groups.append(types.SimpleNamespace(
                bytes=int(match[2]), count=int(match[3]), kind=match[5], frames=frames))
        elif match := HELD.match(line):
            reports[-1].held = tuple(map(int, match.groups()))
        elif TOTAL.match(line):
            assert reports[-1].held
        elif DETAILS.match(line) and reports[-1].groups and not frames:
            reports[-1].groups[-1].details = line.strip()
        elif line.startswith("    "):
            frames.append(re.split(r"[ +(]", line.strip())[0])
        elif line.startswith("hint: "):
            reports[-1].hints.append(line[6:])
        elif match := POOL.match(line):
            names = ("reserved", "live", "pending", "cached", "largest", "fragmented", "kept")
            reports[-1].pool = dict(zip(names, map(int, match.groups())))
        else:
            name, separator, rest = line.partition(": ")
            assert separator or leak_report.ELSEWHERE.match(line), line
            reports[-1].lines[name] = rest
    return reports


def held(report):
    """Bytes, allocations and functions; the compiler may make two calls of one."""
    return (sum(group.bytes for group in report.groups), sum(group.count for group in report.groups),
            {group.frames[0] for group in report.groups})


def hint_of(report, word):
    return [hint for hint in report.hints if word in hint]


# --- the report -----------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", LANES)
def test_what_was_asked_what_there_is_and_who_holds_it(run, program, conf):
    result = oom(run, program, "device", conf)

    assert (result.rc, result.out) == (0, "answer 2, called 0\n")
    report, = parse(result.err)
    assert (report.bytes, report.device, report.kind) == (50 * MIB, 0, "device")
    assert report.frames[:3] == ["ask_device", "ask", "main"]
    assert held(report) == (40 * MIB, 2, {"hold"})
    assert report.held == (40 * MIB, 2, 1)
    assert report.groups[0].details == "sequence 1 to 2, thread oom"
    free, total = map(int, re.fullmatch(r"(\d+) bytes free of (\d+)",
                                        report.lines["driver"]).groups())
    assert total == 64 * MIB
    pooled = 0 if conf == "backend:off" else 40 * MIB
    assert report.pool["live"] == report.pool["reserved"] == pooled
    assert free + 40 * MIB == total
    assert report.lines.get("not pooled") == (None if pooled else f"{40 * MIB} bytes")
    assert "others" not in report.lines


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("way, kind", [("async", "async"), ("pitched", "pitched"),
                                       ("pinned", "pinned"), ("managed", "managed"),
                                       ("array", "array")])
def test_every_way_to_ask_is_reported(run, program, way, kind, conf):
    result = oom(run, program, way, conf, sim="memory:64M,host_memory:40M")

    assert (result.rc, result.out) == (0, "answer 2, called 0\n")
    report, = parse(result.err)
    assert (report.bytes, report.kind) == (50 * MIB, kind)
    called = report.frames.index("ask")
    assert report.frames[called + 1] == "main"  # the runtime's own may come before
    assert held(report) == ((0, 0, set()) if kind == "pinned" else (40 * MIB, 2, {"hold"}))
    assert bool(hint_of(report, "ulimit -l")) == (kind == "pinned")


@pytest.mark.parametrize("conf", [*LANES, "stream_ordered:driver"])
@pytest.mark.parametrize("way", ["async", "pool", "vmm"])
def test_the_device_is_that_of_the_memory(run, program, way, conf):
    """Another one is current."""
    result = run([program("both_elsewhere"), way], sim=f"{SIM},devices:2",
                 conf=joined("oom_report:60s", conf))

    assert (result.rc, result.out) == (0, "device 1\n"), result.err
    report, = parse(result.err)
    assert (report.bytes, report.device, report.kind) == (50 * MIB, 1, way.replace("pool", "async"))
    assert held(report) == (40 * MIB, 1, {"main"})
    assert report.lines["driver"] == f"{24 * MIB} bytes free of {64 * MIB}"


PYTHON = """import ctypes
runtime = ctypes.CDLL("libcudart.so.13")

def cuda_malloc(mib):
    return runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(mib << 20))

def keep():
    assert cuda_malloc(40) == 0

def ask():
    print("answer", cuda_malloc(50))

keep()
ask()
"""


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time would have to come first")
def test_the_lines_of_python_are_named(run, tmp_path):
    (tmp_path / "hungry.py").write_text(PYTHON)
    result = run([sys.executable, tmp_path / "hungry.py"], sim=SIM,
                 conf="leak_report:off,oom_report:60s,python:only")

    assert (result.rc, result.out) == (0, "answer 2\n")
    asked, held = (re.findall(r"^    (\S+ at hungry\.py:\d+)$", text, re.MULTILINE)
                   for text in result.err.split("HELD: "))
    assert asked == ["cuda_malloc at hungry.py:5", "ask at hungry.py:11", "<module> at hungry.py:14"]
    assert held == ["cuda_malloc at hungry.py:5", "keep at hungry.py:8", "<module> at hungry.py:13"]


@pytest.mark.parametrize("conf", LANES)
def test_it_fits_on_a_small_stack(run, program, conf):
    result = oom(run, program, "small", conf)

    assert (result.rc, result.out) == (0, "answer 2, called 0\n")
    assert parse(result.err)[0].frames[:3] == ["ask_device", "ask", "ask_there"]


def test_memory_in_pieces_is_told(run, program):
    report, = parse(oom(run, program, "pieces").err)

    assert report.pool["cached"] >= 20 * MIB > report.pool["largest"]
    assert report.pool["fragmented"] == int(100 - report.pool["largest"] / report.pool["cached"] * 100)
    assert not hint_of(report, "in pieces")  # no option keeps blocks of one size apart


@pytest.mark.parametrize("kept, working, helps", [
    (1100, 9216, "x_small:2048K"), (1300, 9000, "x_small:2048K"), (1200, 7000, "x_small:2048K")])
def test_the_option_that_it_names_helps(run, program, kept, working, helps):
    """And is no larger than it need be; without it the same program is out of memory."""
    arguments, conf = ["loader", kept, working], "leak_report:off,oom_report:60s"
    result = run([program("oom"), *arguments], sim="memory:1G", conf=conf)
    report, = parse(result.err)

    assert "answer 2" in result.out
    assert hint_of(report, f"`{helps}` gives those segments of their own")
    assert "answer 0" in run([program("oom"), *arguments], sim="memory:1G",
                             conf=f"{conf},{helps}").out


@pytest.mark.parametrize("kept, working, tenths, helps", [(1300, 9000, 7, True),
                                                          (1100, 9216, 9, False)])
def test_pages_are_named_where_they_are_enough(run, program, kept, working, tenths, helps):
    """Blocks that have whole pages take more: what filled the device did not fit in pages."""
    arguments, conf = ["loader", kept, working, tenths], "leak_report:off,oom_report:60s"
    report, = parse(run([program("oom"), *arguments], sim="memory:1G", conf=conf).err)
    with_it = run([program("oom"), *arguments], sim="memory:1G",
                  conf=f"{conf},expandable_segments:true")

    assert bool(hint_of(report, "`expandable_segments:true` makes one of their pages")) == helps
    assert ("answer 0" in with_it.out) == helps


@pytest.mark.parametrize("kept, working", [(512, 9216), (300, 5000), (1000, 9000)])
def test_up_to_1_mib_none_is_needed(run, program, kept, working):
    """Once the pool has an eighth of the device such blocks lie in segments of their own."""
    assert "answer 0" in run([program("oom"), "loader", kept, working], sim="memory:1G").out


@pytest.mark.parametrize("limit", ["45M", "45/256"])
def test_a_limit_in_the_way_is_told(run, program, limit):
    report, = parse(oom(run, program, "device", f"limit:{limit}", sim="memory:256M").err)

    assert report.lines["limit"] == f"{45 * MIB} bytes in each context"
    hint, = hint_of(report, "`limit` is in the way: the device itself has room")
    helps, = re.findall(r"`(limit:\d+M)`", hint)
    assert helps == "limit:90M"
    assert oom(run, program, "device", helps, sim="memory:256M").out == "answer 0, called 0\n"
    assert not hint_of(parse(oom(run, program, "device").err)[0], "limit")


def test_where_the_device_has_no_room_either_no_limit_is_named(run, program):
    report, = parse(oom(run, program, "device", "limit:45M").err)

    assert hint_of(report, "`limit` is in the way, and the device has less than that free")


def test_what_is_rounding_is_told(run, program):
    report, = parse(oom(run, program, "device", "roundup:1", sim="memory:112M").err)

    assert hint_of(report, f"{24 * MIB} bytes of what lives are rounding: `roundup:0` asks")
    assert oom(run, program, "device", "roundup:0", sim="memory:112M").out == "answer 0, called 0\n"
    assert not hint_of(parse(oom(run, program, "device").err)[0], "rounding")


def test_more_than_the_device_has_is_told(run, program):
    report, = parse(oom(run, program, "huge").err)

    assert hint_of(report, "less than that in all")


def test_memory_of_other_processes_is_told(run, program, tmp_path):
    """Of the parent, which waits for its child: that sees it as neither its own nor free."""
    result = oom(run, program, "others", sim=f"memory:96M,shared:{tmp_path}/device")

    assert (result.rc, result.out) == (0, "answer 2, called 0\n")
    report, = parse(result.err)
    assert report.lines["others"].startswith(f"{40 * MIB} bytes held by other processes")
    assert hint_of(report, "nvidia-smi")


@pytest.mark.parametrize("conf", LANES)
def test_memory_of_graphs_is_told_and_is_none_of_other_processes(run, program, conf):
    result = oom(run, program, "graphs", conf)

    assert (result.rc, result.out) == (0, "answer 2, called 0\n")
    report, = parse(result.err)
    assert report.lines["graphs"] == f"{40 * MIB} bytes held by CUDA graphs of this process"
    assert "others" not in report.lines and not hint_of(report, "nvidia-smi")


def test_where_the_driver_does_not_tell_of_graphs_they_are_among_the_others(run, program):
    report, = parse(oom(run, program, "graphs", sim=f"{SIM},fail:cuDeviceGetGraphMemAttribute@1").err)

    assert "graphs" not in report.lines
    assert report.lines["others"].startswith(f"{40 * MIB} bytes held by other processes and by the ")


def test_memory_in_flight_is_told(run, program):
    report, = parse(oom(run, program, "refuses").err)

    assert report.pool["pending"] > 0 or report.pool["cached"] > 0
    assert bool(hint_of(report, "synchronisation")) == (report.pool["pending"] > 0)


# --- how often ------------------------------------------------------------------------------------


@pytest.mark.parametrize("report, times", [("60s", 1), ("0ns", 2), ("off", 0)])
def test_it_is_said_as_often_as_asked(run, program, report, times):
    result = oom(run, program, "twice", report=report)

    assert (result.rc, result.out) == (0, "answer 2, called 0\n")
    assert len(parse(result.err)) == times


def test_it_is_on_by_default(run, program):
    result = run([program("oom"), "twice"], sim=SIM, env={"ALLOC_CONF": "leak_report:off"})

    assert len(parse(result.err)) == 1


@pytest.mark.parametrize("level, times", [("warn", 1), ("error", 0), ("off", 0)])
def test_it_is_a_warning(run, program, level, times):
    assert len(parse(oom(run, program, "device", f"log:{level}").err)) == times


@pytest.mark.parametrize("conf", LANES)
def test_codes_are_the_same_without_it(run, program, conf):
    quiet = oom(run, program, "device", conf, report="off")

    assert (quiet.rc, quiet.out, quiet.err) == (0, "answer 2, called 0\n", "")


# --- a function of the program's own --------------------------------------------------------------


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("way, pinned", [("frees", 0), ("async-frees", 0), ("pinned-frees", 1)])
def test_what_it_frees_serves_the_call(run, program, way, pinned, conf):
    result = oom(run, program, way, conf, sim="memory:64M,host_memory:64M")

    assert (result.rc, result.out) == (0, f"answer 0, called 1 with {50 * MIB}, {pinned}\n")
    assert result.err == ""  # nobody ran out of memory


@pytest.mark.parametrize("conf", LANES)
def test_the_call_is_tried_once_more_and_no_oftener(run, program, conf):
    result = oom(run, program, "keeps", conf)

    assert (result.rc, result.out) == (0, f"answer 2, called 1 with {50 * MIB}, 0\n")
    assert len(parse(result.err)) == 1


@pytest.mark.parametrize("way", ["refuses", "recursive"])
def test_it_may_refuse_and_is_not_called_inside_itself(run, program, way):
    result = oom(run, program, way)

    assert (result.rc, result.out) == (0, f"answer 2, called 1 with {50 * MIB}, 0\n")
    report, = parse(result.err)
    assert report.bytes == 50 * MIB  # of the call that the program made
    assert report.frames[:3] == ["ask_device", "ask", "main"]


def test_one_that_was_removed_is_not_called(run, program):
    assert oom(run, program, "removed").out == "answer 2, called 0\n"


@pytest.mark.parametrize("conf", LANES)
def test_the_memory_that_it_made_room_for_has_the_stack_of_the_call(run, program, conf):
    result = run([program("oom"), "frees"], sim=SIM, conf=joined("oom_report:60s", conf))

    assert "LEAK SUMMARY: 52428800 bytes in 1 allocations" in result.err
    assert re.search(r"device memory\n  .*\n    ask_device at oom.c:\d+\n    ask at oom.c", result.err)


# --- room for all -----------------------------------------------------------------------------------

@pytest.mark.parametrize("how", ["pool", "array", "malloc"])
def test_threads_that_run_out_together_all_get_what_the_first_gives_back(run, program, how):
    """Giving back takes its time: what one thread gives the others find neither idle nor free."""
    result = run([program("room_race"), how], conf="max_split:8M,headroom:0",
                 sim="memory:256M,latency:cuMemFreeAsync=3000000,latency:cuMemFree_v2=3000000")

    assert result.rc == 0, result.err
