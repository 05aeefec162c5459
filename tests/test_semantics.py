"""Programs that are right without the shim are right with it, in every mode."""

import re

import pytest

import conftest
import leak_report

MODES = [pytest.param(False, None, id="plain"), pytest.param(True, None, id="shim"),
         pytest.param(True, "x_runtime_hooks:false", id="driver-lane"),
         pytest.param(True, "backend:off", id="tracking"),
         pytest.param(True, "backend:async", id="driver-pool")]
POOLED = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane")]
ROUNDS = 300 if conftest.SANITIZER else 2000


def succeeds(result):
    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("cmd, sim", [
    (["threads", 8, ROUNDS], "memory:2G"),
    (["threads", 4, ROUNDS], "memory:2G"),
    (["cache_full"], "memory:256M"),
    (["cache_full"], "memory:1G"),
    (["capture", "relaxed"], None),
    (["capture", "thread"], None),
    (["multi_ctx"], "devices:1"),
    (["multi_ctx"], "devices:2"),
    (["multi_ctx"], "devices:3"),
    (["setdevice"], "devices:1"),
    (["setdevice"], "devices:2"),
    (["both_no_context", "pop"], None),
    (["both_no_context", "set"], None),
    (["both_no_context", "destroy"], None),
    (["both_no_context", "beside"], None),
    (["both_no_context", "beside_early"], None),
    (["kinds"], None),
    (["drv_sync_memops", 1100], None),
    (["drv_sync_memops", "race"], "latency:cuPointerSetAttribute=1000000"),
    (["pinned"], None),
    (["drv_ctx"], None),
    (["versioned", 100], None),
], ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value))
def test_runs(run, program, cmd, sim, preload, conf):
    succeeds(run([program(cmd[0]), *cmd[1:]], sim=sim, conf=conf, preload=preload))


def test_sync_memops_stays_where_it_cannot_be_told_apart(run, program):
    """1,100 blocks have it, and there are 1,024 marks."""
    for conf in None, "x_runtime_hooks:false", "backend:async":
        result = run([program("drv_sync_memops"), "many"], conf=conf)
        assert result.rc == 0, result.err
        assert result.err.count("SYNC_MEMOPS stays set on some pooled memory") == 1
    assert run([program("drv_sync_memops"), "many"], preload=False).rc == 0


def test_reuse_program_is_right_by_itself(run, program):
    succeeds(run([program("reuse"), 100, "plain"], preload=False, sim="memory:4G"))
    succeeds(run([program("reuse"), 100, "plain"], conf="backend:off", sim="memory:4G"))


@pytest.mark.parametrize("conf", POOLED)
@pytest.mark.parametrize("count", [1, 3, 20, 70, 200])
def test_memory_in_use_is_not_handed_out_and_frees_do_not_wait(run, program, conf, count):
    """Counts around what closes an epoch: one block, and more than 64."""
    succeeds(run([program("reuse"), count], conf=conf, sim="memory:4G"))


@pytest.mark.parametrize("conf", POOLED)
def test_fences_stay_out_of_a_global_capture(run, program, conf):
    succeeds(run([program("capture"), "global"], conf=",".join(filter(None, [conf, "capture:keep"]))))


@pytest.mark.parametrize("conf", POOLED)
def test_cached_memory_serves_a_big_request(run, program, conf):
    """And comes from the pool otherwise: thousands of calls, few of them upstream."""
    result = run([program("cache_full"), 5], sim="memory:256M", conf=conf, stats=True)

    succeeds(result)
    assert result.sim["calls"]["cuMemAlloc_v2"] < 1000
    assert result.sim["calls"].get("cuMemFree_v2", 0) + \
        result.sim["calls"].get("cuMemFreeAsync", 0) > 0


@pytest.mark.parametrize("lane", ["x_runtime_hooks:true", "x_runtime_hooks:false"])
def test_zero_gives_zeros_in_reused_memory(run, program, lane):
    result = run(program("zero"), conf=f"debug:zero,{lane}", stats=True)

    succeeds(result)
    assert result.out == "clean\n"
    assert result.sim["calls"]["cuMemAlloc_v2"] < 20  # it was reused


def test_without_zero_reused_memory_is_as_it_was_left(run, program):
    """Else the test above proves nothing."""
    assert run(program("zero")).out == "dirty\n"


@pytest.mark.parametrize("preload, conf", MODES)
def test_wrong_frees_answer_as_the_driver_does(run, program, preload, conf):
    result = run(program("frees"), preload=preload, conf=conf)

    assert result.rc == 0, result.err


@pytest.mark.parametrize("conf", POOLED)
def test_wrong_frees_are_told_once(run, program, conf):
    """Three pointers, each freed wrongly three times: one message for each, and nothing else."""
    result = run(program("frees"), conf=conf)

    lines = [line for line in result.err.splitlines() if not line.startswith("    ")]
    assert len(lines) == 3, result.err
    for line in lines:
        assert re.match(r"^cachealloc\[\d+\]: warning: free of 0x", line)
    assert run(program("frees"), conf="log:off").err == ""


def test_nothing_is_left_of_a_device_that_was_reset(run, program):
    """Its live memory died with it: that is no leak of the program's end."""
    result = run(program("multi_ctx"), sim="devices:2")

    assert leak_report.nothing_leaked(result.err), result.err


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["cuMemAlloc_v2", "cuEventCreate", "cuCtxRecordEvent",
                                  "cuEventQuery"])
def test_an_upstream_failure_is_survived_or_reported(run, program, name, nth):
    """One failure of the driver never ends the process: it is retried, or told as an error code."""
    result = run([program("versioned"), 300], sim=f"fail:{name}@{nth}")

    assert result.rc in (0, 1)
    if name != "cuMemAlloc_v2":
        assert result.rc == 0, result.err
