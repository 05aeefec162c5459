"""A program of many rounds, short: `make soak` is the long one."""

import pytest

import conftest

# Each ends with nothing live and nothing held; what they do is in tests/soak/roles.c.
OPTIONS = ["", "x_runtime_hooks:false", "thread_cache:0", "reuse:wait", "stacks:off,history:1000",
           "debug:frees,poison", "decay:1ms", "stream_ordered:driver", "backend:async"]
ROUNDS, OPERATIONS = (3, 100) if conftest.SANITIZER else (6, 200)


@pytest.mark.parametrize("conf", OPTIONS if not conftest.SANITIZER else OPTIONS[:3])
@pytest.mark.parametrize("seed", [1, 2])
def test_rounds_leave_nothing_behind(run, conf, seed, tmp_path):
    result = run([conftest.BUILD / "soak", "--rounds", ROUNDS, "--operations", OPERATIONS,
                  "--seed", seed],
                 conf=",".join(filter(None, ("log:error,leak_report:off", conf))),
                 sim="memory:256M,devices:3", cwd=tmp_path)

    assert result.rc == 0, result.out + result.err
    assert f"soak: {ROUNDS} rounds" in result.out
    assert list(tmp_path.glob("soak-*.txt")) == [], "reports that nobody took"


def test_without_the_shim_they_run_as_well(run, tmp_path):
    result = run([conftest.BUILD / "soak", "--rounds", ROUNDS], preload=False,
                 sim="memory:256M,devices:3", cwd=tmp_path)

    assert result.rc == 0, result.err
