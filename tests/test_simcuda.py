"""The simulator against its own rules: every other test stands on them."""

import subprocess

import pytest

import conftest

SIM = conftest.BUILD / "tests" / "simcuda"


@pytest.mark.parametrize("name, env", [
    ("selftest", {}),
    ("selftest_race", {}),
    ("selftest_shadow", {}),
    ("selftest_runtime", {}),
    ("selftest_runtime", {"SIMCUDA": "runtime:11"}),
], ids=["driver", "race", "shadow", "runtime", "runtime_11"])
def test_simulated_cuda_keeps_its_rules(run, name, env):
    result = run(SIM / name, preload=False, env=env, timeout=110)

    assert result.rc == 0, result.out[-3000:] + result.err[-6000:]


@pytest.mark.other_build
@pytest.mark.skipif(conftest.BUILD.name != "build", reason="it has a build of its own")
def test_the_runtime_of_cuda_12_has_its_forms(run, tmp_path):
    headers = conftest.ROOT / "build" / "cuda-headers" / "12"
    if not (headers / "crt" / "host_defines.h").exists():
        pytest.skip("no headers of CUDA 12: scripts/deps.sh --older-headers")
    program = tmp_path / "selftest_runtime12"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-isystem", headers, "-o", program,
                    conftest.ROOT / "tests" / "simcuda" / "selftest_runtime12.c",
                    "-L", conftest.BUILD / "simcuda" / "12", "-lcudart"], check=True)

    result = run(program, preload=False, sim="arch:90,memory:1G")

    assert result.rc == 0, result.out + result.err


PLAIN = ["mix", "drv_mix", "threads", "multi_ctx", "pinned", "kinds", "capture"]


@pytest.mark.parametrize("preload", [False, True], ids=["alone", "shim"])
@pytest.mark.parametrize("name", PLAIN)
def test_ordered_programs_are_free_of_races(run, program, name, preload):
    result = run(program(name), sim="racecheck:1,devices:2", preload=preload)

    assert result.rc == 0 and "simcuda: race" not in result.err, result.err[-3000:]
