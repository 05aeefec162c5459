"""Several contexts and devices, and contexts that go away while they are used."""

import pytest

import conftest
import leak_report

MODES = [pytest.param(False, None, id="plain"), pytest.param(True, None, id="shim"),
         pytest.param(True, "x_runtime_hooks:false", id="driver-lane"),
         pytest.param(True, "backend:off", id="tracking")]
POOLED = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane")]
ROUNDS = 10 if conftest.SANITIZER else 50
SEEDS = [1, 2, 3, 4]


def quiet(conf):
    """A thread may free what a dead context took along: that is told, and no matter here."""
    return f"{conf},log:error" if conf else "log:error"


def succeeds(result):
    """Nothing leaked: what the dead contexts held is told apart."""
    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("how", ["destroy", "release"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_context_goes_while_threads_use_it(run, program, how, seed, devices, preload, conf):
    succeeds(run([program("drv_ctx_storm"), how, ROUNDS, seed], preload=preload, conf=quiet(conf),
                 sim=f"memory:4G,devices:{devices}"))


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("how", [[], ["kept"], ["own"]], ids=["", "kept", "own"])
@pytest.mark.parametrize("kind", ["device", "async", "array", "pinned"])
def test_nothing_is_out_of_memory_for_what_a_context_that_ends_has_cached(run, program, kind, how,
                                                                         preload, conf):
    """The calls that may end it take so long that the request comes meanwhile."""
    slow = ",".join(f"latency:{name}=100000000"
                    for name in ("cuCtxDestroy_v2", "cuDevicePrimaryCtxRelease_v2"))
    succeeds(run([program("drv_ctx_room"), kind, *how], preload=preload, conf=conf,
                 sim=f"memory:256M,host_memory:256M,{slow}"))


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_device_is_reset_while_threads_use_it(run, program, seed, devices, preload, conf):
    succeeds(run([program("ctx_storm"), 2 * ROUNDS, seed], preload=preload, conf=quiet(conf),
                 sim=f"memory:4G,devices:{devices}"))


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("how", [[], ["before"]], ids=["first", "again"])
def test_a_context_that_is_made_during_a_reset_goes_with_it(run, program, how, preload, conf):
    """The reset takes so long that the context is made meanwhile."""
    result = run([program("reset_late"), *how], preload=preload, conf=quiet(conf),
                 sim="latency:cuDevicePrimaryCtxReset_v2=200000000")

    assert result.rc == 0, result.err


@pytest.mark.parametrize("preload, conf", [
    *MODES, pytest.param(True, "backend:async", id="driver-pool")])
@pytest.mark.parametrize("how", [[], ["first"]], ids=["second", "first"])
def test_a_context_goes_while_a_free_waits_for_its_event(run, program, how, preload, conf):
    """The driver takes so long to be told to wait that the context could be gone meanwhile."""
    succeeds(run([program("drv_ctx_late"), *how], preload=preload, conf=quiet(conf),
                 sim="latency:cuStreamWaitEvent=100000000"))


def test_a_free_that_waits_for_others_asks_first_whether_they_are_at_work(run, program):
    """They are idle; a wait with a bound is a helper's, which takes two changes of thread."""
    plain = run([program("multi_ctx")], conf=quiet(None), sim="devices:2,memory:4G", stats=True)
    waits = run([program("multi_ctx")], conf=quiet("free_sync:true"), sim="devices:2,memory:4G",
                stats=True)

    succeeds(waits)
    records = [result.sim["calls"]["cuCtxRecordEvent"] for result in (plain, waits)]
    frees = (records[1] - records[0]) / 2  # one for the own work, one for that of others
    assert frees > 500
    assert waits.sim["calls"]["cuEventSynchronize"] < 1.1 * frees


@pytest.mark.parametrize("preload, conf", MODES)
def test_an_address_is_given_away_before_its_context_has_ended(run, program, preload, conf):
    """Memory of graphs, where a context was that another thread destroys: all of it is freed. The
    end returns late, or on a busy machine the two meet too seldom."""
    result = run([program("both_address_again"), 20 * ROUNDS], preload=preload, conf=quiet(conf),
                 sim="memory:512M,after:cuCtxDestroy_v2=200000", stats=True)

    succeeds(result)
    assert result.sim["devices"][0]["live_bytes"] == 0


@pytest.mark.parametrize("conf", POOLED)
def test_a_free_of_what_a_dead_context_had_takes_no_segment_that_comes_there(run, program, conf):
    """The free takes so long that the driver gives the address to a segment meanwhile, and not so
    long that who gets it gives up, which is after 100 ms of sleep."""
    result = run([program("freed_late")], conf=quiet(conf),
                 sim="memory:1G,latency:cuMemFree_v2=80000000")

    assert result.rc == 0, result.err
    assert result.out == "the address came again: 1\n"  # else this shows nothing


@pytest.mark.parametrize("conf", POOLED)
def test_only_what_the_last_context_leaks_is_reported(run, program, conf):
    """Sizes are 1,000, 2,000, ...: five of them."""
    result = run([program("ctx_storm"), ROUNDS, 9, 5], conf=quiet(conf), sim="memory:4G,devices:2")

    assert result.rc == 0, result.err
    report = leak_report.parse(result.err)
    assert (report.count, report.bytes) == (5, 15000)
    assert report.totals == {(0, "device"): (15000, 5)}


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("how", ["destroy", "old", "detach", "unseen"])
def test_a_handle_that_comes_again_gets_no_old_memory(run, program, how, preload, conf):
    result = run([program("drv_ctx_again"), 12, how], preload=preload, conf=quiet(conf),
                 sim="memory:4G")

    succeeds(result)
    assert int(result.out) > 0  # handles did come again


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("without", ["", ",without:cuCtxGetId"], ids=["ids", "no-ids"])
def test_a_release_beside_a_retain_leaves_no_dead_memory(run, program, without, preload, conf):
    result = run([program("drv_retained")], preload=preload, conf=quiet(conf),
                 sim=f"memory:1G,latency:cuDevicePrimaryCtxGetState=200000000{without}")

    succeeds(result)


@pytest.mark.parametrize("without", ["", ",without:cuCtxRecordEvent"], ids=["", "no-record"])
def test_what_is_freed_beside_a_context_that_ended_unseen_is_used_again(run, program, without):
    result = run([program("drv_ctx_again"), 100, "beside"], conf=quiet(None), stats=True,
                 sim=f"memory:16G{without}")

    succeeds(result)
    assert result.sim["calls"]["cuMemAlloc_v2"] <= 10


def test_a_detached_context_is_told_from_a_live_one_without_ids(run, program):
    result = run([program("drv_ctx_again"), 30, "detach"], conf=quiet(None),
                 sim="memory:4G,without:cuCtxGetId")
    succeeds(result)


@pytest.mark.parametrize("how, conf", [("", None), ("streams", None), ("threads", None),
                                       ("streams", "backend:off"),
                                       ("threads", "backend:off")])
def test_contexts_that_come_and_go_leave_nothing_behind(run, program, how, conf):
    result = run([program("drv_ctx_many"), 1600 if conftest.SANITIZER else 6000, how],
                 conf=quiet(conf), sim="memory:1G")

    assert result.rc == 0, result.err
    addresses, resident = map(int, result.out.split())
    if not conftest.SANITIZER:  # which have memory of their own for all of it
        assert addresses < 2 << 20  # the simulator's streams are some
        assert resident < 2 << 20


def test_any_number_of_contexts_may_come_one_after_the_other(run, program):
    """More than there are numbers for, in the records of what is live."""
    if conftest.SANITIZER:
        pytest.skip("takes a minute in a sanitizer's build")
    result = run([program("drv_ctx_many"), 66000, "bare"], conf=quiet(None), sim="memory:1G")
    assert result.rc == 0, result.err


@pytest.mark.parametrize("conf", POOLED)
@pytest.mark.parametrize("size", [16 << 20, 256 << 10, 1000])
@pytest.mark.parametrize("mode", ["access", "late", "copy"])
def test_memory_that_a_peer_uses_is_not_handed_out(run, program, mode, size, conf):
    succeeds(run([program("peers"), mode, size], conf=conf, sim="memory:4G,devices:2"))


@pytest.mark.parametrize("twin", [False, True], ids=["", "per-thread"])
@pytest.mark.parametrize("name", ["cuMemcpyPeer", "cuMemcpyPeerAsync", "cuMemcpy3DPeer",
                                  "cuMemcpy3DPeerAsync"])
def test_a_copy_between_contexts_answers_as_without_us(run, program, name, twin):
    symbol = name + ("_ptsz" if name.endswith("Async") else "_ptds") * twin
    for fails in ("", f",fail:{symbol}@1=719"):
        plain, shim = (run([program("drv_peer_copies"), symbol], preload=preload,
                           sim=f"devices:2{fails}") for preload in (False, True))

        assert (plain.rc, shim.rc) == (0, 0), shim.err
        assert shim.out == plain.out
        assert not fails or shim.out == "719\n"


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("threads, devices", [(1, 2), (4, 1), (4, 2), (8, 3)])
def test_frees_from_other_devices(run, program, threads, devices, preload, conf):
    succeeds(run([program("cross_free"), threads, 100 if conftest.SANITIZER else 1000], conf=conf,
                 preload=preload, sim=f"memory:4G,devices:{devices}"))


@pytest.mark.parametrize("conf, says", [(None, "did not wait"), ("free_sync:true", "waited"),
                                        ("x_runtime_hooks:false", "did not wait")])
def test_a_context_works_on_beside_a_broken_one(run, program, conf, says):
    ends = ["waits"] if says == "waited" else []
    result = run([program("drv_broken_peer"), 200, *ends], conf=quiet(conf), sim="memory:1G",
                 stats=True)

    assert result.rc == 0, result.err
    assert result.out == f"{says}\n"
    assert result.sim["devices"][0]["peak_bytes"] < 64 << 20


@pytest.mark.parametrize("preload, conf", MODES[:3])
@pytest.mark.parametrize("args", [[3], [1, 0, "end"], [5, 4], [5, 8]], ids=str)
def test_a_sticky_error_is_all_that_is_seen_until_the_reset(run, program, args, preload, conf):
    """Other threads' memory dies with the context, and is no leak."""
    result = run([program("sticky"), *args], preload=preload, conf=quiet(conf),
                 sim="memory:4G,sticky_reset:heals")

    assert result.rc == 0, result.err
    report = leak_report.parse(result.err)
    if "end" in args and preload:
        assert report.count == 1
    else:
        assert leak_report.nothing_leaked(result.err), result.err
