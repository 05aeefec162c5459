"""PyTorch itself on the simulated CUDA, with and without the library: counts of driver calls, bytes
that are live at the end, and numbers that must be the same. `make check-torch` runs it with the
environments that are there; everywhere else it is skipped.
"""

import json
import os
import pathlib
import subprocess

import pytest

import conftest
import leak_report

VENVS = [pathlib.Path(path) for path in os.environ.get("CA_TORCH", "").split()]
OTHERS = os.environ.get("CA_PYTHON_CUDA")
if not VENVS and not OTHERS:
    pytest.skip("no PyTorch here: make check-torch, after make torch-venv", allow_module_level=True)

SCRIPTS = conftest.ROOT / "tests" / "torch"
DEVICE = "memory:16G,arch:90,kernel_ns:10000"
LIMIT_S = 240  # a start alone takes 20 s on a busy machine
OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
MODES = {
    "off": OFF,
    "pool": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
MIB = 1 << 20


@pytest.fixture(params=VENVS, ids=lambda path: path.name)
def torch(request, run):
    """torch(SCRIPT, ...) runs tests/torch/SCRIPT and returns a runner's result; `said` has what it
    printed last, which is JSON."""
    def go(script, *arguments, sim=DEVICE, launcher=(), rc=0, **kwargs):
        result = run([request.param / "bin" / "python", *launcher, SCRIPTS / script, *arguments],
                     sim=sim, timeout=LIMIT_S, **kwargs)
        assert result.rc == rc, f"{script}: {result.rc}\n{result.out[-2000:]}\n{result.err[-4000:]}"
        lines = result.out.strip().splitlines()
        result.said = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
        return result

    return go


def left_at_the_end(path):
    """(kind, bytes) of each group of a JSON report, those that suppressions name left out."""
    report = json.loads(path.read_text())
    return [(group["kind"], group["bytes"]) for group in report["sections"]["leaked"]["groups"]]


def forgotten(path):
    """How much device memory a program did not free, and in how many allocations: at its end, or
    where it destroyed the context itself."""
    sections = json.loads(path.read_text())["sections"]
    groups = [group for name in ("leaked", "destroyed") if name in sections
              for group in sections[name]["groups"] if group["kind"] == "device"]
    return max(group["bytes"] for group in groups), sum(group["count"] for group in groups)


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_training_has_the_same_losses_and_launches_and_leaves_nothing(torch, tmp_path, mode):
    plain = torch("steps.py", env=MODES[mode], preload=False, stats=True)
    ours = torch("steps.py", env=MODES[mode], stats=True,
                 conf=f"leak_report:{tmp_path}/r,report_format:json")

    assert ours.said == plain.said
    assert ours.said["losses"] == ours.said["right"]
    assert ours.said["losses"][-1] < 1e-6 < ours.said["losses"][0]
    calls, plain_calls = ours.sim["calls"], plain.sim["calls"]
    assert calls["cuLaunchKernel"] == plain_calls["cuLaunchKernel"] > 500
    assert left_at_the_end(tmp_path / "r.json") == []
    assert plain.sim["devices"][0]["live_bytes"] == 0
    if mode == "off":
        # Each tensor is an allocation and a free that waits; with the library a segment for many.
        assert plain_calls["cuMemAlloc_v2"] == plain_calls["cuMemFree_v2"] > 1000
        assert calls["cuMemAlloc_v2"] < plain_calls["cuMemAlloc_v2"] / 50
        assert "cuMemFree_v2" not in calls
    elif mode == "pool":
        assert calls["cuMemAlloc_v2"] <= plain_calls["cuMemAlloc_v2"]
    else:  # what the library leaves to the driver
        names = {"expandable": ("cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease"),
                 "async": ("cuMemAllocAsync", "cuMemFreeAsync")}[mode]
        assert all(calls[name] == plain_calls[name] > 0 for name in names)
        assert ours.sim["devices"][0]["live_bytes"] == 0


@pytest.mark.parametrize("conf, most", [
    ("reuse:order", 50), ("expandable_segments:true", 50), ("ipc:dedicated", 50),
    ("backend:async", 2000), ("debug:redzone+poison", 2000)],
    ids=lambda value: str(value).partition(",")[0])
def test_every_way_of_serving_it_has_the_right_losses(torch, tmp_path, conf, most):
    result = torch("steps.py", env=OFF, stats=True,
                   conf=f"{conf},leak_report:{tmp_path}/r,report_format:json")

    assert result.said["losses"] == result.said["right"]
    assert left_at_the_end(tmp_path / "r.json") == []
    allocations = sum(result.sim["calls"].get(name, 0)
                      for name in ("cuMemAlloc_v2", "cuMemAllocFromPoolAsync", "cuMemCreate"))
    assert 0 < allocations < most
    assert "cachealloc: " not in result.err


@pytest.mark.parametrize("conf", ["reuse:auto", "reuse:order"])
def test_no_byte_is_handed_out_that_is_in_use(torch, conf):
    result = torch("steps.py", env=OFF, sim=f"{DEVICE},racecheck:1", stats=True,
                   conf=f"{conf},leak_report:off")

    assert result.sim["races"] == 0 and result.said["losses"] == result.said["right"]


def test_the_check_finds_memory_that_is_handed_out_while_it_is_in_use(torch):
    result = torch("steps.py", sim=f"{DEVICE},racecheck:1", stats=True, conf="leak_report:off",
                   env={**OFF, **conftest.mutated("reuse_pending")}, rc=99)

    assert result.sim["races"] > 0


def test_tensors_travel_between_two_devices(torch):
    result = torch("devices.py", sim=f"devices:2,{DEVICE},racecheck:1", env=OFF, stats=True,
                   conf="leak_report:off")

    assert result.said == {"right": 60, "of": 60} and result.sim["races"] == 0


@pytest.mark.parametrize("mode", ["off", "pool"])
def test_a_full_device_holds_as_much_as_without_the_library(torch, mode):
    plain, ours = (torch("full.py", sim="memory:128M,arch:90", env=MODES[mode], preload=preload)
                   for preload in (False, True))

    assert ours.said["right"] and plain.said["right"]
    assert all(held >= before - 4 * MIB
               for held, before in zip(ours.said["totals"], plain.said["totals"]))


# --- leaks ----------------------------------------------------------------------------------------


def test_leaked_tensors_are_one_group_with_the_lines_of_python(torch, tmp_path):
    torch("leak.py", env=OFF, conf=f"leak_report:{tmp_path}/r,report_format:text+json")

    assert left_at_the_end(tmp_path / "r.json") == [("device", 21 * MIB)]
    group, = leak_report.parse((tmp_path / "r").read_text()).groups[:1]
    assert (group.bytes, group.count) == (21 * MIB, 7)
    text = "\n".join(group.frames)
    for line in ("Model.forward at leak.py:", "forget_activations at leak.py:", "main at leak.py:"):
        assert line in text, text


def test_with_a_pool_of_pytorchs_its_segments_are_kept_on_purpose(torch, tmp_path):
    torch("leak.py", conf=f"leak_report:{tmp_path}/r,report_format:json")

    assert left_at_the_end(tmp_path / "r.json") == []
    report = json.loads((tmp_path / "r.json").read_text())
    assert sum(one["bytes"] for one in report["suppressions"]) >= 21 * MIB


# --- captures -------------------------------------------------------------------------------------

RIGHT = {"right": True, "changed": 0, "reused": 0}


@pytest.mark.parametrize("preload", [True, False], ids=["shim", "alone"])
def test_a_graph_is_captured_with_pytorchs_pool(torch, preload):
    assert torch("graphs.py", preload=preload).said == RIGHT


def test_a_graph_is_captured_with_the_cache_off_where_memory_is_kept_for_it(torch):
    plain, refused = torch("graphs.py", env=OFF, preload=False), torch("graphs.py", env=OFF)
    kept = torch("graphs.py", env=OFF, conf="capture:keep,leak_report:off")

    assert list(plain.said) == list(refused.said) == ["refused"]
    assert kept.said == RIGHT


# --- other processes ------------------------------------------------------------------------------

THERE = [[0.5, 0.5, 1000], [1.5, 1.5, 1 << 19], [2.5, 2.5, 3 << 20]]


@pytest.mark.parametrize("preload, conf", [(True, None), (True, "ipc:dedicated"), (False, None)],
                         ids=["shim", "dedicated", "alone"])
def test_tensors_and_events_are_shared_with_another_process(torch, tmp_path, preload, conf):
    shared = tmp_path / "device"
    shared.touch()

    result = torch("share.py", preload=preload, conf=conf, sim=f"{DEVICE},shared:{shared}")

    assert result.said == {"event": True, "there": THERE, "back": 3 * [[-1.0, -1.0]], "ended": 0}


def test_ranks_of_torchrun_have_reports_that_merge(torch, tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]

    torch("ranks.py", launcher=launcher, env={**OFF, "RANKS": tmp_path, "OMP_NUM_THREADS": "1"},
          conf=f"leak_report:{tmp_path}/leaks.%r,report_format:text+json")

    for rank in range(4):
        said = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert said == {"total": 6.0 * 16, "count": 4}
        report = tmp_path / f"leaks.{rank}.json"
        assert json.loads(report.read_text())["rank"] == str(rank)
        assert left_at_the_end(report) == [("device", (rank + 1) * 2 * MIB)]
    merged = subprocess.run(
        [conftest.ROOT / "tools" / "cachealloc", "merge",
         *(tmp_path / f"leaks.{rank}" for rank in range(4))],
        text=True, capture_output=True, check=True).stdout
    assert f"{20 * MIB} bytes in 4 allocations" in merged and "forget at ranks.py:" in merged


# --- the loader, and PyTorch's own history --------------------------------------------------------


def test_batches_of_a_loader_come_through_pinned_memory(torch):
    plain, ours = (torch("loader.py", env=OFF, preload=preload, stats=True)
                   for preload in (False, True))

    assert ours.said == plain.said and ours.said["found"] == ours.said["right"]
    pinned, plain_pinned = (one.sim["calls"]["cuMemHostAlloc"] for one in (ours, plain))
    assert 0 < pinned <= plain_pinned


def test_pytorch_records_the_same_history(torch):
    plain, ours = (torch("history.py", preload=preload) for preload in (False, True))

    assert ours.said == plain.said
    assert ours.said["allocations"] == [[size * MIB, "allocate"] for size in (4, 8, 12)]


def test_pytorchs_own_viewer_reads_a_report(torch, tmp_path):
    torch("leak.py", env=OFF, conf=f"leak_report:{tmp_path}/r.pickle")

    viewed = torch("view.py", tmp_path / "r.pickle", preload=False)

    assert viewed.said == {"bytes": 21 * MIB, "names": ["Model.forward", "forget_activations",
                                                        "main", "<module>"]}


# --- other packages -------------------------------------------------------------------------------


@pytest.fixture
def other(run):
    """other(SCRIPT, ...) runs tests/python_cuda/SCRIPT in the environment of the other packages;
    `said` as above. It is skipped where `package` is not there."""
    if not OTHERS:
        pytest.skip("no environment of other packages: make torch-venv")
    python = pathlib.Path(OTHERS) / "bin" / "python"

    def go(script, *arguments, package, **kwargs):
        missing = f"import importlib.util as util; exit(util.find_spec('{package}') is None)"
        if subprocess.run([python, "-c", missing]).returncode:
            pytest.skip(f"{package} is not in {OTHERS}")
        result = run([python, conftest.ROOT / "tests" / "python_cuda" / script, *arguments],
                     sim=DEVICE, timeout=LIMIT_S, **kwargs)
        assert result.rc == 0, result.out[-2000:] + result.err[-4000:]
        result.said = json.loads(result.out.strip().splitlines()[-1])
        return result

    return go


NUMBERS = [float(number) for number in range(40)]
PACKAGES = {
    "numba": ("numba_arrays.py", NUMBERS),
    "cuda": ("bindings_driver.py", [[number, number] for number in range(40)]),
    "pycuda": ("pycuda_arrays.py", NUMBERS),
}


@pytest.mark.parametrize("package", PACKAGES)
def test_other_packages_compute_the_same_with_few_allocations(other, tmp_path, package):
    script, numbers = PACKAGES[package]

    plain = other(script, package=package, preload=False, stats=True)
    ours = other(script, package=package, stats=True,
                 conf=f"leak_report:{tmp_path}/r,report_format:text+json")

    assert ours.said == plain.said and ours.said["found"] == numbers
    calls = plain.sim["calls"]
    assert ours.sim["calls"]["cuMemAlloc_v2"] < 10 < 40 < calls["cuMemAlloc_v2"]
    assert forgotten(tmp_path / "r.json") == (
        3 * MIB, calls["cuMemAlloc_v2"] - calls["cuMemFree_v2"])
    assert "forget at " in (tmp_path / "r").read_text()


@pytest.mark.parametrize("package, what", [("cupy", "cupy"), ("rmm", "rmm"),
                                           ("cuda", "cuda_bindings_runtime")])
def test_why_a_package_with_a_runtime_of_its_own_does_not_run(other, package, what):
    """Its static runtime asks the driver for tables that no header describes."""
    plain, ours = (other("loads.py", what, package=package, preload=preload)
                   for preload in (False, True))

    assert "refused" in plain.said and ours.said == plain.said
    assert "cuGetExportTable is not modelled" in plain.err
