"""Every capability of the pool by its name, in its smallest form and from outside: a program under the
shim, the simulator's counts, the shim's statistics. The fine points are tested where each is made."""

import re

import pytest

import conftest
import leak_report

OPTIONS = (conftest.ROOT / "config" / "options.def").read_text()
BACK_ENDS = re.search(r'^CA_OPTION\(\s*backend, BASIC, ENUM, "pool", 0, 0, "([^"]+)"', OPTIONS,
                      re.MULTILINE)[1].split("|")
ELEVEN = "32K+256K+1M+2M+4M+8M+16M+32M+64M+128M+256M"
MIB = 1 << 20


@pytest.fixture(params=["x_runtime_hooks:true", "x_runtime_hooks:false"])
def capable(run, program, request):
    """Runs a case of capabilities.c (or another program) in each lane; it must end well, silently
    unless `silent` is False."""
    def run_case(*case, conf=None, name="capabilities", sim="memory:1G", silent=True):
        conf = f"{request.param},{conf}" if conf else request.param
        result = run([program(name), *case], conf=conf, sim=sim, stats=True)
        assert result.rc == 0, result.err
        assert not silent or result.err == "", result.err
        return result
    return run_case


def calls(result, *names):
    return sum(result.sim["calls"].get(name, 0) for name in names)


# Idle segments go back by the second.
FREES = ("cuMemFree_v2", "cuMemFreeAsync")


def test_11_fixed_classes(capable):
    capable("classes", conf=f"size_classes:{ELEVEN}", sim="memory:2G")


def test_pin_mode(capable):
    capable("pin")


def test_trim(capable):
    result = capable("trim")

    assert calls(result, *FREES) == calls(result, "cuMemAlloc_v2") > 0
    assert result.sim["devices"][0]["live_bytes"] == 0


def test_double_free_detection(capable):
    result = capable("twice", silent=False)

    assert len(re.findall(r"warning: free of 0x\w+: .* refused$", result.err, re.MULTILINE)) == 2
    assert calls(result, *FREES) == 0  # nothing of it reached the driver
    assert leak_report.parse(result.err) is None


def test_deferred_release_across_devices(capable):
    result = capable("devices", name="capabilities_use", conf="reuse:wait",
                     sim="memory:1G,devices:2,racecheck:1")

    assert [device["live_bytes"] for device in result.sim["devices"]] == [0, 0]


def test_stream_ordered_allocation(capable):
    result = capable("ordered", name="capabilities_use", conf="reuse:grow",
                     sim="memory:1G,racecheck:1")

    assert calls(result, "cuMemAllocAsync", "cuMemFreeAsync") == 0


def test_neighbour_lists_split_coalesce(capable):
    result = capable("neighbours")

    assert calls(result, "cuMemAlloc_v2") == 1


@pytest.mark.parametrize("last", [0, 1, 2])
def test_collection_by_age(capable, last):
    capable("by_age", last, conf="gc_threshold:10,reuse:wait")


def test_retry_ladder(capable):
    capable("ladder", conf="headroom:0", sim="memory:256M")


def test_small_and_large_pools(capable):
    # So large a device that what cutting may strand is no matter.
    one, two = (capable("two_pools", conf=conf, sim="memory:80G") for conf in ("x_small:0", "x_small:1M"))

    assert (one.out, two.out) == (f"1 1 {64 * MIB}\n", f"2 3 {10 * MIB}\n")


def test_max_split(capable):
    cut, whole = (capable("max_split", conf=conf, sim="memory:80G").out
                  for conf in ("max_split:inf", "max_split:16M"))

    assert (cut, whole) == ("1\n", "0\n")


def test_near_size_reuse_of_oversize_blocks(capable):
    capable("near_size", conf="max_split:16M")


def test_per_stream_reuse(capable):
    result = capable("per_stream", name="capabilities_use")

    assert calls(result, "cuMemAlloc_v2") == 1


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_back_ends(capable, back_end):
    result = capable("back_end", name="capabilities_use", conf=f"backend:{back_end}", silent=False)

    plain, ordered, explicit = (
        calls(result, name)
        for name in ("cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocFromPoolAsync"))
    if back_end == "off":
        assert (plain, ordered, explicit) == (101, 100, 0)
    elif back_end == "async":  # and one to try the allocator out
        assert plain < 10 and (ordered, explicit) == (100, 102)
    else:
        assert plain + ordered + explicit < 10
    assert leak_report.parse(result.err).totals == {(0, "device"): (12345, 1)}


def test_sharded_pointer_map(capable):
    capable("map", name="capabilities_threads")


def test_aliases_with_reference_counts(capable):
    capable("aliases", name="capabilities_use", conf="log:error")


def test_allocation_types_with_their_own_deleters(capable):
    result = capable("deleters", name="capabilities_use")

    assert calls(result, *FREES, "cuMemFreeHost") == 0


def test_statistics_queries(capable):
    result = capable("statistics", name="capabilities_use")

    assert int(result.out) == result.sim["devices"][0]["peak_bytes"]


def test_aligned_allocation(capable):
    capable("aligned")


def test_per_thread_workspaces(capable):
    """Threads that use buffers of their own at the same time need next to no memory from the driver,
    and none sees another one's. Each has a cache in front of the arena, which
    serves without a lock (unit/test_cache)."""
    capable("workspaces", name="capabilities_threads")
    capable("workspaces", name="capabilities_threads", conf="thread_cache:0")


def test_capacity_hints_with_lazy_best_fit_addresses(capable):
    capable("hints", name="capabilities_threads", conf="reuse:wait", sim="memory:2G")
