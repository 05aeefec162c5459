"""The simulator against its own rules: every other test stands on them."""

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


PLAIN = ["mix", "drv_mix", "threads", "multi_ctx", "pinned", "kinds", "capture"]


@pytest.mark.parametrize("preload", [False, True], ids=["alone", "shim"])
@pytest.mark.parametrize("name", PLAIN)
def test_ordered_programs_are_free_of_races(run, program, name, preload):
    result = run(program(name), sim="racecheck:1,devices:2", preload=preload)

    assert result.rc == 0 and "simcuda: race" not in result.err, result.err[-3000:]
