"""Every driver call that the shim makes fails once: the program sees legal codes, its contents hold,
and nothing is lost. tests/preload/faults.c is the program."""

import os
import re

import pytest

import conftest
import leak_report
import run_rows

# Of calls that are made more often, the first and some later ones are tried; CA_FAULTS=all: each.
SIM = "memory:128M,devices:3"
CONF = "headroom:0,log:error"  # the device is small
LANES = [pytest.param("true", id="shim"), pytest.param("false", id="driver-lane")]
FUNCTIONS = re.findall(r"^CA_DRIVER(?:_USED)?\((\w+)", (conftest.ROOT / "shim/hooks/hooks.def").read_text(),
                       re.MULTILINE)
# Of those that are wrapped for the order of work the shim calls these for itself, too. What the
# wrappers do when one fails is test_order.py's to look at.
SUBMISSIONS = {"cuCtxSynchronize", "cuCtxRecordEvent", "cuEventRecord", "cuStreamQuery",
               "cuStreamSynchronize", "cuStreamWaitEvent", "cuMemsetD8Async",
               "cuMemcpyDtoHAsync_v2"}
FUNCTIONS += sorted(SUBMISSIONS)
# Reached by tests/preload/drv_tracked.c: test_tracked.py fails each of them.
TRACKED = {"cuArrayCreate_v2", "cuArray3DCreate_v2", "cuArrayDestroy", "cuMipmappedArrayCreate",
           "cuMipmappedArrayDestroy", "cuMemCreate", "cuMemRetainAllocationHandle",
           "cuMemImportFromShareableHandle", "cuMemRelease", "cuMemMap", "cuMemUnmap",
           "cuMemHostRegister_v2", "cuMemHostUnregister", "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx",
           "cuModuleLoadFatBinary", "cuModuleGetFunction", "cuModuleGetGlobal_v2", "cuFuncLoad",
           "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryGetModule", "cuLibraryGetGlobal",
           "cuKernelGetFunction", "cuKernelSetAttribute", "cuKernelSetCacheConfig",
           "cuCtxSetLimit", "cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags",
           "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz", "cuGraphUpload",
           "cuGraphUpload_ptsz", "cuGraphLaunch", "cuGraphLaunch_ptsz",
           "cuStreamCreateWithPriority", "cuMemcpy", "cuMemcpy_ptds", "cuMemcpyHtoD_v2",
           "cuMemcpyHtoD_v2_ptds", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds"}
# Reached by tests/preload/ipc.c: test_ipc.py fails it.
IPC = {"cuIpcGetMemHandle"}
# Of the library's own calls, for tests/preload/api_ordered.c: test_streams_api.py fails each of them.
ORDERED = {"cuInit", "cuStreamGetId"}
# Passed on, and not modelled by the simulator; cuGraphExecDestroy by tests/preload/graph_memory.c:
# test_graphs.py fails it.
GRAPHS = {"cuGraphClone", "cuGraphAddChildGraphNode", "cuGraphExecChildGraphNodeSetParams",
          "cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphExecUpdate", "cuGraphExecUpdate_v2",
          "cuGraphExecDestroy"}
# Reached by tests/preload/async.c: test_async.py fails each of them.
POOLS = {"cuDeviceSetMemPool", "cuMemPoolSetAttribute", "cuMemPoolSetAccess", "cuStreamWaitEvent"}
# Reached by tests/preload/drv_peer_copies.c: test_contexts.py fails each of them.
COPIES = {"cuMemcpyPeer", "cuMemcpyPeer_ptds", "cuMemcpyPeerAsync", "cuMemcpyPeerAsync_ptsz",
          "cuMemcpy3DPeer", "cuMemcpy3DPeer_ptds", "cuMemcpy3DPeerAsync", "cuMemcpy3DPeerAsync_ptsz"}
# Reached by tests/preload/both_overlap.c, in which one fails.
LAUNCHES = {"cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"}
# Of expandable segments: test_vmm.py and test_vmm_traps.py fail each of them, or lets the device lack it.
RANGES = {"cuMemAddressReserve", "cuMemAddressFree", "cuMemSetAccess",
          "cuMemGetAllocationGranularity", "cuMemGetHandleForAddressRange", "cuCtxDisablePeerAccess",
          # Of `auto`, where a driver is proven.
          "cuDeviceGetCount", "cuDriverGetVersion"}
# What only an option makes the shim call.
OPTIONS = {"cuMemsetD8Async": "debug:zero", "cuDeviceTotalMem_v2": "limit:90%",
           "cuMemAllocAsync": "stream_ordered:driver",
           "cuMemAllocAsync_ptsz": "stream_ordered:driver", "cuMemcpyDtoHAsync_v2": "debug:redzone"}
# Asked once in a process.
ONCE = {"cuDeviceGetAttribute"}
ELSEWHERE = {"cuEventRecord",    # a deliberate fault alone
             "cuCtxSetCurrent",  # follows two failures: a test of its own
             "cuStreamDestroy",  # as cuStreamDestroy_v2
             # Newer than the simulated driver; as cuStreamBeginCaptureToGraph.
             "cuStreamBeginRecaptureToGraph", "cuStreamBeginRecaptureToGraph_ptsz",
             # As cuCtxCreate_v2, cuCtxPopCurrent_v2 and cuDeviceSetMemPool.
             "cuCtxCreate", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuCtxPopCurrent", "cuMemSetMemPool",
             "cuDeviceGetGraphMemAttribute",  # out of memory: test_oom.py
             "cuCtxGetDevice",  # of a context that was made behind our back
             "cuCtxSynchronize",  # where the driver records no context, below
             # backend:async, below
             "cuMemPoolCreate", "cuMemPoolDestroy", "cuMemPoolGetAttribute"}


def test_what_is_wrapped_and_called_is_known():
    sources = "".join(path.read_text() for path in (conftest.ROOT / "shim").rglob("*.c"))
    listed = (conftest.ROOT / "shim/hooks/submissions.def").read_text()
    wrapped = set(re.findall(r"^CA_\w+\((\w+), \"", listed, re.MULTILINE))

    assert {name for name in wrapped if re.search(rf"->\s*{name}\b", sources)} == SUBMISSIONS


CALLED = [name for name in FUNCTIONS
          if name not in ELSEWHERE | TRACKED | IPC | GRAPHS | POOLS | COPIES | LAUNCHES | RANGES |
          ORDERED |
          set(OPTIONS)]
MOST = {"few": "3/30" if conftest.SANITIZER else "6/6", "many": "50/25"}
DEPTHS = pytest.mark.parametrize("depth", MOST)
KEPT = 12345


# So many rounds of the program are a test's that it gets more time than others.
def more_time(test):
    return pytest.mark.long(pytest.mark.timeout(0 if "CA_FAULTS" in os.environ else 900)(test))


LIMIT = 1800 if "CA_FAULTS" in os.environ else 240  # seconds of one row: a round for each call


def keeps(_, err):
    """Only the buffer that the program keeps is reported."""
    report = leak_report.parse(err)
    assert report and (report.bytes, report.count) == (KEPT, 1), "another report"


@pytest.fixture
def faults(request, run, program, tmp_path):
    """faults([(conf, sim, words), ...]) runs the program with each of them and returns what it says."""

    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}

    def run_all(asked, depth=params.get("depth", "few")):
        most = {} if "CA_FAULTS" in os.environ else {"CA_FAULTS": MOST[depth]}
        return run_rows.run_rows(run, tmp_path, limit=LIMIT, judge=keeps, rows=[
            run_rows.row(f"{' '.join(map(str, words))}, {conf}, {sim}", [program("faults"), *words],
                         conf=f"{CONF},{conf}", sim=sim, env=most) for conf, sim, words in asked])

    return run_all


def counts(text):
    """{name: (calls in the first round, calls in a later one)}"""
    return {name: (int(first), int(later))
            for name, first, later in (line.split() for line in text.splitlines())}


@pytest.fixture
def every_call_fails_once(faults):
    """every_call_fails_once([(name, conf, sim), ...]): an early failure may change what a process
    does, and the rest is for a fresh one."""

    def in_turn(asked):
        left = [(*one, 1) for one in asked]
        for _ in range(4):
            said = faults([(conf, sim, ("each", name, start)) for name, conf, sim, start in left])
            # How often a process makes a call depends on its threads: of a few that are to fail none
            # may come to pass. Of many some do.
            none = [i for i, out in enumerate(said) if failed_none(left[i], out)]
            if none:
                deeper = faults([(conf, sim, ("each", name, start))
                                 for name, conf, sim, start in (left[i] for i in none)], "many")
                for i, out in zip(none, deeper):
                    said[i] = out
            assert [one for one, out in zip(left, said) if failed_none(one, out)] == []
            left = [(*one[:3], again) for one, out in zip(left, said)
                    if (again := next_start(one, out)) != one[3]]
            if not left:
                return

    return in_turn


def next_start(one, out):
    """Where a fresh process has to go on; where this one started, if it need not."""
    again = re.search(r"^again (\d+)$", out, re.MULTILINE)
    return int(again[1]) if again else one[3]


def failed_none(one, out):
    tried = re.search(r"^(\d+) calls, (\d+) tried, (\d+) missed$", out, re.MULTILINE)
    return one[3] == 1 and int(tried[2]) <= int(tried[3])


@pytest.mark.parametrize("lane", LANES)
def test_the_program_reaches_every_function(faults, lane):
    called = counts(*faults([(f"x_runtime_hooks:{lane}", SIM, ("count",))]))

    assert list(called) == FUNCTIONS
    assert [name for name in CALLED if max(called[name]) == 0] == []


def test_an_option_makes_it_reach_the_others(faults):
    said = faults([(conf, SIM, ("count",)) for conf in sorted(set(OPTIONS.values()))])

    called = dict(zip(sorted(set(OPTIONS.values())), map(counts, said)))
    assert [name for name, conf in OPTIONS.items() if max(called[conf][name]) == 0] == []


@DEPTHS
def test_each_call_to_the_driver_s_own_pool_fails_once(every_call_fails_once, depth):
    every_call_fails_once([(name, "stream_ordered:driver", SIM) for name in
                           ("cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemFreeAsync")])


@more_time
@DEPTHS
@pytest.mark.parametrize("lane", LANES)
def test_each_call_fails_once(every_call_fails_once, lane, depth):
    every_call_fails_once([(name, f"x_runtime_hooks:{lane}", SIM) for name in CALLED if name not in ONCE])


@more_time
@DEPTHS
def test_each_call_fails_once_with_other_options(every_call_fails_once, depth):
    every_call_fails_once([
        *[(name, conf, SIM) for name, conf in OPTIONS.items()],
        ("cuStreamSynchronize", "debug:zero", SIM),
        ("cuCtxRecordEvent", "free_sync:true", SIM),
        ("cuEventSynchronize", "free_sync:true", SIM),
        ("cuCtxSynchronize", "free_sync:true", f"{SIM},without:cuCtxRecordEvent"),
        ("cuMemFree_v2", "x_runtime_hooks:true", f"{SIM},without:cuMemFreeAsync"),
        ("cuMemPoolCreate", "backend:async", SIM),
        ("cuMemPoolDestroy", "backend:async", SIM),
        ("cuMemPoolGetAttribute", "backend:async", SIM),
        ("cuMemFree_v2", "backend:async", SIM),
        ("cuStreamSynchronize", "backend:async", SIM),
        ("cuCtxSynchronize", "x_runtime_hooks:true", f"{SIM},without:cuCtxRecordEvent")])


@pytest.mark.parametrize("first", range(1, 6))
def test_a_context_that_cannot_be_popped_is_not_left_current(run, program, first):
    """The frees from another device's thread make the shim push; what it pops fails twice."""
    fail = f"fail:cuCtxPopCurrent_v2@{first}=999,fail:cuCtxPopCurrent_v2@{first + 1}=999"
    result = run(program("multi_ctx"), sim=f"devices:2,memory:4G,{fail}", stats=True,
                 conf="log:error")
    assert result.rc == 0, result.err
    assert result.sim["calls"]["cuCtxPopCurrent_v2"] > first


@more_time
@DEPTHS
def test_a_failure_in_a_fresh_process(faults, depth):
    """700 is an error after which a context is of no use; 801 says that a function is missing. Of
    many the first call fails, one amid them and the last."""
    (said,) = faults([("x_runtime_hooks:true", SIM, ("count",))])
    first = {name: calls for name, (calls, _) in counts(said).items()}

    def which(name):
        """A sanitizer has no other depth: the first and the last, for those between fail there
        with other errors, and with these in check-more."""
        numbers = {1}
        if depth == "many" or "CA_FAULTS" in os.environ:
            numbers |= {(first[name] + 1) // 2, first[name]}
        elif conftest.SANITIZER:
            numbers |= {first[name]}
        return sorted(numbers - {0})

    faults([("x_runtime_hooks:true", SIM, ("first", name, number, error)) for name in CALLED
            for number in which(name) for error in (700, 801)])
