"""Reports in other formats than text, read by tools that others wrote."""

import re

import pytest

import conftest
import read_formats

# What tests/unit/made_model.h has: (bytes, count, device, kind, threads, frames) by section. A frame
# is the places of one address: (name, file, line), innermost first. Bytes that are not UTF-8, and
# control characters, are told as \xNN.
TIB = 1 << 40
MAIN = [("main", "/src/tiles.c", 187)]
START = [("inner;loop", "/src/a b.h", 7), ("start_tile", "/src/tiles.c", 108)]
ENTRY = [("_start", None, 0)]
ODD = [("new\\x0aline \\xff\u00e9 operator()", "/src/\U0001f600.c", 4000000000)]
NO_NAME = [("libodd.so+0x9999", "/src/lost.c", 3)]
LONG = [("n" * 19999, "/src/long.c", 1)]
PYTHON = [("Block.forward", "/src/fwdbwd.py", 6)]  # without address and module
TILE, TABLE = [ODD, START, PYTHON, MAIN, ENTRY], [[], MAIN, ENTRY]
STRANGE = [[], LONG, NO_NAME]
BARE = {id(TABLE): "libodd.so+0x8888", id(STRANGE): "0xffffffffffff1235"}  # where no place is known
LEAKED = [(TIB, 2, 0, "device", ["main"], TILE),
          (4096, 1, 0, "pinned", ["main", "loader", "w\\xff", "9", "others"], TABLE),
          (300, 3, 2, "device", [], STRANGE),
          (70000, 1, 2, "device", ["main", "loader"], TILE),
          (77, 1, 0, "device", [], [])]
EMPTY = (0, 1, 1, "external", ["main"], TABLE)  # comes after them
NOT_LISTED = (1000, 4)
DESTROYED = [(6400, 100, 1, "managed", ["main"], TABLE)]
PEAK = [(5 * TIB, 10, 0, "device", ["main"], TILE), (5, 1, 1, "device", [], STRANGE)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The directory with that report in every format."""
    path = tmp_path_factory.mktemp("made")
    env = conftest.plain_env()
    rc, out, err = conftest.execute([conftest.BUILD / "tests" / "unit" / "test_formats", path], env,
                                    60 * conftest.SLOWDOWN)
    assert (rc, out, err) == (0, "", "")
    return path


# --- pprof ----------------------------------------------------------------------------------------


def named(name):
    return [[(name, None, 0)]]


def test_pprof_has_every_group_with_its_labels_and_places(made):
    profile = read_formats.pprof(made / "made.pprof")

    leaked = [*LEAKED[:-1], (*LEAKED[-1][:-1], named("(no call stack)")),
              EMPTY, (*NOT_LISTED, -1, None, [], named("(not listed)"))]
    for space, groups in (("inuse", leaked), ("destroyed", DESTROYED), ("peak", PEAK)):
        expected = [(*group[:-1], named(BARE[id(STRANGE)]) + STRANGE[1:])
                    if group[-1] is STRANGE else group for group in groups]
        assert read_formats.pprof_samples(profile, f"{space}_space") == expected
    assert read_formats.pprof_types(profile) == [
        (f"{sort}_{what}", unit) for sort in ("inuse", "destroyed", "peak")
        for what, unit in (("objects", "count"), ("space", "bytes"))]


def test_pprof_tells_mappings_and_addresses(made):
    profile = read_formats.pprof(made / "made.pprof")

    texts = profile.string_table
    assert [(texts[entry.filename], texts[entry.build_id], entry.memory_start, entry.memory_limit)
            for entry in profile.mapping] == [
        ("/opt/tiles", "abcdef01", 0x400000000000, 0x400000003000),
        ("/lib/libodd.so", "", 0x7f1000000000, 0x7f100000b000)]
    tile = profile.sample[0]
    assert [profile.location[number - 1].address for number in tile.location_id] == [
        0x7f1000007777, 0x400000002345, 0, 0x400000001000, 0x400000000f10]
    assert profile.location[tile.location_id[2] - 1].mapping_id == 0
    assert all(entry.has_functions and entry.has_line_numbers for entry in profile.mapping)


def test_pprof_says_when_and_where_it_is_from(made):
    profile = read_formats.pprof(made / "made.pprof")

    texts = profile.string_table
    assert texts[profile.default_sample_type] == "inuse_space"
    assert (profile.time_nanos, profile.duration_nanos) == (1790000000 * 10**9, 10**7)
    assert [texts[number] for number in profile.comment] == [
        "cachealloc 0.1.0", "report at exit", "pid 123", "host node1", "rank 3"]


def test_pprof_itself_reads_it(made):
    out = read_formats.pprof_tool("-sample_index=inuse_objects", "-nodefraction=0", "-top",
                                  made / "made.pprof")

    assert "File: tiles\nBuild ID: abcdef01\n" in out and "Type: inuse_objects\n" in out
    flat = {line.split(None, 5)[5]: int(line.split()[0])
            for line in out.splitlines() if re.match(r" +\d+ +[\d.]+% ", line)}
    assert flat[ODD[0][0]] == 3 and flat["(not listed)"] == 4 and flat["main"] == 0
    assert flat["[libodd.so]"] == 2 and flat[BARE[id(STRANGE)]] == 3
    assert flat["start_tile"] == flat["inner;loop (inline)"] == 0
    assert "13 total" in out


# --- folded stacks --------------------------------------------------------------------------------


def folded_names(first, frames):
    names = [name + " (fwdbwd.py)" * (frame is PYTHON) for frame in frames
             for name, _, _ in frame or [(BARE[id(frames)], None, 0)]]
    return [first, *(name.replace(";", ":") for name in reversed(names))]


def test_folded_has_a_line_for_each_group_that_has_bytes(made):
    stacks = read_formats.folded(made / "made.folded")

    assert stacks == [
        *((folded_names(f"device {device}, {kind} memory", frames) or "", size)
          for size, _, device, kind, _, frames in LEAKED[:-1]),
        (["device 0, device memory", "(no call stack)"], 77),
        (["(not listed)"], 1000),
        (folded_names("device 1, managed memory, context destroyed", TABLE), 6400)]


def boxes(stacks):
    """The flame graph of such lines: neighbours with one name and one way down are one box."""
    wholes = {}
    for names, size in stacks:
        for depth in range(len(names) + 1):
            wholes.setdefault(("all", *names[:depth]), []).append(size)
    found = {}
    for names, sizes in wholes.items():
        found.setdefault(names[-1], []).append(sum(sizes))
    return found


def test_flamegraph_draws_what_folded_says(made):
    drawn = read_formats.flamegraph(made / "made.folded")

    expected = boxes(read_formats.folded(made / "made.folded"))
    assert {name: sorted(filter(None, sizes)) for name, sizes in drawn.items() if any(sizes)} == {
        name: sorted(filter(None, sizes)) for name, sizes in expected.items() if any(sizes)}


# --- PyTorch's snapshot ---------------------------------------------------------------------------

TORCH_TILE = [ODD[0], *START, *PYTHON, *MAIN, ("_start", "/opt/tiles", 0)]
TORCH_TABLE = [("libodd.so+0x8888", "/lib/libodd.so", 0), *MAIN, ("_start", "/opt/tiles", 0)]
TORCH_STRANGE = [("0xffffffffffff1235", "", 0), *LONG, *NO_NAME]


def test_pytorch_has_a_segment_for_each_device_and_kind(made):
    snapshot = read_formats.pytorch(made / "made.pickle")

    segments = [(segment["device"], read_formats.pytorch_frames(segment["frames"])[0][0],
                 [(block["size"], read_formats.pytorch_frames(block["frames"]))
                  for block in segment["blocks"]])
                for segment in snapshot["segments"]]
    assert segments == [
        (0, "device", [(TIB, TORCH_TILE), (77, [("(no call stack)", "", 0)])]),
        (0, "pinned", [(4096, TORCH_TABLE)]),
        (2, "device", [(300, TORCH_STRANGE), (70000, TORCH_TILE)])]


def test_pytorch_traces_are_in_the_order_of_time(made):
    snapshot = read_formats.pytorch(made / "made.pickle")

    start = 1790000000 * 10**6
    assert [[(event["size"], event["time_us"] - start, event["stream"]) for event in trace]
            for trace in snapshot["device_traces"]] == [
        [(77, 4000, 0), (4096, 7000, 0), (TIB, 9000, 0x8000000000000010)], [],
        [(70000, 0, 1), (300, 8000, 0x7f0000001000)]]


def test_pytorch_says_what_it_leaves_out(made):
    snapshot = read_formats.pytorch(made / "made.pickle")

    assert snapshot["cachealloc"] == {
        "version": "0.1.0", "cause": "exit", "pid": 123, "program": "tiles", "host": "node1",
        "rank": "3", "bytes": TIB + 74473 + 1000, "not_listed_bytes": 1000,
        "destroyed_bytes": 6400}
    assert (snapshot["allocator_settings"], snapshot["external_annotations"]) == ({}, [])
