"""The questions that reuse in order asks of a GPU (tests/gpu/order_questions.py), on the simulator:
each is asked, is answered as the simulator's rules want it, and could be answered otherwise."""

import json
import subprocess
import sys
import time

import pytest

import conftest

sys.path.insert(0, str(conftest.ROOT / "tests" / "gpu"))

import order_questions  # noqa: E402
import suite as gpu_suite  # noqa: E402

pytestmark = pytest.mark.skipif(conftest.SANITIZER is not None or conftest.FAULT is not None,
                                reason="it runs programs of the release build")
NOT_READY = "CUDA_ERROR_NOT_READY (600)"


def asked(fact, sim=None, folders=()):
    """Its facts, as the simulator answers them."""
    paths = [conftest.BUILD / "simcuda", *folders]
    cuda = gpu_suite.Cuda(conftest.BUILD, None, ":".join(map(str, paths)), True)
    ran = cuda.run([conftest.BUILD / "facts", "--fact", fact], 60, sim=sim)
    assert ran.rc == 0, ran.err
    return json.loads(ran.out)["facts"]


def answers(fact, *keys, **how):
    """{what was asked, by these keys: the row}"""
    facts = asked(fact, **how)
    rows = order_questions.rows_of(facts, fact.split("/")[0], *keys)
    assert {one["status"] for one in facts} == {"ok"}
    assert [row for row in rows if "void" in row] == []
    found = {tuple(str(row[key]) for key in keys): row for row in rows}
    assert len(found) == len(rows) > 0
    return found


# --- the calls that return while a thread sleeps --------------------------------------------------

SLEEP = {"cuMemFree", "cuCtxSynchronize"}
HELD = "launch on the kernel's stream"


@pytest.mark.parametrize("who, sleeps", [("nobody", None), ("cudaFree", True),
                                         ("cudaFreeHost", True), ("cudaDeviceSynchronize", True)])
def test_while_a_thread_sleeps_others_go_on(who, sleeps):
    rows = answers(f"order_asleep/{who}", "call")

    assert {row.get("it sleeps") for row in rows.values()} == {sleeps}
    assert {call for (call,), row in rows.items() if not row["returns"]} == SLEEP
    assert {call for (call,), row in rows.items() if row.get("runs") is False} == {HELD}
    assert {row["code"] for row in rows.values()} == {"CUDA_SUCCESS (0)"}
    assert all(row["returns when the kernel has ended"] for row in rows.values())


def test_a_free_that_does_not_wait_is_no_sleeper():
    rows = answers("order_asleep/cudaFree", "call", sim="free_waits:0")

    assert {row["it sleeps"] for row in rows.values()} == {False}
    assert {call for (call,), row in rows.items() if not row["returns"]} == SLEEP - {"cuMemFree"}


def test_a_call_that_does_not_return_is_an_answer():
    rows = answers("order_asleep/cudaFree", "call", sim="latency:cuMemGetInfo_v2=900000000")

    assert {call for (call,), row in rows.items() if not row["returns"]} == SLEEP | {"cuMemGetInfo"}


def test_a_call_that_never_returns_ends_the_fact():
    """The second time: once each call is made before."""
    begun = time.monotonic()
    fact, = asked("order_asleep/cudaFree", sim="latency:cuEventQuery=60000000000/2")

    assert time.monotonic() - begun < 20
    assert fact["status"] == "ended with status 3"
    *_, row, note = fact["rows"]
    assert row["call"] == "cuEventQuery of a passed event" and len(fact["rows"]) > 5
    assert not row["returns"] and not row["returns when the kernel has ended"]
    assert row["code"] == NOT_READY and "has not come back" in note["note"]


# --- what a wait holds back -----------------------------------------------------------------------


def test_a_copy_behind_a_wait_is_the_last_write():
    rows = answers("order_copies", "call", "on", "from", "when", "bytes")

    assert {when for *_, when, _ in rows} == {"behind cuStreamWaitEvent", "behind nothing"}
    for (*_, when, _), row in rows.items():
        # Behind nothing it comes first: what is looked for can be seen.
        assert row["the copy is the last write"] == (when == "behind cuStreamWaitEvent"), row
        assert "code" not in row
        waits = row["call"] != "cuMemcpyHtoDAsync" and when == "behind cuStreamWaitEvent"
        assert row["the call waits"] == waits, row


def test_a_wait_is_for_all_that_the_event_covers():
    rows = answers("order_waits", "work on", "on")

    assert len(rows) == 21
    for row in rows.values():
        assert row["waits"] and row["runs afterwards"] and not row["a call waits"], row
        assert "code" not in row, row
    rows = answers("order_waits", "question")
    assert {question: row["answer"] for (question,), row in rows.items()} == {
        "a stream waits on while one of two kernels that the event covers goes on": True,
        "a stream waits for work that came after the record": False,
        "it runs at last": True}


def test_what_takes_too_long_is_no_answer():
    """The watchdog opens the kernel, so that the program ends whatever waits for it."""
    fact, = asked("order_waits", sim="latency:cuStreamWaitEvent=1700000000/20")
    void = [row for row in fact["rows"] if "void" in row]

    assert fact["status"] == "ok" and len(fact["rows"]) == 24
    assert [row["void"] for row in void] == ["the watchdog has opened the kernel"]
    assert void[0]["a call waits"]


def test_without_events_of_contexts_it_says_so():
    facts = [one for fact in ("order_copies", "order_waits")
             for one in asked(fact, sim="without:cuCtxRecordEvent")]

    assert [one["rows"] for one in facts] == [[{"note": "this driver has no cuCtxRecordEvent"}]] * 2


# --- programmatic launches, handles ---------------------------------------------------------------

# In time. In the order that the race check knows, frees do not (simcuda/README.md).
ENDS = {"cuCtxRecordEvent, cuStreamWaitEvent of it", "cuMemsetD8Async", "cuMemcpyHtoDAsync",
        "cuLaunchHostFunc", "a plain launch", "cuMemFreeAsync", "cuMemFreeAsync, cuMemAllocAsync"}


def test_what_ends_the_overlap_of_a_programmatic_launch():
    rows = answers("order_programmatic", "between")

    assert {name for (name,), row in rows.items() if not row["begins early"]} == ENDS
    assert "nothing" in {name for name, in rows} - ENDS
    assert not any(row["is past its grid sync early"] for row in rows.values())
    assert all(row["ends"] and "code" not in row for row in rows.values())
    # An address comes back when the stream has run the free.
    assert not rows["cuMemFreeAsync, cuMemAllocAsync",]["takes the block that was freed"]


@pytest.mark.parametrize("sim, busy", [(None, False), ("busy_handles:1", True)])
def test_whether_handles_of_busy_streams_come_again(sim, busy):
    rows = answers("order_handles", "kind", "when", sim=sim)

    assert {(when, row["its handle comes again"], row["its id comes again"])
            for (_, when), row in rows.items()} == {("while the work goes on", busy, False),
                                                    ("when the work has ended", True, False)}
    destroyed = answers("order_handles", "call", "kind", sim=sim)
    assert len(destroyed) == 3 and not any(row["waits"] for row in destroyed.values())


# --- launches that are made, launches that are seen -----------------------------------------------

BLAS = """
#include <cuda.h>
#include <dlfcn.h>
static CUstream on;
static CUfunction function;
static int (*launch)(CUfunction, CUstream);
int cublasCreate_v2(void **handle)
{
    CUmodule module;
    void *inner = dlopen(INNER, RTLD_NOW | HOW);
    *handle = &on;
    launch = inner ? dlsym(inner, "launch") : 0;
    return !launch || cuModuleLoadData(&module, "ptx") ||
           cuModuleGetFunction(&function, module, "gemm");
}
int cublasSetStream_v2(void *handle, CUstream stream) { on = stream; return !handle; }
int cublasSgemm_v2(void *handle)
{
    return !handle || launch(function, on) || launch(function, on) || launch(function, on);
}
"""
INNER = """
#include <cuda.h>
int launch(CUfunction f, CUstream on) { return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, on, 0, 0); }
"""


def make_blas(folder, how):
    for name, text, more in (("inner.so", INNER, []),
                             ("libcublas.so.13", BLAS,
                              [f'-DINNER="{folder}/inner.so"', f"-DHOW={how}"])):
        subprocess.run(["gcc", "-w", "-D_GNU_SOURCE", "-shared", "-fPIC", *more, "-o", folder / name,
                        "-I", conftest.cuda_include(), "-xc", "-",
                        f"-L{conftest.BUILD / 'simcuda'}", "-lcuda"],
                       input=text, text=True, check=True)


def counted(tmp_path):
    """(what the step says, its two tables) of launches, with libraries of this folder."""
    conftest.debug_shim(None)
    cuda = gpu_suite.Cuda(conftest.BUILD, conftest.SHIM, f"{conftest.BUILD / 'simcuda'}:{tmp_path}",
                          True)
    step = gpu_suite.Step("order", 60)
    step.deadline = time.monotonic() + 60
    order_questions.launches(step, cuda)
    launches, tables = (rows for _, rows in step.tables)
    return step.failures, {name: (made, seen) for name, made, seen in launches[1:]}, tables


def test_launches_that_are_made_are_seen(tmp_path):
    make_blas(tmp_path, 0)
    failures, launches, _ = counted(tmp_path)

    assert failures == []
    assert launches["driver"] == (5, 5)
    assert launches["runtime"] == (1, 1)
    assert launches["cublas"] == (3, 3)
    assert launches["nccl"][0].startswith(("absent: libnccl.so.2", "stopped at"))
    assert launches["PyTorch"][0].startswith("absent: ")


def test_launches_that_come_past_the_wrappers_are_missed(tmp_path):
    make_blas(tmp_path, "RTLD_DEEPBIND")
    failures, launches, _ = counted(tmp_path)

    assert launches["cublas"] == (3, 0)
    assert failures == ["cublas: 3 launches made, 0 seen by the wrappers"]


def test_without_the_build_that_counts_nothing_is_seen(tmp_path):
    cuda = gpu_suite.Cuda(tmp_path, None, "", True)
    step = gpu_suite.Step("order", 60)

    assert order_questions.launches(step, cuda) == []
    assert step.notes == ["Launches are not counted: no libcachealloc-debug.so here."]


def test_tables_of_functions_are_listed_once(tmp_path):
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", tmp_path / "libcufft.so.12", "-xc", "-",
                    f"-L{conftest.BUILD / 'simcuda'}", "-lcuda"], check=True, text=True, input="""
int cuGetExportTable(void **table, const void *id);
int cufftPlan1d(int *plan, int n, int type, int batch)
{
    void *table;
    cuGetExportTable(&table, "0123456789abcdef");
    cuGetExportTable(&table, "0123456789abcdef");
    return 5;
}
""")
    failures, launches, tables = counted(tmp_path)

    assert failures == [] and launches["cufft"] == ("stopped at cufftPlan1d: 5", "")
    # NVIDIA's libraries, where there are any, ask for others.
    assert tables[0] == ("table",) and tables.count((b"0123456789abcdef".hex(),)) == 1


# --- its page -------------------------------------------------------------------------------------


def test_every_question_has_its_table():
    facts = [one for group in ("order_asleep/nobody", "order_handles")
             for one in asked(group)]
    titles = {title: rows for title, rows in order_questions.tables(facts)}

    assert list(titles) == ["While a kernel goes on",
                            "The handle of a stream that was destroyed at work"]
    calls = {line[0]: line[1:] for line in titles["While a kernel goes on"]}
    assert calls["call"] == ("nobody sleeps",)
    assert calls["launch on an idle stream"] == ("returns, runs",)
    assert calls[HELD] == ("returns, does not run",)
    assert calls["cuMemFree"] == ("waits",)


@pytest.mark.parametrize("row, cell", [
    ({}, "returns, runs"),
    ({"it sleeps": False}, "returns, runs (nobody slept)"),
    ({"returns": False}, "waits"),
    ({"returns when the kernel has ended": False}, "never returns"),
    ({"code": NOT_READY}, NOT_READY),
    ({"void": "the kernel did not begin"}, "void: the kernel did not begin"),
])
def test_a_cell_says_what_cannot_be_told(row, cell):
    said = {"it sleeps": True, "returns": True, "runs": True, "code": "CUDA_SUCCESS (0)",
            "returns when the kernel has ended": True}

    assert order_questions.asleep(said | row) == cell
