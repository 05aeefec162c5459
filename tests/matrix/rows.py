"""The matrix: every kind of process that uses CUDA, one row each.

A row is a program, what it needs to be there, and who else is preloaded. Each is run without the
shim, then with it. All that can be seen of the program must be the same; of the allocations, of
which the driver saw hundreds without the shim, a few may reach it (all of them where the row says
that it is not served). test_matrix.py makes a test of each row, scripts/run_matrix.sh prints a line
for each.
"""

import dataclasses
import pathlib
import re
import typing

import pytest

import conftest
from matrix import tools

HERE = pathlib.Path(__file__).resolve().parent
MADE = conftest.BUILD / "tests" / "matrix"
SIM = conftest.BUILD / "simcuda"
SUM = "8887103366\n"  # of pattern.h, in every language
ALLOCATIONS = 200     # at least so many make the work
POOLED = 20           # at most so many of them may reach the driver
LANES = {"both lanes": None, "x_runtime_hooks:false": "x_runtime_hooks:false"}


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    command: typing.Sequence     # words; a callable makes its word, or skips
    before: typing.Any = None    # preloaded before the shim: a library, or a callable that finds it
    after: typing.Any = None     # and after it
    env: typing.Mapping = dataclasses.field(default_factory=dict)
    sim: str = None              # SIMCUDA
    driver: str = None           # the folder of another libcuda.so.1
    says: str = SUM              # stands in the output: that the work was done, and by whom
    least: int = ALLOCATIONS
    served: bool = True          # else all of its calls go past the shim, and it is unharmed
    instrumented: bool = True    # can be run where the shim and the simulator have a sanitizer


def made(name):
    return MADE / name


def opener(name, mode, *modules, host="opener", **kwargs):
    return Row(name, [made(host), mode, *map(made, modules)], **kwargs)


def foreign(name, *command, **kwargs):
    """A program or a companion that a sanitizer's run-time does not suit."""
    return Row(name, command, instrumented=False, **kwargs)


def linked():
    yield Row("linked-shared", [made("shared")])
    yield Row("linked-shared-12", [made("shared_12")])
    yield Row("linked-static", [made("static")])
    yield Row("driver-only", [made("driver")])
    for version, number in (("11.4", 11040), ("11.2", 11020)):
        for program in ("shared", "static"):
            yield Row(f"driver-{version}-{program}", [made(program)], driver=f"driver-{number}",
                      sim=f"driver:{number},runtime:11")
    # dlsym finds what is newer, and it says that it is not supported.
    yield Row("driver-11.4-symbols", [made("shared")], sim="driver:11040,runtime:11")


def opened():
    for kind in ("13", "static"):
        for mode in ("local", "global", "deepbind"):
            # With RTLD_DEEPBIND the module finds the runtime, the runtime dlsym, before ours. A
            # sanitizer's run-time ends a program over it.
            deep = mode == "deepbind"
            yield opener(f"plugin-{mode}-{kind}", mode, f"module_{kind}.so", served=not deep,
                         instrumented=not deep)
        yield opener(f"reopen-{kind}", "reopen", f"module_{kind}.so")
    # A preloaded library is in the first namespace alone.
    yield opener("namespace-of-its-own", "namespace", "module_13.so", served=False,
                 instrumented=False)
    # The runtime that the program itself has stays bound to us.
    yield opener("plugin-deepbind-in-a-program-with-13", "deepbind", "module_13.so",
                 host="opener_13", instrumented=False)
    yield opener("runtimes-12-and-13", "both", "module_12.so", "module_13.so")
    yield opener("runtimes-13-and-12", "both", "module_13.so", "module_12.so")
    yield opener("runtimes-static-and-12", "both", "module_static.so", "module_12.so")
    yield opener("runtime-12-in-a-program-with-13", "both", "module_12.so", "module_13.so",
                 host="opener_13")


def lived():
    yield Row("constructors-atexit-destructors", [made("early")],
              says="".join(f"{when}: {SUM}" for when in
                           ("constructor", "library", "main", "atexit", "static destructor")))
    yield Row("exceptions-in-callbacks", [made("throws")],
              says=f"100 caught\n{SUM}main ends with cudaErrorMemoryAllocation\n")


def python():
    for binding in ("ctypes", "cffi"):
        for api in ("cudart", "cuda"):
            library = {"cudart": "libcudart.so.13", "cuda": "libcuda.so.1"}[api]
            yield foreign(f"python-{binding}-{api}", tools.python_with(binding), HERE / "work.py",
                          binding, api, library)


# What each is known by: a symbol that it takes over.
INTERPOSERS = {
    "libfaketime": ("time", ["faketime/libfaketime.so.1", "faketime/libfaketimeMT.so.1"], {}),
    "heaptrack": ("malloc", ["heaptrack/libheaptrack_preload.so"],
                  {"DUMP_HEAPTRACK_OUTPUT": "heaptrack.$$"}),  # which it locks
    "jemalloc": ("malloc", ["libjemalloc.so.2"], {}),
    "tcmalloc": ("malloc", ["libtcmalloc_minimal.so.4"], {}),
}


def interposed():
    for who, (symbol, files, env) in INTERPOSERS.items():
        for order in ("before", "after"):
            for program in ("shared", "static"):
                yield foreign(f"{who}-{order}-{program}", made(program), symbol, env=env,
                              says=f"{SUM}{symbol} is in {pathlib.Path(files[0]).stem}",
                              **{order: tools.library(*files)})


def sanitized():
    yield foreign("asan", made("host_address"), "malloc", before=tools.of_compiler("libasan.so"),
                  says=f"{SUM}malloc is in libasan.so")
    yield foreign("asan-static", made("host_address_static"), "malloc",
                  says=f"{SUM}malloc is in host_address_static")
    yield foreign("ubsan", made("host_undefined"), "__ubsan_handle_add_overflow",
                  says=f"{SUM}__ubsan_handle_add_overflow is in libubsan.so")
    yield foreign("tsan", *tools.FIXED_ADDRESSES, made("host_thread"), "malloc",
                  says=f"{SUM}malloc is in libtsan.so")


def languages():
    yield foreign("fortran", tools.fortran)
    yield foreign("java-jni", tools.java, "-cp", MADE, "Work", tools.jni_library)
    yield foreign("go-cgo", tools.go)
    # What they allocate is known only from their run without the shim.
    yield foreign("nvcc-shared", tools.nvcc("launch.cu"), says="", least=1)
    yield foreign("nvcc-thrust", tools.nvcc("thrust_ops.cu"), says="ok\n", least=10)


ROWS = [row for part in (linked, opened, lived, python, interposed, sanitized, languages)
        for row in part()]


def resolved(word):
    return word() if callable(word) else word


def check(row, lane, directory, mutation=None):
    """Runs one row; raises an AssertionError with the reason, or pytest's outcomes. With a mutation,
    under the debug shim with that deliberate fault."""
    if conftest.SANITIZER and not row.instrumented:
        pytest.skip("its program is not instrumented")
    run = conftest.runner(directory)
    under_test = conftest.debug_shim(mutation) if mutation else conftest.SHIM
    command = [resolved(word) for word in row.command]
    others = [resolved(row.before), resolved(row.after)]
    path = [SIM / row.driver] if row.driver else []
    env = {**row.env, "LD_LIBRARY_PATH": ":".join(map(str, [*path, SIM, MADE])),
           **({"CA_MUTATION": mutation} if mutation else {})}

    def go(shim, **kwargs):
        own = [*conftest.SANITIZER_PRELOAD, shim] if shim else []
        preload = [str(word) for word in (others[0], *own, others[1]) if word]
        result = run(command, sim=row.sim, stats=True, preload=False, cwd=directory, **kwargs,
                     env={**env, **({"LD_PRELOAD": " ".join(preload)} if preload else {})})
        calls = result.sim["calls"].get("cuMemAlloc_v2", 0)
        return calls, (result.rc, result.out, re.sub(r"\b\d+\b", "N", result.err))

    plain_calls, plain = go(None)
    assert plain[0] == 0, plain
    assert row.says in plain[1], plain
    assert plain_calls >= row.least, f"{plain_calls} allocations without the shim"

    # What is said of an out of memory is test_oom.py's.
    calls, seen = go(under_test, conf=",".join(filter(None, (LANES[lane], conftest.EXPECTS_OOM))))
    assert seen == plain, f"{seen} and not {plain}"
    reached = f"{calls} of {plain_calls} allocations reached the driver"
    if row.served:
        assert calls <= min(POOLED, plain_calls), reached
    else:
        assert calls == plain_calls, reached
