"""Captures in random call graphs are what a full unwinding says: recursion, alloca, realigned
frames, tail calls, signals, exceptions in flight, longjmp, coroutines, libraries in each other's place.

CALLGRAPHS=5000000 makes the test of that many captures, by one thread and by two."""

import json
import os
import platform
import resource
import signal

import pytest

import conftest

SHORT = 150000
CAPTURES = int(os.environ.get("CALLGRAPHS", SHORT))
FOLDER = conftest.BUILD / "callgraphs"
DEPTH = 40  # frames: all of most stacks
MODULES = [FOLDER / "module_one.so", FOLDER / "module_two.so"]

pytestmark = [
    pytest.mark.skipif(conftest.SANITIZER is not None or conftest.FAULT is not None,
                       reason="frames of the program's own, as they are"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="nothing is remembered elsewhere"),
]


def walk(run, seed, captures, threads, name="callgraphs", mutation=None):
    """What the program counted, and its exit status."""
    env = {"CA_MUTATION": mutation} if mutation else None
    result = run([FOLDER / name, seed, captures, threads, DEPTH, *MODULES], preload=False,
                 env=env, timeout=60 + captures // 5000)
    if mutation not in (None, "none") and result.rc == -signal.SIGSEGV:
        return {"wrong": 1}, result.err  # a stale frame led nowhere
    assert result.rc in (0, 1), result.err
    found = json.loads(result.out)
    assert (found["wrong"] != 0) == (result.rc == 1)
    return found, result.err


@pytest.mark.timeout(3 * (120 + CAPTURES // 2000))
@pytest.mark.parametrize("threads", [1, 2])
def test_every_capture_is_what_a_full_unwinding_says(run, threads):
    # Where the kernel maps a library again is not the program's to choose.
    for seed in (4, 5, 6):
        found, err = walk(run, seed, CAPTURES, threads)
        print(json.dumps(found))
        assert found["captures"] >= CAPTURES
        assert found["wrong"] == 0, err
        if found["libraries_same_place"] >= found["captures"] // 2000:
            break
    # Else this shows little.
    assert found["hits"] > found["captures"] * 0.3
    for construct in ("coroutines_same_place", "libraries_same_place", "signals", "thrown",
                      "jumps"):
        assert found[construct] >= found["captures"] // 2000, construct


def test_without_a_limit_a_coroutines_stack_is_not_taken_for_the_threads(run):
    """Mappings then lie in what the first thread's stack might grow into."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    if hard != resource.RLIM_INFINITY:
        pytest.skip("stacks are limited")

    result = run(["sh", "-c", 'ulimit -s unlimited && exec "$@"', "sh", FOLDER / "callgraphs", 4,
                  20000, 1, 8, *MODULES], preload=False)

    assert result.rc == 0, result.err
    assert json.loads(result.out)["coroutines"] > 100


# A stale rule leads nowhere more often than astray: test_unwind_words has `unload_cached`.
@pytest.mark.parametrize("fault", ["none", "stack_unverified", "stack_returns_only",
                                   "unload_unseen"])
def test_a_comparison_that_is_weaker_is_noticed(run, fault):
    if not (FOLDER / "debug").exists():
        pytest.skip("deliberate faults need a debug build")
    assert (walk(run, 4, SHORT, 1, "debug", fault)[0]["wrong"] == 0) == (fault == "none")
