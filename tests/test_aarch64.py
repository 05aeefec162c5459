"""The other architecture: its assembly, its glibc versions and its unwinder, by a cross compiler and
an emulator. What is not the architecture's is left to the tests beside this one."""

import pathlib
import shutil
import subprocess

import pytest

import conftest
import leak_report
import test_order

CROSS = conftest.ROOT / "build-aarch64"
CROSS_ROOT = pathlib.Path("/usr/aarch64-linux-gnu")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
COMPILER = shutil.which("aarch64-linux-gnu-gcc")
LANES = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane")]
POOLED = 50

pytestmark = [
    pytest.mark.other_build,
    pytest.mark.skipif(conftest.BUILD.name != "build", reason="one flavour of it is enough"),
    pytest.mark.skipif(EMULATOR is None or COMPILER is None or not CROSS_ROOT.exists(),
                       reason="aarch64-linux-gnu-gcc, its libc and qemu-aarch64 are needed"),
]


def built(name):
    path = CROSS / "tests" / "preload" / name
    assert path.exists(), "make aarch64 builds it"
    return path


@pytest.fixture
def emulate(run):
    """As `run`, a program for aarch64: `before` and `after` are preloaded beside the shim."""

    def run_emulated(name, *args, preload=True, before=(), after=(), **kwargs):
        shim = [CROSS / "libcachealloc.so"] if preload else []
        libraries = " ".join(map(str, [*before, *shim, *after]))
        # The guest's loader, not the emulator's own, is who reads these.
        guest = {"LD_LIBRARY_PATH": f"{CROSS / 'simcuda'}:{CROSS_ROOT / 'lib'}",
                 "LD_PRELOAD": libraries}
        given = [word for key, value in guest.items() if value
                 for word in ("-E", f"{key}={value}")]
        # Little memory: the emulator keeps a table of what the simulated devices reserve.
        return run([EMULATOR, "-L", CROSS_ROOT, *given, built(name), *args], preload=False,
                   sim="memory:1G", env={"LD_LIBRARY_PATH": ""}, **kwargs)

    return run_emulated


def test_the_objects_are_for_that_architecture():
    for path in (CROSS / "libcachealloc.so", built("versioned")):
        header = subprocess.run(["readelf", "-h", path], text=True, check=True, capture_output=True)
        assert "AArch64" in header.stdout


@pytest.mark.parametrize("conf", LANES)
def test_a_runtime_program_is_served(emulate, conf):
    plain = emulate("versioned", 1000, preload=False, stats=True)
    result = emulate("versioned", 1000, conf=conf, stats=True)

    assert plain.sim["calls"]["cuMemAlloc_v2"] == 1000
    assert (result.rc, result.out, result.err) == (0, "", "")
    assert result.sim["calls"]["cuMemAlloc_v2"] < POOLED


def test_a_driver_program_is_served(emulate):
    plain = emulate("drv_mix", 2000, 50, preload=False, stats=True)
    result = emulate("drv_mix", 2000, 50, stats=True)

    assert plain.rc == 0, plain.err
    assert (result.rc, result.out, result.err) == (0, plain.out, "")
    assert result.sim["calls"]["cuMemAlloc_v2"] < plain.sim["calls"]["cuMemAlloc_v2"] / 2


def test_the_driver_is_found_through_dlsym_and_procaddr(emulate):
    plain = emulate("drv_procaddr", 500, preload=False)
    result = emulate("drv_procaddr", 500, stats=True)

    assert plain.rc == 0, plain.err
    assert (result.rc, result.out, result.err) == (0, plain.out, "")
    assert result.sim["calls"]["cuMemAlloc_v2"] < POOLED


def test_dlsym_keeps_the_callers_return_address(emulate):
    for preload in (False, True):
        result = emulate("next_dlsym", preload=preload)
        assert (result.rc, result.out, result.err) == (0, "done\n", "")


def test_what_only_the_shim_has_is_not_found(emulate):
    found = emulate("lookups_host")

    assert (found.rc, found.err) == (0, "")
    assert "cudaMalloc: not there, " in found.out
    assert ": there" not in found.out


@pytest.mark.parametrize("order", ["before", "after"])
def test_another_interposer_finds_the_next_one(emulate, order):
    result = emulate("next_dlsym", **{order: [built("plugin_next.so")]})

    assert (result.rc, result.out, result.err) == (0, "next: done\n", "")


@pytest.mark.parametrize("conf", LANES)
def test_a_local_module_is_served_and_its_leak_has_a_place(emulate, conf):
    """The place is found through our own frames: their unwind tables are right."""
    result = emulate("plugin_host", built("plugin_alloc.so"), conf=conf, stats=True)

    assert result.rc == 0, result.err
    assert result.sim["calls"]["cuMemAlloc_v2"] < POOLED
    report = leak_report.parse(result.err)
    assert (report.bytes, report.count) == (12345, 1)
    assert "plugin_work" in leak_report.places(report.groups[0])


def test_threads_share_the_cache(emulate):
    result = emulate("threads", 4, 300)

    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


@pytest.mark.parametrize("how, end", [("fork", "exit"), ("vfork", "_exit")])
def test_a_child_made_after_cuda_changes_nothing(emulate, tmp_path, how, end):
    plain = emulate("life_children", "after", how, end, preload=False)
    result = emulate("life_children", "after", how, end,  # without libdw, as it says
                     conf=f"leak_report:{tmp_path}/leaks-%p,log:error")

    assert plain.rc == 4, plain.err
    assert (result.rc, result.out, result.err) == (plain.rc, plain.out, plain.err)
    reports = [leak_report.parse(path.read_text()) for path in tmp_path.glob("leaks-*")]
    leaks = [(report.bytes, report.count) for report in reports if not report.said_nothing]
    assert leaks == [(2222, 1)]


def test_an_entry_point_that_nobody_knows_gets_all_that_it_is_called_with(emulate, tmp_path):
    driver = tmp_path / "libcuda.so.1"
    test_order.make_future(driver, 8, COMPILER)

    result = emulate("unknown_host", 8, before=[driver], conf="reuse:order,log:info")

    assert (result.rc, result.out) == (0, "known: the driver's\nunknown: ours\n")
    assert result.err.partition("before the call\n")[2].count(test_order.END) == 1
