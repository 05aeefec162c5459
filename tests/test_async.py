"""Stream-ordered allocations come from the pool, in the order of their streams."""

import re

import pytest

import conftest
import leak_report

CONFS = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane"),
         pytest.param("reuse:wait", id="wait"), pytest.param("stream_ordered:driver", id="driver"),
         pytest.param("debug:zero", id="zero"), pytest.param("backend:off", id="tracking")]
CASES = [("pairs", 500), ("streams", 2000), ("mixed",), ("held",), ("destroyed",), ("pool",),
         ("thread",), ("own",), ("joined",), ("deadlock",), ("blocking",)]
# A stream that is made to wait for a held one waits for the gate. The driver's own pool may do the
# same (CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES); ours only where it is asked to.
MIB = 1 << 20
HELD = {"destroyed", "deadlock", "held", "own"}
SIM = {"destroyed": "memory:64M", "thread": "memory:64M", "deadlock": "memory:64M"}


def succeeds(result):
    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


def calls(result, *names):
    return sum(result.sim["calls"].get(name, 0) for name in names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_the_program_is_right_by_itself(run, program, case):
    succeeds(run([program("async"), *case], preload=False, sim=SIM.get(case[0])))


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_stream_ordered_allocation(run, program, case, conf):
    if conf == "reuse:wait" and case[0] in HELD:
        return
    succeeds(run([program("async"), *case], conf=conf, sim=SIM.get(case[0])))


@pytest.mark.parametrize("how", ["free", "legacy"])
def test_what_calls_that_do_not_wait_have_freed_is_waited_for_a_while_alone(run, program, how):
    """On a full device, behind work that waits for the thread that allocates."""
    assert run([program("async_freed"), how], preload=False, sim="memory:256M").rc == 0
    succeeds(run([program("async_freed"), how], conf="oom_report:off,oom_wait:500ms",
                 sim="memory:256M"))


@pytest.mark.parametrize("kind", ["device", "array"])
@pytest.mark.parametrize("how", ["free", "legacy"])
def test_that_is_as_long_for_what_the_driver_serves(run, program, kind, how):
    assert run([program("async_slow"), kind, how], preload=False, sim="memory:256M").rc == 0
    succeeds(run([program("async_slow"), kind, how], sim="memory:256M"))


@pytest.mark.parametrize("conf", CONFS[:3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_no_race(run, program, case, conf):
    if conf == "reuse:wait" and case[0] in HELD:
        return
    sim = SIM.get(case[0])
    succeeds(run([program("async"), *case], conf=conf,
                 sim=f"racecheck:1,{sim}" if sim else "racecheck:1"))


@pytest.mark.parametrize("conf", ["stream_ordered:driver", "backend:off"])
def test_memory_of_the_driver_s_pool_is_the_device_s_that_it_is_on(run, program, conf):
    result = run([program("both_elsewhere"), "tracked"], conf=f"stream_ordered:driver,{conf}",
                 sim="devices:2")

    assert result.rc == 0, result.err
    assert leak_report.parse(result.err).totals == {(1, "async"): (3 << 20, 2)}


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "stream_ordered:driver", "backend:async"])
def test_a_device_without_pools_has_no_stream_ordered_memory(run, program, conf):
    succeeds(run([program("async"), "unsupported"], conf=conf, sim="mempools:0"))


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "reuse:wait"])
def test_what_a_stream_frees_is_found_while_older_work_is_held(run, program, conf):
    succeeds(run([program("async"), "behind"], conf=conf, sim="memory:64M", timeout=10))


@pytest.mark.parametrize("preload, conf", [(False, None), *((True, conf) for conf in (
    None, "x_runtime_hooks:false", "x_runtime_hooks:true", "stream_ordered:driver", "backend:async", "backend:off"))])
@pytest.mark.parametrize("how", [(), ("plain",), ("legacy",), ("plain", "legacy")], ids=str)
def test_a_free_on_another_device_s_stream_waits_for_that(run, program, how, preload, conf):
    """The other device has never allocated: plain frees do not wait for it."""
    result = run([program("async_device"), *how], preload=preload, conf=conf,
                 sim="devices:2,memory:1G,racecheck:1")

    assert result.rc == 0, result.err
    assert not preload or leak_report.nothing_leaked(result.err), result.err


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false"])
@pytest.mark.parametrize("how", [("name",), ("plain", "name"), ("plain", "name", "legacy")],
                         ids=str)
def test_a_name_that_is_freed_on_another_device_s_stream_waits_too(run, program, how, conf):
    succeeds(run([program("async_device"), *how], conf=conf, sim="devices:2,memory:1G,racecheck:1"))


@pytest.mark.parametrize("preload, conf", [(False, None), *((True, conf) for conf in (
    None, "x_runtime_hooks:false", "stream_ordered:driver", "backend:async", "backend:off"))])
@pytest.mark.parametrize("how", [("plain",), ("legacy",), ("plain", "legacy")], ids=str)
def test_nor_does_a_shortage_give_such_memory_away(run, program, how, preload, conf):
    """The real free waits for the memory's own context alone."""
    result = run([program("async_device"), *how, "short"], preload=preload, conf=conf,
                 sim="devices:2,memory:64M,racecheck:1")

    assert result.rc == 0, result.err


BESIDE = ("legacy", "plain", "own", "free", "unused", "thread", "device", "context", "foreign")


@pytest.mark.parametrize("case", BESIDE)
def test_what_goes_on_beside_it_holds_up_no_plain_free(run, program, case):
    assert run([program("both_beside"), case, 300_000, 100], preload=False,
               sim="devices:2,racecheck:1", timeout=10).rc == 0


@pytest.mark.parametrize("case, size, conf", [
    *((case, size, None) for case in BESIDE for size in (8 * MIB, 300_000, 1000)),
    *((case, 8 * MIB, conf) for case in BESIDE for conf in ("x_runtime_hooks:false",))])
def test_nor_is_memory_kept_from_use_for_it(run, program, case, size, conf):
    """Nobody waits, and there is room for three times what is live, or the first segments."""
    result = run([program("both_beside"), case, size, 300], conf=conf, stats=True,
                 sim="devices:2,racecheck:1")

    succeeds(result)
    assert result.sim["devices"][0]["peak_bytes"] <= max(3 * size, 20 * MIB)
    assert calls(result, "cuMemAlloc_v2") <= 4
    assert calls(result, "cuEventSynchronize", "cuStreamWaitEvent") == 0


@pytest.mark.parametrize("mutation, rc", [("none", 0), ("legacy_unfenced", 99)])
def test_what_the_legacy_stream_waits_for_its_next_user_does(run, program, mutation, rc):
    """Also where that is on a blocking stream."""
    result = run([program("async"), "blocking"], sim="racecheck:1", env=conftest.mutated(mutation))

    assert result.rc == rc, result.err


# Of launches that may begin before the kernel in front of them has ended.
OVERLAP = [*(("runtime", "made", how) for how in ("next", "later", "many", "large", "attrs", "fails")),
           ("driver", "made", "next"), ("runtime", "legacy", "next"), ("runtime", "own", "next")]


@pytest.mark.parametrize("conf", [None, "reuse:order", "thread_cache:0"])
@pytest.mark.parametrize("lane, stream, how", OVERLAP, ids=str)
def test_a_launch_that_may_begin_early_is_behind_what_had_its_memory(run, program, lane, stream, how,
                                                                     conf):
    succeeds(run([program("both_overlap"), lane, stream, how], conf=conf,
                 sim="racecheck:1,programmatic:early"))


@pytest.mark.parametrize("lane, stream, how", OVERLAP, ids=str)
def test_else_that_is_a_race(run, program, lane, stream, how):
    result = run([program("both_overlap"), lane, stream, how],
                 sim="racecheck:1,programmatic:early", env=conftest.mutated("overlap_kept"))

    assert result.rc == 99, result.err


@pytest.mark.parametrize("mutation, rc", [("none", 0), ("order_pdl", 99)])
def test_nor_does_plain_memory_in_flight_serve_one_too_early(run, program, mutation, rc):
    result = run([program("both_overlap"), "plain", "made", "large"], conf="reuse:order",
                 sim="racecheck:1,programmatic:early,kernel_ns:3000000", env=conftest.mutated(mutation))

    assert result.rc == rc, result.err


@pytest.mark.parametrize("conf", [None, "reuse:order"])
@pytest.mark.parametrize("stream", ["made", "legacy", "own"])
def test_the_next_one_begins_early_again(run, program, stream, conf):
    """With the driver's own pool all do."""
    result = run([program("both_overlap"), "runtime", stream, "again"], conf=conf)

    succeeds(result)
    assert result.out == "1\n"


@pytest.mark.parametrize("conf", CONFS[:3])
def test_a_pair_on_one_stream_makes_no_driver_call_after_warm_up(run, program, conf):
    few, many = (run([program("async"), "pairs", count], conf=conf, stats=True)
                 for count in (100, 1100))
    more = {name: many.sim["calls"][name] - few.sim["calls"].get(name, 0)
            for name in many.sim["calls"]}

    # Before a growth the pool asks what there is, once more where the answer before is 10 ms old.
    if abs(more.get("cuMemGetInfo_v2", 0)) <= many.sim["calls"]["cuMemAlloc_v2"] < 10:
        more.pop("cuMemGetInfo_v2", None)
    assert {name for name, count in more.items() if count} <= {"cuCtxGetCurrent"}, more
    assert many.sim["calls"].get("cuMemAllocAsync", 0) == 0


@pytest.mark.parametrize("conf", CONFS[:3])
def test_between_eight_streams_the_host_does_not_wait(run, program, conf):
    result = run([program("async"), "streams", 20000], conf=f"{conf or 'log:warn'},stats:exit",
                 stats=True, timeout=120)

    assert result.rc == 0, result.err
    assert re.search(r"^  event waits +0$", result.err, re.MULTILINE), result.err
    assert calls(result, "cuEventSynchronize", "cuCtxSynchronize", "cuStreamSynchronize") == 0
    assert calls(result, "cuMemAlloc_v2") < 40  # taken from one another, not grown for ever
    assert calls(result, "cuMemAllocAsync", "cuMemFreeAsync") == 0


def test_a_stream_waits_on_the_device_where_asked(run, program):
    joined = run([program("async"), "joined"], conf="reuse:wait", stats=True)
    not_joined = run([program("async"), "joined"], conf="reuse:grow", stats=True)

    assert (joined.out, not_joined.out) == ("joined\n", "another\n")
    assert calls(joined, "cuStreamWaitEvent") == 1 and not calls(not_joined, "cuStreamWaitEvent")


@pytest.mark.parametrize("preload", [False, True], ids=["plain", "shim"])
@pytest.mark.parametrize("name", ["cuDeviceSetMemPool", "cuMemPoolSetAttribute",
                                  "cuMemPoolSetAccess"])
def test_a_refused_call_on_a_pool_is_the_program_s_to_know(run, program, name, preload):
    succeeds(run([program("async"), "refused"], preload=preload, sim=f"fail:{name}@1"))


def test_a_stream_that_cannot_be_made_to_wait_gets_other_memory(run, program):
    result = run([program("async"), "joined"], conf="reuse:wait", stats=True,
                 sim="fail:cuStreamWaitEvent@1")

    assert (result.rc, result.out) == (0, "another\n"), result.err


def test_a_customised_pool_goes_through(run, program):
    result = run([program("async"), "pool"], conf="stats:exit", stats=True)

    assert result.rc == 0, result.err
    # The pool of its own, that as the current one, and the default one with a threshold.
    assert calls(result, "cuMemAllocFromPoolAsync") == 1
    assert calls(result, "cuMemAllocAsync") == 2


def test_that_it_goes_through_is_said_with_the_reason(run, program):
    result = run([program("async"), "pool"], conf="log:info")

    said = [line.partition("]: ")[2] for line in result.err.splitlines() if "stream-ordered" in line]
    assert said == [
        "device 0: stream-ordered memory is the driver's for now: the program made another pool the "
        "current memory pool",
        "device 0: stream-ordered memory is the cache's again: the program made the default one the "
        "current memory pool",
        "device 0: stream-ordered memory is the driver's from now on: the program set the release "
        "threshold of its default memory pool"]


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false"])
def test_a_high_water_mark_that_is_reset_changes_nothing(run, program, conf):
    result = run([program("async"), "marks"], conf=conf, stats=True)

    assert (result.rc, result.err) == (0, "")
    assert calls(result, "cuMemPoolSetAttribute") == 200 and not calls(result, "cuMemAllocAsync")


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false"])
@pytest.mark.parametrize("keep, least, most", [(1000, 64, 80), (20, 0, 20), (0, 0, 10)])
def test_trimming_the_default_pool_reaches_what_stands_for_its_memory(run, program, keep, least, most,
                                                                      conf):
    """A segment of 10 MiB stays in any case: a small allocation in it is live."""
    result = run([program("async"), "trim", keep], conf=conf, stats=True)

    assert (result.rc, result.err) == (0, "")
    assert least << 20 <= result.sim["devices"][0]["live_bytes"] <= most << 20


@pytest.mark.parametrize("conf", ["stream_ordered:driver", "backend:off"])
def test_of_a_pool_that_is_the_driver_s_only_that_is_trimmed(run, program, conf):
    result = run([program("async"), "trim", 0], conf=conf, stats=True)

    assert (result.rc, result.err) == (0, "") and calls(result, "cuMemPoolTrimTo") == 1


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false"])
@pytest.mark.parametrize("case", ["tuned", "left"])
def test_what_the_cache_holds_goes_back_when_a_pool_is_tuned(run, program, case, conf):
    """Else the program has it twice, beside what the driver's pool is told to keep."""
    result = run([program("async"), case], conf=conf, stats=True)

    succeeds(result)
    assert calls(result, "cuMemAllocAsync") > 0
    memory = result.sim["devices"][0]
    # What was in flight then is there for as long.
    assert memory["peak_bytes"] <= (96 + 16) * MIB * (1 if case == "tuned" else 2)
    assert memory["live_bytes"] <= (96 + 16) * MIB


@pytest.mark.parametrize("mutation, rc", [("none", 0), ("reuse_across_streams", 99)])
def test_the_race_check_sees_reuse_across_streams(run, program, mutation, rc):
    result = run([program("async"), "streams", 200], sim="racecheck:1",
                 env=conftest.mutated(mutation))

    assert result.rc == rc, result.err


@pytest.mark.parametrize("preload", [False, True], ids=["plain", "shim"])
def test_async_memory_of_a_created_context_outlives_it(run, program, preload):
    """As on hardware: so the driver serves it, since the pool's memory goes with its context."""
    result = run([program("drv_async_context")], preload=preload)

    assert (result.rc, result.out, result.err) == (0, "alive\n", "")


def test_async_memory_of_a_created_context_that_is_left_behind_is_reported(run, program):
    result = run([program("drv_async_context"), "left"])

    report = leak_report.parse(result.err)
    assert report.totals == {(0, "async"): (1000, 1)} and not report.destroyed


@pytest.mark.parametrize("case, preload", [
    ("legacy", False), ("legacy", True), ("green", False), ("green", True),
    # Without the shim a race: the driver's free of pinned memory waits for its own context alone.
    ("unseen", True)])
def test_what_is_no_order_is_not_taken_for_one(run, program, case, preload):
    result = run([program("drv_order"), case], preload=preload, conf="headroom:0",
                 sim="racecheck:1,memory:256M")

    assert (result.rc, result.err) == (0, "")


def test_the_pool_that_is_set_for_a_location_serves(run, program):
    result = run([program("drv_order"), "current"], stats=True)

    succeeds(result)
    assert calls(result, "cuMemAllocAsync") == 1


def test_nobody_waits_for_a_context_that_another_thread_destroys(run, program):
    """Twenty hits of the cache, while the destruction takes ten times as long as the program waits
    for its begin."""
    result = run([program("drv_order"), "destroyed"], sim=f"latency:cuCtxDestroy_v2={2 * 10**9}")

    assert (result.rc, result.err) == (0, "")


def home(mutation):
    program = conftest.BUILD / "tests/unit/test_home-debug"
    if not program.exists():
        pytest.skip(f"{program} is missing: deliberate faults need a debug build")
    return conftest.execute([program], {**conftest.plain_env(), "CA_MUTATION": mutation}, 60)


@pytest.mark.parametrize("fault", ["home_shared", "home_unfenced", "home_released"])
def test_a_rule_of_the_stream_at_home_that_is_left_out_is_missed(fault):
    rc, out, err = home(fault)

    assert rc > 0 and "unknown mutation" not in err
    assert "[  FAILED  ]" in out + err
