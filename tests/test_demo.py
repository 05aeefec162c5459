"""The example of `make demo`: right results, a report that names both bugs, and what README and
docs/reports.md show of it."""

import ast
import json
import re
import shutil
import subprocess
import sys

import pytest

import conftest
import leak_report
import read_formats

EDGES, ROW = (2 * 2048, 2), (1024, 1)  # bytes and buffers forgotten in the two places


@pytest.mark.parametrize("preload", [False, True])
def test_demo_verifies_its_result(run, build, preload):
    result = run(build / "demo" / "tiles", preload=preload)

    assert result.rc == 0, result.err
    assert re.match(r"^tiles: .*, 0 pixels wrong\n$", result.out)


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "backend:off"])
def test_report_names_both_places(run, build, conf):
    report = leak_report.parse(run(build / "demo" / "tiles", conf=conf).err, at_rest=True)

    assert (report.bytes, report.count) == (EDGES[0] + ROW[0], 3)
    by_place = {"load_tile_halo": [0, 0], "update_statistics": [0, 0]}
    for group in report.groups:
        place, = [name for name in leak_report.places(group) if name in by_place]
        assert any(re.search(rf"^{place} at \S*tiles\.c:\d+", frame) for frame in group.frames)
        by_place[place][0] += group.bytes
        by_place[place][1] += group.count
    assert by_place == {"load_tile_halo": list(EDGES), "update_statistics": list(ROW)}


def test_temporaries_come_from_the_pool(run, build):
    result = run(build / "demo" / "tiles", stats=True)

    assert result.rc == 0, result.err
    assert result.sim["calls"]["cuMemAlloc_v2"] < 50  # of more than 250 allocations


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time would have to come first")
@pytest.mark.parametrize("folder", ["plain", "with a blank"])
def test_make_demo_shows_the_library_or_says_why_not(tmp_path, folder):
    """The loader cannot take a path with a blank in it, and goes on without."""
    top = tmp_path / folder
    for room in ("scripts", "tools"):
        shutil.copytree(conftest.ROOT / room, top / room)
    (top / "build/demo").mkdir(parents=True)
    shutil.copytree(conftest.BUILD / "simcuda", top / "build/simcuda", symlinks=True)
    shutil.copy(conftest.SHIM, top / "build")
    shutil.copy(conftest.BUILD / "demo/tiles", top / "build/demo")
    (top / "build/cuda_probe").write_text("#!/bin/sh\nexit 1\n")  # the simulator
    (top / "build/cuda_probe").chmod(0o755)

    rc, out, err = conftest.execute([top / "scripts/demo.sh", "build"], conftest.plain_env(), 60)

    if folder == "plain":
        assert rc == 0 and "0 pixels wrong" in out
        assert "LEAK SUMMARY: 5120 bytes" in err and "host bytes of our own" in err
    else:
        assert rc == 125 and "tiles:" not in out
        assert f"{top}/build/libcachealloc.so: the loader cannot take a path with a blank" in err


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time would have to come first")
def test_the_report_of_the_python_program_is_what_the_page_shows(run, tmp_path):
    script = conftest.ROOT / "tests" / "demo" / "train.py"
    result = run([sys.executable, script], conf=f"python:only,leak_report:{tmp_path}/memory.txt")
    assert (result.rc, result.err) == (0, "")

    now, then = (leak_report.parse(text, at_rest=True) for text in (
        (tmp_path / "memory.txt").read_text(), shown("python", "docs/find-a-leak.md")))
    assert now.said_nothing and then.said_nothing
    assert (now.peak.bytes, now.peak.count, now.peak.totals) == (
        then.peak.bytes, then.peak.count, then.peak.totals)
    for one, other in zip(now.peak.groups, then.peak.groups, strict=True):
        assert (one.bytes, one.count, one.smallest, one.first, one.last) == (
            other.bytes, other.count, other.smallest, other.first, other.last)
        if sys.version_info >= (3, 11):  # before, names have no class
            assert one.frames == other.frames


# --- what the pages show --------------------------------------------------------------------------


def shown(name, page="docs/reports.md"):
    """The sample of that name on a page."""
    text = (conftest.ROOT / page).read_text()
    return re.search(rf"<!-- {name} -->\n```text\n(.*?)```\n<!-- /{name} -->", text, re.DOTALL)[1]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What the example leaves in every format."""
    directory = tmp_path_factory.mktemp("demo")
    result = conftest.runner(directory)(
        conftest.BUILD / "demo" / "tiles",
        conf=f"leak_report:{directory}/leaks,report_format:text+json+pprof+folded+pytorch")
    assert (result.rc, result.err) == (0, "")
    return directory


def from_main(names):
    """What runs before main differs from system to system."""
    return names[names.index("main"):]


def test_the_text_shown_is_the_example_s(reports):
    now, then = (leak_report.parse(text, at_rest=True)
                 for text in ((reports / "leaks").read_text(), shown("report")))

    assert (now.bytes, now.count, now.stacks) == (then.bytes, then.count, then.stacks)
    for one, other in zip(now.groups + now.peak.groups, then.groups + then.peak.groups, strict=True):
        assert (one.bytes, one.count, one.kind) == (other.bytes, other.count, other.kind)
        assert other.frames[0] == one.frames[0]


def test_the_readme_shows_the_leaks_of_that_text():
    leaks, peak, _ = shown("report").partition("PEAK: ")
    assert peak and shown("report", "README.md") == leaks


def test_the_json_shown_is_the_example_s(reports):
    now = json.loads((reports / "leaks.json").read_text())
    lines = shown("json")
    group, frame = (json.loads(part) for part in re.split(r"\n(?=\{)", lines))

    same = now["sections"]["leaked"]["groups"][0]
    assert {**group, "first_ns": 0, "last_ns": 0, "frames": []} == {
        **same, "first_ns": 0, "last_ns": 0, "frames": []}
    assert set(frame) == set(now["frames"][same["frames"][0]])
    for key in ("text", "places"):
        assert frame[key] == now["frames"][same["frames"][0]][key]


def test_the_comparison_shown_is_that_of_the_example_and_one_leak_less(reports):
    """Files and process ids are others'."""
    before, after = reports / "leaks.json", reports / "after"
    mended = json.loads(before.read_text())
    leaked = mended["sections"]["leaked"]
    gone = leaked["groups"].pop(1)
    for key in ("bytes", "count"):
        leaked[key] -= gone[key]
    after.write_text(json.dumps(mended))
    now = subprocess.run([conftest.ROOT / "tools/cachealloc", "report", "--diff", before, after],
                         text=True, capture_output=True, check=True).stdout

    def without_own(text):
        text = re.sub(r"^(  (?:before|after): ).*", r"\1", text, flags=re.MULTILINE)
        return re.sub(r"(< main at .*\n)(    .*\n)+", r"\1", text)  # what calls it is the system's
    assert without_own(now) == without_own(shown("diff"))


def test_the_profile_shown_is_the_example_s(reports):
    profile = read_formats.pprof(reports / "leaks.pprof")

    flat = {}
    for size, _, _, _, _, frames in read_formats.pprof_samples(profile, "inuse_space"):
        name = frames[0][0][0]
        flat[name] = flat.get(name, 0) + size
    then = {name: int(size) << 10 for size, name in re.findall(
        r"^ +(\d+)kB +[\d.]+%.* (\w+)$", shown("pprof"), re.MULTILINE)}
    assert flat == then == {"load_tile_halo": 4096, "update_statistics": 1024}


def test_the_flame_graph_shown_is_the_example_s(reports, tmp_path):
    (tmp_path / "shown.folded").write_text(shown("folded"))
    now, then = (read_formats.folded(path)
                 for path in (reports / "leaks.folded", tmp_path / "shown.folded"))

    assert [(names[0], from_main(names), size) for names, size in now] == [
        (names[0], from_main(names), size) for names, size in then]
    assert read_formats.boxes_of((conftest.ROOT / "tests" / "demo" / "flame.svg").read_text()) == (
        read_formats.flamegraph(tmp_path / "shown.folded"))


def test_the_snapshot_shown_is_the_example_s(reports):
    snapshot = read_formats.pytorch(reports / "leaks.pickle")
    lines = shown("pytorch")
    then = ast.literal_eval(lines.replace(", ...", "]}"))

    block = snapshot["segments"][0]["blocks"][0]
    assert {**block, "frames": block["frames"][:3]} == then
