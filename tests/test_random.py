"""Random valid CUDA programs: with and without the shim they do the same, and the race check that
watches them is able to fail. tests/random/ has the generator, `make soak` runs more of it."""

import random
import re
import subprocess
import sys

import pytest

import conftest

sys.path.insert(0, str(conftest.ROOT / "tests" / "random"))

import programs  # noqa: E402
import shrink  # noqa: E402
import soak  # noqa: E402

# Programs of each profile, of the first half, which `make check` runs, and of the second; a
# sanitizer's run has the first alone. A count, so that a busy machine does no less.
EACH = {1: {"asan": 4, "tsan": 3}.get(conftest.SANITIZER, 3),
        2: 20 if conftest.TIER == "night" else 4}
OPS = 300 if conftest.SANITIZER else 2000

# Which programs show a mutation. One of each row must; which one does depends on timing, and most
# do. Should none of them, others are tried.
MUTATIONS = {
    "reuse_pending": ("nonblocking", (1, 2, 3, 4)),
    "reuse_cached": ("churn", (1, 2, 3, 4, 5, 6)),
    "fence_legacy_only": ("nonblocking", (1, 3, 4, 7, 8, 9)),
    "fence_no_peers": ("peerfree", (1, 2, 3, 6, 7, 8)),
    "fence_before_free": ("nonblocking", (1, 2, 3, 4, 5)),
    "query_unrecorded": ("nonblocking", (1, 2, 3, 4)),
    "reuse_across_reset": ("resets", (1, 2, 3, 4)),
    "reuse_across_streams": ("async", (1, 2, 3, 4)),
    "pinned_reuse": ("pinned", (1, 2, 3, 4)),
    "capture_gate": ("graphs", (1, 3, 4, 5, 7, 8)),
    "order_skipped": ("ordered", (6, 1, 2, 3, 4, 5)),
}
MUTATION_CONFIGURATION = {"order_skipped": "order"}  # all others: "shim"
MUTATION_OPS = {"reuse_cached": 4000, "order_skipped": 2000}  # threads keep stock once a fence was had
OTHER_SEEDS = range(20, 40)
# What the race check says of it; the program itself may end first, at a byte that is wrong.
RACES = r"simcuda: race: .* is not ordered after |wrong byte: at "
SAYS = {
    "reuse_across_reset": r"simcuda: race: .* is not inside live memory: it died with context",
    "capture_gate": r"cudaStreamEndCapture\(.*\) answered 901",
}


def runner(mutation=None, devices=2):
    shim = conftest.debug_shim(mutation) if mutation else None
    env = conftest.plain_env({"CA_MUTATION": mutation} if mutation else None)
    # A fault shows where the device is behind, which on a busy machine it is by itself too seldom.
    return programs.Runner(conftest.BUILD, shim, env=env, preload=conftest.SANITIZER_PRELOAD,
                           devices=devices, time_limit=20 * conftest.SLOWDOWN,
                           sim="set_ns:60000" if mutation else "")


# --- with the shim as without -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("half", (1, 2))
def test_programs_do_the_same_under_the_shim(half):
    run = runner()
    count = EACH[half] * len(programs.PROFILES)
    totals = soak.soak(run, first=half * 100000, ops=OPS, seeds=count, jobs=2, most_failures=1)
    print(soak.tell(totals))
    for failure in totals.failures:
        pytest.fail(soak.tell_failure(run, failure, seconds=20))
    assert totals.seeds in (count, count + 1)  # the other job was at one
    assert set(programs.CONFIGURATIONS) == set(totals.served)
    for configuration, served in totals.served.items():
        assert (served > 0) == programs.CONFIGURATIONS[configuration][0]


@pytest.mark.long
def test_programs_do_the_same_on_segments_that_grow():
    run = runner("range_small")
    totals = soak.soak(run, first=300000, ops=OPS // 2, seeds=len(programs.PROFILES), jobs=1,
                       configurations=("plain", *programs.OTHERS), most_failures=1)
    for failure in totals.failures:
        pytest.fail(soak.tell_failure(run, failure, seconds=20))
    assert all(totals.served[configuration] > 0 for configuration in programs.OTHERS)


def test_they_are_run_by_hand_too():
    asked = "--operations 600 --ops 200 --jobs 2 --profiles mixed,churn --configurations plain,shim"
    result = subprocess.run([sys.executable, "-B", soak.__file__, "--build", conftest.BUILD,
                             *asked.split()], text=True, capture_output=True, timeout=60)

    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"soak: \d+ operations, .* 0 failures", result.stdout)


def test_programs_leave_a_device_alone_while_it_is_reset(run, build):
    """However long that takes: who used it then would find no context afterwards."""
    result = run([build / "random", "--seed", 100072, "--ops", 2000, "--profile", "resets"],
                 preload=False, sim="devices:2,latency:cuDevicePrimaryCtxReset_v2=20000000")

    assert result.rc == 0, result.err


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_peer_at_work_on_freed_memory_is_waited_for(seed):
    """The simulator's plain cudaFree does not wait for peers, so there is nothing to compare with."""
    program = programs.Program(seed, 1000, "peerfree")
    result = runner().run(program, "shim")
    assert not result.failed, result.says()
    assert result.served > 0


def test_one_device_is_enough():
    run = runner(devices=1)
    for seed, profile in enumerate(programs.PROFILES):
        result = run.run(programs.Program(seed, 200, profile), "shim")
        assert not result.failed, f"{profile}: {result.says()}"


# --- the generator ----------------------------------------------------------------------------------


def test_a_program_is_the_same_every_time():
    run = runner()
    program = programs.Program(5, 500, "threads")
    outputs = {run.run(program, "plain").out for _ in range(3)}
    listings = {run.run(program, "plain", ["--list"]).out for _ in range(2)}
    assert len(outputs) == 1 and len(listings) == 1
    assert run.run(programs.Program(6, 500, "threads"), "plain").out not in outputs


@pytest.mark.parametrize("profile", programs.PROFILES)
def test_every_subset_of_a_program_is_a_program(profile):
    run, rng = runner(), random.Random(profile)
    for seed in range(4):
        share = rng.choice((0.1, 0.5, 0.9))
        skip = [i for i in range(499) if rng.random() < share]
        result = run.run(programs.Program(seed, 500, profile), "plain",
                         ["--skip", shrink.as_list(skip)])
        assert not result.failed, result.says()


def broken_program(run):
    """A program in which an operation's wait was left out, which the race check noticed."""
    for seed in range(1, 10):
        program = programs.Program(seed, 300, "nonblocking")
        listing, operation = run.run(program, "plain", ["--list"]).out, None
        for line in listing.splitlines():
            started = re.match(r"#(\d+) t\d+ (set|upload|copy)", line)
            if re.match(r"#\d+ ", line):
                operation = started[1] if started else None
            if operation is None or "cudaStreamWaitEvent" not in line:
                continue
            broken = programs.Program(seed, 300, "nonblocking", ("--break", operation))
            result = run.run(broken, "plain")
            if result.rc == programs.RACE:
                return broken, result
    return pytest.fail("no wait that is left out is missed")


def test_a_race_is_found_and_its_program_shrunk():
    run = runner()
    program, result = broken_program(run)
    assert "race" in result.err
    shrinker = shrink.Shrinker(run, program, "plain", result.what(), 20 * conftest.SLOWDOWN)
    keep = shrinker.shrink()
    assert int(program.extra[1]) in keep
    assert len(keep) <= 12, f"{len(keep)} operations left after {shrinker.runs} runs"


# --- the check can fail -----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_deliberate_fault_of_the_shim_is_caught(mutation):
    run = runner(mutation)
    profile, seeds = MUTATIONS[mutation]
    for seed in (*seeds, *OTHER_SEEDS):
        program = programs.Program(seed, MUTATION_OPS.get(mutation, 1000), profile)
        result = run.run(program, MUTATION_CONFIGURATION.get(mutation, "shim"))
        if "unknown mutation" in result.err:
            pytest.skip(f"the shim does not know {mutation}")
        if result.rc in (1, programs.RACE) and re.search(SAYS.get(mutation, RACES), result.err):
            return
        assert not result.failed, result.says()
    pytest.fail(f"no program showed {mutation}")


@pytest.mark.parametrize("profile", sorted({profile for profile, _ in MUTATIONS.values()}))
def test_without_a_fault_these_programs_pass(profile):
    run = runner("none")
    for seed in (1, 2, 3):
        result = run.run(programs.Program(seed, 1000, profile), "shim")
        assert not result.failed, result.says()
        assert result.served > 0


# --- kernels ----------------------------------------------------------------------------------------

# Those of the simulator do nothing; a library that does their work stands in for them.
uninstrumented = pytest.mark.skipif(conftest.SANITIZER is not None,
                                    reason="what stands in for kernels is not instrumented")


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    library = tmp_path_factory.mktemp("stand_in") / "kernels.so"
    source = conftest.ROOT / "tests" / "random" / "preload" / "stand_in_kernels.c"
    include = subprocess.run([conftest.ROOT / "scripts" / "deps.sh", "--cuda-include"], text=True,
                             check=True, capture_output=True).stdout.strip()
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-Wall", "-Werror", "-O1", "-fPIC", "-shared", "-I",
                    include, "-o", library, source], check=True)
    return library


def with_kernels(stand_in, mutation=None, fault=None):
    run = runner(mutation)
    run.shim = f"{stand_in} {run.shim}"
    run.env.update({"STAND_IN_WRONG": str(fault)} if fault else {})
    plain = runner()
    plain.env.update({"LD_PRELOAD": str(stand_in), **run.env})
    return plain, run


def test_the_simulator_is_asked_to_launch_kernels(run):
    result = run([conftest.BUILD / "random", "--seed", 1, "--ops", 300], stats=True,
                 sim="devices:2", preload=False)
    assert " 0 by kernels: " in result.out
    assert result.sim["calls"]["cuLaunchKernel"] > 10


@uninstrumented
@pytest.mark.parametrize("profile", ["mixed", "nonblocking", "churn", "resets", "graphs", "async"])
def test_programs_do_the_same_by_kernels(stand_in, profile):
    plain, ours = with_kernels(stand_in)
    for seed in (1, 2):
        program = programs.Program(seed, 500, profile)
        without = runner().run(program, "plain")
        results = [plain.run(program, "plain"), ours.run(program, "shim")]
        for result in results:
            assert not result.failed, result.says()
            digests = [one.out.split(": ")[-1] for one in (without, result)]
            assert digests[0] == digests[1]
            assert int(re.search(r"(\d+) by kernels", result.out)[1]) > 10
        assert results[0].out == results[1].out


@uninstrumented
def test_what_kernels_saw_ends_the_program(stand_in):
    plain, _ = with_kernels(stand_in, fault=20)
    result = plain.run(programs.Program(1, 500, "nonblocking"), "plain")
    assert result.rc == 1 and "kernels saw 1 that another wrote" in result.err


@uninstrumented
def test_a_fault_of_the_shim_is_caught_with_kernels_too(stand_in):
    _, ours = with_kernels(stand_in, mutation="reuse_pending")
    profile, seeds = MUTATIONS["reuse_pending"]
    results = [ours.run(programs.Program(seed, 1000, profile), "shim")
               for seed in (*seeds, *OTHER_SEEDS)]
    assert any(result.rc in (1, programs.RACE) and re.search(RACES, result.err)
               for result in results)
