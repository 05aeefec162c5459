"""The option nvtx: what a program tells NVTX gives reports their phases, and where it is off, or
another tool listens, nothing changes."""

import json
import shutil

import pytest

import conftest

LANES = [pytest.param("nvtx:true", id="shim"),
         pytest.param("nvtx:true,x_runtime_hooks:false", id="driver-lane")]
VARIABLE = "NVTX_INJECTION64_PATH"
NAME = "libcachealloc.so"


def marked(run, cmd, tmp_path, conf="nvtx:true", **kwargs):
    """What it printed, and its marks: (name, live bytes)."""
    path = tmp_path / "report.json"
    result = run(cmd, conf=f"{conf},leak_report:{path}", **kwargs)
    assert (result.rc, result.err) == (0, "")
    report = json.loads(path.read_text(encoding="utf-8"))
    return result.out, [(mark["name"], mark["live"]) for mark in report["marks"]], report


def names(marks):
    return [name for name, _ in marks]


# --- by NVTX's header -----------------------------------------------------------------------------


@pytest.mark.parametrize("conf", LANES)
def test_ranges_and_marks_are_phases(run, program, tmp_path, conf):
    out, marks, report = marked(run, [program("nvtx"), "phases"], tmp_path, conf)

    assert out == "push 0 1, pop 1 0, push 0, pop 0 -1\n"
    assert marks == [
        ("begin load", 1000), ("begin weights \u20ac", 1000), ("end weights \u20ac", 6000),
        ("end load", 6000), ("half", 6000), ("half \u20ac", 6000), ("h\u00e4lf \U0001f600", 6000),
        ("begin step", 6000), ("begin inner", 6000), ("end step", 1000), ("end inner", 1000),
        ("begin wide", 1000), ("end wide", 1000), ("begin last", 1000), ("end last", 1000)]
    assert len(report["phases"]) == len(marks) + 1


def test_the_text_has_their_peaks(run, program):
    result = run([program("nvtx"), "phases"], conf="nvtx:true")

    assert result.rc == 0
    assert "\nPHASES: 16, from mark to mark\n" in result.err
    assert "\n  begin weights \u20ac: peak 6000 bytes, " in result.err
    assert "\n  end inner: peak 1000 bytes, " in result.err


def test_libraries_have_domains_of_their_own(run, program, tmp_path):
    cmd = [program("nvtx"), "domains"]
    out, marks, _ = marked(run, cmd, tmp_path)
    assert out == "push 0 -2 0, pop 0 -2 0\n"
    assert names(marks) == ["begin registered", "begin outer", "end registered", "end outer",
                            "registered"]

    (tmp_path / "report.json").unlink()
    out, marks, _ = marked(run, cmd, tmp_path, "nvtx:all")
    assert out == "push 0 0 0, pop 0 0 0\n"
    assert names(marks) == [
        "begin registered", "begin lib: wide", "begin outer", "end registered", "end lib: wide",
        "end outer", "lib: wide", "registered", "begin lib: wide", "end lib: wide"]


def test_a_range_from_before_cuda_begins_with_it(run, program, tmp_path):
    _, marks, _ = marked(run, [program("nvtx"), "early"], tmp_path)

    assert marks == [("begin outer", 0), ("begin inner", 0), ("end inner", 3000),
                     ("end outer", 3000)]


def test_without_cuda_nothing_is_reported(run, program, tmp_path):
    result = run([program("nvtx"), "no_cuda"], conf=f"nvtx:true,stats:exit,leak_report:{tmp_path}/%p")

    assert (result.rc, result.out, result.err) == (0, "", "")
    assert not list(tmp_path.iterdir())


def test_off_the_program_is_as_without_the_library(run, program):
    for what in ("phases", "domains"):
        plain = run([program("nvtx"), what], preload=False)
        result = run([program("nvtx"), what])
        assert (result.rc, result.out) == (plain.rc, plain.out)
        assert "PHASES" not in result.err and "-2" in plain.out


# --- the environment ------------------------------------------------------------------------------


@pytest.mark.parametrize("conf, value", [
    (None, "not set"), ("nvtx:false", "not set"), ("nvtx:maybe,log:off", "not set"),
    ("nvtx:true", NAME), ("nvtx:false,nvtx:all", NAME)])
def test_the_variable_is_set_where_the_option_is(run, program, conf, value):
    assert run([program("nvtx"), "variable"], conf=conf).out == f"{value}\n{value}\n"


def opened(run, program, how, **kwargs):
    return run([program("nvtx"), how, str(conftest.SHIM)], conf="nvtx:true", preload=False, **kwargs)


def test_opened_by_the_only_thread_it_sets_the_variable(run, program):
    result = opened(run, program, "opened")

    assert (result.rc, result.out) == (0, f"{NAME}\npush 0, pop 0\n"), result.err
    assert "begin step" in result.err and "nvtx:" not in result.err


def test_opened_beside_other_threads_it_leaves_the_environment_to_them(run, program):
    result = opened(run, program, "beside")
    assert (result.rc, result.out) == (0, "not set\npush -2, pop -2\n"), result.err
    assert result.err.count("nvtx: other threads ran when the library was opened") == 1
    assert f"start the program with {VARIABLE}={NAME}" in result.err

    # As it says.
    named = opened(run, program, "beside", env={VARIABLE: NAME})
    assert (named.rc, named.out) == (0, f"{NAME}\npush 0, pop 0\n"), named.err
    assert "begin step" in named.err and "nvtx:" not in named.err


def test_another_tool_is_left_alone(run, program, tmp_path):
    cmd = [program("nvtx"), "variable"]
    for value in ("/opt/tool/libtool.so", "", f"{NAME}.other"):
        result = run(cmd, conf="nvtx:true,leak_report:off,log:info", env={VARIABLE: value})
        assert result.out == f"{value}\n{value}\n"
        assert result.err.count(f"nvtx: {VARIABLE} names another library") == 1

    quiet = run([program("nvtx"), "phases"], conf="nvtx:true,leak_report:off",
                env={VARIABLE: tmp_path / "libtool.so"})
    assert (quiet.rc, quiet.err) == (0, "")
    assert quiet.out == run([program("nvtx"), "phases"], preload=False).out


def test_its_own_path_serves_too(run, program, shim, tmp_path):
    """What a caller has set by hand. Without the option it is no tool."""
    env = {VARIABLE: shim.resolve()}
    out, marks, _ = marked(run, [program("nvtx"), "phases"], tmp_path, env=env)
    assert out.startswith("push 0 1") and len(marks) == 15

    off = run([program("nvtx"), "phases"], env=env)
    assert off.out.startswith("push -2 -2") and "PHASES" not in off.err


def test_a_process_without_the_library_has_no_tool(run, program):
    """A child that a program starts with another LD_PRELOAD."""
    result = run([program("nvtx"), "phases"], preload=False, conf="nvtx:true", env={VARIABLE: NAME})

    assert (result.rc, result.err) == (0, "")
    assert result.out.startswith("push -2 -2")


@pytest.mark.parametrize("cmd", [
    ["bash", "-c", "x=$(printf %s a); test $x = a; exit 7"],
    ["python3", "-c", "import os; os.environ['X'] = '1'; print(os.popen('echo $X').read())"],
    ["env", "-i", "sh", "-c", "export Y=2; sh -c 'echo $Y'"]], ids=lambda cmd: cmd[0])
def test_ordinary_programs_run_with_a_longer_environment(run, cmd):
    cmd = [shutil.which(cmd[0]), *cmd[1:]]
    plain, result = run(cmd, preload=False), run(cmd, conf="nvtx:true")

    assert (result.rc, result.out, result.err) == (plain.rc, plain.out, plain.err)


def test_an_option_that_comes_too_late_is_said(run):
    code = ("import ctypes, os; os.environ['ALLOC_CONF'] = 'nvtx:true,leak_report:off'; "
            "ctypes.CDLL('libcudart.so.13').cudaMalloc(ctypes.byref(ctypes.c_void_p()), 100)")

    result = run([shutil.which("python3"), "-c", code])

    assert result.rc == 0
    assert "nvtx: was not in ALLOC_CONF when the program began" in result.err


# --- what NVTX never does -------------------------------------------------------------------------


@pytest.mark.parametrize("conf", ["nvtx:all", "nvtx:true"])
def test_no_message_handle_or_number_is_trusted(run, program, tmp_path, conf):
    _, marks, _ = marked(run, [program("nvtx_by_hand"), "odd"], tmp_path, conf)

    found = names(marks)
    assert found[:3] == ["(no name)"] * 3
    assert found[4:5] == ["a\ufffd\ufffd\ufffd\u0080z"]
    assert found[5:11] == ["begin (no name)"] * 3 + ["end (no name)"] * 3
    assert found.count("begin once") == found.count("end once") == 1
    assert found[-1] == "end"


def test_what_is_kept_is_bounded(run, program, tmp_path):
    _, marks, report = marked(run, [program("nvtx_by_hand"), "many"], tmp_path, "nvtx:all")

    found = names(marks)
    assert report["marks_dropped"] == 0
    assert found[:32] == [f"begin level {i}" for i in range(32)]
    assert found[32:64] == [f"end level {i}" for i in reversed(range(32))]
    assert found.count("begin range") == found.count("end range") == 256
    assert found[-2:] == ["string 65535", "(no name)"]


def test_threads_have_ranges_of_their_own(run, program, tmp_path):
    _, marks, report = marked(run, [program("nvtx_by_hand"), "threads"], tmp_path)

    assert len(marks) == 1024 and report["marks_dropped"] == 16 * (300 * 6 + 1) + 1 - 1024
    assert names(marks)[-1] == "end"


def test_the_child_of_a_fork_goes_on(run, program, tmp_path):
    _, marks, _ = marked(run, [program("nvtx_by_hand"), "fork"], tmp_path)

    assert names(marks) == ["begin parent", "end parent"]


def test_tables_that_lack_something_are_taken_as_they_are(run, program):
    result = run([program("nvtx_by_hand"), "answers"], conf="nvtx:true")
    assert (result.rc, result.out, result.err) == (0, "", "")

    off = run([program("nvtx_by_hand"), "odd"])
    assert (off.rc, off.out, off.err) == (0, "no tool\n", "")


def test_the_entry_is_all_that_is_exported_for_it():
    map_of_exports = (conftest.BUILD / "exports.map").read_text()
    assert "InitializeInjectionNvtx2;" in map_of_exports
    assert "InitializeInjectionNvtx2_fnptr" not in map_of_exports
