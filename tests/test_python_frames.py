"""Python frames in call stacks, for each CPython from 3.8 on that is found here: the default tier
runs the one that runs the tests, the others are variants of it."""

import gzip
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import conftest
import interpreters

FOLDER = conftest.BUILD / "pyframes"
SOURCE = conftest.ROOT / "tests" / "pyframes"
CHECKS, LEAKS = SOURCE / "checks.py", SOURCE / "leaks.py"
LIBRARY, DEBUG = FOLDER / "frames.so", FOLDER / "debug.so"
ALL = ("forms", "long_lines", "alternating", "same_lines", "renamed", "refiled", "relined", "twins",
       "outer", "threads", "no_state", "in_turns", "forked")

pytestmark = pytest.mark.skipif(conftest.SANITIZER is not None or conftest.FAULT is not None,
                                reason="frames of interpreters, which have no sanitizer")


INTERPRETERS = interpreters.found()
# Instructions, by whether codes have versions. To be lowered, never raised.
CEILINGS = {True: 1250, False: 1500}
each_interpreter = pytest.mark.parametrize("interpreter", INTERPRETERS)


def counted():
    """One for each ceiling, since valgrind is slow; all of them in tier night."""
    by_ceiling = {interpreters.version_of(one) >= (3, 12): one for one in reversed(INTERPRETERS)}
    return INTERPRETERS if conftest.TIER == "night" else sorted(by_ceiling.values())


def checks(interpreter, *names, library=LIBRARY, mutation=None, env=None):
    """(what it printed, how many were wrong, of how many)"""
    more = {**({"CA_MUTATION": mutation} if mutation else {}), **(env or {})}
    rc, out, err = conftest.execute([interpreter, CHECKS, library, *names],
                                    conftest.plain_env(more), 120)
    found = re.search(r"^(\d+) wrong of (\d+) checks", out, re.M)
    assert rc == 0 and found, f"exit status {rc}\n{out[-2000:]}\n{err[-2000:]}"
    return out, int(found[1]), int(found[2])


def test_an_interpreter_is_found():
    assert INTERPRETERS


@each_interpreter
def test_frames_are_what_the_interpreter_says(interpreter):
    out, wrong, of = checks(interpreter, *ALL)

    assert wrong == 0, out
    assert of > 1400
    assert "wrong at exit" not in out


@each_interpreter
def test_a_layout_that_is_wrong_gives_no_wrong_name(interpreter):
    out, wrong, of = checks(interpreter, "shifted", "versions", "dead_codes")

    assert wrong == 0, out
    assert of > 400


@each_interpreter
def test_an_interpreter_that_ends_has_no_frames(interpreter):
    out, wrong, _ = checks(interpreter, "ending")

    assert wrong == 0, out
    assert re.findall(r"at the end: (\d+)", out) == ["0"]


@each_interpreter
def test_without_native_frames_they_are_the_same(interpreter):
    off, only = {"CHOICE": "2"}, {"CHOICE": "1"}

    assert checks(interpreter, "outer", env=off)[1] > 0
    assert checks(interpreter, "outer", env=only)[1] == 0


@pytest.mark.parametrize("interpreter", counted())
@pytest.mark.skipif(conftest.BUILD.name != "build", reason="the release build's are counted")
def test_a_stack_of_16_frames_that_is_known_takes_few_instructions(interpreter, tmp_path):
    """Its native part too, of which there are some 200. Without versions the paths of files are compared
    whole: here by one that has the same length in each clone."""
    profile = tmp_path / "profile"
    rc, _, err = conftest.execute(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", interpreter,
         f"/proc/self/cwd/{CHECKS.name}", LIBRARY, "repeat"], conftest.plain_env(), 120,
        cwd=CHECKS.parent)
    assert rc == 0, err

    taken = instructions_of(profile, str(LIBRARY.resolve())) / 5000
    print(f"{taken:.0f}")
    assert 400 < taken <= CEILINGS[interpreters.version_of(interpreter) >= (3, 12)]


def instructions_of(profile, library):
    """Those that the library's own code took."""
    names, now, total = {}, None, 0
    lines = iter(profile.read_text().splitlines())
    for line in lines:
        if line.startswith("ob="):
            number, _, name = line[3:].partition(" ")
            now = names.setdefault(number, name)
        elif line.startswith("cob="):
            number, _, name = line[4:].partition(" ")
            names.setdefault(number, name)
        elif line.startswith("calls="):
            next(lines)
        elif now == library and re.match("[0-9+*-]", line):
            total += int(line.split()[-1])
    return total


# --- deliberate faults ----------------------------------------------------------------------------


@pytest.mark.parametrize("fault, names", [
    ("none", ("alternating", "outer", "shifted")), ("python_code_unchecked", ("alternating",)),
    ("python_outer_unread", ("outer",)), ("python_unproven", ("shifted",))])
def test_a_check_that_is_left_out_is_noticed(fault, names):
    if not DEBUG.exists():
        pytest.skip("deliberate faults need a debug build")

    out, wrong, _ = checks(INTERPRETERS[0], *names, library=DEBUG, mutation=fault)

    assert (wrong == 0) == (fault == "none"), out


def test_an_end_that_is_not_seen_is_noticed():
    if not DEBUG.exists():
        pytest.skip("deliberate faults need a debug build")

    # Where the threads that capture on are first, the interpreter is given up before the end.
    assert any(re.findall(r"at the end: (\d+)", checks(
        INTERPRETERS[0], "ending", library=DEBUG, mutation="python_end_unseen")[0]) != ["0"]
        for _ in range(5))


def test_the_size_of_an_instruction_of_3_10_is_noticed():
    there = [one for one in INTERPRETERS if interpreters.version_of(one) == (3, 10)]
    if not there or not DEBUG.exists():
        pytest.skip("no CPython 3.10, or no debug build")

    assert checks(there[0], "long_lines", library=DEBUG, mutation="python_index_single")[1] > 0


def with_versions():
    return [one for one in INTERPRETERS if interpreters.version_of(one) >= (3, 12)][-1:]


@pytest.mark.parametrize("interpreter", with_versions())
def test_codes_of_one_interpreter_of_a_process_are_not_those_of_the_next(interpreter):
    out, wrong, _ = checks(interpreter, "subinterpreters")

    assert wrong == 0, out


def test_codes_of_two_interpreters_that_are_mixed_are_noticed():
    there = [one for one in with_versions() if interpreters.version_of(one) >= (3, 13)]
    if not there or not DEBUG.exists():
        pytest.skip("no CPython 3.13, or no debug build")

    assert checks(there[0], "subinterpreters", library=DEBUG,
                  mutation="python_interpreters_mixed")[1] > 0


# --- other programs -------------------------------------------------------------------------------


@pytest.mark.parametrize("minor", [7, 11, 12, 14, 99])
def test_what_is_no_known_interpreter_gives_native_frames_and_one_line(run, minor):
    result = run([FOLDER / "unknown", LIBRARY, minor], preload=False)

    assert result.rc == 0
    assert result.out.startswith("@frames.so\n@\n")
    assert "??" not in result.out and "\t" not in result.out
    assert len(re.findall("call stacks have native frames alone", result.err)) == 1


@pytest.mark.parametrize("minor", [14, 15])
def test_a_free_threaded_one_whose_bytecode_is_a_threads_gives_native_frames(run, minor):
    """Lines are counted from the code object's, from which such a thread does not run."""
    result = run([FOLDER / "unknown", LIBRARY, minor, "free-threaded"], preload=False)

    assert result.rc == 0 and "\t" not in result.out
    assert "for of this interpreter it is free-threaded" in result.err
    assert len(re.findall("call stacks have native frames alone", result.err)) == 1


def libpython(interpreter):
    """The shared library of an interpreter, or None."""
    code = "import sysconfig as s; print(s.get_config_var('LIBDIR'), s.get_config_var('INSTSONAME'))"
    folder, name = subprocess.run([interpreter, "-c", code], text=True, capture_output=True,
                                  check=True).stdout.split()
    path = pathlib.Path(folder, name)
    return path if path.exists() and ".so" in name else None


def home_of(interpreter):
    return subprocess.run([interpreter, "-c", "import sys; print(sys.base_prefix)"], text=True,
                          capture_output=True, check=True).stdout.strip()


@each_interpreter
def test_an_embedded_interpreter_is_found_and_found_again(run, tmp_path, interpreter):
    library = libpython(interpreter)
    if library is None:
        pytest.skip(f"{interpreter} has no shared library")
    embedded = {"preload": False, "env": {"PYTHONHOME": home_of(interpreter)}}
    # 3.12.1 ends by itself where it begins again.
    plain = tmp_path / "plain.py"
    plain.write_text("import atexit, ctypes, gc, os, sys, threading\n")
    rounds = 2 if run([FOLDER / "embedded", 2, library, plain], **embedded).rc == 0 else 1

    result = run([FOLDER / "embedded", rounds, library, CHECKS, LIBRARY, "forms", "outer",
                  "no_state"], **embedded)

    assert result.rc == 0, result.err
    counts = re.findall(r"^(\d+) wrong of (\d+) checks", result.out, re.M)
    assert [wrong for wrong, _ in counts] == ["0"] * rounds, result.out
    assert all(int(of) > 300 for _, of in counts)


@each_interpreter
def test_an_interpreter_that_is_closed_is_asked_no_more(run, interpreter):
    library = libpython(interpreter)
    if library is None:
        pytest.skip(f"{interpreter} has no shared library")

    assert run([FOLDER / "embedded", library, LIBRARY], preload=False,
               env={"PYTHONHOME": home_of(interpreter)}).rc == 0


# --- reports --------------------------------------------------------------------------------------


@each_interpreter
def test_a_thread_whose_state_another_one_deleted_has_native_frames(run, interpreter):
    """The interpreter still hands it out, and its memory has been freed: changed, here."""
    library = libpython(interpreter)
    if library is None:
        pytest.skip(f"{interpreter} has no shared library")

    changed = "glibc.malloc.tcache_count=0:glibc.malloc.perturb=165"
    assert run([FOLDER / "embedded", "deleted", library, LIBRARY], preload=False,
               env={"PYTHONHOME": home_of(interpreter), "GLIBC_TUNABLES": changed}).rc == 0


def leaked(report):
    """{bytes: Python frames} of a JSON report's groups, which are of one size each."""
    frames = report["frames"]
    groups = {}
    for group in report["sections"]["leaked"]["groups"]:
        places = [frames[i]["places"][0] for i in group["frames"]
                  if frames[i]["module"] is None and frames[i]["places"]]
        groups.setdefault(tuple((one["function"], os.path.basename(one["file"]), one["line"])
                                for one in places), []).append(group)
    return groups


def check_report(out, report):
    """Each stack that the interpreter saw, and no other one."""
    truth = json.loads(out)
    functions = {tuple((name, file) for name, file, _ in frames) for frames in truth.values()}
    lines = {tuple(map(tuple, frames)) for frames in truth.values()}
    found = leaked(report)
    assert {tuple((name, file) for name, file, _ in frames) for frames in found} == functions
    assert set(found) <= lines
    assert sum(group["count"] for groups in found.values() for group in groups) == len(truth)


@each_interpreter
@pytest.mark.parametrize("how", ["exit", "fork", "_exit"])
def test_a_report_names_the_python_lines_that_leaked(run, tmp_path, interpreter, how):
    path = tmp_path / "report.json"

    result = run([interpreter, LEAKS, how], conf=f"report_format:json,leak_max:1000,"
                                                 f"python_depth:64,leak_report:{path}")

    assert result.rc == 0, result.err
    check_report(result.out, json.loads(path.read_text()))


def test_the_report_of_a_killed_one_does_so_too(run, tmp_path):
    journal, path = tmp_path / "journal", tmp_path / "report.json"
    result = run([sys.executable, LEAKS, "kill"], conf=f"journal:{journal},python_depth:64")

    read = run([sys.executable, conftest.ROOT / "tools" / "cachealloc-journal", "--library",
                conftest.SHIM, journal, path], conf="report_format:json,leak_max:1000")

    assert (read.rc, read.err) == (0, "")
    check_report(result.out, json.loads(path.read_text()))


def text_of(run, *options):
    result = run([sys.executable, LEAKS], conf=",".join(options))
    assert result.rc == 0
    return result.err


def test_python_functions_stand_where_they_belong(run):
    groups = [group.splitlines() for group in text_of(run, "peak:off").split("\n#")[1:]]

    assert len(groups) >= 4
    for group in groups:
        names = [line.strip().split(" at ")[0] for line in group[2:]]
        assert not any(name.startswith(("_PyEval", "PyObject", "PyEval", "Py_")) for name in names)
        # ctypes' frames come before the function that called it, nothing after the module.
        assert any("ffi" in name for name in names[:8])
        assert names[-1] in ("<module>", "Thread._bootstrap", "_bootstrap", "at_exit")


@pytest.mark.parametrize("options, python, native", [
    ("python:on", True, True), ("python:only", True, False), ("python:off", False, True),
    ("python_depth:0", False, True), ("python_depth:2", True, True)])
def test_options_choose_the_frames(run, options, python, native):
    text = text_of(run, "peak:off", options)

    assert ("leak_two at leaks.py:" in text) == python
    assert ("ffi_call" in text) == native
    if options == "python_depth:2":
        assert max(len(re.findall(r"\.py:\d+", group)) for group in text.split("\n#")) == 2


DEEP = '''
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.deep_run.argtypes = ctypes.c_size_t, ctypes.c_int
def step():
    assert library.deep_run(2000, 0) == 0
    assert library.deep_run(3000, 1) == 0
for _ in range(20):
    step()
'''


@pytest.mark.parametrize("options, deep", [
    ("", True), ("python:only", True), ("python_depth:0", False), ("python:off", False)])
def test_a_thread_without_python_frames_has_native_ones_instead(run, options, deep):
    """Those of a framework's own dispatcher alone would tell nothing of what it works for."""
    result = run([sys.executable, "-c", DEEP, FOLDER / "deep.so"], conf=f"peak:off,{options}")
    assert result.rc == 0, result.err
    groups = {group.split(" ", 2)[1]: group for group in result.err.split("\n#")[1:]}

    if deep:
        by_python, by_thread = groups["40000"], groups["120000"]
        assert "framework::mul_backward::apply" in by_thread
        assert "framework::run_step" in by_thread
        assert "mul_backward" not in by_python
        assert "step at <string>:" in by_python
    else:
        assert "dispatch<" in groups["160000"]
        assert "mul_backward" not in groups["160000"]
    assert len(groups) == (2 if deep else 1)  # the same from the first capture on


@pytest.mark.parametrize("pattern", ["leak_two", "leaks.py", "leaks.py:leak_two"])
def test_suppressions_match_python(run, tmp_path, pattern):
    rules = tmp_path / "rules"
    rules.write_text(f"leak:{pattern}\n")

    text = text_of(run, "peak:off", f"suppressions:{rules}", "leak_max:100")

    assert "leak_two at" not in text
    assert ("leak_one at" in text) == ("leak_two" in pattern)


def test_every_format_has_them(run, tmp_path):
    path = tmp_path / "report"
    run([sys.executable, LEAKS], conf=f"leak_report:{path},report_format:folded+pprof+pytorch")

    for written in tmp_path.glob("report*"):
        content = written.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        assert b"leak_two" in content and b"leaks.py" in content, written
    assert len(list(tmp_path.glob("report*"))) == 3
