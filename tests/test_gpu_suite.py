"""The hardware suite (tests/gpu) on the simulator: it is whole, it says where there is no GPU, and
it can fail."""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

import conftest

sys.path.insert(0, str(conftest.ROOT / "tests" / "gpu"))

import compare_facts  # noqa: E402
import cuda_programs  # noqa: E402
import frameworks  # noqa: E402
import measure  # noqa: E402
import preload_programs  # noqa: E402
import suite as gpu_suite  # noqa: E402

GPU = conftest.ROOT / "tests" / "gpu"
CHECKS = ("facts", "order", "vmm", "answers", "preload", "parity", "random", "kernels",
          "processes", "sanitizer")
FIGURES = ("sizes", "busy", "threads", "pinned", "null", "programs", "nvcc", "traces")
# Where nvcc was there.
COMPILED = (conftest.BUILD / "programs" / "shared" / "streams").exists()
FRAMEWORKS = ("torch", "cupy", "jax")

RELEASE = pytest.mark.skipif(conftest.SANITIZER is not None or conftest.FAULT is not None,
                             reason="it runs programs of the release build")


def suite(tmp_path, script, *arguments, env=None, build=conftest.BUILD):
    """(exit status, what it printed, its result or None)"""
    command = [sys.executable, "-B", GPU / f"{script}.py", "--build", build, "--output", tmp_path,
               "--short", *arguments]
    rc, out, err = conftest.execute(command, conftest.plain_env(env), 110)
    kept = list(tmp_path.glob("*.json"))
    return rc, out + err, json.loads(kept[0].read_text()) if kept else None


def states(result):
    return {step["name"]: step["state"] for step in result["steps"]}


@pytest.mark.long
@RELEASE
def test_every_check_runs_and_passes_on_the_simulator(tmp_path):
    rc, said, result = suite(tmp_path, "check", env={"SIMULATED": "1"})
    assert rc == 0, said
    assert {**states(result), "sanitizer": "any"} == {
        **dict.fromkeys(CHECKS, "passed"), "sanitizer": "any",
        "kernels": "passed" if COMPILED else "not found"}
    assert result["machine"]["simulated"] and result["machine"]["gpu"].startswith("simcuda")
    assert {"date", "driver", "toolkit", "commit"} <= result["machine"].keys()
    assert result["steps"][0]["data"][0]["name"] == "platform"
    page = (tmp_path / "check.md").read_text()
    assert "says nothing about hardware" in page
    assert all(f"\n{name} " in said for name in CHECKS)  # the short table


@RELEASE
def test_every_figure_is_measured_on_the_simulator(tmp_path):
    rc, said, result = suite(tmp_path, "measure", env={"SIMULATED": "1"})
    assert rc == 0, said
    assert states(result) == {**dict.fromkeys(FIGURES, "passed"),
                              **dict.fromkeys(FRAMEWORKS, "not found"),
                              "nvcc": "passed" if COMPILED else "not found"}
    tables = {step["name"]: step["tables"] for step in result["steps"]}
    for name in ("sizes", "busy", "threads"):
        allocators = {row[0]: row[1:] for row in tables[name][0][1]}
        for allocator in ("cudaMalloc", "cudaMallocAsync", "shim", "shim, stacks:off"):
            assert all(cell.endswith(("ns", "us", "ms")) for cell in allocators[allocator]), said
    assert "says nothing about hardware" in (tmp_path / "bench.md").read_text()
    # Every program was recorded, was packed, and replays.
    recorded = {row[0] for row in tables["traces"][0][1][1:]}
    replayed = {row[0]: row for row in tables["traces"][1][1][1:]}
    with tarfile.open(tmp_path / "traces.tar.gz") as archive:
        assert recorded == set(archive.getnames()) == set(replayed) >= {"mix.csv", "threads.csv"}
    assert float(replayed["threads.csv"][2]) > 0
    if COMPILED:
        assert recorded >= {"streams.csv", "cg.csv", "thrust_sort.csv", "graph.csv"}
        assert {row[0] for row in tables["nvcc"][0][1][1:]} == set(cuda_programs.PROGRAMS)


@RELEASE
def test_a_program_that_fails_under_the_shim_fails_the_figures(tmp_path):
    broken = tmp_path / "broken.so"
    subprocess.run(["gcc", "-shared", "-o", broken, "-x", "c", "-"], text=True, check=True,
                   input="int cudaMalloc(void **p, unsigned long n) { return !p || n; }")
    rc, said, result = suite(tmp_path, "measure", "--simulated", "--library", broken, "--steps",
                             "sizes,null,programs")
    assert rc == 1, said
    assert set(states(result).values()) == {"failed"}


@pytest.mark.parametrize("script", ["check", "measure"])
def test_without_a_gpu_it_says_so(tmp_path, script):
    """No device is visible, so that this holds on a machine with one too."""
    rc, said, result = suite(tmp_path, script, env={"CUDA_VISIBLE_DEVICES": ""})
    assert (rc, result) == (conftest.SKIPPED, None), said
    assert "no GPU: no driver with a GPU answers here" in said


@RELEASE
def test_a_broken_shim_fails_it(tmp_path):
    library = conftest.debug_shim("reuse_pending")
    rc, said, result = suite(tmp_path, "check", "--simulated", "--steps", "parity,random",
                             "--library", library, env={"CA_MUTATION": "reuse_pending"})
    assert rc == 1, said
    assert states(result) == {"parity": "passed", "random": "failed"}


def shell_script(path, commands):
    path.write_text(f"#!/bin/sh\n{commands}\n")
    os.chmod(path, 0o755)


def with_another(tmp_path, place, commands):
    """A build folder in which one program is this shell script."""
    place = pathlib.PurePath(place)
    for folder in reversed(place.parents):
        inside = place.relative_to(folder).parts[0]
        (tmp_path / "build" / folder).mkdir()
        for one in (conftest.BUILD / folder).iterdir():
            if one.name != inside:
                (tmp_path / "build" / folder / one.name).symlink_to(one)
    shell_script(tmp_path / "build" / place, commands)
    return tmp_path / "build"


def says(check, wrong, result, status):
    return (f'echo \'{{"check": "{check}", "wrong": {wrong}, "result": "{result}", "rounds": 1, '
            f'"ms": 1.0}}\'; exit {status}')


@RELEASE
@pytest.mark.skipif(not COMPILED, reason="there was no nvcc")
@pytest.mark.parametrize("answer, why", [
    (("ok", 0, "2", 0), "computes 2, 1 without it"),
    (("failed", 3, "1", 1), "exit status 1: 3 wrong"),
    (("ok", 0, "1", 0), "the pool served nothing")])
def test_a_cuda_c_program_that_differs_under_the_shim_fails(tmp_path, answer, why):
    build = with_another(tmp_path, "programs/shared/streams",
                         f'[ -n "$LD_PRELOAD" ] && {{ {says(*answer)}; }}\n{says("ok", 0, "1", 0)}')
    rc, said, result = suite(tmp_path, "check", "--simulated", "--steps", "kernels", build=build)
    failure, = result["steps"][0]["failures"]
    assert rc == 1 and failure.startswith("streams, shared runtime") and why in failure, said
    # The figures look at it too.
    if answer[2] != "1" or answer[3]:
        rc, said, result = suite(tmp_path, "measure", "--simulated", "--steps", "nvcc", build=build)
        assert rc == 1 and "streams: " in said, said


@RELEASE
def test_a_kind_of_process_that_differs_under_the_shim_fails(tmp_path):
    build = with_another(tmp_path, "tests/matrix/driver",
                         f'[ -n "$LD_PRELOAD" ] && exit 3; echo {cuda_programs.SUM}')
    rc, said, result = suite(tmp_path, "check", "--simulated", "--steps", "processes", build=build)
    failure, = result["steps"][0]["failures"]
    assert rc == 1 and failure == "driver alone: with the shim exit status 3", said


@RELEASE
def test_a_part_that_hangs_or_is_missing_does_not_end_the_others(tmp_path):
    build = tmp_path / "build"
    (build / "tests" / "parity").mkdir(parents=True)
    for name in ("libcachealloc.so", "simcuda", "cuda_probe", "random"):
        (build / name).symlink_to(conftest.BUILD / name)
    # The machine itself is asked through the fact script too.
    shell_script(build / "facts",
                 f'[ "$2" = platform ] && exec {conftest.BUILD}/facts "$@"\nkill -9 $$')
    shell_script(build / "tests" / "parity" / "parity", "exec sleep 600")
    output = tmp_path / "result"
    output.mkdir()

    rc, said, result = suite(output, "check", "--simulated", "--seconds", "24", build=build)
    assert rc == 1, said
    assert {**states(result), "sanitizer": "any"} == {
        "facts": "failed", "order": "failed", "vmm": "failed", "answers": "failed",
        "preload": "failed", "parity": "failed", "random": "passed",
        "kernels": "not found", "processes": "not found", "sanitizer": "any"}
    assert "no CUDA C programs here" in said
    assert "signal 9" in said and "not run: no time was left" in said


def test_a_kit_needs_no_toolkit():
    """Where something is not there, no command is left without it."""
    rc, out, err = conftest.execute(["make", "-n", "-C", conftest.ROOT, "gpu-kit"],
                                    conftest.plain_env({"CA_NO_TOOLKIT": 1}), 100)

    copies = [line.split() for line in out.splitlines() if re.match(r"\s*(cp|mkdir) ", line)]
    assert rc == 0 and "without CUDA C programs" in out, err
    assert len(copies) > 6 and not any("/cudart" in " ".join(copy) for copy in copies), copies


@pytest.mark.long
@pytest.mark.other_build
@RELEASE
def test_the_kit_is_all_that_the_suite_needs(tmp_path):
    """And what the page on testing sends along with it."""
    line, = re.findall(r"^rsync -aR (.*) HOST:", (conftest.ROOT / "docs/internals/testing.md").read_text(),
                       re.M)
    *files, kit = line.split()
    assert kit == "build-portable/gpu-kit"
    away = tmp_path / "away"
    made = conftest.execute(["make", "-s", "-C", conftest.ROOT, "gpu-kit", f"KIT={away}/kit"],
                            conftest.plain_env(), 100)
    assert made[0] == 0, made
    for name in files:
        (away / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (conftest.ROOT / name).is_dir() else shutil.copy
        copy(conftest.ROOT / name, away / name)
    # By which launches are counted.
    assert (away / "kit" / "libcachealloc-debug.so").stat().st_size > 100000
    for script, wanted in (("check", "order,vmm,parity,kernels,processes"),
                           ("measure", "nvcc,traces")):
        command = [sys.executable, "-B", away / "tests" / "gpu" / f"{script}.py", "--simulated",
                   "--build", away / "kit", "--short", "--steps", wanted]
        rc, out, err = conftest.execute(command, conftest.plain_env(), 100)
        assert rc == 0, out + err
        # Not even a symbolic link to what lies where it was built.
        assert str(conftest.ROOT) not in out
    if COMPILED:
        assert (away / "kit" / "cudart" / "libcudart.so.13").stat().st_size > 100000
        assert " not found " not in out


# --- its parts ------------------------------------------------------------------------------------


def test_every_program_is_run_or_left_out_for_a_reason():
    folder = conftest.ROOT / "tests" / "preload"
    there = {path.stem for path in [*folder.glob("*.c"), *folder.glob("*.cc")]
             if not path.stem.startswith("plugin_") or path.stem == "plugin_host"}
    run = {words[0] for words, _ in [*preload_programs.SAME, *preload_programs.SHIM]}
    assert run | set(preload_programs.LEFT_OUT) == there
    assert run & set(preload_programs.LEFT_OUT) == set()


def test_what_is_timed_is_compiled_as_what_it_is_compared_with():
    makefile = (conftest.ROOT / "scripts" / "check.mk").read_text()
    timed, = re.findall(r"^TIMED := (.*)$", makefile, re.M)
    assert set(timed.split()) == {name for name, *_ in measure.PRELOAD}


def test_every_cuda_c_program_is_in_the_suite():
    folder = conftest.ROOT / "tests" / "gpu" / "programs"
    assert {path.stem for path in folder.glob("*.cu")} == set(cuda_programs.PROGRAMS)


def fact(*rows, status="ok"):
    return [{"name": "group/case", "status": status, "rows": list(rows)}]


SAID = {"call": "cudaFree", "bytes": 256, "waits": True, "call_us": 1.5}


@pytest.mark.parametrize("ours, differences", [
    (fact(SAID), []),
    (fact(SAID | {"call_us": 99.0}), []),
    (fact(SAID | {"samples": 7}), []),
    (fact({"note": "whatever"}, SAID), []),
    (fact(SAID | {"waits": False}),
     ["group/case: bytes 256, call cudaFree: waits: here False, the simulator True"]),
    (fact(), ["group/case: bytes 256, call cudaFree: asked of the simulator alone"]),
    (fact(SAID, status="crashed: signal 11"),
     ["group/case: here crashed: signal 11, the simulator ok"]),
])
def test_facts_are_compared_without_times(ours, differences):
    assert compare_facts.compare(ours, fact(SAID))[1] == differences


@RELEASE
@pytest.mark.parametrize("group", ["record_gone", "green", "ipc", "pinned_flags"])
def test_the_simulator_answers_as_hardware_did(group):
    hardware = json.loads((GPU / "results" / "h100-580.json").read_text())["facts"]
    said = [one for one in hardware if one["name"].split("/")[0] == group]
    simulator = gpu_suite.Cuda(conftest.BUILD, None, str(conftest.BUILD / "simcuda"), True)

    lines, differences, alone = compare_facts.compare(
        said, gpu_suite.facts_of(simulator, group, 60))

    assert lines and (differences, alone) == ([], [])


def test_what_a_kernel_held_is_compared_with_what_a_host_function_held():
    host = SAID | {"held by": "host_function"}
    lines, differences, alone = compare_facts.compare(
        fact(host, SAID | {"held by": "kernel", "waits": False}, {"call": "other"}), fact(host))
    assert lines == 2 and len(differences) == 1 and "held by kernel" in differences[0]
    assert alone == ["group/case: call other"]


# --- frameworks, which have to be there: what can be seen without them ------------------------------


def framework(tmp_path, script):
    """What measure.py makes of frameworks.py where a shell script stands in for Python."""
    shell_script(tmp_path / "python", script)
    cuda = gpu_suite.Cuda(conftest.BUILD, conftest.SHIM, str(conftest.BUILD / "simcuda"), False)
    here = measure.Measure(cuda, argparse.Namespace(short=True, output=tmp_path), {"free": 1 << 30})
    step = gpu_suite.Step("torch", 60)
    step.deadline = gpu_suite.time.monotonic() + 60
    ways = [("natively", None, {}), ("with the shim", "leak_report:off", {})]
    return here, step, lambda: here.framework(step, tmp_path / "python", "training", ways)


def answers(result, ms="1.5"):
    return f'echo \'{{"one": {{"step_ms": {ms}, "result": [{result}], "held_mib": 100.0}}}}\''


@RELEASE
@pytest.mark.parametrize("script, failures, notes", [
    (answers("1.25"), [], []),
    (f'[ -n "$LD_PRELOAD" ] && {{ {answers("1.5")}; exit; }}; {answers("1.25")}',
     ["training, one: another result with the shim than natively"], []),
    (f'[ -n "$LD_PRELOAD" ] && {{ echo lost >&2; exit 3; }}; {answers("1.25")}',
     ["training, with the shim: exit status 3: lost"], []),
    ('echo $$ >>"$0.runs"; ' + answers('\'$(wc -l <"$0.runs")\''), [],
     ["training, one: computes something else each time, so that results are not compared."]),
])
def test_what_a_framework_computes_must_be_the_same(tmp_path, script, failures, notes):
    _, step, run = framework(tmp_path, script)
    said = run()
    assert (step.failures, step.notes) == (failures, notes)
    assert said["natively"]["one"]["step_ms"] == 1.5


@RELEASE
def test_a_framework_that_fails_by_itself_says_nothing_about_the_shim(tmp_path):
    _, _, run = framework(tmp_path, "echo no kernel image >&2; exit 1")
    with pytest.raises(gpu_suite.Missing, match="does not run here: exit status 1: no kernel"):
        run()


@RELEASE
@pytest.mark.parametrize("script, why", [
    ("echo ModuleNotFoundError: torch >&2; exit 1", "no python here has torch"),
    ("echo torch sees no GPU >&2; exit 1", "torch does not run here: .*torch sees no GPU")])
def test_a_framework_without_a_gpu_is_not_measured(tmp_path, monkeypatch, script, why):
    here, _, _ = framework(tmp_path, script)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(gpu_suite.Missing, match=why):
        here.python_with("torch")


def test_steps_are_timed_after_as_many_as_are_compared():
    calls = []
    ms, results = frameworks.timed(lambda number: calls.append(number) or number * number,
                                   lambda: None, 0, 6)
    assert results == [0, 1, 4, 9, 16, 25] and calls == list(range(6)) and ms < 100


def test_what_is_recorded_of_frameworks_is_something_that_they_run():
    assert {case for _, cases in measure.POOL_OFF.values() for case in cases} < set(frameworks.WHAT)
