#!/usr/bin/env python3
"""Runs fuzz targets side by side and prints a table.

Each begins with the inputs in corpus/NAME here and those that it found before, in BUILD/corpus/NAME,
where it adds new ones. It runs in slices, since some targets keep what cannot be given back (address
space, interned stacks). What ends one is left in BUILD/found, and its report is printed.
"""

import argparse
import concurrent.futures
import itertools
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
SLICE = 100000  # executions
SHORT = 256  # bytes of an input: most are no longer, since many short ones find more than few long
LONG_EVERY = 8  # slices: this one's inputs are as long as libFuzzer lets them grow
ONE_S = 20  # longest execution
MEMORY_MIB = 4096


def slice_of(build, name, seconds, longest):
    """The exit status, what it printed, and how many executions it made."""
    found = build / "found"
    corpus = build / "corpus" / name
    seeds = HERE / "corpus" / name
    for folder in (found, corpus):
        folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [build / "fuzz" / name, f"-runs={SLICE}", f"-max_total_time={max(1, int(seconds))}",
         f"-timeout={ONE_S}", f"-rss_limit_mb={MEMORY_MIB}", "-print_final_stats=1",
         f"-max_len={longest}", f"-artifact_prefix={found}/{name}-", corpus,
         *([seeds] if seeds.is_dir() else [])],
        text=True, errors="replace", capture_output=True,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
    executions = re.search(r"number_of_executed_units:\s+(\d+)", done.stderr)
    return done.returncode, done.stderr, int(executions[1]) if executions else 0


def fuzz(build, name, seconds, runs):
    """(name, executions, edges covered, seconds, what it said where it failed)."""
    executions, edges, began = 0, 0, time.monotonic()
    for number in itertools.count(1):
        left = seconds - (time.monotonic() - began)
        rc, said, count = slice_of(build, name, left, 4096 if number % LONG_EVERY == 0 else SHORT)
        executions += count
        edges = max([edges, *(int(edge) for edge in re.findall(r" cov: (\d+)", said))])
        took = time.monotonic() - began
        if rc != 0 or count == 0:
            return name, executions, edges, took, said
        if seconds - took < 1 or executions >= runs:
            return name, executions, edges, took, None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("seconds", type=float, help="how long each target runs at most")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=int, default=1 << 62, help="executions that are enough")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_intermixed_args()
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        results = [pool.submit(fuzz, asked.build, name, asked.seconds, asked.runs)
                   for name in asked.names]
        for result in results:
            name, executions, edges, took, said = result.result()
            failed += said is not None
            print(f"{name:10} {executions:>12,} executions {edges:>6} edges {took:>7.0f} s  "
                  f"{'FAILED' if said is not None else 'nothing found'}", flush=True)
            if said is not None:
                print("\n".join(said.splitlines()[-60:]))
    print(f"{len(asked.names) - failed} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
