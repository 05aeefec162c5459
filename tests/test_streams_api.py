"""cachealloc_alloc and cachealloc_free: memory in the order of streams, preloaded and merely opened."""

import pytest

import conftest
import leak_report
from test_async import CASES, SIM

MIB = 1 << 20
SEMANTICS = ["basic", "refused", "mixed", "device", "recorded", "awaited", "own", "shared_pool",
             "streams", "handles", "reset", "capture", "refusal", "full", "fork", "early"]
CONFS = [pytest.param(None, id="pool"), pytest.param("x_runtime_hooks:false", id="driver-lane"),
         pytest.param("expandable_segments:true,reuse:order", id="order"),
         pytest.param("debug:zero", id="zero"), pytest.param("backend:off", id="tracking")]
# What the pool alone does: the driver's own memory may serve elsewhere, and has other answers.
POOL_ONLY = {"basic", "recorded", "own", "shared_pool", "capture", "streams", "refused"}
# Memory in flight serves in the order of all work, not of one stream.
# What is zeroed comes from elsewhere first.
ELSEWISE = {("expandable_segments:true,reuse:order", "streams"), ("debug:zero", "shared_pool")}
SAYS = {"refused", "capture", "reset"}  # that a free was refused; that memory went with its context
DEVICES = "devices:2,memory:256M,racecheck:1"
# Freed by cudaFree, which is the driver's own there.
NOT_OPENED = {"mixed"}


@pytest.fixture(params=["preloaded", "opened"])
def by(request):
    """How the process has the library: what a program is run with, and its argument."""
    opened = request.param == "opened"
    return {"preload": not opened}, [str(conftest.SHIM)] if opened else []


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("case", SEMANTICS)
def test_it_answers_as_the_header_says(run, program, by, case, conf):
    how, path = by
    if (conf == "backend:off" and case in POOL_ONLY) or (conf, case) in ELSEWISE:
        return
    result = run([program("api_ordered"), case, *path], conf=f"oom_report:off,{conf or ''}",
                 sim=DEVICES, **how)

    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err) or case in SAYS, result.err


@pytest.mark.parametrize("conf", [None, "reuse:order"])
def test_without_a_context_memory_is_of_the_primary_one(run, program, by, conf):
    """As the runtime's own would be, whatever contexts the program has made."""
    how, path = by
    result = run([program("both_ordered"), *path], conf=conf, sim=DEVICES, **how)

    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


@pytest.mark.parametrize("conf", ["backend:off", "backend:async"])
def test_what_was_said_of_memory_ends_with_it(run, program, conf):
    """Where the driver has it a free behind all work would wait here, and the work waits for us."""
    result = run([program("api_ordered"), "stale"], conf=conf, sim=DEVICES, timeout=10)

    assert (result.rc, result.out) == (0, "the same\n"), result.err


def test_what_is_left_is_reported_by_its_stack(run, program, by):
    how, path = by
    result = run([program("api_ordered"), "leak", *path], **how)

    report = leak_report.parse(result.err)
    assert report.totals == {(0, "async"): (12345, 1)}
    assert "main at api_ordered.c" in result.err, result.err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_reuse_is_in_the_order_of_streams(run, program, by, case):
    how, path = by
    if path and case[0] in NOT_OPENED:
        return
    # Opened, what another stream freed has its fence at once, and serves before the last memory.
    memory = "memory:1G" if path and case[0] == "deadlock" else SIM.get(case[0], "memory:1G")
    result = run([program("async"), *case], sim=f"{memory},racecheck:1", conf="oom_report:off",
                 env={"ASYNC_BY": path[0] if path else ""}, **how)

    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


def test_the_race_check_sees_what_is_served_across_streams(run, program):
    """The tests above can fail: with the mutation a stream takes what another one's work still uses."""
    result = run([program("async"), "held"], sim="memory:1G,racecheck:1",
                 env={"ASYNC_BY": "", **conftest.mutated("reuse_across_streams")}, timeout=10)

    assert result.rc != 0


def test_opened_it_finds_streams_whose_handle_is_another_one_s(run, program):
    """No hook sees a stream go: its id tells."""
    result = run([program("api_ordered"), "handles", str(conftest.SHIM)], preload=False,
                 sim=DEVICES, stats=True)

    assert result.rc == 0, result.err
    assert result.sim["calls"]["cuStreamGetId"] >= 400


def test_a_call_asks_the_driver_for_its_context_once(run, program, by):
    """1,000 on either stream. Opened, the library has no hooks: each asks the driver what they tell."""
    how, path = by
    result = run([program("api_ordered"), "pairs", *path], stats=True, **how)
    calls = result.sim["calls"]
    asked = {"cuCtxGetCurrent": (1000, 2000), "cuCtxGetId": (0, 2000), "cuCtxGetDevice": (0, 0),
             "cuStreamGetCtx": (0, 1000), "cuStreamGetId": (0, 1000),
             "cuStreamIsCapturing": (0, 2000)}
    if "cuEventRecord" in calls:
        calls["cuCtxGetCurrent"] -= calls["cuEventRecord"]  # each makes the context current

    assert result.rc == 0, result.err
    for name, (preloaded, opened) in asked.items():
        expected = opened if path else preloaded
        assert expected <= calls.get(name, 0) < expected + 50, (name, calls)


@pytest.mark.parametrize("case, call", [
    ("early", "cuInit"), ("early", "cuDevicePrimaryCtxRetain"), ("early", "cuMemAlloc_v2"),
    ("streams", "cuStreamGetId"), ("streams", "cuStreamGetCtx"), ("streams", "cuEventRecord"),
    ("streams", "cuEventCreate"), ("basic", "cuStreamIsCapturing"), ("basic", "cuCtxGetId")])
def test_a_call_of_the_driver_that_fails_leaves_an_answer(run, program, case, call):
    """Opened, all of them are made for the library's own calls: it ends by a check at worst."""
    result = run([program("api_ordered"), case, str(conftest.SHIM)], preload=False,
                 conf="oom_report:off", sim=f"devices:2,memory:256M,fail:{call}@1")

    assert result.rc in (0, 1), result.err
