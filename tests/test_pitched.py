"""Pitched memory: the driver decides the pitch, the pool gives the memory."""

import re

import pytest

import leak_report

MODES = [pytest.param(False, None, id="plain"), pytest.param(True, None, id="shim"),
         pytest.param(True, "x_runtime_hooks:false", id="driver-lane"),
         pytest.param(True, "backend:off", id="tracking")]
POOLED = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane")]


def succeeds(result):
    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


def calls(run, program, conf, pairs):
    result = run([program("pitched"), "pairs", pairs], conf=conf, stats=True)
    succeeds(result)
    return {name: count for name, count in result.sim["calls"].items() if name != "cuCtxGetCurrent"}


@pytest.mark.parametrize("conf", POOLED)
def test_a_pair_makes_no_driver_call(run, program, conf):
    """In 12 pairs all widths have been seen."""
    few = calls(run, program, conf, 12)

    assert calls(run, program, conf, 72) == few


@pytest.mark.parametrize("conf", POOLED)
def test_the_driver_is_asked_for_each_width_that_is_news(run, program, conf):
    made = calls(run, program, conf, 60000)

    assert made["cuMemAllocPitch_v2"] <= 12
    assert made["cuMemAlloc_v2"] < 10


@pytest.mark.parametrize("preload, conf", MODES)
def test_rows_and_volumes_hold_their_contents(run, program, preload, conf):
    succeeds(run([program("pitched"), "use"], preload=preload, conf=conf))


@pytest.mark.parametrize("conf", [*POOLED, pytest.param("backend:off", id="tracking"),
                                  pytest.param("max_split:1M", id="split")])
@pytest.mark.parametrize("sim", ["devices:1", "devices:2", "devices:2,pitch:asker"])
def test_every_call_answers_as_without_the_pool(run, program, sim, conf):
    """Each device and each element size has pitches of its own."""
    plain = run([program("drv_pitched")], preload=False, sim=sim)
    pooled = run([program("drv_pitched")], conf=conf, sim=sim)

    assert (plain.rc, pooled.rc) == (0, 0), pooled.err
    assert pooled.out.splitlines() == plain.out.splitlines()


def test_a_driver_that_contradicts_what_was_learned_answers_all(run, program):
    sim = "pitch:height"
    plain = run([program("drv_pitched"), "odd"], preload=False, sim=sim)
    pooled = run([program("drv_pitched"), "odd"], sim=sim)

    assert (plain.rc, pooled.rc) == (0, 0), pooled.err
    assert pooled.out.splitlines() == plain.out.splitlines()
    assert "50 x 3 of 4: 0, 1024" in plain.out


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "backend:off"])
def test_leaks_are_reported_as_pitched(run, program, conf):
    report = leak_report.parse(run([program("pitched"), "leak"], conf=conf).err)

    assert report.totals == {(0, "pitched"): (512 * (16 + 4 * 3), 2)}
    group, = report.groups  # two lines of one function
    assert (group.kind, group.smallest, group.largest) == ("pitched", 512 * 12, 512 * 16)
    assert leak_report.places(group)[0] == "forget_rows"


def test_the_limit_holds_for_pitched_memory(run, program):
    result = run([program("drv_pitched")], conf="limit:64M,stats:exit", sim="memory:1G")

    assert result.rc == 0, result.err
    assert int(re.search(r"reserved bytes, peak +(\d+)$", result.err, re.MULTILINE)[1]) <= 64 << 20
