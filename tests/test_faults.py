"""Every driver call that the shim makes fails once: the program sees legal codes, its contents hold,
and nothing is lost. tests/preload/faults.c is the program."""

import os
import re

import pytest

import conftest
import leak_report

# Of calls that are made more often, the first and some later ones are tried; CA_FAULTS=all: each.
SIM = "memory:128M,devices:3"
CONF = "headroom:0,log:error"  # the device is small
LANES = [pytest.param("true", id="shim"), pytest.param("false", id="driver-lane")]
FUNCTIONS = re.findall(r"^CA_DRIVER(?:_USED)?\((\w+)", (conftest.ROOT / "shim/hooks.def").read_text(),
                       re.MULTILINE)
# Reached by tests/preload/drv_tracked.c: test_tracked.py fails each of them.
TRACKED = {"cuArrayCreate_v2", "cuArray3DCreate_v2", "cuArrayDestroy", "cuMipmappedArrayCreate",
           "cuMipmappedArrayDestroy", "cuMemCreate", "cuMemRetainAllocationHandle",
           "cuMemImportFromShareableHandle", "cuMemRelease", "cuMemHostRegister_v2",
           "cuMemHostUnregister", "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx",
           "cuModuleLoadFatBinary", "cuModuleGetFunction", "cuModuleGetGlobal_v2", "cuFuncLoad",
           "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryGetModule", "cuLibraryGetGlobal",
           "cuKernelGetFunction", "cuKernelSetAttribute", "cuKernelSetCacheConfig",
           "cuCtxSetLimit", "cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags",
           "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz", "cuGraphUpload",
           "cuGraphUpload_ptsz", "cuGraphLaunch", "cuGraphLaunch_ptsz"}
# Reached by tests/preload/ipc.c: test_ipc.py fails it.
IPC = {"cuIpcGetMemHandle"}
# Reached by tests/preload/async.c: test_async.py fails each of them.
POOLS = {"cuDeviceSetMemPool", "cuMemPoolSetAttribute", "cuMemPoolSetAccess", "cuStreamWaitEvent"}
# What only an option makes the shim call.
OPTIONS = {"cuMemsetD8Async": "zero:true", "cuDeviceTotalMem_v2": "limit:90%",
           "cuMemAllocAsync": "async:driver",
           "cuMemAllocAsync_ptsz": "async:driver", "cuMemcpyDtoHAsync_v2": "debug:redzone"}
# Asked once in a process.
ONCE = {"cuDeviceGetAttribute"}
ELSEWHERE = {"cuEventRecord",    # a deliberate fault alone
             "cuCtxSetCurrent",  # follows two failures: a test of its own
             # Newer than the simulated driver; as cuStreamBeginCaptureToGraph.
             "cuStreamBeginRecaptureToGraph", "cuStreamBeginRecaptureToGraph_ptsz",
             # As cuCtxCreate_v2, cuCtxPopCurrent_v2 and cuDeviceSetMemPool.
             "cuCtxCreate", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuCtxPopCurrent", "cuMemSetMemPool",
             "cuCtxGetDevice",  # of a context that was made behind our back
             "cuCtxSynchronize",  # where the driver records no context, below
             # backend:async, below
             "cuMemPoolCreate", "cuMemPoolDestroy", "cuMemPoolGetAttribute"}
CALLED = [name for name in FUNCTIONS if name not in ELSEWHERE | TRACKED | IPC | POOLS | set(OPTIONS)]
MOST = {} if "CA_FAULTS" in os.environ else {"CA_FAULTS": "3/30" if conftest.SANITIZER
                                             else "50/25"}
KEPT = 12345


def faults(run, program, conf, *arguments, sim=SIM):
    """Only the buffer that the program keeps is reported."""
    result = run([program("faults"), *arguments], conf=f"{CONF},{conf}", sim=sim, timeout=240,
                 env=MOST)
    assert result.rc == 0, result.err
    report = leak_report.parse(result.err)
    assert (report.bytes, report.count) == (KEPT, 1), result.err
    return result.out


def counts(text):
    """{name: (calls in the first round, calls in a later one)}"""
    return {name: (int(first), int(later))
            for name, first, later in (line.split() for line in text.splitlines())}


def every_call(run, program, name, conf, sim=SIM):
    """An early failure may change what a process does: the rest is for a fresh one."""
    start = 1
    for _ in range(4):
        out = faults(run, program, conf, "each", name, start, sim=sim)
        tried = re.search(r"^(\d+) calls, (\d+) tried, (\d+) missed$", out, re.MULTILINE)
        assert start > 1 or int(tried[2]) > int(tried[3]), out  # some did fail
        again = re.search(r"^again (\d+)$", out, re.MULTILINE)
        if not again or int(again[1]) == start:
            return
        start = int(again[1])


@pytest.mark.parametrize("lane", LANES)
def test_the_program_reaches_every_function(run, program, lane):
    called = counts(faults(run, program, f"lane_r:{lane}", "count"))

    assert list(called) == FUNCTIONS
    assert [name for name in CALLED if max(called[name]) == 0] == []


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_makes_it_reach_the_others(run, program, name):
    assert max(counts(faults(run, program, OPTIONS[name], "count"))[name]) > 0


@pytest.mark.parametrize("name", ["cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemFreeAsync"])
def test_each_call_to_the_driver_s_own_pool_fails_once(run, program, name):
    every_call(run, program, name, "async:driver")


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("name", [name for name in CALLED if name not in ONCE])
def test_each_call_fails_once(run, program, name, lane):
    every_call(run, program, name, f"lane_r:{lane}")


@pytest.mark.parametrize("name, conf, sim", [
    *[(name, conf, SIM) for name, conf in OPTIONS.items()],
    ("cuStreamSynchronize", "zero:true", SIM),
    ("cuCtxRecordEvent", "free_sync:true", SIM),
    ("cuEventSynchronize", "free_sync:true", SIM),
    ("cuCtxSynchronize", "free_sync:true", f"{SIM},without:cuCtxRecordEvent"),
    ("cuMemFree_v2", "lane_r:true", f"{SIM},without:cuMemFreeAsync"),
    ("cuMemPoolCreate", "backend:async", SIM),
    ("cuMemPoolDestroy", "backend:async", SIM),
    ("cuMemPoolGetAttribute", "backend:async", SIM),
    ("cuStreamWaitEvent", "backend:async", SIM),
    ("cuMemFreeAsync", "backend:async", SIM),
    ("cuCtxSynchronize", "lane_r:true", f"{SIM},without:cuCtxRecordEvent")])
def test_each_call_fails_once_with_other_options(run, program, name, conf, sim):
    every_call(run, program, name, conf, sim)


@pytest.mark.parametrize("first", range(1, 6))
def test_a_context_that_cannot_be_popped_is_not_left_current(run, program, first):
    """The frees from another device's thread make the shim push; what it pops fails twice."""
    fail = f"fail:cuCtxPopCurrent_v2@{first}=999,fail:cuCtxPopCurrent_v2@{first + 1}=999"
    result = run(program("multi_ctx"), sim=f"devices:2,memory:4G,{fail}", stats=True,
                 conf="log:error")
    assert result.rc == 0, result.err
    assert result.sim["calls"]["cuCtxPopCurrent_v2"] > first


@pytest.mark.parametrize("name", CALLED)
def test_a_failure_in_a_fresh_process(run, program, name):
    """700 is an error after which a context is of no use; 801 says that a function is missing."""
    first = counts(faults(run, program, "lane_r:true", "count"))[name][0]
    for number in sorted({1, (first + 1) // 2, first} - {0}):
        for error in (700, 801):
            faults(run, program, "lane_r:true", "first", name, number, error)
