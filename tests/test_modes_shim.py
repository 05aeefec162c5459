"""Modes that are the shim's: memory that goes back when it was idle, who serves memory."""

import time

import pytest

import conftest
import leak_report

DECAY = "decay:20ms"
ALL_SIGNALS = 0xfffffffe7ffbfeff  # but SIGKILL, SIGSTOP and the two that the C library keeps


def succeeds(result):
    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


# --- decay ----------------------------------------------------------------------------------------


def test_decay_gives_idle_memory_back_without_a_call(run, program):
    result = run([program("decay"), "idle"], conf=DECAY)

    succeeds(result)
    assert result.out == "given back\n"


def test_decay_is_off_by_default(run, program):
    result = run([program("decay"), "idle", "short"])

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
    """The process ends while the thread is inside a driver call that takes seconds."""
    slow = ",".join(f"latency:{name}=4000000000"
                    for name in ("cuMemFreeAsync", "cuMemFree_v2"))
    begin = time.monotonic()
    result = run([program("decay"), "exit"], conf=DECAY, sim=f"{sim},{slow}" if sim else slow)

    assert result.rc == 0, result.err
    assert time.monotonic() - begin < 4
    report = leak_report.parse(result.err)
    assert (report.bytes, report.count) == (5555, 1)


def test_a_child_of_a_fork_has_no_such_thread(run, program):
    result = run(program("forks"), conf="decay:10ms")

    assert result.rc == 0, result.err
    assert leak_report.parse(result.err).bytes == 5555


@pytest.mark.parametrize("cmd", [["threads", 8, 300], ["multi_ctx"], ["drv_ctx_storm"],
                                 ["capture", "global"], ["async", "streams", 200],
                                 ["cache_full", 2]],
                         ids=lambda cmd: "-".join(map(str, cmd)))
def test_programs_run_beside_a_short_decay(run, program, cmd):
    succeeds(run([program(cmd[0]), *cmd[1:]], conf="decay:1ms", sim="memory:2G,devices:2"))


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
                          patience=1000 * conftest.SLOWDOWN) == ["got"] * 4
