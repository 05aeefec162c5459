#!/usr/bin/env python3
"""How much of the memory that is held for traces is live at the peak, in one table:

    replays.py PATH...             traces, or folders of them    (make bench-replay TRACES=DIR)

Each trace is replayed (tests/replay) with kernels in flight and on an idle device, three and
sixteen passes, by the library with `reuse:auto` and `reuse:order`, and by the model of PyTorch's
allocator, which is the same either way, as it serves one stream. Idle a replay holds the same
each time. With kernels in flight, or with several threads, it depends on the machine's pace: the
ways take turns for some rounds, and a cell is the median, with the least and the most. All of it is
in bench_replay.json too.

A change that touches nothing of substance moves a single trace by several points:
`--scale 1,0.83,1.27` replays each with all sizes smaller and larger too.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import tables

PASSES = (16, 3)
# (title, flags of replay, policy, ALLOC_CONF); what programs do comes first.
WAYS = [*((f"{state}, {passes}, {reuse}", [*flags, "--passes", str(passes)], "cachealloc",
           f"reuse:{reuse}")
          for state, flags in (("busy", ["--busy"]), ("idle", []))
          for passes in PASSES for reuse in ("auto", "order")),
        *((f"pytorch, {passes}", ["--passes", str(passes)], "pytorch", None) for passes in PASSES)]
DEVICE = "memory:80G"
LIMIT_S = 600  # for one way, all traces


class Failed(Exception):
    pass


def traces_of(paths):
    """The traces of files and folders, as replay takes them."""
    traces = []
    for path in paths:
        inside = sorted(one for one in path.glob("*.csv*")
                        if one.name.endswith((".csv", ".csv.gz"))) if path.is_dir() else [path]
        if not inside:
            raise Failed(f"{path}: no traces (*.csv, *.csv.gz)")
        traces += inside
    return traces


def replay(args, path, flags, policy, conf):
    """What replay tells of one trace."""
    env = {key: value for key, value in os.environ.items()
           if key not in ("ALLOC_CONF", "CACHEALLOC_CONF", "LD_PRELOAD", "SIMCUDA")}
    env["SIMCUDA"] = DEVICE
    if conf:
        env["ALLOC_CONF"] = conf
    command = [args.build / "replay", "--json", "--policy", policy, *flags, path]
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise Failed(done.stderr.strip() or f"replay ended with {done.returncode}")
    row, = json.loads(done.stdout)
    return row


def scaled(args):
    """(path, what is added to its name, flags of replay), for each trace in each scale."""
    for scale in args.scale:
        for path in traces_of(args.paths):
            if scale == 1:
                yield path, "", []
                continue
            row = replay(args, path, ["--passes", "1"], "pytorch", None)
            kib = max(1, round(row["peak_live_bytes"] * scale / 1024))
            yield path, f" x{scale:g}", ["--live", str(kib)]


def measure(args):
    """(trace, way, peak live bytes, efficiencies), for each."""
    found = {}
    traces = list(scaled(args))
    for number in range(args.rounds):
        for title, flags, policy, conf in WAYS:
            flags = [*flags, "--threads", str(args.threads)]
            if number and (policy == "pytorch" or "--busy" not in flags and args.threads == 1):
                continue
            if sys.stderr.isatty():
                print(f"\r\033[K{number + 1} of {args.rounds}: {title}", end="", file=sys.stderr)
            for path, suffix, more in traces:
                row = replay(args, path, [*flags, *more], policy,
                             conf and ",".join([conf, *args.conf]))
                name = row["trace"] + suffix
                one = found.setdefault((name, title), {
                    "trace": name, "way": title, "peak_live_bytes": row["peak_live_bytes"],
                    "efficiencies": []})
                one["efficiencies"].append(row["efficiency"])
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return list(found.values())


def cell(values):
    text = f"{statistics.median(values):.3f}"
    return text if len(values) == 1 else f"{text} ({min(values):.3f}..{max(values):.3f})"


def show(results):
    ways = [way[0] for way in WAYS]
    traces = {one["trace"]: one["peak_live_bytes"] for one in results}
    values = {(one["trace"], one["way"]): one["efficiencies"] for one in results}
    rows = [[trace, f"{live / (1 << 20):,.1f}", *(cell(values[trace, way]) for way in ways)]
            for trace, live in traces.items()]
    means = []
    for way in ways:
        # Of each round, so that their spread is that of the mean.
        rounds = zip(*(values[trace, way] for trace in traces))
        means.append(cell([statistics.geometric_mean(one) for one in rounds]))
    rows.append(["geometric mean", "", *means])
    print("peak live / peak held; kernels of 100 us in flight (busy) or none (idle), passes, "
          "reuse; median (least..most of the rounds):\n")
    tables.print_rows(["trace", "live MiB", *ways], rows)


def main(argv):
    parser = argparse.ArgumentParser(description="memory held for traces, in one table")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--rounds", type=int, default=3,
                        help="of each way with kernels in flight, or with several threads")
    parser.add_argument("--scale", default="1", metavar="FACTOR,...",
                        help="each trace with its sizes by so much")
    parser.add_argument("--threads", type=int, default=1, help="that share each trace out")
    parser.add_argument("--conf", action="append", default=[], metavar="ALLOC_CONF",
                        help="added to what the ways have")
    parser.add_argument("--output", type=pathlib.Path, help="where bench_replay.json goes")
    parser.add_argument("paths", nargs="+", type=pathlib.Path, metavar="PATH",
                        help="a trace, or a folder of them")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: accepted is 1 or more")
    try:
        args.scale = [float(scale) for scale in args.scale.split(",")]
    except ValueError:
        args.scale = [0]
    if min(args.scale) <= 0:
        parser.error("--scale: accepted are positive numbers with commas between")
    try:
        results = measure(args)
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"bench-replay: {error}", file=sys.stderr)
        return 1
    path = (args.output or args.build) / "bench_replay.json"
    path.write_text("[\n" + ",\n".join(json.dumps(one) for one in results) + "\n]\n")
    show(results)
    print(f"bench-replay: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
