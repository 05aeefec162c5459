"""Each known trap has a test that fails when what avoids the trap is removed: the table of
docs/internals/testing.md. Here the tests named are run under such a shim: a fault of base/mutation.h, or a shim that
is linked wrongly."""

import re
import subprocess
import sys

import pytest

import conftest
import test_unwinder

pytestmark = pytest.mark.skipif(conftest.SANITIZER is not None or conftest.FAULT is not None,
                                reason="once is enough")

# A fault that shows as a race needs two threads to meet.
TRIES = 5

# What fails, and must pass without the fault.
LOOKUPS = "test_lookups.py::test_every_look_up_answers_as_without_the_shim[None-None]"
CHILD = "test_life.py::test_a_child_made_after_cuda_changes_nothing"
SAME_START = "test_stacks.py::test_stacks_that_start_alike_are_told_apart[None]"
TRAPS = {
    "dlsym_next_skipped":
        "test_resolution.py::test_what_another_dlsym_answers_is_the_driver_s_to_us[None]",
    "dlsym_called": "test_resolution.py::test_another_interposer_finds_the_next_one[before]",
    "swap_for_rtld_next": "test_resolution.py::test_a_library_behind_us_finds_the_next_one",
    "absent_found": LOOKUPS,
    "ucx_swapped": "test_resolution.py::test_ucx_patches_the_driver_and_not_us",
    "driver_not_kept": "test_resolution.py::test_a_driver_that_was_closed_is_called_no_more",
    "status_needed": LOOKUPS,
    "empty_name_refused": LOOKUPS,
    "fifth_argument_read": LOOKUPS,
    "runtime_next_only":
        "test_resolution.py::test_a_local_module_of_a_host_without_cudart_is_served[None]",
    "runtime_first": "test_resolution.py::test_each_module_calls_its_own_runtime[None]",
    "setdevice_trusted":
        "test_resolution.py::test_before_runtime_12_memory_comes_from_the_device_that_was_set",
    "context_handles_trusted":
        "test_contexts.py::test_a_handle_that_comes_again_gets_no_old_memory[unseen-shim]",
    "forwards_unseen":
        "test_contexts.py::test_a_free_of_what_a_dead_context_had_takes_no_segment_that_comes_there"
        "[shim]",
    "lost_addresses_kept":
        "test_contexts.py::test_an_address_is_given_away_before_its_context_has_ended[shim]",
    "stream_handles_trusted": "test_async.py::test_no_race[destroyed-shim]",
    "own_stream_shared": "test_async.py::test_no_race[own-shim]",
    "green_unwatched":
        "test_green.py::test_memory_of_a_green_context_comes_from_the_primarys_arena",
    "release_destroys": "test_semantics.py::test_runs[drv_ctx-None-shim]",
    "unwind_in_lock": "test_leaks.py::test_report_gives_totals_and_places[None]",
    "stack_unverified": SAME_START,
    "stack_returns_only": SAME_START,
    "unload_unseen":
        "test_stacks.py::test_a_module_in_another_ones_place_has_stacks_of_its_own",
    "unload_cached":
        "test_stacks.py::test_a_library_in_another_ones_place_does_not_end_the_program",
    "return_address_named": "test_leaks.py::test_a_frame_is_named_after_the_call",
    "report_calls_cuda": "test_life.py::test_the_end_makes_no_cuda_call[shim]",
    "report_too_early": "test_life.py::test_a_handler_older_than_cuda_is_answered_as_the_driver_does"
                        "_and_reported[late-shim]",
    "tables_end": "test_life.py::test_libraries_free_after_the_report[shim]",
    "pid_unchecked": f"{CHILD}[clone-exit-shim]",
    "fork_child_serves": "test_life.py::test_the_child_of_a_fork_has_no_statistics[shim]",
    "wiped_page_ignored": f"{CHILD}[clone-exit-shim]",
}


def run_tests(fault, *nodes):
    cmd = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p",
           "no:xdist", "--timeout=60", *nodes]
    env = conftest.plain_env({"CA_TESTED_FAULT": fault, "BUILD_DIR": conftest.BUILD.name})
    rc, out, err = conftest.execute(cmd, env, 400, cwd=conftest.ROOT / "tests")
    assert "unknown mutation" not in out
    return rc, out + err


def test_every_trap_is_listed():
    header = (conftest.ROOT / "base" / "mutation.h").read_text()
    traps = re.search(r"#define CA_TRAPS\(X\)(.*?)\n\n", header, re.DOTALL)[1]
    assert sorted(TRAPS) == sorted(re.findall(r"X\((\w+)\)", traps))
    table = (conftest.ROOT / "docs/internals/testing.md").read_text()
    assert [trap for trap in TRAPS if f"`{trap}`" not in table] == []


@pytest.mark.long
def test_without_a_fault_these_tests_pass():
    conftest.debug_shim("none")
    rc, said = run_tests("none", *sorted(set(TRAPS.values())))
    assert rc == 0, said


@pytest.mark.parametrize("fault", TRAPS)
def test_a_trap_is_noticed(fault):
    conftest.debug_shim(fault)
    for _ in range(TRIES):
        rc, said = run_tests(fault, TRAPS[fault])
        if rc != 0:
            break
    assert rc == 1 and "1 failed" in said, said


# --- a shim that is linked wrongly ------------------------------------------------------------------


@pytest.fixture
def link(tmp_path):
    """link(map, *flags) makes a libcachealloc.so of this build's objects."""

    def link_shim(exports, *flags):
        (tmp_path / "exports.map").write_text(exports)
        objects = conftest.objects(*conftest.PRODUCT)
        shim = tmp_path / "libcachealloc.so"
        subprocess.run(["gcc", "-shared", "-o", shim, *objects, "-Wl,-soname,libcachealloc.so",
                        f"-Wl,--version-script={tmp_path / 'exports.map'}", "-Wl,-Bsymbolic",
                        "-Wl,--no-as-needed", *flags], check=True)
        return shim

    return link_shim


def calls(run, program, shim):
    result = run([program("versioned"), 1000], env={"LD_PRELOAD": shim}, stats=True)
    assert result.rc == 0, result.err
    return result.sim["calls"]["cuMemAlloc_v2"]


def test_exports_under_a_version_of_our_own_are_passed_over(run, program, link):
    exports = (conftest.BUILD / "exports.map").read_text()

    assert calls(run, program, link(exports)) < 50  # else this shows nothing
    assert calls(run, program, link(f"CACHEALLOC_1 {exports.lstrip()}")) == 1000


def test_a_link_to_libunwind_is_refused(run, link, tmp_path):
    exports = (conftest.BUILD / "exports.map").read_text()
    libunwind = subprocess.run(["gcc", "-print-file-name=libunwind.so.8"], text=True, check=True,
                               capture_output=True).stdout.strip()
    if libunwind == "libunwind.so.8":
        pytest.skip("no libunwind.so.8")
    shim = link(exports, libunwind)

    check = conftest.ROOT / "scripts" / "check_links.sh"
    rc, out, err = conftest.execute([check, shim.parent], conftest.plain_env(), 60)
    assert rc == 1 and "libunwind.so.8" in out + err

    # What it would do: exceptions of C++ modules in a host that is none go to libunwind.
    assert test_unwinder.who_unwinds(run, tmp_path, conftest.SHIM) == "libgcc_s"
    assert test_unwinder.who_unwinds(run, tmp_path, shim) == "libunwind"
