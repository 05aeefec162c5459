"""Freed memory comes back without waiting where nobody waited before, and not too early."""

import os
import random
import re

import pytest

import conftest
import leak_report
import run_rows

LANES = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane")]
MIB = 1 << 20

# A driver from before 12.5: nothing can be recorded behind a whole context.
OLD = "without:cuCtxRecordEvent"  # as before CUDA 12.5, or behind a driver that lacks it


def succeeds(result):
    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


def name(value):
    if isinstance(value, (list, tuple)):
        return "-".join(map(str, value))
    return None if value is None else re.sub(r"[:,]", "-", str(value))


# --- no new deadlock ------------------------------------------------------------------------------

# 80 of 256 KiB fill segments: of one that holds anything else another context gets nothing.
SIZES = [(16 * MIB, 4), (256 << 10, 80), (256 << 10, 3), (256, 1), (0, 60)]
FULL = [("deadlock", case, *size)
        for case in ("own", "used", "threads", "idle", "again", "devices", "peers") for size in SIZES]
FULL += [("deadlock", "regroup", *size) for size in SIZES if size != (256, 1)]
FULL += [("drv_deadlock", case, *size)
         for case in ("same", "foreign", "other", "before") for size in SIZES[:3]
         # A few small buffers of one context lie in a segment that lives on: another context gets
         # none of it.
         if (case, size[1]) != ("other", 3)]
FULL += [("drv_deadlock", "array", *SIZES[0])]
PEERS = [("deadlock", "access", *size) for size in SIZES[:2]]
ROOM = [("deadlock", case, *size, "room")
        for case in ("own", "idle", "threads", "again", "grow") for size in ((16 * MIB, 8), (0, 60))]
OPTIONS = ["reuse:auto", "reuse:grow", "reuse:wait", "reuse_wait:1ms", "reuse:wait,reuse_wait:1ms",
           "headroom:0", "headroom:64M", "free_sync:true", "max_split:1M", "x_runtime_hooks:false",
           "x_small:1M", "gc_threshold:1"]


WITH_OPTIONS = [FULL[i] for i in (0, 1, 2, 5, 10, 15, 20)] + ROOM[:1] + ROOM[-2:]
AT_THE_LIMIT = [cmd for cmd in FULL if cmd[1] in ("own", "threads", "again")]
LIMITS = ["limit:192M", "limit:192M,reuse:wait", "limit:192M,x_runtime_hooks:false"]


def memory(cmd, sim=None):
    size = "memory:2G,devices:2" if cmd[-1] == "room" else "memory:256M,devices:2"
    return f"{size},{sim}" if sim else size


@pytest.fixture
def finish(run, program, tmp_path):
    """finish([(cmd, how), ...]): the time limit is the test, for what waits for the program's own
    progress never returns."""

    def judge(_, err):
        assert leak_report.nothing_leaked(err), "something leaked"

    def all_of(cmds):
        run_rows.run_rows(run, tmp_path, limit=10, judge=judge, rows=[
            run_rows.row(name(cmd + ((how["conf"],) if "conf" in how else ())),
                         [program(cmd[0]), *cmd[1:]], **how) for cmd, how in cmds])

    return all_of


def test_the_plain_program_finishes(finish):
    """Else it proves nothing that it does so under the shim."""
    finish([(cmd, {"sim": memory(cmd), "preload": False}) for cmd in FULL + PEERS + ROOM])


def test_no_new_deadlock(finish):
    finish([(cmd, {"sim": memory(cmd)}) for cmd in FULL + ROOM])


def test_a_peer_that_waits_for_this_thread_is_not_waited_for_without_bound(finish):
    """Nor is there an error that plain CUDA does not have: its own free gets what nobody is at but
    perhaps the peer."""
    finish([(cmd, {"sim": memory(cmd), "conf": conf, "env": conftest.shortened()}) for cmd in PEERS
            for conf in ("reuse:auto", "reuse:wait", "x_runtime_hooks:false", "headroom:0", "free_sync:true")])


def test_no_new_deadlock_with_options(finish):
    finish([(cmd, {"sim": memory(cmd), "conf": conf}) for conf in OPTIONS for cmd in WITH_OPTIONS])


def test_no_new_deadlock_at_the_limit(finish):
    """The device has memory, but the pool may not take it."""
    finish([(cmd, {"sim": "memory:2G", "conf": conf}) for cmd in AT_THE_LIMIT for conf in LIMITS])


def test_no_new_deadlock_on_an_old_driver(finish):
    finish([(cmd, {"sim": memory(cmd, OLD)}) for cmd in FULL + ROOM])


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false"], ids=name)
@pytest.mark.parametrize("kind", ["device", "array"])
def test_out_of_memory_is_said_while_another_thread_goes_on_freeing(run, program, kind, conf):
    succeeds(run([program("oom_busy"), kind], conf=conf, sim="memory:256M", timeout=20))


def test_so_it_is_where_the_drivers_pool_serves(run, program):
    """Of small buffers some are always being freed."""
    succeeds(run([program("oom_busy"), "device", 1, 1], conf="backend:async", sim="memory:256M",
                 timeout=20))


# --- what another thread freed --------------------------------------------------------------------

WAYS = ("malloc", "async", "pitch", "pool", "array", "create", "module", "pinned", "managed")
ORDERED_NOT = tuple(way for way in WAYS if way not in ("async", "pool"))
BEHIND_OPTIONS = [None, "x_runtime_hooks:false", "limit:48M", "reuse:grow", "reuse:wait", "headroom:0",
                  "thread_cache:0", "free_sync:true", "backend:async", "backend:off",
                  "stream_ordered:driver"]


@pytest.mark.parametrize("old", [None, OLD], ids=["fences", "no-fences"])
def test_no_allocation_waits_without_end_for_what_another_thread_freed(run, program, tmp_path, old):
    """The plain free would have waited there: that of the other thread."""
    run_rows.run_rows(run, tmp_path, limit=10, together=4, rows=[
        run_rows.row(name(["both_behind", way, *more, conf]), [program("both_behind"), way, *more],
                     conf=",".join(filter(None, ["leak_report:off,oom_report:0s,oom_wait:30ms",
                                                 conf])),
                     sim=",".join(filter(None, ["memory:64M,host_memory:64M", old])))
        for conf in BEHIND_OPTIONS for way in WAYS
        for more in ([], ["pieces"])])


@pytest.mark.parametrize("old", [None, OLD], ids=["fences", "no-fences"])
def test_nor_for_what_a_stream_is_to_free(run, program, tmp_path, old):
    """The driver waits for that only before stream-ordered memory runs out, which no plain
    allocation is, also where the driver's pool serves it."""
    run_rows.run_rows(run, tmp_path, limit=10, together=4, rows=[
        run_rows.row(name([way, freed, conf]), [program("both_behind"), way, freed],
                     conf=",".join(filter(None, ["leak_report:off,oom_report:0s,oom_wait:30ms",
                                                 conf])),
                     sim=",".join(filter(None, ["memory:64M,host_memory:64M", old])))
        for conf in BEHIND_OPTIONS for freed in ("stream", "graph")
        for way in (ORDERED_NOT if freed == "stream" else ["malloc", "pitch"])])


def test_nor_to_give_idle_memory_back_where_only_the_plain_free_can(run, program, tmp_path):
    """The driver's free waits for all work of the device."""
    run_rows.run_rows(run, tmp_path, limit=10, rows=[
        run_rows.row(name([way, keeps]), [program("both_behind"), way, "idle"],
                     conf="leak_report:off,oom_report:0s,oom_wait:30ms", sim=f"memory:64M,{keeps}")
        for way in ("pool", "array", "create")
        for keeps in ("without:cuMemFreeAsync", "fail:cuMemFreeAsync@1=801")])


@pytest.mark.parametrize("old", [None, OLD], ids=["fences", "no-fences"])
def test_what_a_thread_freed_itself_it_gets_back_in_every_way(run, program, tmp_path, old):
    """Its plain free would have waited."""
    run_rows.run_rows(run, tmp_path, limit=10, together=4, rows=[
        run_rows.row(name([way, conf]), [program("both_behind"), way, "own"],
                     conf=",".join(filter(None, ["leak_report:off,oom_report:0s", conf])),
                     sim=",".join(filter(None, ["memory:64M,host_memory:64M", old])))
        for conf in BEHIND_OPTIONS for way in WAYS if not (old and way == "pinned")])


@pytest.mark.parametrize("more", [[], ["pieces"], ["stream"], ["graph"], ["own"]],
                         ids=["all", "pieces", "stream", "graph", "own"])
def test_the_plain_program_does_not_either(run, program, more):
    for way in WAYS:
        if more not in (["stream"], ["graph"]) or way in ORDERED_NOT:
            succeeds(run([program("both_behind"), way, *more], sim="memory:64M,host_memory:64M",
                         preload=False))


@pytest.mark.parametrize("conf", [None, "backend:async"], ids=name)
def test_how_long_it_waits_is_an_option(run, program, conf):
    result = run([program("both_behind"), "malloc"], sim="memory:64M",
                 conf=",".join(filter(None, ["leak_report:off,oom_wait:300ms", conf])))

    assert result.rc == 0, result.err
    assert 300 <= int(result.out) < 3000


@pytest.mark.parametrize("conf", ["backend:async", "backend:async,x_runtime_hooks:false"])
def test_what_was_waited_for_in_vain_once_is_forgotten_when_it_ends(run, program, conf):
    result = run([program("behind_again")], sim="memory:64M",
                 conf=f"leak_report:off,oom_report:0s,oom_wait:300ms,{conf}")

    assert (result.rc, result.out) == (0, "2\n0\n"), result.err


# --- a held stream --------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("size", [16 * MIB, 256 << 10, 1000])
def test_a_free_and_the_next_allocation_do_not_wait_for_a_held_stream(run, program, conf, size):
    succeeds(run([program("held"), "room", size], conf=conf, sim="memory:256M"))


@pytest.mark.parametrize("conf", [*LANES, "backend:async"])
@pytest.mark.parametrize("size", [64 * MIB, 16 * MIB])
def test_nobody_waits_while_the_drivers_own_pool_has_memory(run, program, conf, size):
    succeeds(run([program("held"), "kept", size], conf=conf, sim="memory:256M", timeout=20))


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("size", [64 * MIB, 16 * MIB, 256 << 10, 1000])
def test_an_allocation_waits_when_memory_is_short_and_then_succeeds(run, program, conf, size):
    succeeds(run([program("held"), "short", size], conf=conf, sim="memory:256M"))


@pytest.mark.parametrize("preload, conf", [(False, None), (True, "backend:off"),
                                           (True, "free_sync:true"),
                                           (True, "free_sync:true,x_runtime_hooks:false")])
@pytest.mark.parametrize("size", [16 * MIB, 256 << 10])
def test_the_plain_free_waits_for_a_held_stream(run, program, preload, conf, size):
    """Also where the host-side barrier is asked for."""
    succeeds(run([program("held"), "plain", size], preload=preload, conf=conf, sim="memory:256M"))


# --- what it costs --------------------------------------------------------------------------------

PAIRS = 50_000 if conftest.SANITIZER else 1_000_000
# Where the device lags behind. What starts costs most, so that fewer pairs ask for no less.
LAGGING = 100_000
BIG_PAIRS = 500 if conftest.SANITIZER else 5000


def count(run, program, *args, conf="stats:exit", sim=None, env=None):
    """records, queries, waits and synchronisations, and the most bytes that the pool held."""
    result = run([program("pairs"), *args], conf=conf, timeout=120, stats=True, sim=sim, env=env)
    assert result.rc == 0, result.err
    waits = re.search(r"^  event waits +(\d+)$", result.err, re.MULTILINE)
    assert waits, result.err
    calls = result.sim["calls"]
    return (calls.get("cuCtxRecordEvent", 0), calls.get("cuEventQuery", 0),
            int(waits[1]) + calls.get("cuEventSynchronize", 0), calls.get("cuCtxSynchronize", 0),
            int(result.out))


def in_vain(lag):
    """Where work waits for a thousand allocations of this thread's, a wait of this thread's for it
    is in vain, a second long at last; at its real length it is where the lag is 100."""
    return None if lag < 1000 else conftest.shortened()


# How far the device lags behind is the machine's doing, a sanitizer's above all. Where a test counts
# what that costs, the programs that keep it out have "exact" as their last argument.
timed = pytest.mark.skipif(bool(conftest.SANITIZER), reason="counted without a sanitizer, or exactly")


@timed
@pytest.mark.parametrize("conf", ["stats:exit", "stats:exit,x_runtime_hooks:false"], ids=name)
@pytest.mark.parametrize("kind", ["live", "hot"])
def test_at_any_lag_less_than_a_record_and_two_queries_for_fifty_frees(run, program, kind, conf):
    """How far behind the device is, the machine decides. Far behind, half of the queries may fail,
    as where the lag is 100 and more below; what a query costs at a lag that is known comes next."""
    records, queries, waits, synchronised, _ = count(run, program, kind, PAIRS, conf=conf)

    assert 0 < records < PAIRS / 50
    assert 0 < queries < 2 * PAIRS / 50
    assert waits < PAIRS / 50
    assert synchronised == 0


@pytest.mark.parametrize("conf", ["stats:exit", "stats:exit,x_runtime_hooks:false"], ids=name)
@pytest.mark.parametrize("kind", ["live", "hot"])
@pytest.mark.parametrize("lag", [20, 40, 60])
def test_less_than_a_record_and_a_query_for_fifty_frees_of_a_known_lag(run, program, kind, lag,
                                                                       conf):
    records, queries, _, synchronised, _ = count(run, program, kind, PAIRS // 10, lag, "exact",
                                                 conf=conf)

    assert 0 < records < PAIRS / 10 / 50
    assert 0 < queries < PAIRS / 10 / 50
    assert synchronised == 0


@pytest.mark.parametrize("kind, most, held", [("live", 50, 48 * MIB), ("hot", 25, 10 * MIB)])
def test_a_device_that_keeps_up_is_asked_before_the_pool_grows(run, program, kind, most, held):
    """Memory first: a fence that passes at once costs less than a segment."""
    records, queries, _, synchronised, reserved = count(run, program, kind, PAIRS // 10, 0, "exact")

    assert 0 < records < PAIRS / 10 / most
    assert 0 < queries < PAIRS / 10 / most
    assert synchronised == 0
    assert reserved <= held


@pytest.mark.parametrize("lag, most", [(0, (0.6, 0.6, 0)), (100, (1, 2, 0.5)),
                                       (1000, (1, 2, 0.5))])
@pytest.mark.parametrize("pairs", [50_000, 300_000])
def test_many_live_buffers_cost_less_still(run, program, pairs, lag, most):
    """The larger a program, the more frees one fence is for; also while it still grows."""
    records, queries, waits, synchronised, _ = count(run, program, "many", pairs, lag,
                                                 env=in_vain(lag))

    assert 0 < records <= most[0] * pairs / 100
    assert 0 < queries <= most[1] * pairs / 100
    assert waits <= most[2] * pairs / 100
    assert synchronised == 0


@pytest.mark.parametrize("kind", ["live", "hot"])
@pytest.mark.parametrize("lag", [100, 1000])
def test_failed_queries_back_off(run, program, kind, lag):
    """Work ends 1,000 allocations after the frees behind it."""
    records, queries, waits, synchronised, _ = count(run, program, kind, LAGGING, lag,
                                                 env=in_vain(lag))

    assert 0 < records < LAGGING / 50
    assert 0 < queries < 2 * LAGGING / 50
    assert waits < LAGGING / 50
    assert synchronised == 0


@pytest.mark.parametrize("args", [
    ["rest", BIG_PAIRS], pytest.param(["big", BIG_PAIRS], marks=timed),
    *(pytest.param(["big", BIG_PAIRS, lag], marks=timed) for lag in (1, 2)),
    *(["big", BIG_PAIRS, lag, "exact"] for lag in (0, 1, 2, 3))], ids=name)
def test_one_big_buffer_costs_one_record_and_one_query(run, program, args):
    records, queries, _, _, _ = count(run, program, *args)

    assert records <= BIG_PAIRS
    assert queries <= BIG_PAIRS


@pytest.mark.parametrize("kind, lag", [("rest", 0), ("big", 0), ("big", 1), ("big", 2)])
def test_one_big_buffer_grows_within_the_policy(run, program, kind, lag):
    """It is held at most three times: 1.25 times what lives and 64 MiB, and the last segment. The
    wait is long, so that a machine that is busy does not make the device seem to hang."""
    records, queries, _, synchronised, reserved = count(run, program, kind, BIG_PAIRS, lag,
                                                        conf="stats:exit,reuse_wait:10s")

    assert records <= BIG_PAIRS
    assert queries <= 3 * BIG_PAIRS
    assert synchronised == 0
    assert reserved <= 1.25 * 64 * MIB + 64 * MIB + 64 * MIB


# --- a wait whose time is up ----------------------------------------------------------------------


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("cmd", [["other"], ["reset"], ["reset", 1500], ["fork"], ["exit"], ["ends"],
                                 ["refused"]], ids=name)
def test_what_an_allocation_waited_for_may_happen_later(run, program, cmd, conf):
    wait = "reuse_wait:100ms" if cmd[0] == "other" else "reuse_wait:10ms"
    succeeds(run([program("abandoned"), *cmd], conf=f"{conf},{wait}" if conf else wait,
                 sim="memory:4G,devices:2,racecheck:1", timeout=20))


# --- a driver without cuCtxRecordEvent ------------------------------------------------------------


@pytest.mark.parametrize("conf", LANES)
@pytest.mark.parametrize("cmd, sim", [
    (["threads", 8, 300], "memory:2G"),
    (["threads", 4, 300], "memory:2G"),
    (["cache_full"], "memory:256M"),
    (["capture", "relaxed"], "memory:2G"),
    (["capture", "thread"], "memory:2G"),
    (["multi_ctx"], "memory:2G,devices:2"),
    (["setdevice"], "memory:2G,devices:2"),
    (["cross_free", 4, 300], "memory:2G,devices:2"),
    (["drv_ctx"], "memory:2G"),
    (["held", "any"], "memory:256M"),
    (["held", "any", 1000], "memory:256M"),
    (["held", "any", 128 * MIB], "memory:256M"),
    (["meminfo"], "memory:1G"),
], ids=name)
def test_old_driver_runs(run, program, cmd, sim, conf):
    succeeds(run([program(cmd[0]), *cmd[1:]], sim=f"{sim},{OLD}", conf=conf))


def test_old_driver_runs_the_mix_with_the_same_results(run, program):
    cmd = [program("mix"), 600 if conftest.SANITIZER else 10_000, 300, 7]
    expected = run(cmd, sim=f"memory:24G,{OLD}", preload=False)

    result = run(cmd, sim=f"memory:24G,{OLD}")

    assert (result.rc, result.out, result.err) == (0, expected.out, "")


@pytest.mark.parametrize("kind, pairs, frees_per_wait", [("live", PAIRS // 10, 100),
                                                         ("hot", PAIRS // 10, 100),
                                                         ("big", BIG_PAIRS, 1)])
def test_old_driver_is_waited_for_far_less_often_than_once_a_free(run, program, kind, pairs,
                                                                  frees_per_wait):
    records, queries, _, synchronised, _ = count(run, program, kind, pairs, sim=OLD)

    assert records <= 1 and queries <= 1  # asked once, and never again
    assert 0 < synchronised <= pairs / frees_per_wait


# --- what cudaMemGetInfo tells --------------------------------------------------------------------


@pytest.mark.parametrize("preload, conf", [(False, None), (True, None), (True, "x_runtime_hooks:false"),
                                           (True, "backend:off"), (True, "headroom:0"),
                                           (True, "max_split:1M")])
@pytest.mark.parametrize("memory", ["256M", "1G"])
def test_free_memory_can_be_allocated_and_comes_back(run, program, preload, conf, memory):
    succeeds(run(program("meminfo"), preload=preload, conf=conf, sim=f"memory:{memory}"))


@pytest.mark.parametrize("lane", ["x_runtime_hooks:true", "x_runtime_hooks:false"])
@pytest.mark.parametrize("limit", ["256M", "2/8"])
def test_free_memory_is_what_the_limit_leaves(run, program, lane, limit):
    succeeds(run([program("meminfo"), 256 * MIB], conf=f"limit:{limit},{lane}", sim="memory:1G"))


# --- what cutting strands -------------------------------------------------------------------------

PAIRS_OF_SIZES = [(530, 270), (1000, 600), (100, 60), (20, 12), (1100, 1000)]


def sizes_in_pairs(seed):
    """Ten pairs, each in the largest part of a device of 24 GiB that 8 to 1,000 of the kept fit."""
    rng = random.Random(seed)
    kept = [round(24576 / 2 ** rng.uniform(3, 10)) for _ in range(10)]
    return [(round(size * rng.uniform(1.03, 3.5)) + 1, size) for size in kept]


@pytest.mark.parametrize("conf", ["x_warmup:131072", "x_warmup:131072,x_runtime_hooks:false"])
@pytest.mark.parametrize("order", [(), ("async",)], ids=["plain", "async"])
@pytest.mark.parametrize("pairs", [PAIRS_OF_SIZES, sizes_in_pairs(35)], ids=["given", "random"])
def test_as_many_layers_fit_as_without(run, program, pairs, order, conf):
    """A program that loads what it keeps. Once the pool has settled, what was freed a moment ago is
    asked about only when nothing else fits, which costs some per cent where several share a segment."""
    for pair in pairs:
        counts = [int(run([program("fits"), "layers", *pair, *order], sim="memory:24G",
                          preload=preload, conf=conf if preload else None).out)
                  for preload in (False, True)]
        assert counts[1] >= 0.97 * counts[0], (pair, counts)


def test_as_many_layers_of_pinned_memory_fit_as_without(run, program):
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB
    pair = machine // 240, machine // 400
    counts = [int(run([program("fits"), "layers", *pair, "pinned"], sim=f"host_memory:{machine}M",
                      preload=preload, conf="x_warmup:131072" if preload else None).out)
              for preload in (False, True)]
    assert counts[1] >= 0.97 * counts[0], (pair, counts)


@pytest.mark.parametrize("conf", [None, "x_warmup:131072"])
@pytest.mark.parametrize("live, most", [(16000, 2048), (16000, 4096), (19000, 1024), (19000, 3000)])
def test_large_blocks_in_disorder_are_hardly_ever_refused(run, program, live, most, conf):
    """Where a fifth of the device is not asked for: one allocation in a dozen programs at most (one
    program in 160 of 19,000 MiB in blocks of up to 1,024 has one)."""
    refused = 0
    for seed in range(1, 13):
        result = run([program("fits"), "random", live, most, seed], sim="memory:24G", conf=conf)
        assert result.rc == 0, (seed, result.err)
        refused += int(result.out)
    assert refused <= 1
