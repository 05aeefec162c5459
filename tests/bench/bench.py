#!/usr/bin/env python3
"""Measures allocators beside each other and writes tables, build/bench.svg and build/bench.json.

    bench.py                      everything                          (make bench)
    bench.py --short              the main cases, in a minute         (make bench-short)
    bench.py --allocators cachealloc,rmm_pool --cases hot_1KiB,live_64:1
    bench.py --cases stacks       what call stacks cost, alone

Cases with kernels in flight come first. Each case runs with every allocator in a process of its
own, all at the same time, but only one of them works at any moment: in each round every process
does one repetition. So whatever else the machine does hits all of them alike. What counts is the
ratio inside one run. Repetitions in which the machine did not give whole cores are left out, and
made up for: where a case had too few, it comes again after the others, as long as there is time,
and waits for a moment in which it does.
"""

import argparse
import concurrent.futures
import functools
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import interpreters
import tables

# name: program, its allocator, ALLOC_CONF where the shim is preloaded.
ALLOCATORS = {
    "cachealloc": ("cuda", "cuda", "stacks:off"),
    "cachealloc_stacks": ("cuda", "cuda", "stacks:all,stack_depth:16"),
    "cachealloc_stacks8": ("cuda", "cuda", "stacks:all,stack_depth:8"),
    "cachealloc_stacks32": ("cuda", "cuda", "stacks:all,stack_depth:32"),
    "cachealloc_sample": ("cuda", "cuda", "stacks:sample:1M,stack_depth:16"),
    "cachealloc_order": ("cuda", "cuda", "stacks:off,reuse:order"),
    "cachealloc_before": ("cuda", "cuda", "stacks:off"),
    "cachealloc_apart": ("cuda", "cuda", "stacks:off"),
    "rmm_pool": ("rmm", "rmm_pool", None),
    "rmm_binning": ("rmm", "rmm_binning", None),
    "rmm_arena": ("rmm", "rmm_arena", None),
    "rmm_tracking": ("rmm", "rmm_tracking", None),
    "cub": ("cub", "cub", None),
    "cudaMallocAsync": ("cuda", "ordered", None),
    "driver": ("cuda", "cuda", None),
    "glibc": ("libc", "glibc", None),
}
# Measured only in these cases.
DEPTH_CASES = (("hot_1KiB", 1), ("live_1000", 1))
APART_CASES = (("hot_1KiB", 2), ("live_1000", 2))
ONLY = {"cachealloc_stacks8": DEPTH_CASES, "cachealloc_stacks32": DEPTH_CASES,
        "cachealloc_sample": DEPTH_CASES, "cachealloc_apart": APART_CASES}
# One thread and one stream with kernels in flight, or several of either: of device memory these alone
# are measured so.
IN_ORDER = re.compile(r"(?:hot|live|fifo|order)_.*_busy")
ONLY_IN_ORDER = ("cachealloc_order", "cudaMallocAsync")
STREAMS = re.compile(r"(?:hot|async)_.*_busy[1-9]\d*")
ON_STREAMS = ("cachealloc", "cachealloc_before", "cachealloc_order")

# Large enough for 100,000 live blocks and for RMM's pools; nothing takes time.
IDLE = "memory:128G"
# The driver's calls take as long as on an H100, its kernels as long as busy.c wants.
BUSY = IDLE + ",latencies:h100,kernel_ns:20000"
MISS = IDLE + ",latency:cuMemAlloc_v2=50000,latency:cuMemGetInfo_v2=24400"

# What programs do comes first: they allocate with kernels in flight.
SHORT = [("hot_64KiB_busy", 1), ("hot_16MiB_busy", 1), ("hot_1KiB", 1), ("hot_1KiB", 2), ("live_64", 1), ("live_10000", 1), ("hot_64KiB", 1),
         ("pinned_64KiB", 1), ("async_1", 1), ("async_8", 1), ("prodcons", 2), ("miss_64MiB", 1)]
FULL = [("hot_256B_busy", 1), ("hot_64KiB_busy", 1), ("hot_1MiB_busy", 1), ("hot_16MiB_busy", 1),
        ("hot_256MiB_busy", 1), ("hot_1GiB_busy", 1), ("live_64_busy", 1), ("live_1000_busy", 1),
        ("live_10000_busy", 1), ("async_8_busy", 1), ("pinned_64KiB_busy", 1),
        *((f"hot_{size}_busy{streams}", threads) for streams in (2, 8, 32)
          for size in ("64KiB", "1MiB", "16MiB") for threads in (1, 2)),
        ("hot_256B", 1), ("hot_1KiB", 1), ("hot_64KiB", 1), ("hot_2MiB", 1), ("hot_64MiB", 1),
        ("live_64", 1), ("live_1000", 1), ("live_10000", 1), ("live_100000", 1), ("fifo_1000", 1),
        ("order_1000", 1), ("hot_1KiB", 2), ("hot_1KiB", 4), ("hot_1KiB", 8), ("live_1000", 2),
        ("live_1000", 4), ("live_1000", 8), ("prodcons", 2), ("async_1", 1), ("async_8", 1),
        ("pinned_64KiB", 1), ("miss_64MiB", 1)]

# As tests/bench/cases.c reads them.
CASE = re.compile(r"(?:(?:hot|pinned|miss|live|fifo|order|once)_[1-9]\d*(?:B|[KMG]iB)?|"
                  r"async_(?:[1248]|16|32)|prodcons)(?:_busy(?:[1-9]|[12]\d|3[0-2])?)?")
CASES = ("hot_SIZE, pinned_SIZE, miss_SIZE, live_N, fifo_N, order_N, once_N, async_1, async_2, "
         "async_4 to async_32, prodcons, each with _busy behind it too, or _busy2 to _busy32 for "
         "kernels on so many streams of each thread; a SIZE is 256B, 1KiB, 2MiB or 1GiB")
THREADS_MOST = 64

# After as many pairs, or as long, an allocator has come to rest. A pool of ours among live blocks
# settles twice as late when it grew once more (pool/growth/warmup.h), also where this machine is slow.
REST_PAIRS, REST_MS = 150000, 150
REST_LIVE_PAIRS, REST_LIVE_MS = 400000, 500
REPLACED = 10  # times, of each live block in a repetition
LONGER = 8  # times what a repetition takes otherwise, at most
GATE_TRIES = 3
# A repetition counts where the fixed work took at most so many times the least of the run: beyond,
# the machine runs two cores of ours as the halves of one, or others have a part of one.
WHOLE_CORE = 1.25
WHOLE_TRIES = 3  # times the rounds in one sitting, until enough repetitions count
WHOLE_LEAST = 3  # repetitions that count, or all do
WAITS_MOST_S = 60  # for whole cores, in one sitting
PROBE_PAIRS = 1000  # of glibc's, beside the fixed work
PROBE_EVERY_S = 0.02
FULL_MINUTES, SHORT_MINUTES = 40, 0.6  # as --minutes says
STACKS_MS = 10   # for one measurement of stacks, at most
SKIPPED = 77     # exit status: no such memory
PATIENCE_S = 120  # for one answer


LIBRARIES = {}  # {allocator: the build that its library is of}


class Failed(Exception):
    pass


class Bench:
    """One allocator in one case: a process that waits for a number of pairs to do, on the cores
    that are named, or on any."""

    def __init__(self, build, allocator, case, threads, cores=None):
        program, name, conf = ALLOCATORS[allocator]
        self.allocator = allocator
        case, busy, streams = case.partition("_busy")
        env = {key: value for key, value in os.environ.items()
               if key not in ("ALLOC_CONF", "CACHEALLOC_CONF", "LD_PRELOAD", "SIMCUDA")}
        env["LD_LIBRARY_PATH"] = str(build / "simcuda")
        self.held = None  # bytes of the device at most; known at the end
        self.counted = tempfile.NamedTemporaryFile(suffix=".json")
        device = BUSY if busy else MISS if case.startswith("miss") else IDLE
        env["SIMCUDA"] = f"{device},stats:{self.counted.name}"
        if conf is not None:
            env["LD_PRELOAD"] = str(LIBRARIES.get(allocator, build) / "libcachealloc.so")
            env["ALLOC_CONF"] = conf
        command = [build / "bench" / program, name, case, str(threads)]
        self.process = subprocess.Popen(
            command + [streams or "1"] * bool(busy), env=env, text=True, bufsize=1, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=cores and functools.partial(os.sched_setaffinity, 0, cores))

    def run(self, pairs):
        """Does this many pairs in each thread; (ns, pairs of all threads, ns on a core, ns of a
        core for a fixed piece of work)."""
        limit = threading.Timer(PATIENCE_S, self.process.kill)
        limit.start()
        try:
            self.process.stdin.write(f"{pairs}\n")
            answer = self.process.stdout.readline().split()
        except BrokenPipeError:
            answer = []
        finally:
            limit.cancel()
        if len(answer) != 4:
            self.process.kill()
            err = self.process.communicate()[1].strip().splitlines()
            raise Failed("has none" if self.process.returncode == SKIPPED
                         else err[-1] if err else f"ended with {self.process.returncode}")
        return [int(number) for number in answer]

    def close(self):
        limit = threading.Timer(PATIENCE_S, self.process.kill)
        limit.start()
        try:
            self.process.communicate()
        finally:
            limit.cancel()
        with self.counted as counted:
            counts = counted.read()
        if counts:
            self.held = sum(device["peak_bytes"] for device in json.loads(counts)["devices"])


class Apart:
    """As many processes of one thread, each on a core of its own, at the same time: what the machine
    gives to threads that share nothing."""

    def __init__(self, build, allocator, case, threads):
        self.allocator = allocator
        cores = sorted(os.sched_getaffinity(0))
        self.benches = [Bench(build, allocator, case, 1, {cores[i % len(cores)]})
                        for i in range(threads)]

    def run(self, pairs):
        with concurrent.futures.ThreadPoolExecutor(len(self.benches)) as pool:
            answers = list(pool.map(lambda bench: bench.run(pairs), self.benches))
        ns, done, core, fixed = zip(*answers)
        return [max(ns), sum(done), core[0], max(fixed)]

    def close(self):
        for bench in self.benches:
            bench.close()
        self.held = sum(bench.held or 0 for bench in self.benches)


def warmed(bench, case, args):
    """Runs until the allocator has come to rest, and says how many pairs a repetition takes."""
    # Among live blocks each has been replaced about once, so that memory is as cut up as it gets.
    number = case.partition("_busy")[0].rpartition("_")[2]
    pairs = max(int(number), 256) if number.isdigit() and not case.startswith("async") else 256
    pairs = min(pairs, args.pairs or pairs)
    while True:
        ns = bench.run(pairs)[0]
        if args.pairs:
            return args.pairs
        if ns > args.repetition_ms * 1e6 / 8:
            break
        pairs *= 4
    # Some change when they have seen enough.
    done, spent = 4 * pairs / 3, 0
    among = case.startswith(("live_", "fifo_", "order_"))
    rest, longest = (REST_LIVE_PAIRS, REST_LIVE_MS) if among else (REST_PAIRS, REST_MS)
    while done < rest and spent < longest * 1e6:
        ns = bench.run(pairs)[0]
        done, spent = done + pairs, spent + ns
    whole = max(1, int(pairs * args.repetition_ms * 1e6 / ns))
    # Each live block is replaced some times, or most of what is measured is how the allocator before
    # left the processor's caches; as far as that does not take all day.
    live = int(number) if case.startswith("live_") and not args.short else 0
    return max(whole, min(REPLACED * live, LONGER * whole))


def measured_in(allocator, case, threads):
    """Whether this case says anything of it."""
    if case.startswith("miss") and allocator not in ("cachealloc", "driver"):
        return False
    if STREAMS.fullmatch(case):
        return allocator in ON_STREAMS
    if allocator in ONLY_IN_ORDER:
        return threads == 1 and IN_ORDER.fullmatch(case) is not None
    return (case, threads) in ONLY.get(allocator, [(case, threads)])


def start(case, threads, args, notes):
    """The processes of one case, and how many pairs each does in a repetition."""
    running = {}
    for allocator in args.allocators:
        if not measured_in(allocator, case, threads):
            continue
        kind = Apart if allocator.endswith("_apart") else Bench
        bench = kind(args.build, allocator, case, threads)
        try:
            running[bench] = warmed(bench, case, args)
        except Failed as error:
            bench.close()
            if str(error) != "has none":
                notes.append(f"{allocator}, {case}, {threads} threads: {error}")
    return running


class Cores:
    """Waits until as many threads have whole cores, `patience` seconds in all."""

    def __init__(self, threads, args, patience):
        self.args, self.left = args, patience
        self.probe = Bench(args.build, "glibc", "hot_1KiB", min(threads, os.cpu_count()))

    def wait(self):
        while self.left > 0:
            try:
                fixed = self.probe.run(PROBE_PAIRS)[3]
            except Failed:
                self.left = 0
                break
            self.args.fixed_least = min(self.args.fixed_least, fixed)
            if fixed <= WHOLE_CORE * self.args.fixed_least:
                break
            time.sleep(PROBE_EVERY_S)
            self.left -= PROBE_EVERY_S

    def close(self):
        self.probe.close()


def sit(case, threads, args, notes, seen, patience=0):
    """One sitting of a case: adds what each allocator took, (time, what the fixed work took), to its
    list in `seen`. Waits `patience` seconds for whole cores, and ends early where the machine has
    none to give. The shares of the time for which they had a core."""
    running, shares = start(case, threads, args, notes), []
    asks = patience > 0 and (args.build / "bench" / ALLOCATORS["glibc"][0]).exists()
    cores = Cores(threads, args, patience) if asks else None
    for bench in running:
        seen.setdefault(bench.allocator, [])
    # Waiting for the driver is no work, and is not on a core.
    all_work = threads == 1 and "_busy" not in case and not case.startswith("miss")
    for number in range(WHOLE_TRIES * args.rounds):
        fewest = min((len(counting(seen[bench.allocator], args)) for bench in running), default=0)
        if fewest >= args.rounds or (number == args.rounds and not fewest):
            break
        order = list(running)
        first = number % max(1, len(order))
        for bench in order[first:] + order[:first]:
            if cores:
                cores.wait()
            try:
                ns, done, core, fixed = bench.run(running[bench])
            except Failed as error:
                notes.append(f"{bench.allocator}, {case}, {threads} threads: {error}")
                bench.close()
                del running[bench], seen[bench.allocator]
                continue
            seen[bench.allocator].append(
                ((core if args.core_time and all_work else ns) / done, fixed))
            args.fixed_least = min(args.fixed_least, fixed)
            if all_work:
                shares.append(core / ns)
    for bench in [*running, *filter(None, [cores])]:
        bench.close()
    for bench in running:
        which = bench.allocator, case, threads
        args.held[which] = max(bench.held or 0, args.held.get(which, 0))
    return shares


def lacks(seen, args):
    """Whether an allocator has too few repetitions that count."""
    return any(len(counting(times, args)) < args.rounds for times in seen.values())


def judged(case, threads, args, notes, seen):
    """The results of one case, a dictionary for each allocator that can do it."""
    results, too_few = [], []
    for allocator, all_times in seen.items():
        times = counting(all_times, args)
        if len(times) < min(WHOLE_LEAST, args.rounds):
            too_few.append(f"{allocator} {len(times)} of {len(all_times)}")
            times = [ns for ns, _ in all_times]
        if times:
            results.append({"allocator": allocator, "case": case, "threads": threads,
                            "ns_per_pair": round(statistics.median(times), 2),
                            "repetitions": [round(one, 2) for one in times],
                            "left_out": len(all_times) - len(times),
                            "held_bytes": args.held.get((allocator, case, threads), 0)})
    if too_few:
        notes.append(f"{case}, {threads} threads: all repetitions count of those that had whole "
                     f"cores in too few: {', '.join(too_few)}")
    return results


def scaling(results, args):
    """How much more two threads of glibc's did than one, which share nothing: what the machine has
    to give. None where that was not measured by one clock."""
    if args.core_time:
        return None
    one, two = (tables.find(results, "glibc", "hot_1KiB", threads) for threads in (1, 2))
    return one[0] / two[0] if one and two else None


def measure(args, notes):
    """All cases, those again that lack repetitions. Their results in the order of the cases, and
    the shares of the time for which they had a core."""
    began = time.monotonic()
    seen = {which: {} for which in args.cases}
    took, shares, due, patience = {}, [], list(seen), 0
    while due:
        for case, threads in due:
            if sys.stderr.isatty():
                print(f"\r\033[K{case}, {threads} threads", end="", file=sys.stderr)
            sat = time.monotonic()
            shares += sit(case, threads, args, notes, seen[case, threads], patience)
            took[case, threads] = time.monotonic() - sat
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        left, due = 60 * args.minutes - (time.monotonic() - began), []
        for which in seen:
            if lacks(seen[which], args) and took[which] <= left:
                left -= took[which]
                due.append(which)
        patience = min(WAITS_MOST_S, left / len(due)) if due else 0
    return [one for which in seen for one in judged(*which, args, notes, seen[which])], shares


def counting(seen, args):
    """The times of the repetitions that count, of (time, what the fixed work took)."""
    return [ns for ns, fixed in seen if fixed <= WHOLE_CORE * args.fixed_least]


def measure_stacks(args, notes):
    """What captures of call stacks take, a dictionary for each case; [] where it cannot be told."""
    program = args.build / "bench" / "stacks"
    if not program.exists():
        notes.append("stacks: not built")
        return []
    command = [program, str(args.rounds), str(min(STACKS_MS, args.repetition_ms))]
    done = subprocess.run(command, text=True, capture_output=True, timeout=PATIENCE_S)
    if done.returncode != 0:
        notes.append(f"stacks: {done.stderr.strip() or done.returncode}")
        return []
    clock, figures = "core" if args.core_time else "wall", []
    for line in map(json.loads, done.stdout.splitlines()):
        # Without what the calls around it take, which was measured in the same round.
        taken = {what: [round(one - floor, 2) for one, floor in
                        zip(line[f"{what}_{clock}"], line[f"floor_{clock}"])]
                 for what in ("ours", "unw_backtrace")}
        figures.append({"case": line["case"], "threads": line["threads"], **taken})
    return figures


def measure_python(args, notes):
    """What the Python frames of a stack take beside its native ones, a dictionary for each CPython
    that is found here; without and with them in turns."""
    library = args.build / "pyframes" / "frames.so"
    checks = pathlib.Path(__file__).resolve().parent.parent / "pyframes" / "checks.py"
    if not library.exists():
        notes.append("stacks of Python: not built")
        return []
    figures = []
    for interpreter in interpreters.found()[:args.interpreters]:
        taken = {"off": [], "on": []}
        for choice in ("off", "on") * min(3, args.rounds):
            env = {**os.environ, "CHOICE": {"on": "0", "off": "2"}[choice]}
            done = subprocess.run([interpreter, checks, library, "speed"], env=env, text=True,
                                  capture_output=True, timeout=PATIENCE_S)
            taken[choice].append(json.loads(done.stdout.splitlines()[0]))
        figures.append({
            "version": "3.%d" % interpreters.version_of(interpreter)[1],
            **{what: [round(on[what] - off[what], 2) for on, off in zip(taken["on"], taken["off"])]
               for what in ("same", "new")}})
    return figures


def positive(convert):
    """What argparse is to take, told in words where it is something else."""
    def parse_one(text):
        try:
            value = convert(text)
        except ValueError:
            value = 0
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(
                f"{text!r}: accepted is {'1 or more' if convert is int else 'above 0'}")
        return value
    return parse_one


def case_of(word, parser):
    """(case, threads) of CASE or CASE:THREADS."""
    case, colon, threads = word.partition(":")
    only = 2 if case.startswith("prodcons") else None
    if not CASE.fullmatch(case):
        parser.error(f"no case {case}; there are {CASES}")
    if not colon:
        return case, only or 1
    if not threads.isdecimal() or not 1 <= int(threads) <= THREADS_MOST or int(threads) != (
            only or int(threads)):
        parser.error(f"--cases {word}: accepted is CASE or CASE:THREADS with "
                     f"{only or f'1 to {THREADS_MOST}'} threads")
    return case, int(threads)


def parse(argv):
    parser = argparse.ArgumentParser(description="measures allocators beside each other")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--before", type=pathlib.Path, metavar="BUILD",
                        help="the build of another tree, whose library is measured too")
    parser.add_argument("--short", action="store_true", help="only the main cases")
    parser.add_argument("--rounds", type=positive(int), default=7, help="repetitions of each")
    parser.add_argument("--minutes", type=float, help="since the beginning, in which cases come "
                        "again that lack repetitions on whole cores")
    parser.add_argument("--repetition-ms", type=positive(float), help="length of one, about")
    parser.add_argument("--pairs", type=positive(int), help="pairs of one, instead")
    parser.add_argument("--allocators", help="only these, separated by commas")
    parser.add_argument("--cases", help="only these, separated by commas, as CASE or CASE:THREADS: "
                        f"stacks, {CASES}")
    parser.add_argument("--interpreters", type=positive(int), help="at most so many, for stacks of Python")
    parser.add_argument("--output", type=pathlib.Path, help="where bench.json and bench.svg go")
    parser.add_argument("--core-time", action="store_true",
                        help="with one thread, count the time on a core: for a machine that others "
                        "use, not for figures to show")
    parser.add_argument("--gate", action="store_true",
                        help="fail where a figure is far from its aim, three times in a row")
    args = parser.parse_args(argv)
    args.build = args.build.resolve()
    if args.before:
        LIBRARIES["cachealloc_before"] = args.before.resolve()
    args.output = args.output or args.build
    args.repetition_ms = args.repetition_ms or (25 if args.short else 40)
    args.fixed_least = math.inf  # ns of the fixed work, in this run
    args.held = {}  # bytes of the device at most, by allocator, case and threads
    if args.minutes is None:
        args.minutes = SHORT_MINUTES if args.short else FULL_MINUTES
    args.allocators = args.allocators.split(",") if args.allocators else list(ALLOCATORS)
    if not args.before:
        args.allocators = [name for name in args.allocators if name != "cachealloc_before"]
    for name in args.allocators:
        if name not in ALLOCATORS:
            parser.error(f"no allocator {name}; there are {', '.join(ALLOCATORS)}")
    args.stacks = not args.cases or "stacks" in args.cases.split(",")
    if args.cases:
        args.cases = [case_of(word, parser) for word in args.cases.split(",")
                      if word not in ("", "stacks")]
    else:
        args.cases = SHORT if args.short else FULL
    try:
        args.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output {args.output}: {error.strerror}")
    return args


def main(argv):
    args = parse(argv)
    notes = []
    for allocator in list(args.allocators if args.cases else ()):
        program = args.build / "bench" / ALLOCATORS[allocator][0]
        if not program.exists():
            notes.append(f"{allocator}: not built, its headers or libraries are missing")
            args.allocators.remove(allocator)
    began = time.monotonic()
    results, shares = measure(args, notes)
    stacks = measure_stacks(args, notes) if args.stacks else []
    python = measure_python(args, notes) if args.stacks else []

    if args.cases:  # of stacks alone there are none, and those of another run stay
        (args.output / "bench.json").write_text(
            "[\n" + ",\n".join(json.dumps(one) for one in results) + "\n]\n")
        tables.show(results, args.core_time)
    if args.stacks:
        (args.output / "bench_stacks.json").write_text(
            "[\n" + ",\n".join(json.dumps(one) for one in stacks) + "\n]\n")
        tables.show_stacks(stacks, results, args.core_time)
        tables.show_python(python)
    try:
        if results:
            import chart
            chart.draw(results, args.output / "bench.svg")
            notes.append(f"chart: {args.output / 'bench.svg'}")
    except ImportError as error:
        notes.append(f"no chart: {error}")
    if shares and statistics.mean(shares) < 0.9:
        notes.append(f"this machine was busy: single threads had a core for "
                     f"{statistics.mean(shares):.0%} of the time; do not use these figures")
    if scaling(results, args):
        notes.append(f"two threads of glibc's with a hot pair did {scaling(results, args):.2f} times "
                     "what one did: about what this machine had to give")
    notes.append(f"{len(results) + len(stacks)} results in {time.monotonic() - began:.0f} s, "
                 f"{os.cpu_count()} cores: "
                 f"{args.output / ('bench.json' if args.cases else 'bench_stacks.json')}")
    for note in dict.fromkeys(notes):
        print("bench:", note)
    return gate(results, args) if args.gate else 0


def gate(results, args):
    """Measures again what is out of its wide limits. The totals, and the exit status."""
    for _ in range(GATE_TRIES - 1):
        out = [criterion for criterion, figure, _, met in
               tables.compare(results, args.core_time, True) if figure is not None and not met]
        again = {tuple(which[1:]) for criterion in out for which in criterion[1:3]}
        for case, threads in again:
            results = [one for one in results if (one["case"], one["threads"]) != (case, threads)]
            seen = {}
            sit(case, threads, args, [], seen)
            results += judged(case, threads, args, [], seen)
    met, out, unknown = 0, 0, 0
    for (text, _, _, relation, _, widest), figure, _, good in tables.compare(
            results, args.core_time, True):
        met += figure is not None and good
        out += figure is not None and not good
        unknown += figure is None
        if figure is not None and not good:
            print(f"bench: {text}: {figure:.2f}, which is not {relation} {widest}")
    print(f"{met} passed, {out} failed, {unknown} skipped")
    return 1 if out or not met else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
