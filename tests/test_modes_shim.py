"""Modes that are the shim's: memory that goes back when it was idle, who serves memory."""

import sys
import time

import pytest

import conftest
import leak_report

sys.path.insert(0, str(conftest.ROOT / "tests" / "random"))

import programs  # noqa: E402

DECAY = "decay:20ms"
ALL_SIGNALS = 0xfffffffe7ffbfeff  # but SIGKILL, SIGSTOP and the two that the C library keeps


def succeeds(result):
    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


# --- decay ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["idle", "pinned"])
def test_decay_gives_idle_memory_back_without_a_call(run, program, case):
    result = run([program("decay"), case], conf=DECAY)

    succeeds(result)
    assert result.out == "given back\n"


@pytest.mark.parametrize("case", ["idle", "pinned"])
def test_decay_is_off_by_default(run, program, case):
    result = run([program("decay"), case, "short"])

    succeeds(result)
    assert result.out == "kept\n"


@pytest.mark.parametrize("sim", [None, "without:cuMemFreeAsync"])
@pytest.mark.parametrize("case", ["pending", "capture"])
def test_decay_looks_at_pending_memory_and_leaves_captures_alone(run, program, case, sim):
    succeeds(run([program("decay"), case], conf=DECAY, sim=sim))


def test_decay_waits_for_no_work_where_the_drivers_free_would(run, program):
    succeeds(run([program("decay"), "busy"], conf=DECAY, sim="without:cuMemFreeAsync"))


@pytest.mark.parametrize("conf, count", [(DECAY, 1), (None, 0), ("decay:0ns", 0)])
def test_one_thread_helps_and_only_on_request(run, program, conf, count):
    result = run([program("decay"), "threads"], conf=conf)

    succeeds(result)
    lines = result.out.splitlines()
    assert lines.count("cachealloc") == count
    for line in lines:
        if line.startswith("SigBlk:"):
            assert int(line.split()[1], 16) & ALL_SIGNALS == ALL_SIGNALS


@pytest.mark.parametrize("sim", [None, "without:cuMemFreeAsync"])
def test_the_report_does_not_wait_for_the_thread(run, program, sim):
    """The process ends while the thread is inside a driver call that takes 40 seconds."""
    slow = ",".join(f"latency:{name}=40000000000"
                    for name in ("cuMemFreeAsync", "cuMemFree_v2"))
    begin = time.monotonic()
    result = run([program("decay"), "exit"], conf=DECAY, sim=f"{sim},{slow}" if sim else slow)

    assert result.rc == 0, result.err
    assert time.monotonic() - begin < 20
    report = leak_report.parse(result.err)
    assert (report.bytes, report.count) == (5555, 1)


def test_a_child_of_a_fork_has_no_such_thread(run, program):
    result = run(program("forks"), conf="decay:10ms")

    assert result.rc == 0, result.err
    assert leak_report.parse(result.err).bytes == 5555


@pytest.mark.parametrize("cmd", [["threads", 8, 300], ["multi_ctx"], ["drv_ctx_storm"],
                                 ["capture", "relaxed"], ["async", "streams", 200],
                                 ["cache_full", 2]],
                         ids=lambda cmd: "-".join(map(str, cmd)))
def test_programs_run_beside_a_short_decay(run, program, cmd):
    succeeds(run([program(cmd[0]), *cmd[1:]], conf="decay:1ms", sim="memory:2G,devices:2"))


def same_as_plain(monkeypatch, profile, conf, sim, seeds):
    """Random programs do what they do without the shim, and the race check finds nothing."""
    monkeypatch.setitem(programs.CONFIGURATIONS, "mode", (True, conf, sim))
    run = programs.Runner(conftest.BUILD, env=conftest.plain_env(),
                          preload=conftest.SANITIZER_PRELOAD,
                          time_limit=20 * conftest.SLOWDOWN)
    for seed in seeds[:2] if conftest.SANITIZER else seeds:
        program = programs.Program(seed, 300 if conftest.SANITIZER else 1000, profile)
        plain, result = run.run(program, "plain"), run.run(program, "mode")
        assert not result.failed, f"{profile} {seed}: {result.says()}"
        assert result.out == plain.out


@pytest.mark.parametrize("profile", programs.PROFILES)
def test_random_programs_do_the_same_beside_a_short_decay(monkeypatch, profile):
    same_as_plain(monkeypatch, profile, "decay:1ms", "", range(320, 324))


class TestMemoryPressure:
    """Two processes on one simulated device, each caching, each needing what the other holds."""

    def turns(self, run, program, tmp_path, conf, preload=True, patience=1000):
        result = run([program("pressure"), patience], conf=conf, preload=preload,
                     sim=f"memory:512M,shared:{tmp_path}/device")
        succeeds(result)
        return result.out.splitlines()

    def test_plain_programs_get_it(self, run, program, tmp_path):
        assert self.turns(run, program, tmp_path, None, preload=False) == ["got"] * 4

    def test_without_decay_the_second_is_out_of_memory(self, run, program, tmp_path):
        """Else the next test proves nothing."""
        assert self.turns(run, program, tmp_path, None, patience=300)[:2] == \
            ["got", "out of memory"]

    def test_decay_resolves_it(self, run, program, tmp_path):
        assert self.turns(run, program, tmp_path, "decay:50ms",
                          patience=20000) == ["got"] * 4


# --- several threads ------------------------------------------------------------------------------


class TestThreads:
    """What is promised of the pool holds for all threads of a context together."""

    @pytest.mark.parametrize("lane", ["x_runtime_hooks:true", "x_runtime_hooks:false"])
    @pytest.mark.parametrize("case, conf, sim", [
        ("full", "headroom:0", "memory:256M"),
        ("full", "headroom:0", "memory:256M,without:cuCtxRecordEvent"),
        ("trim", "reuse:wait", "memory:2G"),
        ("limit", "limit:64M", "memory:2G"),
        ("fork", "reuse:wait", "memory:2G"),
    ])
    def test_what_is_promised_holds_for_all(self, run, program, case, conf, sim, lane):
        succeeds(run([program("threads_leave"), case], conf=f"{lane},{conf}", sim=sim))

    def test_their_memory_goes_with_its_context(self, run, program):
        result = run([program("threads_leave"), "reset"], conf="leak_report:off", stats=True)

        assert result.rc == 0, result.err
        assert result.sim["devices"][0]["live_bytes"] == 0


# --- back ends ------------------------------------------------------------------------------------

ASYNC = "backend:async"
MISSING = ["cuCtxRecordEvent", "cuMemPoolCreate", "cuMemAllocFromPoolAsync"]


class TestBackEnds:
    """The driver's stream-ordered allocator serves the plain calls, as safely as the pool does."""

    def test_the_drivers_pool_serves(self, run, program):
        result = run([program("cross_free")], conf=ASYNC, stats=True)

        succeeds(result)
        calls = result.sim["calls"]
        assert calls["cuMemAllocFromPoolAsync"] > 0
        assert calls.get("cuMemAlloc_v2", 0) == 0
        assert calls.get("cuMemFreeAsync", 0) == 0  # nothing is under way in the driver's order
        assert calls["cuMemFree_v2"] == calls["cuMemAllocFromPoolAsync"]
        assert result.sim["devices"][0]["live_bytes"] == 0

    @pytest.mark.parametrize("name", ["mix", "drv_mix"])
    def test_mix_is_the_same(self, run, program, name):
        cmd = [program(name), 20000, 200]
        plain = run(cmd, preload=False, sim="memory:4G")

        result = run(cmd, conf=ASYNC, sim="memory:4G", timeout=120)

        assert (result.rc, result.out) == (0, plain.out)
        succeeds(result)

    def test_a_pair_takes_few_driver_calls(self, run, program):
        result = run([program("mix"), 20000, 200], conf=ASYNC, sim="memory:64G", stats=True,
                     timeout=120)

        succeeds(result)
        calls = result.sim["calls"]
        pairs = calls["cuMemAllocFromPoolAsync"]
        assert calls["cuMemFree_v2"] <= pairs
        assert calls["cuCtxRecordEvent"] <= 1.1 * pairs
        assert calls["cuEventQuery"] <= 4 * pairs
        assert calls.get("cuMemGetInfo_v2", 0) == 0

    @pytest.mark.parametrize("count", [1, 3, 20, 70, 200])
    def test_memory_in_use_is_not_handed_out_and_frees_do_not_wait(self, run, program, count):
        succeeds(run([program("reuse"), count], conf=ASYNC, sim="memory:4G"))

    @pytest.mark.parametrize("mode, sim", [("room", "memory:4G"), ("short", "memory:256M"),
                                           ("any", "memory:256M")])
    def test_what_is_needed_is_waited_for(self, run, program, mode, sim):
        succeeds(run([program("held"), mode], conf=ASYNC, sim=sim))

    @pytest.mark.parametrize("case", ["own", "used", "threads", "idle", "again", "devices"])
    @pytest.mark.parametrize("size", [(16 << 20, 4), (256 << 10, 64), (0, 60)],
                             ids=lambda size: f"{size[1]}")
    def test_no_new_deadlock(self, run, program, case, size):
        succeeds(run([program("deadlock"), case, *size], conf=ASYNC, timeout=10,
                     sim="memory:256M,devices:2"))

    @pytest.mark.parametrize("profile", programs.PROFILES)
    @pytest.mark.parametrize("small", [False, True])
    def test_random_programs_do_the_same_without_a_race(self, monkeypatch, profile, small):
        sim = programs.CONFIGURATIONS["small"][2] if small else ""
        same_as_plain(monkeypatch, profile, ASYNC, sim, range(300, 306))

    @pytest.mark.parametrize("conf", [ASYNC, f"{ASYNC},x_runtime_hooks:false"])
    def test_another_device_is_not_waited_for_without_bound(self, run, program, conf):
        """While that works no free comes back, and in the last rounds memory is short."""
        succeeds(run([program("deadlock"), "peers", 16 << 20, 4, "room"],
                     conf=f"{conf},oom_wait:500ms", timeout=15,
                     sim="memory:768M,devices:2"))

    def test_memory_freed_during_a_capture_is_held(self, run, program):
        succeeds(run([program("pooled"), "capture"], conf=f"{ASYNC},log:error"))

    def test_trim_reaches_the_drivers_pool(self, run, program):
        result = run([program("pooled"), "trim"], conf=ASYNC, stats=True)

        succeeds(result)
        assert result.sim["calls"]["cuMemPoolTrimTo"] == 1

    def test_peers_are_let_in(self, run, program):
        """What was allocated before is opened; what comes after is not the pool's."""
        early, late = (run([program("peers"), mode], conf=ASYNC, sim="devices:2", stats=True)
                       for mode in ("access", "late"))

        # The simulator's plain free does not wait for peers, and so the programs fail there.
        assert early.sim["calls"]["cuMemAlloc_v2"] > 0
        assert late.sim["calls"]["cuMemAlloc_v2"] > 0
        assert late.sim["calls"]["cuMemPoolSetAccess"] == 1

    @pytest.mark.parametrize("name", MISSING)
    def test_an_older_driver_serves_by_itself(self, run, program, name):
        result = run([program("cross_free")], conf=ASYNC, sim=f"without:{name}", stats=True)

        succeeds(result)
        assert result.sim["calls"]["cuMemAlloc_v2"] > 0
        assert result.sim["calls"].get("cuMemAllocFromPoolAsync", 0) < 10  # tried out
        assert result.sim["devices"][0]["live_bytes"] == 0

    @pytest.mark.parametrize("nth", [1, 2, 5])
    @pytest.mark.parametrize("name", ["cuMemPoolCreate", "cuMemPoolSetAttribute", "cuStreamCreate",
                                      "cuMemAllocFromPoolAsync", "cuStreamSynchronize",
                                      "cuCtxRecordEvent", "cuEventCreate", "cuMemFree_v2",
                                      "cuEventQuery"])
    def test_a_failing_call_is_survived(self, run, program, name, nth):
        nth += name == "cuStreamCreate"  # the first is the program's own
        succeeds(run([program("pairs"), "live", 300], conf=ASYNC, sim=f"fail:{name}@{nth}"))

    def test_leaks_are_told_as_device_memory(self, run, program):
        kinds = {}
        for conf in (None, ASYNC):
            report = leak_report.parse(run([program("leaks")], conf=conf).err)
            kinds[conf] = report.totals

        assert kinds[ASYNC] == kinds[None]
