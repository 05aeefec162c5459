"""`cachealloc convert`: of a JSON report it makes what the library writes in other formats, and
of JSON and text alike `cachealloc merge` makes one report."""

import copy
import json
import os
import re
import signal
import subprocess
import sys

import pytest

import conftest
import report_json

CONVERT = conftest.ROOT / "tools" / "cachealloc-convert"
MERGE = conftest.ROOT / "tools" / "merge_reports"
REPORT = conftest.ROOT / "tools" / "cachealloc-report"
ENDINGS = {"text": "", "pprof": ".pprof", "folded": ".folded", "pytorch": ".pickle"}
ALL = "json+" + "+".join(ENDINGS)
LEAK_PROGRAMS = conftest.BUILD / "tests" / "leaks"


@pytest.fixture
def tools(monkeypatch):
    """What the command is made of: (reports, shown, {format: writer})."""
    monkeypatch.syspath_prepend(str(CONVERT.parent))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    from report_page import as_folded, as_pprof, as_pytorch, as_text, reports, shown
    return reports, shown, {"text": as_text.write, "pprof": as_pprof.write,
                            "folded": as_folded.write, "pytorch": as_pytorch.write}


def converted(tools, path):
    """{format: what the report in a JSON file is in it}"""
    reports, shown, writers = tools
    with open(path, encoding="utf-8") as file:
        report, = map(shown.prepare, reports.read(file))
    return {name: write(report) for name, write in writers.items()}


def check_all(tools, folder):
    expected = {name: (folder / f"x{ending}").read_bytes() for name, ending in ENDINGS.items()}
    assert converted(tools, folder / "x.json") == expected
    return expected["text"].decode()


def write_all(run, folder, conf, *command, **kwargs):
    result = run(list(command), conf=f"leak_report:{folder}/x,report_format:{ALL},{conf}", **kwargs)
    assert result.rc == 0 and not any("cannot write" in line for line in result.err.splitlines())


@pytest.mark.parametrize("name, words, options, says", [
    ("leaks", [], "", "LEAK SUMMARY: 310173 bytes in 7"),
    ("leaks", [], "history:1000,suppressions_print:true", "ALLOCATED IN ALL: "),
    ("exit_status", ["exit", 0, 0], "", "(nothing leaked)"),
    ("frameworks", [], "", " < "),
    ("frameworks", [], "fold:false,leak_depth:9,stacks:sample:1", "stacks sampled: 1\n"),
    ("many_stacks", [120, 120], "leak_max:30,suppressions_print:true", "not listed: leak_max:30"),
    ("many_stacks", [120, 120], "leak_min:1000", "not listed: leak_min:1000"),
    ("leaks", [], "stacks:off", "(no call stack)"),
])
def test_it_is_byte_for_byte_what_the_library_writes(run, program, tools, tmp_path, name, words,
                                                     options, says):
    write_all(run, tmp_path, options, program(name), *words, sim="devices:2")

    assert says in check_all(tools, tmp_path)


@pytest.mark.parametrize("name", ["kinds", "peak_reset", "inlined.O3", "templates", "rust_names"])
def test_kinds_inlined_functions_and_long_names_are_the_same(run, tools, tmp_path, name):
    write_all(run, tmp_path, "suppressions_print:true", LEAK_PROGRAMS / name)

    check_all(tools, tmp_path)


def test_known_leaks_and_the_rank_are_the_same(run, program, tools, tmp_path):
    (tmp_path / "known.supp").write_text("leak:main kind=pinned\nleak:no_such_function\n")
    write_all(run, tmp_path, f"suppressions:{tmp_path}/known.supp", program("leaks"),
              sim="devices:2", env={"RANK": 3})

    text = check_all(tools, tmp_path)

    assert "leak report, rank 3\n" in text
    assert f"  not used: leak:no_such_function ({tmp_path}/known.supp:2)\n" in text


def test_phases_are_the_same(run, program, tools, tmp_path):
    marks = "; ".join(f"echo alloc 1 {1000 + number % 7}; echo free 1; echo mark m{number}"
                      for number in range(25))
    script = f'{{ {marks}; echo "mark a b"; echo alloc 1 5; echo exit; }} | "$0"'
    write_all(run, tmp_path, "", "sh", "-c", script, program("published"))

    assert "(7 more phases, of lower peaks, not listed here)" in check_all(tools, tmp_path)


def test_a_report_without_a_peak_is_the_same(run, program, tools, tmp_path):
    write_all(run, tmp_path, "peak:off", "sh", "-c",
              '{ echo alloc 1 77; echo exit; } | "$0"', program("published"))

    assert "PEAK" not in check_all(tools, tmp_path)


def inner(function, short, module="/lib/libc10.so"):
    frame = report_json.frame(function, module=module)
    frame["places"][0].update(fold=True, short=short, file=None)
    return {**frame, "fold": True, "lines": frame["text"]}


@pytest.mark.usefixtures("tools")
def test_inner_functions_of_a_framework_are_one_line():
    from report_page import as_text
    own = {**report_json.frame("train"), "fold": False, "lines": "train at solver.cc:7"}
    own["places"][0].update(fold=False, short="train")
    frames = [inner("c10::alloc(int)", "c10::alloc"), inner("at::f<int>()", "at::f<...>"),
              inner("at::empty()", "at::empty", "/lib/libtorch_cpu.so"), own,
              inner("c10::one()", "c10::one"), own]
    for frame in frames:
        frame["language"] = None

    assert list(as_text.stack_lines(frames, True)) == [
        "c10::alloc < ... < at::empty (+1 frames of libc10.so, libtorch_cpu.so)",
        "train at solver.cc:7", "c10::one (libc10.so)", "train at solver.cc:7"]
    assert len(list(as_text.stack_lines(frames, False))) == 6


# --- the command ----------------------------------------------------------------------------------


def convert(*words, script=CONVERT, stdin=None, cwd=None):
    done = subprocess.run([sys.executable, script, *map(str, words)], capture_output=True,
                          check=False, timeout=60, cwd=cwd, input=stdin, env=conftest.plain_env())
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.fixture
def made(tmp_path):
    """The path of a report."""
    frames = [report_json.frame("load"), report_json.frame("main;x\x1b"),
              report_json.python_frame("Block.forward", 6, "/app/train.py")]
    frames[2]["offset"] = "0x0"
    whole = report_json.report(
        {"leaked": report_json.section([report_json.group([0, 2, 1], 4096, 2)])}, frames)
    for section in whole["sections"].values():
        section["totals"] = [{"device": 0, "kind": "device", "count": 2, "bytes": 4096}]
    path = tmp_path / "leaks.json"
    path.write_text(json.dumps(whole))
    return path


def test_the_format_is_asked_for_or_the_ending_of_the_file(made):
    text = convert(made)
    for words in (["--to", "text"], ["-o", "-"]):
        assert convert(made, *words) == text
    assert (text[0], text[2]) == (0, "")
    assert b"]: leak report\nLEAK SUMMARY: 4096 bytes in 2 allocations, 1 stacks\n" in text[1]

    folded = convert(made, "--to", "folded")
    assert folded[1] == (
        b"device 0, device memory;main:x\\x1b;Block.forward (train.py);load 4096\n")
    assert convert(made, "-o", made.parent / "a.folded")[0] == 0
    assert (made.parent / "a.folded").read_bytes() == folded[1]
    for name, ending in (("pprof", ".pprof"), ("pytorch", ".pickle")):
        assert convert(made, "--to", name)[0] == 0
        beside = (made.parent / f"leaks{ending}").read_bytes()
        assert convert("-", "--to", name, stdin=made.read_bytes())[1] == beside


def test_a_page_is_made_by_the_same_command(made):
    library = made.parent / "d3.js"
    library.write_text("// d3")
    if not (conftest.ROOT / "build/d3/d3.min.js").exists():
        rc, _, err = convert(made, "--to", "html", "-o", made.parent / "x.html")
        assert rc in (0, 1) and (rc == 0 or "D3, which draws the page, is not here" in err)
        return
    rc, out, err = convert(made, "-o", made.parent / "x.html")
    assert (rc, err) == (0, "") and (made.parent / "x.html").stat().st_size > 1000


@pytest.mark.parametrize("words, rc, said", [
    (["--to", "svg"], 2, "invalid choice: 'svg' (choose from"),
    (["leaks.json", "-o", "x.json"], 2, "x.json: JSON is what is read; accepted: text, folded"),
    (["missing"], 1, "missing: No such file or directory"),
    (["text"], 1, "text: holds a text report"),
    (["empty"], 1, "empty: the file is empty"),
    (["leaks.json", "leaks.json", "--to", "pprof"], 1, "holds one report, and here are 2"),
    (["leaks.json", "--to", "text", "-o", "leaks.json"], 2, "is to be read and to be written"),
    (["leaks.json", "-o", "no/such"], 1, "no/such: No such file or directory"),
])
def test_what_cannot_be_converted_is_told(made, words, rc, said):
    (made.parent / "text").write_text("cachealloc[1]: leak report\nLEAK SUMMARY: 0 bytes\n")
    (made.parent / "empty").write_text("")
    before = made.read_text()

    result = convert(*words, cwd=made.parent)

    assert (result[0], result[1]) == (rc, b"") and said in result[2], result
    assert made.read_text() == before and not list(made.parent.glob("*.part"))


WAYS = pytest.mark.parametrize("name, script, words", [
    ("convert", CONVERT, ["-"]), ("merge", MERGE, ["-"]), ("report", REPORT, ["--diff", "-", "x"])],
    ids=["convert", "merge", "report"])


@WAYS
def test_an_output_that_is_full_is_told_and_one_that_is_closed_is_not(made, name, script, words):
    (made.parent / "x").write_bytes(made.read_bytes())
    command = [sys.executable, script, *words]
    with open("/dev/full", "wb") as full:
        told = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60,
                              input=made.read_bytes(), cwd=made.parent)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as nobody:
        silent = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, check=False,
                                timeout=60, input=made.read_bytes(), cwd=made.parent)

    said = f"cachealloc {name}: stdout: No space left on device\n".encode()
    assert (told.returncode, told.stderr) == (1, said)
    assert (silent.returncode, silent.stderr) == (1, b"")


@WAYS
def test_an_interrupt_ends_it_without_a_traceback(made, name, script, words):
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen([sys.executable, script, *words], cwd=made.parent, **pipes) as process:
        process.stdin.write(b" " * (1 << 18))  # more than a pipe holds: it has begun to read
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (-signal.SIGINT, b"", b""), name


def test_whatever_is_wrong_in_a_report_is_told(made, tools):
    """Each value of it, replaced in turn."""
    reports, shown, writers = tools
    whole = json.loads(made.read_text())

    def places(value, path=()):
        yield path
        items = value.items() if isinstance(value, dict) else (
            enumerate(value) if isinstance(value, list) else ())
        for key, inner in items:
            yield from places(inner, (*path, key))

    for path in list(places(whole))[1:]:
        for other in ("\x1b[2J", None, -1, "\ud800", [], {}, 1 << 70, 1 << 63, "0xzz"):
            changed = copy.deepcopy(whole)
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = other
            try:
                report = shown.prepare(reports.check_report(changed))
                said = {name: write(report) for name, write in writers.items()}
                assert b"\x1b" not in said["text"] + said["folded"]
            except reports.Bad:
                continue


# --- merging --------------------------------------------------------------------------------------


def test_merge_makes_the_same_of_text_and_of_json(run, program, tmp_path):
    """And of both together one report."""
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        write_all(run, tmp_path / str(rank), "", program("many_stacks"), 15, 15, env={"RANK": rank})

    def merged(*files):
        rc, out, err = convert(*files, script=MERGE, cwd=tmp_path)
        assert (rc, err) == (0, ""), err
        return re.sub(r", \d/x.*", "", out.decode())

    text = merged("0/x", "1/x")
    assert text.startswith("MERGED LEAK REPORT: 2 processes\n") and "in 2 of 2 processes" in text
    assert merged("0/x.json", "1/x.json") == text == merged("0/x", "1/x.json")
    one = tmp_path / "one.json"
    one.write_bytes((tmp_path / "0/x.json").read_bytes() + (tmp_path / "1/x.json").read_bytes())
    assert merged("one.json").replace(", one.json", "") == text


def test_merge_has_the_groups_of_json_that_its_text_leaves_out(run, program, tmp_path):
    write_all(run, tmp_path, "", program("many_stacks"), 30, 30)

    _, of_text, _ = convert("x", script=MERGE, cwd=tmp_path)
    rc, of_json, err = convert("x.json", script=MERGE, cwd=tmp_path)

    assert (rc, err) == (0, "")
    assert b"\n#21: " not in of_text and b"not listed in the reports)" in of_text
    assert b"\n#30: " in of_json and b"not listed in the reports)" not in of_json


def test_merge_counts_once_what_is_there_as_text_and_as_json(run, program, tmp_path):
    write_all(run, tmp_path, "", program("leaks"), sim="devices:2")

    rc, out, err = convert("x", "x.json", script=MERGE, cwd=tmp_path)

    assert (rc, err) == (0, "")
    assert out == convert("x.json", script=MERGE, cwd=tmp_path)[1]


def test_merge_tells_json_that_is_no_report(tmp_path):
    (tmp_path / "x").write_text('{"schema": "other"}')
    assert convert("x", script=MERGE, cwd=tmp_path) == (
        1, b"", 'cachealloc merge: x: its schema is "other"; accepted: what report_format:text or '
                "json writes\n")


@pytest.mark.parametrize("name", ["json", *ENDINGS])
def test_where_nothing_leaked_each_format_has_its_file_which_every_tool_reads(
        run, program, tools, tmp_path, name):
    ending = ENDINGS.get(name, ".json")
    result = run([program("exit_status"), "exit", 0, 0],
                 conf=f"leak_report:{tmp_path}/x{ending},report_format:{name}")

    assert (result.rc, result.err) == (0, "") and os.listdir(tmp_path) == [f"x{ending}"]
    if name == "text":
        assert "(nothing leaked)\n" in (tmp_path / "x").read_text()
    if name in ("text", "json"):
        rc, out, err = convert(f"x{ending}", script=MERGE, cwd=tmp_path)
        assert (rc, err) == (0, "") and b"LEAK SUMMARY: 0 bytes in 0 allocations, 0 stacks\n" in out
    if name == "json":
        assert b"(nothing leaked)\n" in converted(tools, tmp_path / "x.json")["text"]
