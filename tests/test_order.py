"""What is told to the pool of the order of work: which calls submit, on which stream, and what
nobody can see. tests/test_order_model.py has what follows from it."""

import os
import re
import subprocess

import pytest

import conftest

FUTURE = """
#include <string.h>
typedef unsigned long long u64;
int cuInit(unsigned flags) { return (int)flags; }
int cuMemAlloc_v2(u64 *address, unsigned long bytes) { return !address || !bytes; }
int cuMemFree_v2(u64 address) { return !address; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
double cuFutureEntry(double a, long b, double c, long d, double e, long f, double g, long h,
                     double i, long j, double k, long l, double m, long n, double o, long p, double q, long r)
{
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k +
           12 * l + 13 * m + 14 * n + 15 * o + 16 * p + 17 * q + 18 * r;
}
#define FUTURE(n) int cuFuture##n(void) { return n; }
MANY
#undef FUTURE
int cuGetProcAddress_v2(const char *name, void **function, int version, u64 flags, int *status)
{
    *function = 0;
#define FUTURE(n) if (!strcmp(name, "cuFuture" #n)) *function = (void *)cuFuture##n;
MANY
    if (!strcmp(name, "cuFutureEntry"))
        *function = (void *)cuFutureEntry;
    if (!strcmp(name, "cuDeviceGetCount"))
        *function = (void *)cuDeviceGetCount;
    if (status)
        *status = 0;
    return version == 0 || flags;
}
"""
END = "memory in flight is not reused from now on: "


def make_future(path, many=0, compiler="gcc"):
    source = path.with_name("future.c")
    source.write_text(FUTURE.replace("MANY", " ".join(f"FUTURE({i})" for i in range(many))))
    subprocess.run([compiler, "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", path, source],
                   check=True)


@pytest.fixture
def future(run, program, tmp_path):
    """future(conf, MANY): unknown_host's answer, with a driver of times to come."""

    def start(conf, many=0):
        make_future(tmp_path / "libcuda.so.1", many)
        result = run([program("unknown_host"), many], conf=conf,
                     env={"LD_LIBRARY_PATH": f"{tmp_path}:{conftest.BUILD / 'simcuda'}"})
        assert result.rc == 0, result.err
        return result.out.splitlines(), result.err.partition("before the call\n")

    return start


def test_an_entry_point_that_nobody_knows_gets_all_that_it_is_called_with(future):
    out, (before, _, after) = future("reuse:order,log:info")

    assert out == ["known: the driver's", "unknown: ours"]
    assert END not in before
    assert after.count(END + "an entry point of the driver was called that is not known here") == 1


def test_without_order_it_is_the_drivers_own(future):
    assert future("reuse:auto")[0] == ["known: the driver's", "unknown: the driver's"]


def test_more_unknown_entry_points_than_can_be_watched_end_it_at_the_look_up(future):
    # Those that were called end it before: so none may be.
    _, (before, _, after) = future("reuse:order,log:info", 64)

    assert before.count(END) == 1 and END not in after


def elsewhere(result):
    assert result.rc == 0, result.err
    return int(re.search(r"submissions to another stream +(\d+)", result.err).group(1))


@pytest.mark.parametrize("reuse", ["auto", "order"])
def test_each_submission_reaches_the_drivers_function_of_its_name(run, program, reuse):
    result = run([program("drv_submissions"), "each"], conf=f"reuse:{reuse}")

    assert result.rc == 0, result.err
    found, same = map(int, re.fullmatch(r"(\d+) functions, (\d+) the same .*\n",
                                        result.out).groups())
    assert found == same > 150


ROWS = [
    ("set:a set:a callback:a refused:a", 0),
    ("set:a set:b", 1), ("set:a set:b set:a", 2), ("set:a callback:b", 1), ("set:a refused:b", 1),
    # Both names of the legacy stream, and what has no stream.
    ("set:legacy set:one copy", 0), ("set:a copy set:a", 2), ("set:one set:a", 1),
    # The per-thread default stream by both of its names, and another thread's.
    ("set:own set:null copy_own", 0), ("set:null set:legacy", 1), ("set:own set:other", 1),
    ("set:other set:other set:null", 2), ("copy copy_own", 1),
]


@pytest.mark.parametrize("calls, count", ROWS)
def test_submissions_to_another_stream_are_counted(run, program, calls, count):
    cmd = [program("drv_submissions"), *calls.split()]

    assert elsewhere(run(cmd, conf="reuse:order,stats:exit")) == count
    assert elsewhere(run(cmd, conf="stats:exit")) == 0


def ends(run, program, calls, why, **env):
    result = run([program("drv_submissions"), *calls.split()],
                 conf="reuse:order,stats:exit,log:info", env=env)

    assert elsewhere(result) == 0
    assert result.err.count(END) == result.err.count(END + why) == 1


@pytest.mark.parametrize("calls, why", [
    ("context set:a set:b", "there is a second context"),
    ("table set:a set:b", "cuGetExportTable hands out functions without names"),
    ("device_graph set:a set:b", "the device may launch graphs"),
    ("peer set:a set:b", "a peer reaches the memory"),
    ("blind set:a set:b", "the host reaches the device's memory, too, or nobody can tell"),
])
def test_what_cannot_be_seen_ends_it(run, program, calls, why):
    ends(run, program, calls, why)


@pytest.mark.parametrize("look", ["module", "attribute"])
@pytest.mark.parametrize("library, why", [
    ("libcupti.so.13", "CUPTI is loaded"),
    ("libibverbs.so.1", "libibverbs is loaded"),
    ("libgdrapi.so.2", "GDRCopy is loaded"),
    ("libcufile.so.0", "cuFile is loaded"),
    ("libnvshmem_host.so.3", "NVSHMEM is loaded"),
])
def test_a_library_that_works_unseen_ends_it_when_it_is_opened(run, program, tmp_path, library, why,
                                                               look):
    subprocess.run(["gcc", "-shared", "-o", tmp_path / library, "-xc", "/dev/null"], check=True)

    ends(run, program, f"module open:{tmp_path / library} {look} set:a set:b", why)


@pytest.mark.parametrize("library, ended", [
    ("libcupti.so.13", False), ("libcufile.so.0", False), ("libnvshmem_host.so.3", False),
    ("libibverbs.so.1", True), ("libgdrapi.so.2", True)])
def test_one_that_the_program_is_linked_with_may_be_of_no_use_to_it(run, program, tmp_path, library,
                                                                    ended):
    """Frameworks link some of these; cuFile works by a device that is not here."""
    subprocess.run(["gcc", "-shared", "-o", tmp_path / library, "-xc", "/dev/null"], check=True)
    if os.path.exists("/dev/nvidia-fs0"):
        pytest.skip("there is a device for cuFile")

    preload = [*conftest.SANITIZER_PRELOAD, conftest.SHIM, tmp_path / library]
    result = run([program("drv_submissions"), "module", "attribute", "set:a", "set:b"], preload=False,
                 env={"ALLOC_CONF": "reuse:order,stats:exit", "LD_PRELOAD": " ".join(map(str, preload))})
    assert elsewhere(result) == (0 if ended else 1)


def test_a_library_of_another_name_does_not(run, program, tmp_path):
    library = tmp_path / "libcuptiful.so"
    subprocess.run(["gcc", "-shared", "-o", library, "-xc", "/dev/null"], check=True)

    calls = f"open:{library} module attribute set:a set:b"
    assert elsewhere(run([program("drv_submissions"), *calls.split()],
                         conf="reuse:order,stats:exit")) == 1


LINKED = """
int cuMemsetD8_v2(unsigned long long, unsigned char, unsigned long);
int work(unsigned long long memory) { return cuMemsetD8_v2(memory, 1, 64); }
"""
FOUND = """
#include <dlfcn.h>
int work(unsigned long long memory)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    int (*set)(unsigned long long, unsigned char, unsigned long) = dlsym(driver, "cuMemsetD8_v2");
    return set(memory, 1, 64);
}
"""


@pytest.mark.parametrize("binding", ["lazy", "now"])
@pytest.mark.parametrize("source", [LINKED, FOUND], ids=["linked", "found"])
def test_a_module_that_calls_the_driver_past_us_ends_it(run, program, tmp_path, source, binding):
    (tmp_path / "module.c").write_text(source)
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", f"-Wl,-z,{binding}", "-o", tmp_path / "module.so",
                    tmp_path / "module.c", f"-L{conftest.BUILD / 'simcuda'}", "-lcuda"], check=True)

    ends(run, program, f"deep:{tmp_path / 'module.so'} attribute set:a set:b",
         "a module calls the driver past this library")
    calls = f"shallow:{tmp_path / 'module.so'} attribute set:a set:b"
    assert elsewhere(run([program("drv_submissions"), *calls.split()],
                         conf="reuse:order,stats:exit")) == 2


def test_a_driver_in_a_namespace_of_its_own_ends_it(run, program):
    ends(run, program, "apart:libcuda.so.1 module set:a set:b", "the driver is loaded twice")


def test_injection_ends_it(run, program):
    ends(run, program, "set:a set:b", "CUDA_INJECTION64_PATH is set",
         CUDA_INJECTION64_PATH="/nowhere.so")


def test_a_configuration_that_comes_too_late_is_told(run, program):
    late = "late:reuse:order,stats:exit,log:info"
    result = run([program("drv_submissions"), late, "set:a", "set:b"])

    assert elsewhere(result) == 0
    assert result.err.count("reuse: `order` was set after the driver's functions were looked") == 1


@pytest.mark.parametrize("mutation, calls, count", [
    ("none", "set:a set:b", 1), ("none", "table set:a set:b", 0),
    ("order_once", "set:a set:b", 0), ("order_unseen", "table set:a set:b", 1),
])
def test_a_deliberate_fault_shows(run, program, mutation, calls, count):
    result = run([program("drv_submissions"), *calls.split()], conf="reuse:order,stats:exit",
                 env=conftest.mutated(mutation))

    assert elsewhere(result) == count
