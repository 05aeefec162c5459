#!/usr/bin/env python3
"""How much larger a device must be for a program to fit with the library, in one table:

    fits.py [--conf ALLOC_CONF]... [TRACE...]       (make bench-fit, with TRACES=DIR)

The programs are those of fit.c, each with some seeds, and traces (tests/replay), three passes. Each
runs on the simulated device, whose memory is bisected by 2 MiB: plainly, with the library as it is,
and with each ALLOC_CONF. What is told is the smallest that it found enough; a pool decides by how
much there is, and may do with some that is smaller yet, or not with some that is larger.

The simulated driver counts pages of 2 MiB, as an H200 does (tests/gpu/results): what is larger than
1 MiB has whole pages, from anywhere on the device, what is smaller shares pages by best fit. So a
plain program needs what it has live, rounded so, and what its small blocks keep of their pages. All
of it is in bench_fit.json too.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

import tables
from replays import Failed, traces_of

PROGRAMS = ("layers", "shards", "loader", "growing", "training", "phases", "churn", "creep",
            "queue", "tails", "robson", "robson_small", "slivers", "threads")
UNIT = 2 << 20
PLENTY = 256 << 30
PASSES = 3
REFUSED = 3  # exit status of fit
QUIET = "leak_report:off,oom_report:off"  # what stays live at the end is no leak
LIMIT_S = 120  # for one run
PEAK = re.compile(r"peak live (\d+) bytes")


def command_of(build, program, seed, mib):
    return [build / "bench" / "fit", program, str(seed), str(mib)]


def command_of_trace(build, path):
    return [build / "replay", "--policy", "driver", "--passes", str(PASSES), path]


def run(build, command, conf, memory):
    """(whether it ended and was not refused memory, what it printed); conf None: plainly."""
    build = build.resolve()
    env = {key: value for key, value in os.environ.items()
           if key not in ("ALLOC_CONF", "CACHEALLOC_CONF", "LD_PRELOAD")}
    env.update(SIMCUDA=f"memory:{memory}", LD_LIBRARY_PATH=str(build / "simcuda"))
    if conf is not None:
        env.update(LD_PRELOAD=str(build / "libcachealloc.so"),
                   ALLOC_CONF=",".join(filter(None, (QUIET, conf))))
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=LIMIT_S)
    ended = done.returncode == 0
    refused = done.returncode == REFUSED or (done.returncode == 1 and ": cudaMalloc" in done.stderr)
    if not ended and not refused or ended and done.stderr:
        raise Failed(done.stderr.strip() or f"{command[0]} ended with {done.returncode}")
    return ended, done.stdout


def least_memory(build, command, conf, peak, near):
    """In bytes. `peak` is what is live, at most; it is looked for around `near`."""
    ends = lambda units: run(build, command, conf, units * UNIT)[0]
    fails, found, step = (peak + UNIT - 1) // UNIT - 1, -(-near // UNIT), 1
    while not ends(found):
        fails, found, step = found, found + step, 2 * step
    while fails + 1 < found:
        middle = (fails + found) // 2
        if ends(middle):
            found = middle
        else:
            fails = middle
    return found * UNIT


def measure(build, name, command, confs):
    peak = max(int(found) for found in PEAK.findall(run(build, command, None, PLENTY)[1]))
    plain = least_memory(build, command, None, peak, peak)
    row = {"program": name, "peak_live_bytes": peak, "plain_bytes": plain, "least_bytes": {}}
    for conf in confs:
        run(build, command, conf, PLENTY)  # an option that is not known is told here
        row["least_bytes"][conf] = least_memory(build, command, conf, peak, plain)
    return row


def show(rows, confs):
    ratios = {conf: [row["least_bytes"][conf] / row["plain_bytes"] for row in rows]
              for conf in confs}
    mib = lambda bytes_: f"{bytes_ >> 20:,}"
    table = [[row["program"], mib(row["peak_live_bytes"]), mib(row["plain_bytes"]),
              *(cell for conf in confs for cell in (mib(row["least_bytes"][conf]),
                                                    f"{ratios[conf][i]:.3f}"))]
             for i, row in enumerate(rows)]
    for title, of in (("geometric mean", statistics.geometric_mean), ("most", max)):
        table.append([title, "", "", *(cell for conf in confs
                                       for cell in ("", f"{of(ratios[conf]):.3f}"))])
    print("MiB of the smallest device that the program fits, plainly and with the library, and the "
          "ratio:\n")
    tables.print_rows(["program", "live", "plain",
                       *(cell for conf in confs for cell in (conf or "default", "ratio"))], table)


def main(argv):
    parser = argparse.ArgumentParser(description="the smallest device that programs fit")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--output", type=pathlib.Path, help="where bench_fit.json goes")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="of fit.c; '' for none")
    parser.add_argument("--seeds", type=int, default=3, help="of each program")
    parser.add_argument("--mib", type=int, default=2048, help="live at most, of each program")
    parser.add_argument("--conf", action="append", default=[], metavar="ALLOC_CONF",
                        help="a column more")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("traces", nargs="*", type=pathlib.Path, metavar="TRACE",
                        help="a trace, or a folder of them")
    args = parser.parse_args(argv)
    confs = ["", *args.conf]
    names = [name for name in args.programs.split(",") if name]
    for name in names:
        if name not in PROGRAMS:
            parser.error(f"--programs {name}: accepted: {', '.join(PROGRAMS)}")
    work = [(f"{name} {seed}", command_of(args.build, name, seed, args.mib))
            for name in names for seed in range(1, args.seeds + 1)]
    try:
        work += [(path.name.split(".csv")[0], command_of_trace(args.build, path))
                 for path in traces_of(args.traces)]
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            rows = list(pool.map(lambda one: measure(args.build, *one, confs), work))
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"bench-fit: {error}", file=sys.stderr)
        return 1
    path = (args.output or args.build) / "bench_fit.json"
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    show(rows, confs)
    print(f"bench-fit: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
