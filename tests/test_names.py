"""Names of functions: without libdw, long ones, and of code that is in no file."""

import json
import pathlib
import re
import shutil
import signal
import sys

import pytest

import conftest
import leak_report
import read_formats

READER = [sys.executable, conftest.ROOT / "tools" / "cachealloc-journal", "--library",
          conftest.SHIM]
HINT = "the package libdw1 (elfutils-libs) adds them"
ALL = "text+json+pprof+folded+pytorch"


@pytest.fixture
def hidden(tmp_path):
    """The environment of a program that finds no libdw: one comes first that is none."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "libdw.so.1").write_bytes(b"")
    return {"LD_LIBRARY_PATH": f"{folder}:{conftest.BUILD / 'simcuda'}"}


def corpus(name):
    return conftest.BUILD / "tests" / "leaks" / name


def functions(text):
    """Those of each group of a text report, and that nothing has a line."""
    groups = leak_report.parse(text).groups
    assert not any(" at " in frame for group in groups for frame in group.frames)
    return [leak_report.places(group) for group in groups]


# --- without libdw --------------------------------------------------------------------------------


def test_each_format_names_functions_by_the_symbol_table(run, program, hidden, tmp_path):
    result = run(program("leaks"), env=hidden,
                 conf=f"leak_report:{tmp_path}/r,report_format:{ALL}")

    assert result.rc == 0 and result.err.count(HINT) == 1
    assert functions((tmp_path / "r").read_text())[0][0] == "forget_tiles"  # which is static
    frames = json.loads((tmp_path / "r.json").read_text())["frames"]
    assert {"function": "forget_tiles", "file": None, "line": None} in [
        place for frame in frames for place in frame["places"]]
    profile = read_formats.pprof(tmp_path / "r.pprof")
    assert "forget_tiles" in [place[0] for sample in profile.sample
                              for number in sample.location_id
                              for place in read_formats.pprof_places(profile, number)]
    assert any("forget_tiles" in stack for stack, _ in read_formats.folded(tmp_path / "r.folded"))
    assert b"forget_tiles" in (tmp_path / "r.pickle").read_bytes()


@pytest.mark.parametrize("program", ["no_destructors", "exit_in_handler", "nested"])
def test_each_end_names_functions(run, hidden, program):
    result = run(corpus(program), env=hidden)

    first, = functions(result.err)
    assert first[0] == "forget" and "main" in first


def test_dumps_name_functions_and_say_once_what_is_missing(run, program, hidden, tmp_path):
    result = run([program("api_dump"), *(tmp_path / name for name in ("first", "second", "third"))],
                 env=hidden, conf="leak_report:off")

    assert result.rc == 0 and result.err.count(HINT) == 1
    assert [functions((tmp_path / name).read_text())[0][0] for name in ("second", "third")] == [
        "main", "main"]


def test_a_signal_names_functions(run, program, hidden, tmp_path):
    result = run([program("dump_signal"), "live"], env=hidden, cwd=tmp_path,
                 conf=f"dump_signal:USR1,leak_report:{tmp_path}/leaks-%n")

    assert result.rc == 0
    assert functions((tmp_path / "leaks-1").read_text())[0][0] == "allocate"


def test_an_out_of_memory_names_functions(run, program, hidden):
    result = run([program("oom"), "device"], env=hidden, sim="memory:64M", conf="oom_report:60s")

    said = result.err.partition("out of memory")[2].partition("leak report")[0]
    assert "    ask (oom+0x" in said and "    hold (oom+0x" in said


def test_a_journal_names_functions(run, hidden, tmp_path):
    result = run(corpus("killed"), env=hidden, conf=f"journal:{tmp_path}/journal")
    read = run([*READER, tmp_path / "journal"], env=hidden)

    assert result.rc == -signal.SIGKILL and read.rc == 0
    assert all(names and "main" in names for names in functions(read.err))
    assert read.err.count(HINT) == 1


def test_a_library_that_was_closed_keeps_its_functions(run, hidden):
    """By its file, as long as that is the one that was loaded."""
    result = run([corpus("closed"), corpus("libpool_library.so"), corpus("libcxx_library.so")],
                 env=hidden)

    assert [names[:2] for names in functions(result.err)] == [
        ["pool_grow", "pool_take"], ["shelf::put", "shelf_put"]]


@pytest.mark.parametrize("conf", ["log:error", "leak_report:off"])
def test_the_hint_is_a_warning_of_a_report(run, program, hidden, conf):
    assert HINT not in run(program("leaks"), env=hidden, conf=conf).err


def test_nothing_is_said_of_libdw_where_nothing_leaked_or_it_is_there(run, program, hidden):
    nothing = run([program("leaks"), "none"], env=hidden, conf="peak:always")
    there = run(program("leaks"))

    assert "PEAK" in nothing.err and "forget" not in nothing.err and HINT not in nothing.err
    assert HINT not in there.err


def test_a_file_that_was_replaced_names_nothing(run, hidden, tmp_path):
    """Its symbols are another program's."""
    started, journal = tmp_path / "killed", tmp_path / "journal"
    shutil.copy(corpus("killed"), started)
    run(started, env=hidden, conf=f"journal:{journal}")
    started.unlink()
    shutil.copy(corpus("nested"), started)
    read = run([*READER, journal], env=hidden)

    group, = leak_report.parse(read.err).groups
    assert group.frames[0].startswith("killed+0x")


# --- separate debug files ------------------------------------------------------------------------


def test_libc_has_no_lines_of_its_debug_file(run, program):
    """Which would take ten times as long as the rest of a report."""
    if not pathlib.Path("/usr/lib/debug/.build-id").exists():
        pytest.skip("no debug files here; libc6-dbg has that of libc")
    report = run(program("leaks")).err

    assert "main at leaks.c:" in report and "__libc_start_main (libc" in report
    assert "libc-start.c" not in report


# --- long and mangled names -----------------------------------------------------------------------


def test_the_text_cuts_template_arguments_and_the_other_formats_do_not(run, tmp_path):
    run(corpus("lambdas"), conf=f"leak_report:{tmp_path}/r,report_format:{ALL}")
    text = (tmp_path / "r").read_text()
    whole = "int apply<plan()::{lambda(unsigned long)#1}>(plan()::{lambda(unsigned long)#1} const&)"

    assert "    int apply<...>(plan()::{lambda(unsigned long)#1} const&) at " in text
    assert whole not in text
    report = json.loads((tmp_path / "r.json").read_text())
    assert whole in [place["function"] for frame in report["frames"] for place in frame["places"]]
    assert any(frame["text"].startswith(whole) for frame in report["frames"])
    assert whole in list(read_formats.pprof(tmp_path / "r.pprof").string_table)
    assert whole in (tmp_path / "r.folded").read_text()
    assert whole.encode() in (tmp_path / "r.pickle").read_bytes()


@pytest.mark.parametrize("end", [[], ["_exit"]])
def test_rust_names_are_those_of_the_source(run, hidden, end):
    result = run([corpus("rust_names"), *end], env=hidden)

    group, = leak_report.parse(result.err).groups
    assert [frame.rpartition(" (")[0] for frame in group.frames[:3]] == [
        "<r::A<7, true, 'v', -11>>::go", "r::grüße", "main"]


CXX = ("cudaError tiles::(anonymous namespace)::cache<float, 2>::grow<unsigned int>"
       "(std::vector<unsigned int, std::allocator<unsigned int> > const&, float*) const")


@pytest.mark.parametrize("libdw", [True, False])
@pytest.mark.parametrize("end", ["exit", "_exit", "handler"])
def test_cxx_names_are_those_of_the_source_at_each_end(run, program, hidden, tmp_path, end, libdw):
    result = run([program("cxx_ends"), end], env={} if libdw else hidden,
                 conf=f"leak_report:{tmp_path}/r,report_format:{ALL}")

    assert result.rc == 0, result.err
    for name in ("r", "r.folded", "r.pickle"):
        content = (tmp_path / name).read_text(errors="replace")
        assert "_ZNK5tiles" not in content
        assert (CXX.replace("std::vector<unsigned int, std::allocator<unsigned int> >",
                            "std::vector<...>").replace("grow<unsigned int>", "grow<...>")
                if name == "r" else CXX) in content
    report = json.loads((tmp_path / "r.json").read_text())
    assert CXX in [place["function"] for frame in report["frames"] for place in frame["places"]]
    assert CXX in list(read_formats.pprof(tmp_path / "r.pprof").string_table)


@pytest.mark.parametrize("libdw", [True, False])
def test_so_they_are_where_memory_is_out_and_in_a_journal(run, program, hidden, tmp_path, libdw):
    env = {} if libdw else hidden
    oom = run([program("cxx_ends"), "oom"], env=env, sim="memory:64M", conf="oom_report:60s")
    run([program("cxx_ends"), "kill"], env=env, conf=f"journal:{tmp_path}/journal")
    read = run([*READER, tmp_path / "journal"], env=env)

    said = oom.err.partition("out of memory")[2].partition("leak report")[0]
    for text in (said, read.err):
        assert "tiles::(anonymous namespace)::cache<float, 2>::grow<...>(std::vector<...>" in text
        assert "_ZNK5tiles" not in text


# --- code in no file ------------------------------------------------------------------------------

MADE = "py::solve<1>:/opt/a b.py"


@pytest.fixture
def jit(run, program):
    """jit(way...) runs it and gives its report; what it leaves in /tmp goes with the test."""
    pids = []

    def run_it(*arguments, **kwargs):
        result = run([program("jit"), *arguments], **kwargs)
        pids.append(int(result.out))
        return result

    yield run_it
    for pid in pids:
        for path in pathlib.Path("/tmp").glob(f"perf-{pid}.map*"):
            path.unlink()


def made(result):
    """The frame of the code that was made."""
    group, = leak_report.parse(result.err).groups
    assert leak_report.places(group)[0] == "forget"
    return group.frames[1]


@pytest.mark.parametrize("way", ["named", "again", "malformed"])
@pytest.mark.parametrize("end", [[], ["_exit"]])
def test_generated_code_has_the_name_in_the_map(jit, way, end):
    assert made(jit(way, *end)) == f"{MADE} (JIT)"


@pytest.mark.parametrize("way", ["beside", "link", "pipe", "large", "old", "other"])
def test_a_map_that_is_not_the_processs_own_names_nothing(jit, way):
    assert re.fullmatch("0x[0-9a-f]+", made(jit(way)))


def test_generated_code_is_named_in_each_format(jit, tmp_path):
    jit("named", conf=f"report_format:{ALL},leak_report:{tmp_path}/r")

    frame = json.loads((tmp_path / "r.json").read_text())["frames"][1]
    assert (frame["module"], frame["places"]) == (
        None, [{"function": MADE, "file": None, "line": None}])
    profile = read_formats.pprof(tmp_path / "r.pprof")
    assert [(MADE, None, 0)] in [read_formats.pprof_places(profile, number)
                                 for number in profile.sample[0].location_id]
    (stack, _), *_ = read_formats.folded(tmp_path / "r.folded")
    assert MADE in stack and MADE.encode() in (tmp_path / "r.pickle").read_bytes()
