"""The questions about virtual memory (tests/gpu/vmm_questions.py), on the simulator: each is asked,
is answered as the simulator's rules want it, and could be answered otherwise."""

import sys

import pytest

import conftest

sys.path.insert(0, str(conftest.ROOT / "tests" / "gpu"))

import vmm_questions  # noqa: E402
from test_order_questions import answers, asked  # noqa: E402

pytestmark = pytest.mark.skipif(conftest.SANITIZER is not None or conftest.FAULT is not None,
                                reason="it runs programs of the release build")
YES = "CUDA_SUCCESS (0)"
NO = "CUDA_ERROR_INVALID_VALUE (1)"
ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS (700)"
UNIT = 2 << 20


def codes(fact, **how):
    """{(call, when): code}"""
    return {key: row["code"] for key, row in answers(fact, "call", "when", **how).items()}


def questions(fact, **how):
    return {key: row["answer"] for (key,), row in answers(fact, "question", **how).items()}


# --- the device -----------------------------------------------------------------------------------


def test_what_the_device_has():
    assert set(codes("vmm_device").values()) == {YES}
    told = questions("vmm_device")
    assert {value for name, value in told.items() if "granularity" in name} == {UNIT}
    assert {value for name, value in told.items() if "attribute" in name} == {1}


def test_what_a_device_lacks():
    rdma = codes("vmm_device", sim="vmm:nordma")
    assert rdma["cuMemSetAccess", "for RDMA"] == "CUDA_ERROR_UNKNOWN (999)"
    assert rdma["cuMemSetAccess", "plain"] == YES
    no_fd = codes("vmm_device", sim="vmm:nofd,reservation:32G")
    assert no_fd["cuMemCreate", "file descriptors"] == "CUDA_ERROR_NOT_SUPPORTED (801)"
    assert no_fd["cuMemAddressReserve", "256 GiB"] == "CUDA_ERROR_OUT_OF_MEMORY (2)"
    assert no_fd["cuMemAddressReserve", "32 GiB"] == YES


@pytest.mark.parametrize("fact", vmm_questions.GROUPS[1:])
def test_without_virtual_memory_each_fact_says_so(fact):
    wanted = "one device" if fact == "vmm_peers" else "this device has no virtual memory management"
    for one in asked(fact, sim="vmm:0"):
        assert one["status"] == "ok" and [row["note"] for row in one["rows"]] == [wanted]


# --- ranges, pointers, copies ---------------------------------------------------------------------


def test_which_ranges_calls_take():
    told = codes("vmm_ranges")

    assert {key for key, code in told.items() if code == YES} == {
        ("cuMemMap", "a whole handle"), ("cuMemMap", "a second time elsewhere"),
        ("cuMemSetAccess", "one mapping"), ("cuMemSetAccess", "two mappings, again"),
        ("cuMemRelease", "while it is mapped"), ("cuMemUnmap", "two mappings"),
        ("cuMemUnmap", "one mapping"), ("cuMemUnmap", "the last one of a released handle"),
        ("cuMemAddressFree", "nothing is mapped")}
    assert set(told.values()) == {YES, NO} and len(told) == 22
    assert set(questions("vmm_ranges").values()) == {0}


def test_what_a_pointer_tells():
    told = answers("vmm_pointers", "call", "pointer")
    second = {call: row for (call, pointer), row in told.items() if pointer == "inside the second"}

    assert (second["cuMemGetAddressRange"]["begins at unit"],
            second["cuMemGetAddressRange"]["units"]) == (1, 1)
    assert {call: row["answer"] for call, row in second.items() if "answer" in row} == {
        "RANGE_START_ADDR": 0, "RANGE_SIZE": 3, "MAPPING_BASE_ADDR": 1, "MAPPING_SIZE": 1,
        "MAPPED": 1, "MEMORY_TYPE": 2, "DEVICE_ORDINAL": 0, "IS_MANAGED": 0,
        "IS_LEGACY_CUDA_IPC_CAPABLE": 0, "ALLOWED_HANDLE_TYPES": 0, "ACCESS_FLAGS": 3,
        "IS_GPU_DIRECT_RDMA_CAPABLE": 0, "SYNC_MEMOPS": 0}
    assert not second["CONTEXT"]["of a context"]
    nothing = {row["code"] for (_, pointer), row in told.items() if pointer == "nothing mapped"}
    assert nothing == {YES, NO, "CUDA_ERROR_NOT_FOUND (500)"}
    assert codes("vmm_pointers") == {
        ("cuPointerSetAttribute of SYNC_MEMOPS", "mapped"): "CUDA_ERROR_NOT_SUPPORTED (801)",
        ("cuIpcGetMemHandle", "mapped"): NO, ("cudaPointerGetAttributes", "mapped"):
        "cudaSuccess (0)", ("cudaIpcGetMemHandle", "mapped"): "cudaErrorInvalidValue (1)",
        ("dma-buf", "of one handle"): YES, ("dma-buf", "over two handles"): YES,
        ("dma-buf", "over what is not mapped"): NO, ("cuMemFree", "mapped"): NO,
        ("cuMemFreeAsync", "mapped"): NO}


def test_copies_over_two_handles():
    rows = answers("vmm_copies", "call", "the bytes are right")

    assert {right for _, right in rows} == {"True"} and len(rows) == 8
    wrong = answers("vmm_copies", "call", "the bytes are right",
                    sim="fail:cuMemsetD8Async@1,fail:cuMemcpy3DAsync_v2@1")
    assert {call for call, right in wrong if right == "False"} == {"cuMemsetD8Async",
                                                                   "cuMemcpy3DAsync"}


# --- under work -----------------------------------------------------------------------------------


def test_two_addresses_show_the_same_bytes():
    rows = answers("vmm_alias", "work", "then", "on")

    assert len(rows) == 18
    assert {(row["stale"], row["rounds"], row["code"]) for row in rows.values()} == {(0, 20, YES)}


def test_a_round_that_is_refused_ends_the_question():
    rows = answers("vmm_alias", "work", "then", "on", sim="fail:cuMemcpyHtoDAsync_v2@3")

    failed = [row for row in rows.values() if row["code"] != YES]
    assert [(row["work"], row["rounds"]) for row in failed] == [("copy", 2)]


@pytest.mark.parametrize("fact", ["vmm_copies", "vmm_alias", "vmm_busy/map-open", "vmm_cost",
                                  "vmm_busy/unmap-alias", "vmm_gone", "vmm_many"])
def test_what_is_asked_is_ordered(fact):
    """Or an answer might be that of a race."""
    assert {one["status"] for one in asked(fact, sim="racecheck:1")} == {"ok"}


def test_which_calls_wait_for_a_kernel():
    rows = answers("vmm_busy", "call")

    assert len(rows) == 8 and {row["code"] for row in rows.values()} == {YES}
    assert all(row["returns while the kernel is at work"] for row in rows.values())
    assert {call for (call,), row in rows.items() if row["the kernel"] == ILLEGAL} == {
        "cuMemUnmap of what it writes to", "cuMemSetAccess of it, to none"}
    waits = answers("vmm_busy/create", "call", sim="latency:cuMemCreate=400000000")
    assert [row["returns while the kernel is at work"] for row in waits.values()] == [False]


def test_which_calls_captures_allow():
    rows = answers("vmm_capture", "call", "capture mode")

    assert len(rows) == 18
    for (_, mode), row in rows.items():
        assert row["the capture lives"] == (mode == "relaxed") == (row["code"] == YES), row


@pytest.mark.parametrize("how, end", [("reset", "cuDevicePrimaryCtxReset"),
                                      ("destroyed", "cuCtxDestroy")])
def test_mappings_outlive_contexts(how, end):
    fact = f"vmm_gone/{how}"

    assert set(questions(fact).values()) == {1}
    assert codes(fact) == dict.fromkeys([
        (end, "with mappings"), ("cuMemcpyDtoH", "from the mapping"),
        ("cuMemUnmap", "with no context current"),
        ("cuMemAddressFree", "with no context current")], YES)
    # The memory is mapped still where the call fails.
    assert not questions(fact, sim="fail:cuMemUnmap@1")["the memory is free again"]


def test_another_device_has_what_it_was_given():
    two = {case: codes(f"vmm_peers/{case}", sim="devices:2") for case in
           ("copy", "enabled", "given")}

    assert two["copy"] == {("cuMemcpyPeer", "without access"): YES}
    assert two["enabled"] == {("cuCtxEnablePeerAccess", "of the first"): YES,
                              ("cuMemsetD8", "enabled"): ILLEGAL}
    assert two["given"] == {("cuMemSetAccess", "for the second device"): YES,
                            ("cuMemsetD8", "given"): YES}


# --- costs ----------------------------------------------------------------------------------------


def test_costs_are_for_each_handle():
    rows = answers("vmm_cost", "call", "bytes", "state", "handles",
                   sim="memory:1G,latency:cuMemSetAccess=20000,latency:cuMemUnmap=10000")

    assert {state for _, _, state, _ in rows} == {"idle", "at work", "the first of the process"}
    assert {int(size) for _, size, _, _ in rows} == {UNIT, 4 * UNIT, 16 * UNIT}
    assert not any(row.get("waits") for row in rows.values())
    for (call, size, state, handles), row in rows.items():
        least = {"cuMemSetAccess": 20000, "cuMemUnmap": 10000}.get(call, 0) * int(handles)
        assert row["code"] == YES and row["call_median_ns"] >= least, row


def test_a_call_that_waits_for_the_kernel_is_seen():
    """The watchdog opens the kernel after 1.5 s."""
    rows = answers("vmm_cost", "call", "bytes", "state", "handles",
                   sim="memory:16M,latency:cuMemRelease=1600000000/9")

    assert {call for (call, *_), row in rows.items() if row.get("waits")} == {"cuMemRelease"}


def test_memory_that_comes_again():
    rows = answers("vmm_again", "state", "create_ns")
    assert len(rows) == 4 and {row["code"] for row in rows.values()} == {YES}


def test_how_many_mappings_there_can_be():
    row, = answers("vmm_many", "mappings", "stopped by").values()
    assert row["answer"] and row["mappings"] == 4000 and row["code"] == YES
    row, = answers("vmm_many", "mappings", "stopped by", sim="mappings:1500").values()
    assert not row["answer"] and (row["mappings"], row["stopped by"], row["code"]) == (
        1500, "cuMemSetAccess", "CUDA_ERROR_OUT_OF_MEMORY (2)")


# --- the page -------------------------------------------------------------------------------------


def test_each_question_has_a_table():
    facts = [one for group in vmm_questions.GROUPS for one in asked(group, sim="devices:2")]
    tables = dict(vmm_questions.tables(facts))

    assert len(tables) == 13
    assert all(len(set(map(len, table))) == 1 and len(table) > 1 for table in tables.values())
    assert ("cuMemUnmap of what it writes to", "yes", "yes", ILLEGAL) in \
        tables["While a kernel writes to mapped memory"]
    assert ("cuMemSetAccess", "yes, and ends the capture") not in tables["Captures, by mode"]
    assert ("cuMemMap, half of a handle", NO) in tables["Ranges that calls take"]
