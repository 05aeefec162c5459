"""Recorded traces run to their end, and from few segments; what is malformed is told by line."""

import gzip
import os
import pathlib
import random
import re

import pytest

import conftest

HEADER = "op,id,size,stream,t"
FIGURES = re.compile(
    r"^(?P<file>.*): pass (?P<number>\d+): (?P<count>\d+) allocations, "
    r"peak live (?P<live>\d+) bytes"
    r"(?:, peak upstream (?P<upstream>\d+) bytes, upstream calls (?P<calls>\d+), hits (?P<hits>\d+)"
    r"|, no shim), (?P<ns>\d+) ns per operation$")


def small_trace():
    """Rows of a seeded trace, how many allocations it has, and its peak live bytes."""
    rng = random.Random(1)
    rows, live, count, peak = [], {}, 0, 0
    for i in range(2000):
        if live and rng.random() < 0.45:
            name = rng.choice(sorted(live))
            rows.append(f"f,{name},0,0,{i}")
            del live[name]
        else:
            name = 7 * i
            live[name] = 512 * rng.randint(1, 2000)
            rows.append(f"a,{name},{live[name]},0,{i}")
            count += 1
            peak = max(peak, sum(live.values()))
    return rows, count, peak


def text_of(rows):
    return "\n".join([HEADER, *rows]) + "\n"


def figures(result):
    assert result.rc == 0, result.err
    assert result.err == ""
    return [FIGURES.match(line).groupdict() for line in result.out.splitlines()]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("preload", [False, True])
def test_small_trace(run, build, tmp_path, packed, preload):
    rows, count, peak = small_trace()
    path = tmp_path / ("trace.csv.gz" if packed else "trace.csv")
    path.write_bytes(gzip.compress(text_of(rows).encode()) if packed else text_of(rows).encode())

    passes = figures(run([build / "replay", "--passes", 3, path], sim="memory:24G",
                         preload=preload))

    assert [int(one["number"]) for one in passes] == [1, 2, 3]
    for one in passes:
        assert (int(one["count"]), int(one["live"])) == (count, peak)
        assert (one["upstream"] is not None) == preload
    if preload:
        assert int(passes[0]["upstream"]) >= peak
        assert int(passes[0]["hits"]) > count // 2


def test_several_files(run, build, tmp_path):
    paths = [tmp_path / name for name in ("one.csv", "two.csv")]
    for path in paths:
        path.write_text(text_of(["a,1,1000,0,0", "f,1,0,0,1", "a,1,2000,0,2"]))

    assert [one["file"] for one in figures(run([build / "replay", *paths]))] == [
        str(path) for path in paths]


@pytest.mark.parametrize("rows, line, what", [
    (["a,1,512,0,0", "x,1,0,0,0"], 3, "neither `a` nor `f`"),
    (["a,one,512,0,0"], 2, "id is not a number"),
    (["a,-1,512,0,0"], 2, "id is not a number"),
    (["a,1,,0,0"], 2, "size is not a number"),
    (["a,1,99999999999999999999999,0,0"], 2, "size is not a number"),
    (["a,1,0,0,0"], 2, "allocation of 0 bytes"),
    (["a,1,512,0"], 2, "stream and time"),
    (["a,1,512,0,0,0"], 2, "stream and time"),
    (["a,1,512,0,0", "a,1,512,0,0"], 3, "live already"),
    (["f,1,0,0,0"], 2, "not live"),
    (["a,1,512,0,0", "f,1,0,0,0", "f,1,0,0,0"], 4, "not live"),
    (["", "a,1,512,0,0"], 2, "neither `a` nor `f`"),
    (["a,1,512,0," + "0" * 400], 2, "too long"),
])
def test_malformed_lines_are_named(run, build, tmp_path, rows, line, what):
    path = tmp_path / "bad.csv"
    path.write_text(text_of(rows))

    result = run([build / "replay", path])

    assert result.rc == 1
    assert f"bad.csv:{line}: " in result.err and what in result.err
    assert result.out == ""


@pytest.mark.parametrize("content", [
    pytest.param(b"", id="empty"), pytest.param(b"id,op,size\n", id="another header"),
    pytest.param(gzip.compress(HEADER.encode())[:-9], id="gzip cut short")])
def test_files_that_are_no_traces(run, build, tmp_path, content):
    path = tmp_path / "bad.csv.gz"
    path.write_bytes(content)

    result = run([build / "replay", path])

    assert result.rc == 1
    assert "bad.csv.gz:" in result.err


def test_a_missing_file_is_named(run, build, tmp_path):
    result = run([build / "replay", tmp_path / "none.csv"])

    assert result.rc == 1
    assert "none.csv" in result.err


def test_more_than_the_device_has_is_told_by_line(run, build, tmp_path):
    path = tmp_path / "big.csv"
    path.write_text(text_of(["a,1,512,0,0", "a,2,1000000000,0,0"]))

    result = run([build / "replay", path], sim="memory:256M")

    assert result.rc == 1
    assert "big.csv:3: cudaMalloc" in result.err


def recorded():
    """Under make check the traces are there only where the caller names their directory."""
    return sorted(pathlib.Path(os.environ.get("TRACES", "/nonexistent")).glob("*.csv.gz"))


@pytest.mark.skipif(not recorded(), reason="TRACES names no directory with recorded traces")
@pytest.mark.parametrize("path", recorded(), ids=lambda path: path.name)
def test_recorded_trace(run, build, path):
    result = run([build / "replay", path], sim="memory:24G", timeout=120, stats=True)

    one, = figures(result)
    assert int(one["upstream"]) >= int(one["live"])
    if path.name == "torch_medium_ctx1024_training.csv.gz":
        assert int(one["count"]) == 8255
        assert int(one["calls"]) <= 400
        calls = result.sim["calls"]
        assert calls["cuMemAlloc_v2"] + calls.get("cuMemFree_v2", 0) <= 400
