"""The programs of tests/gpu/programs, and the processes of tests/matrix that a real CUDA can run.

tests/test_gpu_suite.py looks whether one was forgotten.
"""

import json
import sys

import suite

# name: (rounds, rounds of a short run, whether the pool has something to serve, what is expected of
# its time with the shim, beside its time without)
PROGRAMS = {
    "streams": (500, 20, True, "less"),
    "thrust_sort": (200, 5, True, "less"),
    "cg": (10, 1, True, "less"),
    "graph": (60, 2, True, "less"),
    "cub_cached": (3000, 50, False, "the same: it has a cache of its own"),
    "once": (4000, 100, False, "at most 0.5% more"),
}
NULL_CONTROLS = {"once": 0.5}  # percent
# The device's word for its architecture must be among those that the programs were compiled for.
SIM = "arch:90,kernel_ns:2000,memory:64G"
NONE = "no CUDA C programs here: there was no nvcc where this was built"


def command(cuda, name, rounds, how=None, static=True):
    folder = cuda.build / "programs" if static else cuda.build / "programs" / "shared"
    return [folder / name, rounds, *([how] if how else ["dry"] if cuda.simulated else [])]


def kinds(cuda):
    """(what the runtime is, whether it is static): the toolkit's needs a real driver."""
    return [("shared", False)] if cuda.simulated else [("static", True), ("shared", False)]


def needed(cuda):
    if not (cuda.build / "programs" / "shared" / "streams").exists():
        raise suite.Missing(NONE)


def said(ran):
    """(what it says of itself; the reason instead, where it does not)"""
    try:
        answer = json.loads(ran.out.strip().splitlines()[-1])
        return (answer, "") if ran.rc == 0 else (None, f"{ran.ended()}: {answer['wrong']} wrong")
    except (ValueError, IndexError, KeyError, TypeError):
        return None, ran.last_line()


# (name, command, whether the toolkit's static runtime is in it, whether the pool serves it). What
# opens a runtime for itself alone cannot be reached, and must be unharmed.
WORK = suite.ROOT / "tests" / "matrix" / "work.py"
PROCESSES = [
    ("shared runtime", ("{matrix}/shared",), False, True),
    ("static runtime", ("{programs}/linked_static",), True, True),
    ("driver alone", ("{matrix}/driver",), False, True),
    *((f"opened, {mode}", ("{matrix}/opener", mode, "{matrix}/module_13.so"), False,
       mode not in ("deepbind", "namespace"))
      for mode in ("local", "global", "reopen", "deepbind", "namespace")),
    *((f"opened, {mode}, static runtime",
       ("{matrix}/opener", mode, "{programs}/module_static.so"), True, mode != "deepbind")
      for mode in ("local", "global", "reopen", "deepbind")),
    ("opened, deepbind, in a program with the runtime",
     ("{matrix}/opener_13", "deepbind", "{matrix}/module_13.so"), False, True),
    ("constructors, atexit, destructors", ("{matrix}/early",), False, True),
    ("exceptions in callbacks", ("{matrix}/throws",), False, True),
    *((f"Python, ctypes, {library}", (sys.executable, "-B", str(WORK), "ctypes", api, library),
       False, True)
      for api, library in (("cudart", "libcudart.so.13"), ("cuda", "libcuda.so.1"))),
]
SUM = "8887103366"  # of tests/matrix/pattern.h


def process(cuda, words):
    return [word.format(matrix=cuda.build / "tests" / "matrix", programs=cuda.build / "programs")
            for word in words]
