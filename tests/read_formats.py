"""Reads reports in other formats than text: by the formats' own rules, with what others wrote."""

import io
import pathlib
import pickle
import pickletools
import re
import shutil
import subprocess
import xml.etree.ElementTree

import pytest


def pprof(path):
    """The profile in a file, which must have no field that is not pprof's, and no loose end."""
    pytest.importorskip("google.protobuf")
    import profile_proto
    data = path.read_bytes()
    profile = profile_proto.Profile.FromString(data)
    known = profile_proto.Profile.FromString(data)
    known.DiscardUnknownFields()
    assert known == profile and known.ByteSize() == len(data)

    texts = profile.string_table
    assert texts[0] == "" and len(set(texts)) == len(texts)
    for table in (profile.mapping, profile.location, profile.function):
        assert sorted(entry.id for entry in table) == list(range(1, len(table) + 1))
    for location in profile.location:
        assert location.mapping_id <= len(profile.mapping)
        assert all(1 <= line.function_id <= len(profile.function) for line in location.line)
        if location.mapping_id:
            mapping = profile.mapping[location.mapping_id - 1]
            assert mapping.memory_start <= location.address < mapping.memory_limit
    for sample in profile.sample:
        assert len(sample.value) == len(profile.sample_type)
        assert all(1 <= number <= len(profile.location) for number in sample.location_id)
    return profile


def pprof_types(profile):
    return [(profile.string_table[entry.type], profile.string_table[entry.unit])
            for entry in profile.sample_type]


def pprof_places(profile, number):
    """The (name, file, line) of a location."""
    texts, functions = profile.string_table, profile.function
    return [(texts[functions[line.function_id - 1].name],
             texts[functions[line.function_id - 1].filename] or None, line.line)
            for line in profile.location[number - 1].line]


def pprof_samples(profile, space):
    """(bytes, count, device, kind, threads, frames) of what has a value of that sample type."""
    at = [name for name, _ in pprof_types(profile)].index(space)
    samples = []
    for sample in profile.sample:
        labels = {}
        for label in sample.label:
            labels.setdefault(profile.string_table[label.key], []).append(
                profile.string_table[label.str])
        if sample.value[at] or sample.value[at - 1]:
            samples.append((sample.value[at], sample.value[at - 1],
                            int(labels.get("device", [-1])[0]), labels.get("kind", [None])[0],
                            labels.get("thread", []),
                            [pprof_places(profile, number) for number in sample.location_id]))
    return samples


def pprof_tool(*arguments):
    if not shutil.which("go"):
        pytest.skip("pprof itself comes with Go, which is not there")
    done = subprocess.run(["go", "tool", "pprof", *map(str, arguments)], text=True, check=True,
                          capture_output=True)
    return done.stdout


def folded(path):
    """(names, bytes) of each line; what flamegraph.pl and speedscope take a line to be."""
    stacks = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        match = re.fullmatch(r"(.*) (\d+)", line)
        assert match, line
        stacks.append((match[1].split(";"), int(match[2])))
    return stacks


def flamegraph(path):
    """{name: bytes of each box of that name} in the picture that flamegraph.pl draws."""
    places = [shutil.which("flamegraph.pl"), "/usr/share/perl5/Devel/NYTProf/flamegraph.pl",
              "/usr/share/perl5/vendor_perl/Devel/NYTProf/flamegraph.pl"]
    tool = next((place for place in places if place and pathlib.Path(place).exists()), None)
    if not tool:
        pytest.skip("flamegraph.pl is not there")
    done = subprocess.run(["perl", tool, "--minwidth", "0", "--countname", "bytes", str(path)],
                          check=True, capture_output=True)
    assert done.stderr == b""
    return boxes_of(done.stdout)


def boxes_of(picture):
    boxes = {}
    for title in xml.etree.ElementTree.fromstring(picture).iter(
            "{http://www.w3.org/2000/svg}title"):
        if match := re.fullmatch(r"(.*) \(([\d,]+) bytes, [\d.]+%\)", title.text, re.DOTALL):
            boxes.setdefault(match[1], []).append(int(match[2].replace(",", "")))
    return boxes


# What the reader in memory_viz knows: torch/utils/viz/MemoryViz.js.
MEMORY_VIZ = {"PROTO", "STOP", "EMPTY_DICT", "EMPTY_LIST", "APPEND", "SETITEM", "BINUNICODE",
              "BININT", "BININT1", "LONG1", "NEWTRUE", "NEWFALSE", "NONE", "TUPLE2", "LONG_BINPUT",
              "LONG_BINGET"}


class OnlyValues(pickle.Unpickler):
    """Refuses what would run code."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")


def pytorch(path, has_history=False):
    """The snapshot in a file, after checks of what torch and memory_viz take for granted."""
    data = path.read_bytes()
    assert {code.name for code, _, _ in pickletools.genops(data)} <= MEMORY_VIZ
    file = io.BytesIO(data)
    snapshot = OnlyValues(file).load()
    assert file.read() == b""
    ends = 0
    for segment in snapshot["segments"]:
        assert segment["address"] == ends  # one behind the other
        for block in segment["blocks"]:
            assert block["address"] == ends and block["size"] == block["requested_size"] > 0
            assert block["state"] == "active_allocated"
            ends += block["size"]
        total = ends - segment["address"]
        assert all(segment[key] == total for key in ("total_size", "allocated_size", "active_size",
                                                     "requested_size"))
        assert segment["segment_pool_id"] == (0, 0) and segment["is_expandable"] is False
        assert segment["stream"] == 0 and segment["segment_type"] == "large"
        assert segment["device"] < len(snapshot["device_traces"])
    blocks = {block["address"]: (segment["device"], block["size"], block["frames"])
              for segment in snapshot["segments"] for block in segment["blocks"]}
    if not has_history:
        for device, trace in enumerate(snapshot["device_traces"]):
            for event in trace:
                assert event["action"] == "alloc"
                assert blocks.pop(event["addr"]) == (device, event["size"], event["frames"])
        assert blocks == {}
    for segment in snapshot["segments"]:
        for frame in (frame for block in [segment, *segment["blocks"]] for frame in block["frames"]):
            assert [type(frame[key]) for key in ("name", "filename", "line")] == [str, str, int]
    return snapshot


def pytorch_frames(frames):
    return [(frame["name"], frame["filename"], frame["line"]) for frame in frames]
