"""Pinned host memory comes from the pool: by flags, in whole pages, reused only when no stream of any
context can be at work on it any more."""

import re

import pytest

import conftest
import leak_report

MODES = [pytest.param(False, None, id="plain"), pytest.param(True, None, id="shim"),
         pytest.param(True, "x_runtime_hooks:false", id="driver-lane"),
         pytest.param(True, "backend:off", id="tracking")]
POOLED = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane")]
FENCES = {"cuCtxRecordEvent", "cuEventQuery", "cuEventCreate"}
PINNED = {"cuMemAllocHost_v2", "cuMemHostAlloc", "cuMemFreeHost"}
ROUNDS = 200 if conftest.SANITIZER else 2000


def succeeds(result):
    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


def with_log(conf, level):
    return f"{conf},log:{level}" if conf else f"log:{level}"


# --- what it costs --------------------------------------------------------------------------------


def calls(run, program, conf, *args):
    result = run([program("pinned_pairs"), *args], conf=conf, stats=True)
    succeeds(result)
    return {name: count for name, count in result.sim["calls"].items() if name != "cuCtxGetCurrent"}


@pytest.mark.parametrize("conf", POOLED)
@pytest.mark.parametrize("flags", range(9))
def test_a_pair_makes_no_driver_call(run, program, conf, flags):
    few = calls(run, program, conf, 10, 4096, flags)

    assert calls(run, program, conf, 80, 4096, flags) == few
    assert sum(few.get(name, 0) for name in PINNED) == 1


def test_without_the_pool_each_pair_makes_two(run, program):
    """Else the test above counts nothing."""
    made = calls(run, program, "backend:off", 80, 4096, 0)

    assert made["cuMemHostAlloc"] == 80 and made["cuMemFreeHost"] == 80


@pytest.mark.parametrize("conf", POOLED)
@pytest.mark.parametrize("size, pairs_per_call", [(100, 40), (4096, 40), (70000, 10), (1 << 20, 1)])
def test_many_pairs_make_few_calls(run, program, conf, size, pairs_per_call):
    made = calls(run, program, conf, 20000, size, 0)

    assert sum(made.get(name, 0) for name in FENCES) <= 20000 / pairs_per_call
    assert sum(made.get(name, 0) for name in PINNED) < 20


def test_hits_are_answered_at_the_runtime(run, program):
    result = run([program("pinned_pairs"), 1000], conf="stats:exit")

    for line in ("allocations answered at the runtime", "frees answered at the runtime"):
        assert int(re.search(rf"^  {line} +(\d+)$", result.err, re.MULTILINE)[1]) > 900


def test_statistics_tell_pinned_memory_apart(run, program):
    result = run([program("pinned_pairs"), 10, 3 << 20], conf="stats:exit")

    def figure(line):
        return int(re.search(rf"^  {line} +(\d+)$", result.err, re.MULTILINE)[1])

    assert figure("pinned bytes reserved") >= 4 << 20
    assert result.out == (f"{figure('pinned bytes reserved')} "
                          f"{figure('pinned bytes reserved, peak')}\n")
    assert figure("pinned bytes reserved, peak") >= figure("pinned bytes reserved")
    assert figure("pinned bytes in blocks") == 0
    assert figure("reserved bytes, peak") == 0 and figure("segments") == 0


# --- as without the pool --------------------------------------------------------------------------


@pytest.mark.parametrize("conf", POOLED)
def test_views_and_wrong_calls_answer_as_without_the_pool(run, program, conf):
    plain = run([program("pinned_views")], preload=False)
    pooled = run([program("pinned_views")], conf=conf)

    assert (plain.rc, pooled.rc) == (0, 0), pooled.err
    assert pooled.out.splitlines() == plain.out.splitlines()
    assert "again: 1" in plain.out  # wrong frees were made, and refused


@pytest.mark.parametrize("conf", POOLED)
def test_wrong_frees_are_told(run, program, conf):
    """The insides of two buffers, a double free, and one by the call for device memory."""
    result = run([program("pinned_views")], conf=conf)

    assert len(re.findall(r"warning: free of 0x", result.err)) == 5
    assert len(re.findall(r"warning: free of 0x.* which cudaFreeHost frees", result.err)) == 1
    assert run([program("pinned_views")], conf=with_log(conf, "off")).err == ""


@pytest.mark.parametrize("preload, conf", MODES)
def test_direct_io_works_from_pinned_memory(run, program, tmp_path, preload, conf):
    succeeds(run([program("pinned_direct"), tmp_path / "direct"], preload=preload, conf=conf))


@pytest.mark.parametrize("preload, conf", MODES)
def test_it_belongs_to_its_context_and_dies_with_it(run, program, preload, conf):
    result = run([program("drv_pinned_ctx")], preload=preload, conf=conf)

    succeeds(result)
    assert "warning" not in result.err  # what died is not ours any more


def test_the_pool_forgets_what_died_with_its_context(run, program):
    result = run([program("drv_pinned_ctx")], conf="stats:exit")

    assert re.search(r"^  pinned bytes reserved +0$", result.err, re.MULTILINE), result.err


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("case", ["reset", "fork"])
def test_life_of_a_process(run, program, case, preload, conf):
    succeeds(run([program("pinned_life"), case], preload=preload, conf=conf))


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("threads", [2, 8])
def test_many_threads(run, program, threads, preload, conf):
    succeeds(run([program("pinned_threads"), threads, ROUNDS], preload=preload, conf=conf))


@pytest.mark.parametrize("conf", POOLED)
@pytest.mark.parametrize("cmd", [("pinned_threads", 4, ROUNDS // 4), ("pinned_life", "reset"),
                                 ("drv_pinned_ctx",), ("pinned_reuse", "same", "plain")],
                         ids=lambda cmd: "-".join(map(str, cmd)))
def test_old_driver_runs(run, program, cmd, conf):
    """One that records nothing behind a whole context."""
    succeeds(run([program(cmd[0]), *cmd[1:]], conf=conf,
                 sim="memory:4G,devices:2,without:cuCtxRecordEvent"))


def test_zero_gives_zeros_in_reused_memory(run, program):
    for lane in ("x_runtime_hooks:true", "x_runtime_hooks:false"):
        assert run([program("pinned_life"), "zero"], conf=f"debug:zero,{lane}").out == "clean\n"
        assert run([program("pinned_life"), "zero"], conf=lane).out == "dirty\n"


@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "backend:off"])
def test_leaks_are_reported_as_pinned(run, program, conf):
    report = leak_report.parse(run([program("pinned_life"), "leak"], conf=conf).err)

    assert report.totals == {(0, "pinned"): (75555, 2)}
    assert {(group.bytes, group.kind) for group in report.groups} == {(70000, "pinned"),
                                                                      (5555, "pinned")}
    for group in report.groups:
        assert "forget_pages" in leak_report.places(group)


# --- reuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", POOLED)
@pytest.mark.parametrize("stream", ["same", "other"])
def test_memory_in_use_is_not_handed_out_and_frees_do_not_wait(run, program, stream, conf):
    succeeds(run([program("pinned_reuse"), stream], conf=conf, sim="memory:4G,devices:2"))


@pytest.mark.parametrize("preload, conf", [MODES[0], MODES[3]])
@pytest.mark.parametrize("stream", ["same", "other"])
def test_reuse_program_is_right_by_itself(run, program, stream, preload, conf):
    succeeds(run([program("pinned_reuse"), stream, "plain"], preload=preload, conf=conf,
                 sim="memory:4G,devices:2"))


@pytest.mark.parametrize("preload, conf", MODES)
def test_no_race_is_made(run, program, preload, conf):
    succeeds(run([program("pinned_reuse"), "race", ROUNDS], preload=preload, conf=conf,
                 sim="racecheck:1"))


@pytest.mark.parametrize("mutation, caught", [("pinned_reuse", True), ("none", False)])
def test_the_race_check_sees_memory_that_is_handed_out_at_once(run, program, mutation, caught):
    result = run([program("pinned_reuse"), "race", ROUNDS], sim="racecheck:1",
                 env=conftest.mutated(mutation))

    assert (result.rc == 99) == caught, result.err
    assert ("simcuda: race:" in result.err) == caught


@pytest.mark.parametrize("preload, conf, waits", [
    (False, None, True), (True, "backend:off", True), (True, "free_sync:true", True),
    (True, "free_sync:true,x_runtime_hooks:false", True), (True, None, False), (True, "x_runtime_hooks:false", False)])
def test_the_free_is_a_barrier_where_it_is_asked_for(run, program, preload, conf, waits):
    result = run([program("pinned_life"), "barrier" if waits else "held"], preload=preload,
                 conf=conf)

    succeeds(result)
    assert result.out == ("waited\n" if waits else "went on\n")


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("case", ["free", "busy", "elsewhere"])
def test_little_stays_pinned(run, program, case, preload, conf):
    """The time limit is the test of `elsewhere`: what waits for another device never ends."""
    succeeds(run([program("pinned_kept"), case], preload=preload, conf=conf,
                 sim="memory:4G,devices:2", timeout=20))


@pytest.mark.parametrize("conf", POOLED)
def test_a_capture_is_not_spoiled_for_it(run, program, conf):
    succeeds(run([program("pinned_kept"), "capture"], conf=conf))


@pytest.mark.parametrize("preload, conf, code", [(False, None, 2), (True, "backend:off", 2),
                                                 (True, None, 0), (True, "x_runtime_hooks:false", 0)])
def test_registering_gets_what_the_pool_keeps_pinned(run, program, preload, conf, code):
    result = run([program("pinned_kept"), "register"], preload=preload, conf=conf,
                 sim="fail:cuMemHostRegister_v2@1=CUDA_ERROR_OUT_OF_MEMORY")

    succeeds(result)
    assert result.out == f"{code}\n"


# --- shortage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("preload, conf", MODES)
def test_all_there_is_can_be_had_in_pieces_and_at_once(run, program, preload, conf):
    result = run([program("pinned_short"), "count"], preload=preload, conf=conf,
                 sim="host_memory:64M")

    succeeds(result)
    assert result.out == "64\n"


@pytest.mark.parametrize("preload, conf", MODES)
@pytest.mark.parametrize("case", ["flags", "held", "busy"])
def test_a_shortage_takes_idle_memory_back(run, program, case, preload, conf):
    """The time limit is the test of `held`: what waits for the program's own progress never ends."""
    succeeds(run([program("pinned_short"), case], preload=preload, conf=conf,
                 sim="host_memory:64M", timeout=20))


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["cuMemHostAlloc", "cuMemFreeHost", "cuCtxRecordEvent"])
def test_an_upstream_failure_is_survived(run, program, name, nth):
    succeeds(run([program("pinned_short"), "flags"], sim=f"host_memory:64M,fail:{name}@{nth}"))


@pytest.mark.parametrize("preload, conf, case", [
    (False, None, "same"), (False, None, "portable"),
    *((True, conf, case) for conf in (None, "x_runtime_hooks:false", "free_sync:true")
      for case in ("same", "portable", "used"))])
@pytest.mark.parametrize("sim", ["", "host_memory:128M", "without:cuCtxRecordEvent",
                                 "host_memory:128M,without:cuCtxRecordEvent"])
def test_another_devices_work_is_not_waited_for_without_bound(run, program, preload, conf, case,
                                                              sim):
    old = ["old"] if "without" in sim else []
    # One waits the whole second.
    real = not preload or (conf, case, sim) == (None, "used", "")
    result = run([program("pinned_held"), case, *old], preload=preload, conf=conf, timeout=10,
                 sim=f"devices:2,{sim}" if sim else "devices:2",
                 env=None if real else conftest.shortened())

    assert result.rc == 0, result.err
