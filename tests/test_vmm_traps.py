"""The traps around expandable segments: what memory of cuMemCreate is refused, and what it has to
be given. tests/preload/drv_expandable.c has the cases; it runs without the library and without such
segments too, where the same must hold."""

import re
import subprocess

import pytest

import conftest
import leak_report
import test_modes

ON, OFF, AUTO = (f"expandable_segments:{value}" for value in ("true", "false", "auto"))
LIVE_AT_THE_END = "leak_report:off"  # of their contexts, in `resets`
SIM = "memory:2G,devices:2"
SLOW_RELEASE = "latency:cuDevicePrimaryCtxRelease_v2=1000000"  # for `suspended` to be beside it
OUT_OF_MEMORY, UNKNOWN = 2, 999
FAULTS = ["cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
          "cuMemAddressReserve", "cuMemAddressFree"]
CASES = ["ipc", "peer", "refused", "addresses", "sync", "handle", "dmabuf", "capture", "fork",
         "resets", "suspended", "info", "own"]
# What says so.
WARNED = {"ipc": "an IPC handle is refused", "sync": "SYNC_MEMOPS) is refused",
          "refused": "could not be opened to a peer"}


def succeeds(result):
    assert result.rc == 0, result.err
    assert leak_report.parse(result.err) is None, result.err
    return result


@pytest.mark.parametrize("case", CASES)
def test_what_needs_plain_memory_works(run, program, case):
    result = succeeds(run([program("drv_expandable"), case, "ranged"],
                          conf=f"{ON},{LIVE_AT_THE_END}", sim=f"{SIM},{SLOW_RELEASE}", stats=True))

    assert result.sim["calls"]["cuMemMap"] > 30
    warned = [line for line in result.err.splitlines() if "warning" in line]
    assert len(warned) == (case in WARNED), result.err
    assert all(WARNED[case] in line and "expandable_segments:false" in line for line in warned)


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_same_with_plain_segments(run, program, case):
    command = [program("drv_expandable"), case]
    result = succeeds(run(command, conf=f"{OFF},{LIVE_AT_THE_END}", sim=SIM))

    assert not result.err
    assert run(command, preload=False, sim=SIM).rc == 0


def fails(run, program, mutation, case, conf=ON, sim=SIM):
    result = run([program("drv_expandable"), *case.split(), "ranged"], conf=conf, sim=sim,
                 env=conftest.mutated(mutation))
    assert result.rc == 1, f"{case} under {mutation}: {result.rc} {result.err}"


@pytest.mark.parametrize("mutation, case", [
    ("ipc_still_range", "ipc"), ("ipc_still_range", "sync"), ("peer_unmapped", "peer"),
    ("reached_released", "dmabuf"), ("range_left", "resets"), ("handle_exported", "handle")])
def test_otherwise_it_would_not(run, program, mutation, case):
    fails(run, program, mutation, case)


def test_nothing_stays_in_the_device_after_fifty_resets(run, program):
    result = succeeds(run([program("drv_expandable"), "resets", "ranged", 50],
                          conf=f"{ON},{LIVE_AT_THE_END}", sim=SIM, stats=True))

    assert result.sim["calls"]["cuMemCreate"] > 50 * 100
    left = result.sim["vmm"]
    assert {name: left[name] for name in ("handles", "mappings", "reservations", "bytes")} == {
        "handles": 0, "mappings": 0, "reservations": 0, "bytes": 0}
    assert [device["live_bytes"] for device in result.sim["devices"]] == [0, 0]


# --- where the driver cannot ----------------------------------------------------------------------


# `nordma`: the flag that devices on the bus may reach it is refused, and left out.
@pytest.mark.parametrize("lacks, ranged", [
    ("vmm:0", False), ("vmm:nomemory", False), ("vmm:nordma", True), ("reservation:1200M", True),
    ("reservation:32M", False), ("without:cuMemSetAccess", False),
    ("fail:cuMemGetAllocationGranularity@1=CUDA_ERROR_UNKNOWN", True)])
def test_a_device_that_cannot_has_plain_segments(run, program, lacks, ranged):
    result = succeeds(run([program("drv_expandable"), "own" if ranged else "addresses",
                           "ranged" if ranged else "plain"], conf=f"{ON},log:info",
                          sim=f"{SIM},{lacks}"))

    assert ("expandable_segments: device 0 cannot" in result.err) == (
        not ranged and not lacks.startswith("reservation"))


@pytest.mark.parametrize("conf, sim", [(OFF, SIM), (AUTO, SIM), (ON, f"{SIM},vmm:0")])
def test_then_nothing_differs(run, program, conf, sim):
    """The calls are those of plain segments, to the digit; what the device can is asked once."""

    def calls(conf, sim):
        result = succeeds(run([program("drv_expandable"), "addresses"], conf=conf, sim=sim,
                              stats=True))
        # The room in the device is asked as often as time says.
        return {name: count for name, count in result.sim["calls"].items()
                if name not in ("cuMemGetInfo_v2", "cuCtxGetCurrent")}

    plain, other = calls(OFF, f"{SIM},vmm:0"), calls(conf, sim)
    more = {name: count - plain.get(name, 0) for name, count in other.items()
            if count != plain.get(name, 0)}
    assert more == ({} if conf != ON else {"cuDeviceGetAttribute": 1})


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, UNKNOWN])
@pytest.mark.parametrize("name", FAULTS)
def test_a_call_that_fails_takes_nothing_with_it(run, program, name, error):
    result = succeeds(run([program("drv_expandable"), "faults", name, error,
                           conftest.SHIM.name], conf=f"{ON},log:error", sim="memory:1G"))

    assert int(result.out) >= (1 if name.startswith("cuMemAddress") else 9)


def test_a_peer_that_cannot_be_kept_out_again_is_said_to_be_refused(run, program):
    result = run([program("drv_expandable"), "refused", "ranged"], conf=f"{ON},log:error",
                 sim=f"{SIM},fail:cuCtxDisablePeerAccess@1")

    assert result.rc == 1 and "let_in() answered 704" in result.err  # it is in, by the driver


def test_memory_whose_descriptor_was_refused_goes_back(run, program):
    succeeds(run([program("drv_expandable"), "dmabuf_refused", "ranged"], conf=ON,
                 sim=f"{SIM},fail:cuMemGetHandleForAddressRange@1=CUDA_ERROR_UNKNOWN"))


# --- captures, children, tools --------------------------------------------------------------------


def test_a_range_grows_in_a_capture_that_forbids_it_to_the_program(run, program):
    succeeds(run([program("drv_expandable"), "capture_global", "ranged"],
                 conf=f"{ON},capture:keep", sim=SIM))


@pytest.mark.parametrize("conf", [ON, OFF])
def test_where_a_driver_cannot_relax_it_no_segment_grows(run, program, conf):
    result = run([program("drv_expandable"), "capture_global", *(["ranged"] if conf == ON else [])],
                 conf=f"{conf},capture:keep",
                 sim=f"{SIM},without:cuThreadExchangeStreamCaptureMode")

    assert result.rc == 1 and "cuMemAlloc(&more, 120 * MIB) answered 900" in result.err


def test_under_compute_sanitizer_there_are_none(run, program):
    result = run([program("drv_expandable"), "info"], conf=ON, sim=SIM, stats=True,
                 env={test_modes.SET_BY_IT[0]: "49152"})

    assert result.rc == 0, result.err
    assert result.sim["calls"].get("cuMemMap", 0) == 0


# --- auto -----------------------------------------------------------------------------------------


def signs(run, program, what, sim=SIM, mutation="unproven_used"):
    result = run([program("drv_expandable"), "signs", what], conf=f"{AUTO},log:info", sim=sim,
                 env=conftest.mutated(mutation))
    assert result.rc == 0, result.err
    told = re.findall("expandable segments grow no more: (.*)", result.err)
    assert len(told) <= 1
    return result.out.split(), *told


def test_auto_waits_for_a_driver_that_is_proven(run, program):
    assert signs(run, program, "none", mutation="none") == (["plain", "plain"],)
    assert signs(run, program, "none") == (["mapped", "mapped"],)


@pytest.mark.parametrize("what, why", [
    ("handle", "an IPC handle was asked for"),
    ("asked", "a program asked whether memory has IPC handles"),
    ("peer", "a peer reaches the memory")])
def test_auto_ends_with_the_first_sign(run, program, what, why):
    """Memory from before stays as it is, and right."""
    assert signs(run, program, what) == (["mapped", "plain"], why)


@pytest.mark.parametrize("library, devices, why", [
    ("libucp.so.0", 1, "UCX is loaded"), ("libuctx.so.0", 1, None),
    ("libuct.so.0", 1, "UCX is loaded"), ("libmpi.so.40", 1, "MPI is loaded"),
    ("libmpi_cray.so.12", 1, "MPI is loaded"), ("libmpich.so.12", 1, "MPI is loaded"),
    ("libfabric.so.1", 1, "libfabric is loaded"), ("libnccl.so.2", 1, None),
    ("libnccl.so.2", 2, "NCCL is loaded, and there are several devices"),
    ("libmpfr.so.6", 2, None)])
def test_auto_ends_with_a_library_that_shares_memory(run, program, tmp_path, library, devices, why):
    path = tmp_path / library
    subprocess.run(["gcc", "-shared", "-o", path, "-xc", "/dev/null"], check=True)
    sim = f"memory:2G,devices:{devices}"

    there = signs(run, program, f"before:{path}", sim)
    comes = signs(run, program, f"open:{path}", sim)
    if why:
        assert there == (["plain", "plain"], why) and comes == (["mapped", "plain"], why)
    else:
        assert there == comes == (["mapped", "mapped"],)

