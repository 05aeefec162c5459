"""The hardware suite (tests/gpu) on the simulator: it is whole, it says where there is no GPU, and
it can fail."""

import json
import os
import sys

import pytest

import conftest

sys.path.insert(0, str(conftest.ROOT / "tests" / "gpu"))

import compare_facts  # noqa: E402
import programs  # noqa: E402

GPU = conftest.ROOT / "tests" / "gpu"
CHECKS = ("facts", "preload", "parity", "random", "sanitizer")

whole = pytest.mark.skipif(conftest.SANITIZER is not None or conftest.FAULT is not None,
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


@whole
def test_every_check_runs_and_passes_on_the_simulator(tmp_path):
    rc, said, result = suite(tmp_path, "check", env={"SIMULATED": "1"})
    assert rc == 0, said
    assert {**states(result), "sanitizer": "any"} == {**dict.fromkeys(CHECKS, "passed"),
                                                      "sanitizer": "any"}
    assert result["machine"]["simulated"] and result["machine"]["gpu"].startswith("simcuda")
    assert {"date", "driver", "toolkit", "commit"} <= result["machine"].keys()
    page = (tmp_path / "check.md").read_text()
    assert "says nothing about hardware" in page
    assert all(f"\n{name} " in said for name in CHECKS)  # the short table


@pytest.mark.parametrize("script", ["check"])
def test_without_a_gpu_it_says_so(tmp_path, script):
    """No device is visible, so that this holds on a machine with one too."""
    rc, said, result = suite(tmp_path, script, env={"CUDA_VISIBLE_DEVICES": ""})
    assert (rc, result) == (conftest.SKIPPED, None), said
    assert "no GPU: no driver with a GPU answers here" in said


@whole
def test_a_broken_shim_fails_it(tmp_path):
    library = conftest.debug_shim("reuse_pending")
    rc, said, result = suite(tmp_path, "check", "--simulated", "--steps", "parity,random",
                             "--library", library, env={"CA_MUTATION": "reuse_pending"})
    assert rc == 1, said
    assert states(result) == {"parity": "passed", "random": "failed"}


@whole
def test_a_part_that_hangs_or_is_missing_does_not_end_the_others(tmp_path):
    build = tmp_path / "build"
    build.mkdir()
    for path in conftest.BUILD.iterdir():
        if path.name not in ("facts", "random", "gpu"):
            (build / path.name).symlink_to(path)
    # The machine itself is asked through the fact script too.
    (build / "facts").write_text('#!/bin/sh\n[ "$2" = platform ] && exec '
                                 f'{conftest.BUILD}/facts "$@"\nexec sleep 600\n')
    os.chmod(build / "facts", 0o755)
    output = tmp_path / "result"
    output.mkdir()

    rc, said, result = suite(output, "check", "--simulated", "--steps", "facts,parity,random",
                             "--seconds", "16", build=build)
    assert rc == 1, said
    assert states(result) == {"facts": "failed", "parity": "passed", "random": "failed"}


# --- its parts ------------------------------------------------------------------------------------


def test_every_program_is_run_or_left_out_for_a_reason():
    folder = conftest.ROOT / "tests" / "preload"
    there = {path.stem for path in [*folder.glob("*.c"), *folder.glob("*.cc")]
             if not path.stem.startswith("plugin_") or path.stem == "plugin_host"}
    run = {words[0] for words, _ in [*programs.SAME, *programs.SHIM]}
    assert run | set(programs.LEFT_OUT) == there
    assert run & set(programs.LEFT_OUT) == set()


def fact(*rows, status="ok"):
    return [{"name": "group/case", "status": status, "rows": list(rows)}]


SAID = {"call": "cudaFree", "bytes": 256, "waits": True, "call_us": 1.5}


@pytest.mark.parametrize("ours, differences", [
    (fact(SAID), []),
    (fact(SAID | {"call_us": 99.0}), []),
    (fact({"note": "whatever"}, SAID), []),
    (fact(SAID | {"waits": False}),
     ["group/case: bytes 256, call cudaFree: waits: here False, the simulator True"]),
    (fact(), ["group/case: bytes 256, call cudaFree: asked of the simulator alone"]),
    (fact(SAID, status="crashed: signal 11"),
     ["group/case: here crashed: signal 11, the simulator ok"]),
])
def test_facts_are_compared_without_times(ours, differences):
    assert compare_facts.compare(ours, fact(SAID))[1] == differences


def test_what_a_kernel_held_is_compared_with_what_a_host_function_held():
    host = SAID | {"held by": "host_function"}
    lines, differences, alone = compare_facts.compare(
        fact(host, SAID | {"held by": "kernel", "waits": False}, {"call": "other"}), fact(host))
    assert lines == 2 and len(differences) == 1 and "held by kernel" in differences[0]
    assert alone == ["group/case: call other"]
