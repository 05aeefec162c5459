"""The simulator against its own rules: every other test stands on them."""

import subprocess
import sys

import pytest

import conftest

SIM = conftest.BUILD / "tests" / "simcuda"


@pytest.mark.parametrize("name, env", [
    ("selftest", {}),
    ("selftest_race", {}),
    ("selftest_shadow", {}),
    ("selftest_runtime", {}),
    ("selftest_runtime", {"SIMCUDA": "runtime:11"}),
], ids=["driver", "race", "shadow", "runtime", "runtime_11"])
def test_simulated_cuda_keeps_its_rules(run, name, env):
    result = run(SIM / name, preload=False, env=env, timeout=110)

    assert result.rc == 0, result.out[-3000:] + result.err[-6000:]


@pytest.mark.other_build
@pytest.mark.skipif(conftest.BUILD.name != "build", reason="it has a build of its own")
def test_the_runtime_of_cuda_12_has_its_forms(run, tmp_path):
    headers = conftest.ROOT / "build" / "cuda-headers" / "12"
    if not (headers / "crt" / "host_defines.h").exists():
        pytest.skip("no headers of CUDA 12: scripts/deps.sh --older-headers")
    program = tmp_path / "selftest_runtime12"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-isystem", headers, "-o", program,
                    conftest.ROOT / "simcuda" / "selftest_runtime12.c",
                    "-L", conftest.BUILD / "simcuda" / "12", "-lcudart"], check=True)

    result = run(program, preload=False, sim="arch:90,memory:1G")

    assert result.rc == 0, result.out + result.err


NVML = """
import ctypes
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
name, other, handle = ctypes.create_string_buffer(16), ctypes.c_void_p(), ctypes.c_void_p()
count, version = ctypes.c_uint(7), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetPCIBusId(name, 16, 1) == 0
find = nvml.nvmlDeviceGetHandleByPciBusId_v2
assert nvml.nvmlInit_v2() == 0 and find(name, ctypes.byref(handle)) == 0
assert find(b"00000000:01:00.0", ctypes.byref(other)) == 0 and 0 < other.value < handle.value
assert find(b"00000000:09:00.0", ctypes.byref(other)) == 6 and find(None, None) == 2
assert nvml.nvmlDeviceGetGpuFabricInfoV(handle, None) == 3
assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, 0, None) == 3
assert nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, 0, None) == 3
assert nvml.nvmlDeviceGetComputeRunningProcesses(handle, ctypes.byref(count), None) == 0
assert nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version)) == 0
assert (count.value, version.value) == (0, 13000)
"""


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="Python would have to be built with it")
def test_nvml_knows_which_device_has_a_bus_id(run):
    result = run([sys.executable, "-c", NVML], preload=False, sim="devices:2")

    assert result.rc == 0, result.err


PLAIN = ["mix", "drv_mix", "threads", "multi_ctx", "pinned", "kinds", "capture"]


@pytest.mark.parametrize("preload", [False, True], ids=["alone", "shim"])
@pytest.mark.parametrize("name", PLAIN)
def test_ordered_programs_are_free_of_races(run, program, name, preload):
    result = run(program(name), sim="racecheck:1,devices:2", preload=preload)

    assert result.rc == 0 and "simcuda: race" not in result.err, result.err[-3000:]
