"""include/cachealloc.h: it compiles everywhere, is found weakly, and does what it says."""

import re
import subprocess

import pytest

import conftest
import leak_report

MODES = [pytest.param(None, id="shim"), pytest.param("x_runtime_hooks:false", id="driver-lane"),
         pytest.param("backend:off", id="tracking"), pytest.param("backend:async", id="driver-pool")]
PROGRAMS = ["api_names", "api_external", "api_query", "api_threads", "drv_api_life"]
VERSION = re.search(r'^#define CACHEALLOC_VERSION "(\d+\.\d+\.\d+)"$',
                    (conftest.ROOT / "include/cachealloc.h").read_text(), re.MULTILINE)[1]
ROUNDS = 10 if conftest.SANITIZER else 100


def quiet(conf):
    """Wrong frees are part of what is tested."""
    return f"{conf},log:error" if conf else "log:error"


def succeeds(result):
    assert (result.rc, result.out) == (0, ""), result.err
    assert leak_report.nothing_leaked(result.err), result.err


@pytest.mark.parametrize("compiler, standard", [
    ("gcc", "c99"), ("gcc", "c11"), ("gcc", "gnu17"), ("g++", "c++11"), ("g++", "c++17"),
])
@pytest.mark.parametrize("weak", [False, True])
def test_header_compiles(tmp_path, compiler, standard, weak):
    source = tmp_path / ("use.cc" if compiler == "g++" else "use.c")
    source.write_text(("#define CACHEALLOC_WEAK\n" if weak else "") + """
#include "cachealloc.h"
#include "cachealloc.h"
int use(void *pointer);
int use(void *pointer)
{
    cachealloc_stats_t stats;
    cachealloc_info_t info;
    stats.size = sizeof(stats);
    info.size = sizeof(info);
    return cachealloc_stats(&stats) + cachealloc_info(pointer, &info) + (int)info.kind;
}
""")

    subprocess.run([compiler, f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror",
                    "-I", conftest.ROOT / "include", "-c", "-o", tmp_path / "use.o", source],
                   check=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_without_the_library(run, program, name):
    result = run(program(name), preload=False)

    assert (result.rc, result.out, result.err) == (0, "no shim\n", "")


def test_a_cplusplus_program_without_cuda_finds_it(run, program):
    with_library = run(program("weak_api_host"), conf="leak_report:off")
    without = run(program("weak_api_host"), preload=False)

    assert (with_library.rc, with_library.out, with_library.err) == (
        0, f"version {VERSION}, right\n", "")
    assert (without.rc, without.out, without.err) == (0, "no shim\n", "")


@pytest.mark.parametrize("conf", MODES)
def test_aliases_with_reference_counts(run, program, conf):
    succeeds(run(program("api_names"), conf=quiet(conf), sim="racecheck:1"))


@pytest.mark.parametrize("conf", MODES)
def test_memory_is_reported_once_by_its_owner_if_only_an_alias_is_left(run, program, conf):
    result = run([program("api_names"), "leak"], conf=conf)

    assert result.rc == 0
    report = leak_report.parse(result.err)
    assert report.totals == {(0, "device"): (54321, 1)}
    assert leak_report.places(report.groups[0])[0] == "lose_buffer"


@pytest.mark.parametrize("conf", MODES)
def test_allocation_types_with_their_own_deleters(run, program, conf):
    succeeds(run(program("api_external"), conf=quiet(conf)))


def test_without_a_deleter_the_driver_gets_the_free(run, program):
    result = run([program("api_external"), "driver"], stats=True)

    succeeds(result)
    for name in ("cuMemFree_v2", "cuMemFreeHost", "cuMemFreeAsync"):
        assert result.sim["calls"].get(name, 0) == 1, name


@pytest.mark.parametrize("conf", MODES)
def test_registered_memory_is_reported_where_it_was_registered(run, program, conf):
    result = run([program("api_external"), "leak"], conf=conf)

    assert result.rc == 0
    report = leak_report.parse(result.err)
    assert report.totals == {(0, "external"): (2 * 777, 2)}
    for group in report.groups:
        assert leak_report.places(group)[0] == "lose_foreign"


@pytest.mark.parametrize("conf", MODES)
@pytest.mark.parametrize("threads", [2, 8])
def test_sharded_pointer_map(run, program, conf, threads):
    succeeds(run([program("api_threads"), threads, ROUNDS], conf=quiet(conf), sim="memory:4G"))


@pytest.mark.parametrize("conf", MODES)
def test_statistics_queries(run, program, conf):
    succeeds(run(program("api_query"), conf=quiet(conf), sim="memory:4G"))


@pytest.mark.parametrize("conf", MODES)
def test_names_follow_contexts_and_processes(run, program, conf):
    result = run(program("drv_api_life"), conf=quiet(conf), sim="memory:4G")

    succeeds(result)
    destroyed = leak_report.parse(result.err).destroyed
    assert (destroyed.count, destroyed.bytes) == (50, 50 * 4096)


@pytest.mark.parametrize("conf", MODES)
def test_names_of_dead_contexts_leave_no_host_memory_behind(run, program, conf):
    succeeds(run([program("drv_api_life"), "host"], conf=quiet(conf), sim="memory:4G"))


@pytest.mark.parametrize("lane", ["x_runtime_hooks:true", "x_runtime_hooks:false"])
@pytest.mark.parametrize("what", ["again", "short"])
def test_pin_mode_keeps_addresses_and_gives_nothing_back(run, program, what, lane):
    """And after it a trim leaves nothing: all that the driver gave, the driver has again."""
    result = run([program("pin_mode"), what], sim="memory:256M", conf=f"{lane},headroom:0",
                 stats=True)

    succeeds(result)
    assert result.sim["devices"][0]["live_bytes"] == 0
