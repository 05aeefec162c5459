#!/usr/bin/env python3
"""Runs random programs for a time: each seed without the shim, with it, with lane R off, and on a
small device. They must all end, find no wrong byte and no race, and print the same.

    soak.py --seconds 600            (make soak SECONDS=600)
    soak.py --operations 1000000 --no-racecheck --first 1000

A failure is shrunk and printed, with the line that repeats it; the exit status is then 1.
"""

import argparse
import concurrent.futures
import dataclasses
import pathlib
import sys
import threading
import time

import programs
import shrink


@dataclasses.dataclass
class Totals:
    seeds: int = 0
    operations: int = 0  # of a program, counted once per configuration
    runs: int = 0
    served: dict = dataclasses.field(default_factory=dict)
    failures: list = dataclasses.field(default_factory=list)


def check_seed(runner, program, configurations, stop):
    """Runs one program everywhere. Returns (runs done, served by configuration, failure or None)."""
    served, expected = {}, None
    configurations = programs.configurations_of(program.profile, configurations)
    for count, configuration in enumerate(configurations, 1):
        if stop.is_set():
            return count - 1, served, None
        result = runner.run(program, configuration)
        served[configuration] = result.served
        if result.failed:
            return count, served, (program, configuration, result)
        if expected is None:
            expected = result.out
        elif result.out != expected:
            result.rc = programs.DIFFERENT
            result.err = f"prints {result.out!r}, {configurations[0]} printed {expected!r}"
            return count, served, (program, configuration, result)
    return len(configurations), served, None


def drawn(first, ops, profiles):
    """Programs without end."""
    seed = first
    while True:
        yield programs.Program(seed, ops, profiles[seed % len(profiles)])
        seed += 1


def soak(runner, first=1, ops=2000, seconds=None, operations=None, seeds=None, jobs=2,
         profiles=programs.PROFILES, configurations=tuple(programs.CONFIGURATIONS), most_failures=3,
         say=None):
    """Until the time is over, so many operations or seeds were run, or `most_failures` were found."""
    totals, stop = Totals(), threading.Event()
    source, lock = drawn(first, ops, profiles), threading.Lock()
    start = said = time.monotonic()

    def over():
        return (len(totals.failures) >= most_failures or
                (seconds is not None and time.monotonic() - start >= seconds) or
                (operations is not None and totals.operations >= operations) or
                (seeds is not None and totals.seeds >= seeds))

    def work():
        nonlocal said
        while True:
            with lock:
                if over():
                    return
                program = next(source)
            runs, served, failure = check_seed(runner, program, configurations, stop)
            with lock:
                totals.seeds += 1
                totals.runs += runs
                totals.operations += runs * ops
                for name, count in served.items():
                    totals.served[name] = totals.served.get(name, 0) + count
                if failure:
                    totals.failures.append(failure)
                if say and time.monotonic() - said > 10:
                    said = time.monotonic()
                    say(f"{said - start:.0f} s: {tell(totals)}")

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            for worker in [pool.submit(work) for _ in range(jobs)]:
                worker.result()
        except BaseException:
            stop.set()
            raise
    return totals


def tell(totals):
    return (f"{totals.operations} operations, {totals.seeds} seeds, {totals.runs} runs, "
            f"{len(totals.failures)} failures")


def tell_failure(runner, failure, seconds):
    program, configuration, result = failure
    head = (f"FAILED: seed {program.seed}, {program.ops} operations, profile {program.profile}, "
            f"configuration {configuration}: {result.says()}")
    if result.rc == programs.DIFFERENT:
        return head + "\n  " + runner.by_hand(program, configuration)
    return head + "\n" + shrink.shrink_and_tell(runner, program, configuration, result, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--operations", type=int)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--ops", type=int, default=2000, help="operations of a program")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--profiles", default=",".join(programs.PROFILES))
    parser.add_argument("--configurations", help="names, by commas")
    parser.add_argument("--expandable", action="store_true",
                        help="those of segments that grow, by the debug build, which has small ones")
    parser.add_argument("--no-racecheck", action="store_true")
    parser.add_argument("--time-limit", type=float, default=60, help="of one run")
    parser.add_argument("--shrink", type=float, default=60, help="seconds for each failure")
    parser.add_argument("--build", default=programs.ROOT / "build")
    parser.add_argument("--shim")
    asked = parser.parse_args()
    if asked.seconds is None and asked.operations is None:
        asked.seconds = 60
    env, preload = programs.sanitizer(asked.build)
    configurations = tuple(programs.CONFIGURATIONS)
    if asked.expandable:
        configurations = ("plain", *programs.OTHERS)
        env["CA_MUTATION"] = "range_small"
        asked.shim = asked.shim or pathlib.Path(asked.build) / "libcachealloc-debug.so"
    if asked.configurations:
        configurations = asked.configurations.split(",")
    runner = programs.Runner(asked.build, asked.shim, env, preload, not asked.no_racecheck,
                             time_limit=asked.time_limit)
    start = time.monotonic()
    totals = soak(runner, asked.first, asked.ops, seconds=asked.seconds, operations=asked.operations,
                  jobs=asked.jobs, profiles=asked.profiles.split(","),
                  configurations=configurations,
                  say=lambda line: print(line, flush=True))
    took = time.monotonic() - start
    for failure in totals.failures:
        print(tell_failure(runner, failure, asked.shrink), flush=True)
    served = ", ".join(f"{name} {count}" for name, count in totals.served.items() if count)
    print(f"soak: {tell(totals)} in {took:.0f} s ({totals.operations / took:.0f} operations a "
          f"second), served from cached memory: {served or 'none'}")
    return 1 if totals.failures else 0


if __name__ == "__main__":
    sys.exit(main())
