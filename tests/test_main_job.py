"""The main job: the same results with and without the shim, from few and tight segments."""

import re

import pytest

import conftest

CALLS, LIVE = (6000, 300) if conftest.SANITIZER else (100000, 1000)
SIM = "memory:24G"
UPSTREAM = ("cuMemAlloc_v2", "cuMemAllocAsync", "cuMemCreate")

plain_output = {}


def mix(run, program, name="mix", **kwargs):
    result = run([program(name), CALLS, LIVE, 1], sim=SIM, timeout=120, stats=True, **kwargs)
    assert result.rc == 0, result.err
    assert result.err == ""
    return result


@pytest.fixture
def plain(run, program):
    """What the mix prints without the shim."""
    if not plain_output:
        result = mix(run, program, preload=False)
        assert result.sim["calls"]["cuMemAlloc_v2"] > CALLS // 3  # the simulator does count
        plain_output["text"] = result.out
    return plain_output["text"]


def upstream_allocations(result):
    return sum(result.sim["calls"].get(name, 0) for name in UPSTREAM)


@pytest.mark.parametrize("name", ["mix", "drv_mix"])
@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false"])
def test_mix_is_the_same_and_takes_few_segments(run, program, plain, name, conf):
    result = mix(run, program, name, conf=conf)

    assert result.out == plain
    assert upstream_allocations(result) < 200
    peak_live = int(re.search(r"peak_live_bytes (\d+)", plain)[1])
    assert result.sim["devices"][0]["peak_bytes"] < 1.5 * peak_live


@pytest.mark.parametrize("name", ["mix", "drv_mix"])
def test_mix_is_the_same_without_the_pool(run, program, plain, name):
    assert mix(run, program, name, conf="backend:off").out == plain


def test_mix_through_the_driver_is_the_same_without_the_shim(run, program, plain):
    assert mix(run, program, "drv_mix", preload=False).out == plain


@pytest.mark.parametrize("seed, conf", [(2, "max_split:1M"), (3, "limit:1G"), (4, "stacks:off"),
                                        (5, "debug:zero")])
def test_mix_holds_under_other_settings(run, program, seed, conf):
    """Small live sets: 64 buffers at most, so that 1 GiB is room enough for 250 MiB."""
    cmd = [program("mix"), CALLS // 10, 64, seed]
    expected = run(cmd, sim=SIM, preload=False)

    result = run(cmd, sim=SIM, conf=conf)

    assert (result.rc, result.out, result.err) == (0, expected.out, "")
