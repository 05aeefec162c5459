"""Leaking programs of many sorts, each with the report that it must give and no other: tests/leaks.
How a program says what it expects is told in leak_corpus.py."""

import json
import shutil
import sys
import types

import pytest

import conftest
import leak_corpus
import leak_report

SOURCES = sorted(path for path in leak_corpus.FOLDER.iterdir()
                 if path.suffix in (".c", ".cc", ".py") and not path.stem.endswith("_library"))
PROGRAMS = [leak_corpus.Program(source, row) for source in SOURCES
            for row in leak_corpus.Program(source).rows()]
# A sanitizer's own build is one more way to be built, and the one that is looked at there.
ROWS = [program for program in PROGRAMS if not (conftest.SANITIZER and program.is_build)]


def parameter(program):
    reason = program.value("plain")
    skip = pytest.mark.skipif(bool(reason and conftest.SANITIZER), reason=reason)
    return pytest.param(program, marks=skip, id="-".join(filter(None, [program.name, program.row])))


def command(program):
    built = conftest.BUILD / "tests" / "leaks"
    binary = built / program.file_name()
    start = [sys.executable, program.source] if program.source.suffix == ".py" else [binary]
    words = [word.replace("%B", str(built)).replace("%S", str(conftest.BUILD / "simcuda"))
             for word in program.words("arguments")]
    return binary, start + words


def text_sections(text):
    """The groups of a text report and their frames, by section."""
    report = leak_report.parse(text)
    sections = {"leaked": report}
    for name in leak_corpus.SECTIONS:
        if getattr(report, name):
            sections[name] = getattr(report, name)
    for section in sections.values():
        section.stacked = [(group, [leak_corpus.text_places(frame) for frame in group.frames
                                    if frame != "(no call stack)"]) for group in section.groups]
    return sections


def json_sections(report):
    """The same of a JSON report."""
    sections = {}
    for name, section in report["sections"].items():
        groups = [types.SimpleNamespace(**group) for group in section["groups"]]
        omitted = {option: (left["groups"], left["bytes"])
                   for option, left in section["omitted"].items() if left["groups"]}
        assert not section["incomplete"]
        sections[name] = types.SimpleNamespace(
            bytes=section["bytes"], count=section["count"], omitted=omitted,
            stacked=[(group, [leak_corpus.json_places(report["frames"][number])
                              for number in group.frames]) for group in groups])
    return sections


def check_sections(program, binary, expected, sections):
    """All that was expected, and nothing else."""
    omitted = program.omitted()
    assert set(sections) == set(expected)
    for name, groups in expected.items():
        section = sections[name]
        left = omitted if name == "leaked" else {}
        assert section.omitted == left
        assert len(section.stacked) == len(groups)
        for wanted, (group, frames) in zip(groups, section.stacked):
            leak_corpus.check_group(program, binary, wanted, group, frames)
            # The text says nothing of streams.
            assert bool(getattr(group, "stream", wanted.has_stream)) == wanted.has_stream
        assert section.bytes == sum(group.bytes for group in groups) + sum(
            bytes_ for _, bytes_ in left.values())


def same_stacks(text, parsed):
    """Both were written of one process: every line is the same, but for what the text cuts."""
    lines = [line.strip() for line in text.splitlines()
             if line.startswith("    ") and line.strip() != "(no call stack)"]
    wanted = [place for section in parsed["sections"].values() for group in section["groups"]
              for number in group["frames"]
              for place in parsed["frames"][number]["text"].split(" < ")]
    assert len(lines) == len(wanted)
    for line, place in zip(lines, wanted):
        assert leak_corpus.is_function(line, place)


@pytest.mark.parametrize("program", map(parameter, ROWS))
def test_the_report_is_as_the_program_expects(run, tmp_path, program):
    binary, words = command(program)
    conf = f"leak_report:{tmp_path}/leaks-%p,report_format:text+json"

    result = run(words, conf=f"{conf},{program.configuration()}", sim=program.value("sim") or None)

    assert (result.rc, result.err) == (program.status(), "")
    assert result.out.strip() == program.value("prints")
    expected = program.reports()
    # Which process is which is told by what it leaked: each has its own figure.
    by_bytes = {sum(group.bytes for group in sections["leaked"]): sections
                for sections in expected.values()}
    texts = [path for path in sorted(tmp_path.glob("leaks-*")) if not path.suffix
             and (0 in by_bytes or not leak_report.parse(path.read_text()).said_nothing)]
    assert len(texts) == len(expected)
    assert len(by_bytes) == len(expected)
    for path in texts:
        text = path.read_text()
        parsed = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        omitted = sum(bytes_ for _, bytes_ in program.omitted().values())
        leaked = parsed["sections"]["leaked"]["bytes"] - omitted
        assert leaked in by_bytes, text
        sections = by_bytes.pop(leaked)
        check_sections(program, binary, sections, text_sections(text))
        check_sections(program, binary, sections, json_sections(parsed))
        same_stacks(text, parsed)


def test_every_program_of_the_corpus_is_run():
    """A line that is not understood would be an expectation that nobody looks at."""
    assert len(SOURCES) >= 25
    for program in PROGRAMS:
        assert program.reports() or ("", "nothing") in program.all("expect")
        rows = {entry[2] for entry in program.values} - {None}
        assert rows <= set(program.rows()), f"{program.source.name}: {rows}"


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its own build is the one that is there")
def test_a_debug_file_of_another_build_is_refused(run, tmp_path):
    built = conftest.BUILD / "tests" / "leaks"
    program = tmp_path / "nested.debuglink"
    shutil.copy(built / program.name, program)
    debug_file = tmp_path / f"{program.name}.debug"

    for other, named in (("nested.g1", False), (f".debug/{program.name}.debug", True)):
        shutil.copy(built / other, debug_file)
        group, = leak_report.parse(run(program).err).groups
        assert group.frames[0].startswith("forget at nested.c:" if named else f"{program.name}+0x")
