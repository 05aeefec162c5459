#!/usr/bin/env python3
"""Runs build/soak for a time under the library and, beside it, under the one that checks its own
invariants: run.py --seconds 300 (part of make soak). The exit status is 1 if one fails; the line
that repeats it is printed."""

import argparse
import pathlib
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "random"))
import programs  # noqa: E402

# Short of memory all the time; the second settles early, so that more of it is hits.
RUNS = {"libcachealloc.so": "", "libcachealloc-debug.so": ",x_warmup:2000"}
SIM = "memory:256M,devices:3"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", default="build")
    asked = parser.parse_args()
    build = pathlib.Path(asked.build).resolve()
    more, preload = programs.sanitizer(build)
    running = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, conf) in enumerate(RUNS.items()):
            environment = {**more, "LD_LIBRARY_PATH": str(build / "simcuda"), "SIMCUDA": SIM,
                           "LD_PRELOAD": " ".join([*preload, str(build / name)]),
                           "ALLOC_CONF": f"oom_report:off,log:error,leak_report:off{conf}"}
            command = [str(build / "soak"), "--seconds", str(asked.seconds),
                       "--seed", str(asked.seed + number)]
            words = [f"{key}={value}" for key, value in environment.items()] + command
            running.append((f"env {shlex.join(words)}", subprocess.Popen(
                ["env", *words], cwd=folder, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT)))
        failed = False
        try:
            for line, process in running:
                try:
                    out = process.communicate(timeout=asked.seconds + 120)[0]
                except subprocess.TimeoutExpired:
                    process.kill()
                    out = process.communicate()[0] + "no end within the time limit\n"
                print(f"{line}\n{out}", flush=True)
                failed |= process.returncode != 0
        finally:
            for _, process in running:
                process.kill()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
