"""What the driver serves and the shim only watches: arrays, physical memory, registered host memory
are tracked; those, code and graphs get what the cache holds. tests/preload/drv_tracked.c is the
program."""

import json

import pytest

import leak_report
import test_faults

CONFS = [None, "x_runtime_hooks:false", "backend:off"]
# (bytes, count) of one of each kind: what their descriptors say, the mipmap's levels added up.
ARRAYS = (1000 * 50 * 8 + 64 * 32 * 5 * 8, 2)
EACH = {(0, "array"): ARRAYS, (0, "mipmap"): (64 * 16 + 32 * 8 + 16 * 4 + 8 * 2, 1),
        (0, "vmm"): (4 << 20, 1), (0, "registered"): (12345, 1)}
OUT_OF_MEMORY, OPERATING_SYSTEM = 2, 304

FREES = ["cuArrayDestroy", "cuMipmappedArrayDestroy", "cuMemRelease", "cuMemHostUnregister"]
MAPPINGS = ["cuMemMap", "cuMemUnmap"]
REFERENCES = ["cuMemRetainAllocationHandle", "cuMemImportFromShareableHandle"]
# A device of 64 MiB, of which the cache holds 48; what is asked for takes 32.
SMALL = "memory:64M,module_bytes:32M"
TAKE_MEMORY = ["cuArrayCreate_v2", "cuArray3DCreate_v2", "cuMipmappedArrayCreate", "cuMemCreate",
               "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary",
               "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryGetModule",
               "cuKernelGetFunction", "cuFuncLoad", "cuGraphInstantiateWithParams",
               "cuGraphInstantiateWithParams_ptsz", "cuGraphUpload", "cuGraphUpload_ptsz",
               "cuGraphLaunch", "cuGraphLaunch_ptsz"]
# Take none, or none that is modelled, in the simulator: their shortage is injected. With its answer
# once there is room.
INJECTED = {"cuMemAllocManaged": 0, "cuModuleGetFunction": 0, "cuModuleGetGlobal_v2": 0,
            "cuLibraryGetGlobal": 0, "cuKernelSetAttribute": 0, "cuKernelSetCacheConfig": 0,
            "cuCtxSetLimit": 0, "cuGraphInstantiate_v2": 0, "cuGraphInstantiateWithFlags": 0}
# The same; idle pinned memory goes back for them too.
STAGE = ["cuStreamCreate", "cuStreamCreateWithPriority", "cuEventCreate", "cuMemPoolCreate",
         "cuMemcpy", "cuMemcpy_ptds", "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds", "cuMemcpyDtoH_v2",
         "cuMemcpyDtoH_v2_ptds"]


def tracked(run, program, *arguments, **how):
    result = run([program("drv_tracked"), *arguments], **how)
    assert result.rc == 0, result.err
    return result


def answer(run, program, name, how, sim, **kwargs):
    """What the call answered, and how often the driver was asked."""
    kwargs.setdefault("conf", "headroom:0,leak_report:off")
    result = tracked(run, program, "call", name, how, sim=sim, stats=True, **kwargs)
    return int(result.out), result.sim["calls"][name]


def test_every_function_that_is_left_to_this_file_fails_here():
    failed = {*TAKE_MEMORY, *INJECTED, *STAGE, *FREES, *REFERENCES, *MAPPINGS,
              "cuMemHostRegister_v2"}

    assert test_faults.TRACKED <= failed


@pytest.mark.parametrize("conf", CONFS)
def test_each_kind_is_reported_with_its_bytes(run, program, conf):
    report = leak_report.parse(tracked(run, program, "leak", conf=conf).err)

    assert report.totals == EACH
    assert all("make_one_of_each" in leak_report.places(group) for group in report.groups)


@pytest.mark.parametrize("conf", CONFS)
def test_nothing_is_reported_once_freed(run, program, conf):
    result = tracked(run, program, "free", conf=conf)

    assert (result.out, result.err) == ("0 0 0 0 0\n", "")
    assert tracked(run, program, "free", preload=False).out == result.out


@pytest.mark.parametrize("conf", CONFS)
def test_the_runtimes_forms_are_tracked(run, program, conf):
    assert run([program("arrays")], conf=conf).err == ""

    report = leak_report.parse(run([program("arrays"), "keep"], conf=conf).err)

    assert report.totals == {(0, "array"): (100 * 10 * 4 + 16 * 8 * 4 * 4, 2),
                             (0, "mipmap"): ((64 + 16 + 4 + 1) * 4, 1),
                             (0, "registered"): (5000, 1)}


@pytest.mark.parametrize("name, left", [
    ("cuArrayDestroy@2", {(0, "array"): (400000, 1)}),  # the first is that of a level
    ("cuArrayDestroy@3", {(0, "array"): (81920, 1)}),
    ("cuMipmappedArrayDestroy@1", {(0, "mipmap"): EACH[0, "mipmap"]}),
    ("cuMemRelease@1", {(0, "vmm"): EACH[0, "vmm"]}),
    ("cuMemHostUnregister@1", {(0, "registered"): EACH[0, "registered"]})])
def test_what_could_not_be_freed_is_reported_still(run, program, name, left):
    result = tracked(run, program, "free", sim=f"fail:{name}=999")

    assert sorted(result.out.split()) == ["0", "0", "0", "0", "999"]
    assert leak_report.parse(result.err).totals == left


@pytest.mark.parametrize("releases, leaks", [(0, True), (1, True), (2, True), (3, False)])
def test_a_handle_is_live_until_its_last_release(run, program, releases, leaks):
    result = tracked(run, program, "releases", releases)

    assert (leak_report.parse(result.err) is not None) == leaks
    if leaks:
        assert leak_report.parse(result.err).totals == {(0, "vmm"): (4 << 20, 1)}


def test_references_are_no_stream(run, program, tmp_path):
    conf = f"leak_report:{tmp_path}/leaks.json,history:10"
    assert run([program("drv_tracked"), "releases", 1], conf=conf).err == ""
    report = json.loads((tmp_path / "leaks.json").read_text())

    streams = {group["stream"] for section in report["sections"].values()
               for group in section["groups"]}
    assert streams | {event["stream"] for event in report["history"]} == {None}


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("what, bytes_, count", [
    ("kept", 4 << 20, 1), ("unmapped", 4 << 20, 1), ("both", 0, 0), ("again", 0, 0),
    ("held", 4 << 20, 1), ("many", 2 << 20, 1)])
def test_physical_memory_lives_as_long_as_it_is_mapped(run, program, what, bytes_, count, conf):
    """By the stack that created it, whatever became of the handle."""
    report = leak_report.parse(tracked(run, program, "mapped", what, conf=conf).err)

    if not count:
        assert report is None
        return
    assert report.totals == {(0, "vmm"): (bytes_, count)}
    assert leak_report.places(report.groups[0])[0] == "create_physical"


@pytest.mark.parametrize("name", [*MAPPINGS, "cuMemRelease"])
@pytest.mark.parametrize("what, lives", [("kept", True), ("both", False), ("again", False)])
def test_a_call_that_fails_leaves_mapped_memory_as_it_was(run, program, what, lives, name):
    err = tracked(run, program, "mapped", what, sim=f"fail:{name}@1=999").err

    assert ("vmm" in err) == lives


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_release_that_fails_lets_nothing_go(run, program, nth):
    """It is made again, and after three that succeeded nothing is left."""
    assert tracked(run, program, "releases", 3, sim=f"fail:cuMemRelease@{nth}=999").err == ""
    assert "vmm" in tracked(run, program, "releases", 2, sim=f"fail:cuMemRelease@{nth}=999").err


def test_physical_memory_outlives_its_context_and_arrays_do_not(run, program):
    report = leak_report.parse(tracked(run, program, "reset").err)

    assert report.totals == {(0, "vmm"): (4 << 20, 1)}
    assert {group.kind for group in report.destroyed.groups} == {"array", "mipmap", "registered"}


@pytest.mark.parametrize("name", TAKE_MEMORY)
def test_what_the_cache_holds_is_there_for_others(run, program, name):
    """A module load that fails for lack of memory succeeds after our cache shrinks."""
    assert answer(run, program, name, "cached", SMALL) == (0, 2)
    assert answer(run, program, name, "cached", SMALL, preload=False) == (0, 1)


@pytest.mark.parametrize("name", TAKE_MEMORY)
def test_with_nothing_to_give_the_drivers_own_code_arrives(run, program, name):
    assert answer(run, program, name, "live", SMALL) == (OUT_OF_MEMORY, 1)
    assert answer(run, program, name, "cached", f"{SMALL},fail:{name}@1=304") == (
        OPERATING_SYSTEM, 1)
    assert answer(run, program, name, "cached", f"{SMALL},fail:{name}@1=2,fail:{name}@2=304") == (
        OPERATING_SYSTEM, 2)


@pytest.mark.parametrize("name", INJECTED)
def test_what_the_simulator_does_not_model_is_tried_once_more_too(run, program, name):
    assert answer(run, program, name, "cached", f"memory:64M,fail:{name}@1=2") == (
        INJECTED[name], 2)
    assert answer(run, program, name, "live", f"memory:64M,fail:{name}@1=2") == (OUT_OF_MEMORY, 1)
    assert answer(run, program, name, "cached", f"memory:64M,fail:{name}@1=304") == (
        OPERATING_SYSTEM, 1)


@pytest.mark.parametrize("name", STAGE)
@pytest.mark.parametrize("how", ["cached", "pinned", "live"])
def test_calls_that_stage_get_what_lies_idle_of_either_kind(run, program, name, how):
    """Some are ours too: the program's is the last."""
    conf = "headroom:0,leak_report:off"
    calls = tracked(run, program, "call", name, how, stats=True, conf=conf,
                    sim="memory:64M").sim["calls"][name]

    for code in (OUT_OF_MEMORY, OPERATING_SYSTEM):
        result = tracked(run, program, "call", name, how, stats=True, conf=conf,
                         sim=f"memory:64M,fail:{name}@{calls}={code}")

        helped = code == OUT_OF_MEMORY and how != "live"
        assert int(result.out) == (0 if helped else code)
        assert result.sim["calls"].get("cuMemFreeHost", 0) == (helped and how == "pinned")


def test_managed_memory_gets_what_pinned_memory_left_idle(run, program):
    assert int(tracked(run, program, "call", "cuMemAllocManaged", "pinned",
                       sim="host_memory:64M", conf="leak_report:off").out) == 0


@pytest.mark.parametrize("what, sim", [
    ("module", SMALL), ("physical", f"{SMALL},devices:2"),
    ("library", "memory:64M,devices:2,fail:cuLibraryLoadData@1=2")])
def test_memory_cached_in_another_context_is_given_back_too(run, program, what, sim):
    tracked(run, program, "elsewhere", what, sim=sim, conf="headroom:0,leak_report:off")


def test_registering_host_memory_is_not_tried_again(run, program):
    assert answer(run, program, "cuMemHostRegister_v2", "cached",
                  "fail:cuMemHostRegister_v2@1=2") == (OUT_OF_MEMORY, 1)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_that_was_refused_is_not_counted(run, program, name):
    """The program ends there, with the one reference it had."""
    result = run([program("drv_tracked"), "releases", 3], sim=f"fail:{name}@1=304")

    assert "answered 304" in result.err
    assert leak_report.parse(result.err).totals == {(0, "vmm"): (4 << 20, 1)}


@pytest.mark.parametrize("mode", ["relaxed", "thread", "global"])
def test_giving_back_leaves_captures_alone(run, program, mode):
    """Loading is allowed while this thread captures; our frees are, with its mode relaxed."""
    conf = "headroom:0"
    assert tracked(run, program, "capture", mode, sim=SMALL, conf=conf).out == "0 active 0\n"
    assert tracked(run, program, "capture", mode, sim=SMALL, preload=False).out == "0 active 0\n"

    fixed = f"{SMALL},without:cuThreadExchangeStreamCaptureMode"
    result = tracked(run, program, "capture", mode, sim=fixed, conf=conf)

    assert result.out == f"{OUT_OF_MEMORY} active 0\n"  # nothing may be freed then


@pytest.mark.parametrize("conf", CONFS)
def test_memory_of_graph_nodes_is_not_tracked_and_its_frees_go_through(run, program, conf):
    plain = tracked(run, program, "graph", preload=False, stats=True)
    result = tracked(run, program, "graph", conf=conf, stats=True)

    for name in ("cuMemFree_v2", "cuMemFreeAsync", "cuMemAllocAsync", "cuGraphAddMemAllocNode"):
        assert result.sim["calls"][name] == plain.sim["calls"][name]
    assert (result.out, result.err) == (plain.out, plain.err)


@pytest.mark.parametrize("way", ["own", "primary", "green"])
@pytest.mark.parametrize("preload, conf", [(False, None), (True, None), (True, "headroom:0")])
def test_a_context_gets_memory_that_was_freed(run, program, preload, conf, way):
    result = run([program("drv_room_context"), way], preload=preload, conf=conf,
                 sim="memory:256M,context_bytes:64M")

    assert result.rc == 0, result.err


@pytest.mark.parametrize("way", ["pool", "stream"])
@pytest.mark.parametrize("preload, conf", [(False, None), (True, None), (True, "stream_ordered:driver")])
def test_another_device_s_pool_gets_memory_that_was_freed_there(run, program, preload, conf, way):
    result = run([program("drv_room_device"), way], preload=preload, conf=conf,
                 sim="memory:256M,devices:2")

    assert result.rc == 0, result.err


@pytest.mark.parametrize("preload, conf", [(False, None), (True, None), (True, "headroom:0")])
def test_code_gets_memory_that_was_freed_with_work_in_flight(run, program, preload, conf):
    """As where the free itself waits for that work."""
    result = run([program("drv_room")], preload=preload, conf=conf,
                 sim="memory:256M,module_bytes:64M")

    assert result.rc == 0, result.err
