#!/usr/bin/env python3
"""What a training step of PyTorch takes on the simulated CUDA, at the costs of an H100:

    torch_steps.py --python PATH [--script FILE]    (make bench-torch PYTHON=... TORCH_SCRIPT=...)

by PyTorch's own cache, with that off, with this library in its place (`reuse:auto`, `reuse:order`),
and with the library as PyTorch's allocator (`cachealloc.torch`). PATH is an interpreter that has
torch, FILE a script as torch_train.py says at its top. The ways take turns for some rounds; times
are medians, with the least and the most. Calls are those that the simulator counted of twice as
many steps, less those of the steps. Memory is what the device gave at most. A second table has what
the Python frames of the captured call stacks take (tests/bench/python_part.c), in the run of the
script whose median is the least, and a third what whole captures take with them and without. All of
it is in bench_torch.json too. Where there is no torch, or it finds no device, that is said, and the
exit status is 0.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import tables

CACHE_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
TESTS = pathlib.Path(__file__).parents[1]
PLUGIN = {}  # the library is opened, not preloaded
# (title, environment, ALLOC_CONF where the library is preloaded)
WAYS = [("native", {}, None), ("plain", CACHE_OFF, None), ("cachealloc", CACHE_OFF, "reuse:auto"),
        ("cachealloc_order", CACHE_OFF, "reuse:order,log:info"), ("plugin", PLUGIN, None)]
ENDS = re.compile(r"memory in flight is not reused from now on: .*")
DEVICE = "memory:80G,arch:90,latencies:h100,kernel_ns:10000"
PROBE = "import torch; torch.ones(1, device='cuda').item(); print(torch.__version__)"
# Columns of calls, by the names that the driver has for them.
CALLS = {
    "launches": r"cuLaunch(?:CooperativeKernel|Kernel|KernelEx)(?:_ptsz)?|cuGraphLaunch(?:_ptsz)?",
    "allocations and frees": r"cuMem(?:Alloc|Free|HostAlloc).*",
    "records": r"cu(?:Event|Ctx)Record.*",
    "queries": r"cuEventQuery",
    "driver calls": r".*",
}
# Kinds of captures, as python_part.c has them.
PYTHON_KINDS = {"known": "a stack that was captured before", "new": "a new one",
                "none": "a thread without Python frames", "all": "all"}
CAPTURE_KINDS = {"first": "the first thread", "others": "other threads", "all": "all"}
PYTHON_TARGET = "<= 100"
LIMIT_S = 600  # for one run


class Failed(Exception):
    pass


def last_line(text):
    return next(reversed(text.strip().splitlines()), "")


def run(args, way, *command, steps=0, library=None):
    """The last line that the command prints, and what the simulator counted of it. Why reuse in
    order came to an end is noted."""
    title, extra, conf = way
    env = {key: value for key, value in os.environ.items()
           if key not in ("ALLOC_CONF", "CACHEALLOC_CONF", "LD_PRELOAD", "SIMCUDA", *CACHE_OFF)}
    folders = [str(args.build / "simcuda"), env.get("LD_LIBRARY_PATH")]
    env.update(extra, STEPS=str(steps), LD_LIBRARY_PATH=":".join(filter(None, folders)))
    if extra is PLUGIN:
        env["CACHEALLOC_LIBRARY"] = str(args.build / "libcachealloc.so")
        paths = [str(TESTS.parent / "python"), env.get("PYTHONPATH")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = (TESTS / "torch" / "plugin_steps.py", "plugin", *command)
    if conf:
        env.update(LD_PRELOAD=str(library or args.build / "libcachealloc.so"), ALLOC_CONF=conf)
    with tempfile.NamedTemporaryFile(suffix=".json") as counted:
        env["SIMCUDA"] = f"{DEVICE},stats:{counted.name}"
        try:
            done = subprocess.run([args.python, *command], env=env, text=True, capture_output=True,
                                  timeout=LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failed(str(error)) from error
        counts = counted.read()
    if done.returncode != 0:
        raise Failed(last_line(done.stderr) or f"ended with {done.returncode}")
    args.notes.update(dict.fromkeys(f"{title}: {why}" for why in ENDS.findall(done.stderr)))
    return last_line(done.stdout), json.loads(counts or "{}")


def measure_python(args, conf, **env):
    """What captures take, by kind; {} where that was not built, or nothing was captured. The least
    of some runs: what else the machine does only adds to it."""
    library, runs = args.build / "bench" / "python_part.so", []
    for _ in range(args.rounds if library.exists() else 0):
        with tempfile.NamedTemporaryFile(suffix=".json") as told:
            run(args, ("python", {**CACHE_OFF, "PYTHON_PART": told.name, **env}, conf), args.script,
                steps=2 * args.steps, library=library)
            runs.append(json.loads(told.read() or "{}"))
    kinds = min(filter(None, runs), key=lambda kinds: kinds["all"]["median_ns"], default={})
    return {kind: one for kind, one in kinds.items() if one["captures"]}


def measure_captures(args):
    """What the Python frames of a capture take, and the whole of it with them and without."""
    whole = {"PYTHON_PART_OF": "capture"}
    return {"python_frames": measure_python(args, "stacks:all"),
            "capture": measure_python(args, "stacks:all", **whole),
            "capture_native": measure_python(args, "stacks:all,python:off", **whole)}


def calls_of(counts):
    return {title: sum(count for name, count in counts["calls"].items()
                       if re.fullmatch(names, name)) for title, names in CALLS.items()}


def measure(args):
    """What each way takes."""
    results = {way[0]: {"way": way[0], "steps": args.steps, "ms": [], "cpu_ms": []} for way in WAYS}
    for number in range(args.rounds):
        for way in WAYS:
            if sys.stderr.isatty():
                print(f"\r\033[K{number + 1} of {args.rounds}: {way[0]}", end="", file=sys.stderr)
            one = results[way[0]]
            line, counts = run(args, way, args.script, steps=2 * args.steps)
            try:
                took = json.loads(line)
                one["ms"].append(took["ms_median"])
                one["cpu_ms"].append(took["cpu_ms_med"])
            except (ValueError, KeyError, TypeError) as error:
                raise Failed(f"{args.script} printed no figures, but: {line[:100]}") from error
            if not number:
                few = calls_of(run(args, way, args.script, steps=args.steps)[1])
                for title, count in calls_of(counts).items():
                    one[title] = (count - few[title]) / args.steps
            peak = sum(device["peak_bytes"] for device in counts["devices"])
            one["peak_bytes"] = max(peak, one.get("peak_bytes", 0))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return list(results.values())


def cell(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def show(results, version, args):
    print(f"torch {version}, {args.script.name}; a step of {2 * args.steps} on the simulated CUDA "
          "at the costs of an H100, kernels of 10 us; times are medians (least..most of "
          f"{args.rounds}), calls those of a step:\n")
    tables.print_rows(
        ["", "CPU ms", "wall ms", *CALLS, "peak MiB"],
        [[one["way"], cell(one["cpu_ms"]), cell(one["ms"]),
          *(f"{one[title]:,.1f}" for title in CALLS), f"{one['peak_bytes'] / (1 << 20):,.0f}"]
         for one in results])


def show_python(captures):
    print("\nwhat Python frames take of the capture of a call stack:\n")
    tables.print_rows(
        ["", "captures", "median ns", "p90 ns", "target"],
        [[PYTHON_KINDS[kind], f"{one['captures']:,}", f"{one['median_ns']:,.0f}",
          f"{one['p90_ns']:,.0f}", PYTHON_TARGET if kind == "all" else ""]
         for kind, one in captures["python_frames"].items()])
    print("\nwhat the whole of it takes, with Python frames and with python:off:\n")
    tables.print_rows(
        ["", "median ns", "p90 ns", "without, median ns", "without, p90 ns"],
        [[title, *(f"{captures[way][kind][figure]:,.0f}" for way in ("capture", "capture_native")
                   for figure in ("median_ns", "p90_ns"))]
         for kind, title in CAPTURE_KINDS.items()
         if kind in captures["capture"] and kind in captures["capture_native"]])


def main(argv):
    parser = argparse.ArgumentParser(description="a training step of PyTorch, in one table")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--python", help="an interpreter that has torch")
    parser.add_argument("--script", type=pathlib.Path, help="instead of torch_train.py",
                        default=pathlib.Path(__file__).with_name("torch_train.py"))
    parser.add_argument("--steps", type=int, default=20, help="half of those of a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=pathlib.Path, help="where bench_torch.json goes")
    args = parser.parse_args(argv)
    args.build, args.notes = args.build.resolve(), {}
    if args.steps < 1 or args.rounds < 1:
        parser.error("--steps and --rounds: accepted is 1 or more")
    if not args.python:
        print("bench-torch: skipped: PYTHON names no interpreter that has torch")
        return 0
    try:
        version, _ = run(args, WAYS[0], "-c", PROBE)
    except Failed as error:
        print(f"bench-torch: skipped: {args.python}: {error}")
        return 0
    try:
        results = measure(args)
        captures = measure_captures(args)
    except Failed as error:
        print(f"bench-torch: {error}", file=sys.stderr)
        return 1
    path = (args.output or args.build) / "bench_torch.json"
    path.write_text("[\n" + ",\n".join(json.dumps(one) for one in (
        *results, *({"way": way, "kind": kind, **one}
                    for way, kinds in captures.items() for kind, one in kinds.items())
    )) + "\n]\n")
    show(results, version, args)
    if captures["python_frames"]:
        show_python(captures)
    for note in [*args.notes, path]:
        print(f"bench-torch: {note}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
