"""Where /proc and modules' files cannot be read a frame is module and offset, and it is said why."""

import json
import re
import subprocess

import pytest

import conftest
import leak_report

PLACE = re.compile(r"(?:\w+ \()?[\w.+-]+\+0x[0-9a-f]+\)?$")
SAID = re.compile(r"^\((?:functions|functions and lines) are missing where files cannot be read: "
                  r"(.*): (.*)\)$", re.MULTILINE)


@pytest.fixture
def leak(run, program, tmp_path):
    """leak(how, conf) runs the program; its root folder may be tmp_path / "root"."""
    def run_it(how, conf):
        (tmp_path / "root").mkdir(exist_ok=True)
        result = run([program("unreadable"), how, tmp_path / "root"], conf=conf)
        if result.rc == 77:
            pytest.skip("not allowed here")
        assert result.rc == 0, (result.rc, result.err)
        return result

    return run_it


@pytest.mark.parametrize("how, reason", [("descriptors", "no descriptor is left"),
                                         ("root", "no such file")])
def test_a_report_has_module_and_offset_and_says_why(leak, program, how, reason):
    result = leak(how, "oom_report:60s")

    group, = leak_report.parse(result.err).groups
    frames = [line.strip() for line in result.err.splitlines() if line.startswith("    ")]
    assert [frame for frame in frames if not PLACE.match(frame)] == []
    assert group.frames[0].startswith("unreadable+0x")
    said = SAID.findall(result.err)
    assert len(said) == 2 and {why for _, why in said} == {reason}  # out of memory, and at exit


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time changes the frames")
def test_the_offset_is_what_addr2line_takes(leak, program):
    group, = leak_report.parse(leak("root", "leak_report:stderr").err).groups

    offset = group.frames[0].partition("+")[2]
    said = subprocess.run(["addr2line", "-f", "-e", program("unreadable"), offset], text=True,
                          check=True, capture_output=True)
    name, place = said.stdout.split()
    assert name == "leaks" and "unreadable.c" in place


def test_so_it_is_in_json(leak, tmp_path):
    leak("root", "leak_report:/report.json")

    report = json.loads((tmp_path / "root" / "report.json").read_text())
    assert report["names_missing"].endswith(": no such file")
    frames = report["frames"]
    assert frames and all(frame["module"] and int(frame["offset"], 16) for frame in frames)
    assert any("unreadable" in frame["module"] for frame in frames)


def test_where_all_can_be_read_nothing_is_said(run, program):
    result = run(program("leaks"))

    assert "missing" not in result.err
