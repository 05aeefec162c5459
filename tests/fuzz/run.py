#!/usr/bin/env python3
"""Runs fuzz targets side by side and prints a table: run.py BUILD SECONDS NAME...

Each begins with the inputs in corpus/NAME here and those that it found before, in BUILD/corpus/NAME,
where it adds new ones. It runs in slices, since some targets keep what cannot be given back (address
space, interned stacks). What ends one is left in BUILD/found, and its report is printed.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
SLICE = 100000  # executions
ONE_S = 20  # longest execution
MEMORY_MIB = 4096


def slice_of(build, name, seconds):
    """The exit status, what it printed, and how many executions it made."""
    found = build / "found"
    corpus = build / "corpus" / name
    seeds = HERE / "corpus" / name
    for folder in (found, corpus):
        folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [build / "fuzz" / name, f"-runs={SLICE}", f"-max_total_time={max(1, int(seconds))}",
         f"-timeout={ONE_S}", f"-rss_limit_mb={MEMORY_MIB}", "-print_final_stats=1",
         f"-artifact_prefix={found}/{name}-", corpus, *([seeds] if seeds.is_dir() else [])],
        text=True, errors="replace", capture_output=True,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
    executions = re.search(r"number_of_executed_units:\s+(\d+)", done.stderr)
    return done.returncode, done.stderr, int(executions[1]) if executions else 0


def fuzz(build, name, seconds):
    """(name, executions, edges covered, what it said where it failed)."""
    executions, edges, began = 0, 0, time.monotonic()
    while True:
        left = seconds - (time.monotonic() - began)
        rc, said, count = slice_of(build, name, left)
        executions += count
        edges = max([edges, *(int(edge) for edge in re.findall(r" cov: (\d+)", said))])
        if rc != 0 or count == 0:
            return name, executions, edges, said
        if seconds - (time.monotonic() - began) < 1:
            return name, executions, edges, None


def main(build, seconds, *names):
    build, failed = pathlib.Path(build).resolve(), 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = [pool.submit(fuzz, build, name, float(seconds)) for name in names]
        for result in results:
            name, executions, edges, said = result.result()
            failed += said is not None
            print(f"{name:10} {executions:>12,} executions {edges:>6} edges "
                  f"{'FAILED' if said is not None else 'nothing found'}", flush=True)
            if said is not None:
                print("\n".join(said.splitlines()[-60:]))
    print(f"{len(names) - failed} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
