"""Graphs: what was captured stays right while memory comes and goes around it, and captures are
disturbed by what disturbs them without the library. tests/preload/graphs.c and graph_memory.c are the
programs."""

import pytest

import conftest
import leak_report

CONFS = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane"),
         pytest.param("stream_ordered:driver", id="async-driver")]
CASES = [("again",), ("flight",), ("destroyed",), ("threads",), ("contexts",)]
SIM = {"contexts": "devices:2"}
UNSUPPORTED, INVALIDATED = 900, 901
FINE, SPOILED = "0 0 active 0\n", f"{UNSUPPORTED} 0 spoiled {INVALIDATED}\n"
# Mode, thread, and what CUDA says to cudaMalloc there (cudaThreadExchangeStreamCaptureMode).
DURING = [("relaxed", "own", FINE), ("relaxed", "other", FINE), ("thread", "other", FINE),
          ("thread", "own", SPOILED), ("global", "own", SPOILED), ("global", "other", SPOILED)]


def keys(case, racecheck):
    return ",".join(filter(None, [SIM.get(case[0]), "racecheck:1" if racecheck else None])) or None


def succeeds(result):
    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


@pytest.mark.parametrize("racecheck", [False, True], ids=["", "racecheck"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_the_program_is_right_by_itself(run, program, case, racecheck):
    plain = ["plain"] if case[0] == "flight" else []
    succeeds(run([program("graphs"), *case, *plain], preload=False, sim=keys(case, racecheck)))


@pytest.mark.parametrize("racecheck", [False, True], ids=["", "racecheck"])
@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_graphs(run, program, case, conf, racecheck):
    succeeds(run([program("graphs"), *case], conf=conf, sim=keys(case, racecheck)))


@pytest.mark.parametrize("conf", CONFS)
def test_memory_of_the_graph_itself_is_the_drivers(run, program, conf):
    result = run([program("graphs"), "again"], conf=conf, stats=True)

    succeeds(result)
    if conf != "stream_ordered:driver":
        assert result.sim["calls"]["cuMemAllocAsync"] == 1
        assert result.sim["calls"]["cuMemFreeAsync"] == 1


@pytest.mark.parametrize("mode, who, says", DURING)
def test_calls_in_a_capture_have_their_codes_without_a_pool(run, program, mode, who, says):
    plain = run([program("graphs"), "during", mode, who], preload=False)
    off = run([program("graphs"), "during", mode, who], conf="backend:off")

    succeeds(plain)
    succeeds(off)
    assert (plain.out, off.out) == (says, says)


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("mode, who, plainly", DURING)
def test_calls_in_a_capture_have_their_codes_with_the_pool(run, program, mode, who, plainly, conf):
    result = run([program("graphs"), "during", mode, who], conf=conf, sim="racecheck:1")

    succeeds(result)
    assert result.out == plainly


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "stream_ordered:driver", "backend:async",
                                  "backend:async,capture:keep"])
@pytest.mark.parametrize("mode, who, says", DURING)
def test_each_call_in_a_capture_is_answered_as_without_a_pool(run, program, mode, who, says, conf):
    plain = run([program("graph_memory"), "answers", mode, who], preload=False)
    served = run([program("graph_memory"), "answers", mode, who], conf=conf)

    succeeds(plain)
    succeeds(served)
    assert served.out == plain.out and plain.out.count("\n") == 9
    assert (str(UNSUPPORTED) in plain.out) == (says == SPOILED)


@pytest.mark.parametrize("mode, who, plainly", DURING)
def test_with_keep_the_pool_serves_in_every_capture_and_spoils_none(run, program, mode, who, plainly):
    result = run([program("graphs"), "during", mode, who], conf="capture:keep", sim="racecheck:1")

    succeeds(result)
    assert result.out == FINE


@pytest.mark.parametrize("conf", ["capture:keep", "capture:keep,x_runtime_hooks:false",
                                  "capture:keep,debug:poison+redzone"])
@pytest.mark.parametrize("case", ["replay", "outlives", "two"])
def test_memory_that_a_capture_touched_is_kept_for_its_graph(run, program, case, conf):
    # A guard behind each allocation makes what `two` reckons with larger.
    conf = conf.replace("+redzone", "") if case == "two" else conf
    succeeds(run([program("graph_memory"), case], conf=conf, sim="racecheck:1"))


def test_a_graph_that_could_not_be_destroyed_keeps_its_memory(run, program):
    succeeds(run([program("graph_memory"), "refused"], conf="capture:keep",
                 sim="fail:cuGraphExecDestroy@1"))


def test_the_statistics_tell_what_is_kept_for_graphs(run, program):
    result = run([program("graph_memory"), "replay"], conf="capture:keep,stats:exit")

    rows = [line.split()[-1] for line in result.err.splitlines() if "bytes kept for graphs" in line]
    assert len(rows) == 1 and 300000 <= int(rows[0]) <= 304 * 1024, result.err


@pytest.mark.parametrize("case", ["destroyed", "threads"])
def test_fences_are_recorded_once_the_capture_is_over(run, program, case):
    result = run([program("graphs"), case], stats=True)

    succeeds(result)
    assert result.sim["calls"]["cuCtxRecordEvent"] > 10


def test_pin_mode_keeps_a_captured_graph_good(run, program):
    succeeds(run([program("graphs"), "pin"], sim="racecheck:1"))


@pytest.mark.parametrize("mutation, says", [("none", FINE),
                                            ("capture_gate", f"0 0 spoiled {INVALIDATED}\n")])
def test_a_fence_in_a_capture_would_spoil_it(run, program, mutation, says):
    assert run([program("graphs"), "during", "relaxed", "own"], env=conftest.mutated(mutation)).out == says


@pytest.mark.parametrize("mutation, rc", [("none", 0), ("reuse_pending", 1)])
def test_memory_of_a_graph_in_flight_would_be_handed_out(run, program, mutation, rc):
    assert run([program("graphs"), "flight"], env=conftest.mutated(mutation)).rc == rc


@pytest.mark.parametrize("form", [(), ("own",)], ids=["plain", "own"])
@pytest.mark.parametrize("preload", [False, True], ids=["", "shim"])
def test_a_graph_that_is_captured_once_more(run, program, preload, form):
    succeeds(run([program("drv_recapture"), *form], sim="driver:13030", preload=preload))
