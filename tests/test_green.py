"""Green contexts: served from their primary context's memory, and waited for."""

import pytest

import conftest
import leak_report

RACES = 99  # the simulator's exit status
POOLED = [pytest.param(None, id="shim"), pytest.param("backend:off", id="tracking")]
# How the program learns a green context's context: of itself, or of its stream.
HOW = [pytest.param((), id="asked"), pytest.param(("stream",), id="stream")]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("mode", ["serve", "fence", "own", "last", "reset", "captured", "after"])
def test_the_program_is_right_by_itself(run, program, mode, how):
    result = run([program("drv_green"), mode, *how], preload=False, sim="racecheck:1")
    assert result.rc == 0, result.err


@pytest.mark.parametrize("conf", POOLED)
@pytest.mark.parametrize("mode", ["serve", "fence"])
@pytest.mark.parametrize("how", HOW)
def test_memory_of_green_contexts_is_served_and_waited_for(run, program, mode, how, conf):
    result = run([program("drv_green"), mode, *how], conf=conf, sim="racecheck:1")
    assert (result.rc, result.err) == (0, "")


@pytest.mark.parametrize("conf", [None, "debug:poison", "debug:redzone"])
def test_a_free_on_a_default_stream_comes_behind_its_own_work(run, program, conf):
    """The primary's stream of the same name is another one."""
    result = run([program("drv_green"), "own"], conf=conf, sim="racecheck:1")
    assert (result.rc, result.err) == (0, "")


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "backend:off", "debug:poison"])
def test_a_stream_of_the_thread_that_the_driver_refuses_is_refused(run, program, conf):
    """An H100 has none with a green context current (tests/gpu/results/h100-580.json, green)."""
    plain = run([program("both_green")], preload=False, sim="racecheck:1")
    assert (plain.rc, plain.err) == (0, "")
    assert {line.split()[1] for line in plain.out.splitlines()} == {"400"}

    result = run([program("both_green")], conf=conf, sim="racecheck:1")

    assert (result.rc, result.out, result.err) == (0, plain.out, "")


@pytest.mark.parametrize("how", HOW)
def test_memory_of_a_green_context_comes_from_the_primarys_arena(run, program, how):
    """240 allocations, half of them with a green context current."""
    result = run([program("drv_green"), "serve", *how], stats=True)
    assert (result.rc, result.err) == (0, "")
    assert result.sim["calls"]["cuMemAlloc_v2"] < 30


def test_green_contexts_are_not_entered(run, program):
    """They may be current to one thread only, and the record of the primary covers them: one event
    closes an epoch, whatever green contexts there are."""
    result = run([program("drv_green"), "fence"], stats=True)
    assert (result.rc, result.err) == (0, "")
    calls = result.sim["calls"]
    assert 0 < calls["cuCtxRecordEvent"] <= 160  # of 300 frees a quarter closes an epoch at once


def test_old_drivers_are_waited_for_too(run, program):
    """Before cuCtxRecordEvent: the wait for the primary context covers its green ones."""
    result = run([program("drv_green"), "fence"], sim="racecheck:1,without:cuCtxRecordEvent")
    assert (result.rc, result.err) == (0, "")


def test_a_fence_that_forgets_green_streams_is_caught(run, program):
    result = run([program("drv_green"), "fence"], sim="racecheck:1",
                 env=conftest.mutated("fence_legacy_only"))
    assert result.rc == RACES and "is not ordered after" in result.err, result.err


@pytest.mark.parametrize("conf", POOLED)
def test_leaks_of_a_green_context_are_the_devices(run, program, conf):
    result = run([program("drv_green"), "leak"], conf=conf)
    assert result.rc == 0, result.err
    report = leak_report.parse(result.err)
    assert report.totals == {(0, "device"): (3000, 3)}
    assert report.destroyed is None


@pytest.mark.parametrize("conf", POOLED)
@pytest.mark.parametrize("mode", ["last", "reset", "captured", "after"])
@pytest.mark.parametrize("how", HOW)
def test_memory_goes_with_the_primary_context(run, program, mode, how, conf):
    result = run([program("drv_green"), mode, *how], conf=conf, sim="racecheck:1")
    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err
