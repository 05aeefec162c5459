"""What tests need to run programs under the shim: `build`, `shim`, `program`, `run`.

`make check` runs this; by hand: `python3 -m pytest tests -k NAME`, with BUILD_DIR for another
flavour than build/. A test that measures time is marked `alone`: no other test runs beside it.
"""

import fcntl
import gc
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("BUILD_DIR", "build")
# Of test_traps.py: every program runs under a shim with this deliberate fault.
FAULT = os.environ.get("CA_TESTED_FAULT")
CORE = ("base", "config", "registry", "pool")  # rooms that know nothing of CUDA
PRODUCT = (*CORE, "shim")
SHIM = BUILD / ("libcachealloc-debug.so" if FAULT else "libcachealloc.so")
SANITIZER = {"build-asan": "asan", "build-tsan": "tsan"}.get(BUILD.name)
SLOWDOWN = 8 if SANITIZER else 1
SKIPPED = 77  # exit status of a program that could not test; its last line says why

# Most of a worker's start is the rewriting of assertions: it is kept for the others. What tests
# run is not told.
sys.pycache_prefix, sys.dont_write_bytecode = str(ROOT / "build" / "pycache"), False

# What the caller's environment must not decide, make's own variables included.
FOREIGN = ("ALLOC_CONF", "CACHEALLOC_CONF", "SIMCUDA", "LD_PRELOAD", "LD_LIBRARY_PATH",
           "CA_MUTATION", "CA_CLOCK_DIVISOR", "CA_TESTED_FAULT", "CA_TIER", "MAKEFLAGS",
           "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "BUILD", "BUILD_DIR",
           "NVTX_INJECTION64_PATH", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")


def sanitizer_env():
    """Exit status 99 on a finding, and a run-time for host programs that were built without."""
    if SANITIZER is None:
        return {}, []
    library = subprocess.run(["gcc", f"-print-file-name=lib{SANITIZER}.so"], text=True, check=True,
                             capture_output=True).stdout.strip()
    suppressions = ROOT / "tests" / f"{SANITIZER}.supp"
    common = "exitcode=99" + (f":suppressions={suppressions}" if suppressions.exists() else "")
    return {
        # Leaks are what many of the test programs are about, and bash's and python's are not ours.
        "ASAN_OPTIONS": common + ":detect_leaks=0",
        # A process with threads of the simulator's would wait a second before it ends.
        "TSAN_OPTIONS": common + ":atexit_sleep_ms=50",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }, [library]


SANITIZER_ENV, SANITIZER_PRELOAD = sanitizer_env()


def execute(cmd, env, timeout, **kwargs):
    """Runs `cmd` in a process group of its own and leaves nothing of it behind."""
    process = subprocess.Popen([str(word) for word in cmd], env=env, text=True, errors="replace",
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True, **kwargs)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            pytest.fail(f"{cmd}: no end after {timeout} s\nstdout:\n{out[-4000:]}\n"
                        f"stderr:\n{err[-4000:]}")
        raise
    return process.returncode, out, err


def plain_env(extra=None):
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    env.update(SANITIZER_ENV)
    if FAULT:
        env["CA_MUTATION"] = FAULT
    env.update({name: str(value) for name, value in (extra or {}).items()})
    return env


def debug_shim(mutation):
    """The debug build of the shim, in which `mutation` of base/mutation.h can be asked for."""
    path = BUILD / "libcachealloc-debug.so"
    if not path.exists():
        pytest.skip(f"{path} is missing: deliberate faults need a debug build of the shim")
    if SANITIZER == "tsan" and mutation not in (None, "none"):
        # Its report of each byte that simulated devices fight over takes minutes.
        pytest.skip("a deliberate data race is the race check's to find")
    return path


def mutated(mutation):
    """The environment of a program under a shim with a deliberate fault."""
    return {"CA_MUTATION": mutation,
            "LD_PRELOAD": " ".join([*SANITIZER_PRELOAD, str(debug_shim(mutation))])}


def shortened(by=20):
    """The environment of a program whose library's bounds are so many times as short, those that go
    through ca_bound(). A test that shortens a bound sees it once at its real length too."""
    return {"CA_CLOCK_DIVISOR": by,
            "LD_PRELOAD": " ".join([*SANITIZER_PRELOAD, str(debug_shim(None))])}


def cuda_include():
    """The directory of cuda.h."""
    found = subprocess.run([ROOT / "scripts" / "deps.sh", "--cuda-include"], text=True, check=True,
                           capture_output=True, cwd=ROOT).stdout.strip()
    return ROOT / found


def terminal():
    """Both ends of a new terminal. A folder that chroot made a root of may have none."""
    try:
        return os.openpty()
    except OSError as error:
        return pytest.skip(f"no terminals here: {error}")


def only_in_its_target():
    """Skips what takes long: `make check-launchers` and tier night run it."""
    if TIER != "night":
        pytest.skip("make check-launchers runs it")


def missing(what):
    """Skips a test for want of a program; `make check-launchers` fails instead."""
    if os.environ.get("CA_LAUNCHERS") == "required":
        pytest.fail(what)
    pytest.skip(what)


def skip_if_asked(rc, out):
    if rc == SKIPPED:
        pytest.skip((out.strip().splitlines() or ["no reason given"])[-1])


@pytest.fixture(scope="session")
def build():
    """The build directory."""
    return BUILD


@pytest.fixture(scope="session")
def shim():
    """libcachealloc.so of this flavour."""
    return SHIM


@pytest.fixture(scope="session")
def program():
    """program(name) is the path of tests/preload/NAME as built."""
    return lambda name: BUILD / "tests" / "preload" / name


SETTLES_EARLY = "x_warmup:16"
# Running out of memory is what many a program here is about; test_oom.py sees what is said of it.
EXPECTS_OOM = "oom_report:off"


def settings(conf, preload=True):
    """What the environment of a program has where it runs under the shim, or only has ALLOC_CONF."""
    if not preload:
        return {} if conf is None else {"ALLOC_CONF": conf}
    if "x_warmup" not in (conf or ""):
        conf = ",".join(filter(None, (conf, SETTLES_EARLY)))
    if "oom_report" not in conf:
        conf = ",".join(filter(None, (conf, EXPECTS_OOM)))
    # Never a sanitizer's run-time alone: without one module of its own libtsan crashes.
    return {"LD_PRELOAD": " ".join(SANITIZER_PRELOAD + [str(SHIM)]), "ALLOC_CONF": conf}


def runner(directory):
    """run(cmd, ...) runs a program on the simulated CUDA, under the shim unless preload=False.

    conf is ALLOC_CONF, sim is SIMCUDA. Where conf says nothing of it the pool settles early, so that
    a short program sees both: a pool that is careful, and one whose threads have hits. The result
    has rc, out, err; with stats=True also sim, what the simulator counted: sim["calls"][NAME],
    sim["devices"][0]["peak_bytes"]. A program that exits with 77 skips the test. Further arguments
    go to Popen (cwd=...).
    """
    count = 0

    def run_program(cmd, conf=None, sim=None, preload=True, env=None, timeout=60, stats=False,
                    **kwargs):
        nonlocal count
        count += 1
        if isinstance(cmd, (str, os.PathLike)):
            cmd = [cmd]
        full = plain_env({"LD_LIBRARY_PATH": BUILD / "simcuda", **settings(conf, preload)})
        counted = directory / f"sim-{count}.json"
        if stats:
            sim = f"{sim},stats:{counted}" if sim else f"stats:{counted}"
        if sim is not None:
            full["SIMCUDA"] = sim
        full.update({name: str(value) for name, value in (env or {}).items()})
        rc, out, err = execute(cmd, full, timeout * SLOWDOWN, **kwargs)
        skip_if_asked(rc, out)
        if stats and not counted.exists():
            pytest.fail(f"{cmd}: exit status {rc}, and the simulator left no counts\n"
                        f"stdout:\n{out[-4000:]}\nstderr:\n{err[-4000:]}")
        return types.SimpleNamespace(rc=rc, out=out, err=err,
                                     sim=json.loads(counted.read_text()) if stats else None)

    return run_program


@pytest.fixture
def run(tmp_path):
    """A runner whose files go with the test."""
    return runner(tmp_path)


# --- which tests run ------------------------------------------------------------------------------

# What a case is repeated with; every other parameter makes a case of its own.
AXES = ("preload", "conf", "lane", "racecheck", "seed", "half", "depth", "devices", "threads",
        "back_end", "own", "without", "form", "interpreter")
# `check`: each case in its default variant. `full`: each variant of one axis too, the others at their
# default; `more` is what that adds to `check`. `night`: the cross product, and whatever is named.
TIER = os.environ.get("CA_TIER", "night")
# Where a sanitizer can find what the other builds and unit programs under it do not: code of ours in
# many threads, at its ends, and where calls fail. It runs nothing without the library.
SANITIZED = {
    "asan": ("programs", "random", "contexts", "async", "reuse", "life", "pinned", "green", "graphs",
             "stacks", "leaks", "faults", "debug", "journal", "exits", "semantics", "modes_shim"),
    "tsan": ("programs", "random", "contexts", "async", "reuse", "life", "pinned", "green", "graphs",
             "stacks", "leaks", "dumps", "metrics", "modes_shim", "semantics"),
}
# What of those modules a sanitizer leaves out, by parts of ids. No library runs in the first; the
# second count the driver calls of one thread that allocates and frees, for long, as the random
# programs do, which look at what they wrote besides. A race needs two threads, and the others have
# one, in many processes or for long.
NO_LIBRARY = ("test_the_plain_program", "its_program_shrunk", "test_the_program_is_right_by_itself",
              "test_every_subset_of_a_program", "test_a_program_is_the_same_every_time",
              "test_programs_leave_a_device_alone", "test_the_simulator_is_asked_to_launch")
COUNTED = ("test_less_than_a_record_and_a_query", "test_a_device_that_keeps_up_is_asked",
           "test_many_live_buffers_cost_less", "test_failed_queries_back_off",
           "test_one_big_buffer", "test_old_driver_is_waited_for_far_less_often")
# Unit programs of one thread. `make check BUILD=tsan` does not build them either.
NOT_RACED = (ROOT / "tests" / "unit" / "not_raced.txt").read_text().split()
LEFT_OUT = {
    "asan": (*NO_LIBRARY, *COUNTED),
    "tsan": (*NO_LIBRARY, *COUNTED, "test_no_new_deadlock", "test_a_handle_that_comes_again",
             "test_a_peer_that_waits", "goes_back_when_a_pool_is_tuned", "layers", "in_disorder",
             "test_an_upstream_failure_is_survived", "test_memory_goes_with_the_primary_context",
             *(f"test_nor_is_memory_kept_from_use_for_it[{alone}-" for alone in (
                 "legacy", "plain", "own", "free", "unused", "device", "context", "foreign")),
             *(f"[{unit}]" for unit in NOT_RACED)),
}


def variant(item):
    """What it is a case of, and its values of AXES."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    case = item.nodeid.split("[")[0], *(repr(params[name]) for name in params if name not in AXES)
    return case, {axis: params[axis] for axis in AXES if axis in params}


def distances(items):
    """How many axes of each item are not at their default: the first value that runs the library."""
    defaults = {}
    for item in items:
        (function, *_), values = variant(item)
        for axis, value in values.items():
            if not (axis == "preload" and value is False):
                defaults.setdefault((function, axis), value)
    return [sum(defaults.get((case[0], axis)) != value for axis, value in values.items())
            for case, values in map(variant, items)]


def chosen(items, tier):
    """No case is lost in `check` or `full`: of each one the variant nearest to the default stays."""
    if tier == "night":
        return list(items)
    nearest, full = {}, set()
    for item, distance in zip(items, distances(items)):
        case, _ = variant(item)
        if distance < nearest.get(case, (len(AXES) + 1, None))[0]:
            nearest[case] = distance, item
        if distance <= 1:
            full.add(item.nodeid)
    cases = [item for _, item in nearest.values()]
    check = {item.nodeid for item in cases if not item.get_closest_marker("other_build")}
    full |= {item.nodeid for item in cases}
    wanted = {"check": check, "full": full, "more": full - check}[tier]
    return [item for item in items if item.nodeid in wanted]


def finds_something(item):
    """Whether a sanitizer runs it."""
    module = pathlib.Path(item.fspath).stem.removeprefix("test_")
    return (module in SANITIZED[SANITIZER] and variant(item)[1].get("preload") is not False and
            not any(part in item.nodeid for part in LEFT_OUT[SANITIZER]))


def pytest_ignore_collect(collection_path):
    """Nor is a module read of which a sanitizer runs nothing."""
    name = collection_path.stem.removeprefix("test_")
    if SANITIZER and TIER != "night" and collection_path.suffix == ".py":
        return name not in SANITIZED[SANITIZER] or None
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_collection(session):
    """Where nothing is kept of rewritten assertions yet, the first worker rewrites them and the
    others wait for it. What is collected lives on: nobody looks for garbage in it."""
    gc.disable()
    if "PYTEST_XDIST_WORKER" not in os.environ and session.config.getoption("numprocesses", None):
        yield  # it has workers, and reads no module itself
    else:
        kept = pathlib.Path(sys.pycache_prefix)
        kept.mkdir(parents=True, exist_ok=True)
        with open(kept / "lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            first = not (kept / "whole").exists()
            if not first:
                fcntl.flock(lock, fcntl.LOCK_UN)
            yield
            if first:
                (kept / "whole").touch()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    kept = chosen(items, TIER)
    if SANITIZER and TIER != "night":
        kept = [item for item in kept if finds_something(item)]
    kept_ids = set(map(id, kept))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept_ids])
    # What waits for everything else comes last, or a worker idles; what takes long comes first.
    alone = [item for item in kept if item.get_closest_marker("alone")]
    together = [item for item in kept if not item.get_closest_marker("alone")]
    items[:] = spread(together, alone)


def spread(together, alone):
    """The long ones begin first, and not one after the other: pytest-xdist gives each worker a
    block of consecutive items to begin with, of a quarter of its share."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    block = max((len(together) + len(alone)) // workers // 4, 2)
    long = [item for item in together if item.get_closest_marker("long")]
    others = [item for item in together if not item.get_closest_marker("long")]
    ordered = []
    for worker in range(workers):
        first = long[worker::workers]
        fill = max(block - len(first), 0)
        ordered += first + others[:fill]
        del others[:fill]
    return ordered + others + alone


# --- the run as a whole ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def alone_or_together(request):
    """A test marked `alone` waits for the others and they for it; the wait is not in its limit."""
    with open(ROOT / "tests" / "conftest.py", "rb") as lock:
        alone = request.node.get_closest_marker("alone")
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


# A shell that starts a run in the background has this signal ignored, and programs inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: measures time, so nothing may run beside it")
    config.addinivalue_line("markers", "long: takes seconds, so it begins before the others")
    config.addinivalue_line("markers", "other_build: about a build by another compiler, for another "
                                       "machine or with other headers; not in `make check`")


def pytest_report_header():
    return f"build: {BUILD}"


def pytest_runtest_logreport(report):
    """A failure is told when it happens, with the command that repeats it."""
    if not report.failed or "PYTEST_XDIST_WORKER" in os.environ:
        return
    # Ids begin where pytest.ini lies, and make starts above.
    test = shlex.quote(f"tests/{report.nodeid}".replace("$", "$$"))
    flavour = "" if BUILD.name == "build" else f" BUILD={BUILD.name.removeprefix('build-')}"
    print(f"\nFAILED tests/{report.nodeid}\n  again: make check{flavour} T={test}\n"
          f"{report.longreprtext}", flush=True)


def pytest_unconfigure(config):
    """The totals, after everything that pytest prints. xdist's workers have nothing to say here."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or config.option.collectonly:
        return

    def total(*kinds):
        return sum(len(reporter.stats.get(kind, [])) for kind in kinds)

    print(f"{total('passed', 'xpassed')} passed, {total('failed', 'error')} failed, "
          f"{total('skipped', 'xfailed')} skipped", flush=True)


def objects(*rooms):
    """What the build made of the rooms' sources: not what an earlier tree left there."""
    found = [path for room in rooms for path in sorted((BUILD / "obj" / room).rglob("*.o"))]
    return [path for path in found
            if any((ROOT / path.relative_to(BUILD / "obj")).with_suffix(end).exists()
                   for end in (".c", ".S"))]
