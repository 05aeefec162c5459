#!/usr/bin/env python3
"""The hardware suite's figures: make bench-gpu, or without it `tests/gpu/measure.py --build build`.

    measure.py --build build/gpu-kit           what make gpu-kit made elsewhere
    measure.py --steps sizes,null              some of it
    SIMULATED=1 measure.py                     on the simulator, to see that the suite is whole

Micro: what a pair of allocation and free takes, by size, with threads, of pinned memory, beside the
driver's two ways, cub's allocator and PyTorch's. End to end: programs that allocate once, programs
of the tree, CUDA C programs, and steps of PyTorch, CuPy and JAX where Python has them, without and
with the shim. What they allocate is recorded, traces-*.tar.gz beside the result, and replayed.
Exit status: 0, also where an aim is missed, which is listed; 1 where a program fails, or computes
something else, under the shim; 77 where there is no GPU.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

import cuda_programs
import suite

GIB = 1 << 30
# name: (program of tests/bench, its allocator, ALLOC_CONF where the shim is preloaded)
ALLOCATORS = {
    "cudaMalloc": ("cuda", "cuda", None),
    "cudaMallocAsync": ("cuda", "ordered", None),
    "cub": ("cub", "cub", None),
    "shim": ("cuda", "cuda", "leak_report:off"),
    "shim, stacks:off": ("cuda", "cuda", "leak_report:off,stacks:off"),
}
# cub keeps blocks of up to 1 GiB, as tests/bench/peer_cub.cc sets it.
SIZES = ("256B", "4KiB", "64KiB", "1MiB", "16MiB", "256MiB", "1024MiB", "4096MiB", "16384MiB")
SHORT_SIZES = ("256B", "1MiB")
PINNED = ("4KiB", "64KiB", "1MiB", "16MiB")
THREADS = (1, 2, 4, 8, 16)
REUSE = ("", "reuse:grow", "reuse:wait")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
# For the simulator, which is as quick as the host: no figure of it says anything.
SIM = "memory:64G,kernel_ns:20000"
REST_PAIRS = 150000  # after as many, or as long, an allocator has come to rest
REST_MS = 150
NOT_JUDGED = "not judged on the simulator"
# Programs of tests/preload, as they are.
PRELOAD = [("mix", "20000"), ("threads", "8", "500"), ("graphs", "again"), ("pitched", "use"),
           ("versioned", "1")]
# Settings of a framework's own cache with which its allocations are seen, and what it runs.
POOL_OFF = {
    "torch": ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, ("training",)),
    "cupy": ({"CUPY_POOL_OFF": "1"}, ("cupy",)),
    "jax": ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, ("jax",)),
}
FRAMEWORKS = suite.ROOT / "tests" / "gpu" / "frameworks.py"
TRACES_MOST = 12 << 20  # bytes of the packed traces, the smallest first


def bytes_of(size):
    number = int(size.rstrip("BKMi"))
    return number * UNITS[size[len(str(number)):]]


class Bench:
    """A program of tests/bench, which makes the number of pairs in its arguments."""

    def __init__(self, cuda, allocator, case, threads=1, busy=False):
        program, name, conf = ALLOCATORS[allocator]
        command = [cuda.build / "bench" / program, name, case, threads] + ["busy"] * busy
        self.process = subprocess.Popen(
            [str(word) for word in command], env=cuda.environment(conf, SIM), text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, pairs, limit):
        """(ns of all, ns per pair); the reason instead, where it did not answer."""
        timer = threading.Timer(max(limit, 0.1), self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(f"{pairs}\n")
            answer = self.process.stdout.readline().split()
        except BrokenPipeError:
            answer = []
        finally:
            timer.cancel()
        if len(answer) < 2:
            raise suite.Missing(self.end())
        return int(answer[0]), int(answer[0]) / int(answer[1])

    def end(self):
        self.process.kill()
        err = self.process.communicate()[1].strip().splitlines()
        if self.process.returncode == suite.SKIPPED:
            return "has none"
        return err[-1][:100] if err else f"ended with {self.process.returncode}"

    def close(self):
        self.process.kill()
        self.process.communicate()


def number(ns):
    for unit, size in (("ms", 1e6), ("us", 1e3)):
        if ns >= size * 10:
            return f"{ns / size:,.1f} {unit}"
    return f"{ns:,.1f} ns"


class Measure:
    def __init__(self, cuda, args, where):
        self.cuda, self.args, self.where = cuda, args, where
        self.pythons = {}  # by package: (python or None, why there is none)
        self.free = where["free"]
        self.enough_ms = 1 if args.short else 20
        self.rounds = 3 if args.short else 5
        self.allocators = [name for name, (program, _, _) in ALLOCATORS.items()
                           if (cuda.build / "bench" / program).exists()]

    def pair(self, step, allocator, case, threads=1, busy=False):
        """The median of ns per pair, or the reason why there is none."""
        limit = step.left(8)
        if limit < 1:
            return "no time left"
        end = time.monotonic() + limit
        bench = Bench(self.cuda, allocator, case, threads, busy)
        try:
            pairs, took = 4, 0
            while took < self.enough_ms * 1e6 and time.monotonic() < end - limit / 2:
                pairs *= 4 if took < self.enough_ms * 1e6 / 4 else 2
                took, each = bench.run(pairs, end - time.monotonic())
            # Some change when they have seen enough.
            done, spent = 2 * pairs, 2 * took
            while not self.args.short and done < REST_PAIRS and spent < REST_MS * 1e6:
                spent += bench.run(pairs, end - time.monotonic())[0]
                done += pairs
            each = [bench.run(pairs, end - time.monotonic())[1] for _ in range(self.rounds)
                    if time.monotonic() < end - 1]
            return statistics.median(each) if each else "too slow"
        except suite.Missing as reason:
            return str(reason)
        finally:
            bench.close()

    def table(self, step, head, allocators, columns, how):
        """One row per allocator, a column for each of `columns`. {(allocator, column): ns}"""
        found, rows = {}, [("ns of a pair", *columns)]
        for column in columns:
            for allocator in allocators:
                found[allocator, column] = self.pair(step, allocator, *how(column))
        for allocator in allocators:
            cells = [found[allocator, column] for column in columns]
            rows.append((allocator, *(number(one) if isinstance(one, float) else one
                                      for one in cells)))
        step.tables.append((head, rows))
        for (allocator, column), one in found.items():
            if not isinstance(one, float) and one not in ("has none", "no time left", "too slow"):
                step.fail(f"{allocator}, {column}: {one}")
        return found

    def absent(self, step):
        for name in ALLOCATORS:
            if name not in self.allocators:
                step.notes.append(f"{name}: not found: it was not built.")

    def judge(self, step, found, columns, over, aim):
        """What the shim's pairs take, against `aim` times less than `over`."""
        if self.cuda.simulated:
            return NOT_JUDGED
        missed = []
        for column in columns:
            ours, theirs = found.get(("shim", column)), found.get((over, column))
            if isinstance(ours, float) and isinstance(theirs, float) and theirs / ours < aim:
                missed.append(f"{column}: {theirs / ours:.1f} times cheaper than {over}, aim {aim}")
        step.differences += missed
        return f"{len(columns) - len(missed)} of {len(columns)} sizes {aim}x cheaper than {over}"

    # --- micro ------------------------------------------------------------------------------------

    def sizes(self, step, busy=False):
        # A quarter of what is free stays so: frees with work in flight take memory for a while.
        sizes = [size for size in (SHORT_SIZES if self.args.short else SIZES)
                 if bytes_of(size) <= self.free * 3 // 4]
        found = self.table(step, "One thread, " + ("kernels of 20 us in flight all the time"
                                                   if busy else "the GPU idle"),
                           self.allocators, sizes, lambda size: (f"hot_{size}", 1, busy))
        self.absent(step)
        small = [size for size in sizes if bytes_of(size) <= 1 << 20]
        return "; ".join(dict.fromkeys([self.judge(step, found, small, "cudaMalloc", 100),
                                        self.judge(step, found, small, "cudaMallocAsync", 10)]))

    def busy(self, step):
        step.notes.append("The work in flight is a kernel from PTX, which the driver compiles.")
        return self.sizes(step, busy=True)

    def threads(self, step):
        counts = THREADS[::2] if self.args.short else THREADS
        self.table(step, "64 KiB, wall time over the pairs of all threads; threads",
                   self.allocators, [str(count) for count in counts],
                   lambda count: ("hot_64KiB", int(count)))
        return f"1 to {counts[-1]} threads"

    def pinned(self, step):
        sizes = PINNED[:2] if self.args.short else PINNED
        self.table(step, "Pinned memory", ["cudaMalloc", "shim", "shim, stacks:off"], sizes,
                   lambda size: (f"pinned_{size}",))
        return f"{len(sizes)} sizes"

    # --- end to end -------------------------------------------------------------------------------

    def null(self, step):
        """Where nothing can be gained, nothing may be lost."""
        benches = [Bench(self.cuda, name, "once_1") for name in ("cudaMalloc", "shim")]
        ms, rounds = (5, 3) if self.args.short else (120, 15)
        try:
            warm = max(bench.run(4, step.left(20))[1] for bench in benches)
            steps = max(4, int(ms * 1e6 / warm))
            figures = [[], []]
            for which in [0, 1, 1, 0] * rounds:  # in turns, as clocks change
                figures[which].append(benches[which].run(steps, step.left(20))[1])
            plain, ours = (statistics.median(each) for each in figures)
        except suite.Missing as reason:
            step.fail(str(reason))
            return "a program that allocates once did not end"
        finally:
            for bench in benches:
                bench.close()
        more = (ours / plain - 1) * 100
        step.tables.append(("A step of 64 MiB set and waited for, of a program that allocates once",
                            [("without", "with the shim", "more"),
                             (number(plain), number(ours), f"{more:+.2f}%")]))
        if self.cuda.simulated:
            return NOT_JUDGED
        if more > 0.5:
            step.differences.append(f"{more:+.2f}% with the shim, aim 0.5%")
        return f"{more:+.2f}% with the shim, aim 0.5%"

    def programs(self, step):
        """Programs of the tree as they are, from start to end."""
        folder = self.cuda.build / "tests" / "preload"
        commands = PRELOAD[::2] if self.args.short else PRELOAD
        rows = [("program, wall time", "without", "with the shim")]
        for left, command in zip(range(len(commands), 0, -1), commands):
            times = {None: [], "leak_report:off": []}
            end = time.monotonic() + step.left() / left
            for turn, conf in enumerate(list(times) * (1 if self.args.short else 5)):
                if turn >= 2 and turn % 2 == 0 and time.monotonic() > end:
                    break
                ran = self.cuda.run([folder / command[0], *command[1:]], step.left(20), conf, SIM)
                times[conf].append(ran.seconds * 1e9)
                if ran.rc != 0:
                    step.fail(f"{' '.join(command)}, {conf or 'without the shim'}: "
                              f"{ran.last_line()}")
            rows.append((" ".join(command), *(number(statistics.median(one))
                                              for one in times.values())))
        step.tables.append(("", rows))
        return f"{len(rows) - 1} programs, {len(step.failures)} failed"

    def nvcc(self, step):
        """CUDA C programs, in turns without and with the shim, by their own clock."""
        cuda_programs.needed(self.cuda)
        rows = [("ms, median (least to most), runs", "without", "with the shim", "more",
                 "expected")]
        kind, static = cuda_programs.kinds(self.cuda)[0]
        for left, (name, (rounds, few, _, expected)) in zip(
                range(len(cuda_programs.PROGRAMS), 0, -1), cuda_programs.PROGRAMS.items()):
            command = cuda_programs.command(self.cuda, name, few if self.args.short else rounds,
                                            static=static)
            end = time.monotonic() + step.left() / left
            most = cuda_programs.NULL_CONTROLS.get(name)
            figures, why = self.in_turns(command, 4 if self.args.short else 30 if most else 14, end)
            if why:
                step.fail(f"{name}: {why}")
                continue
            plain, ours = (statistics.median(each) for each in figures)
            more = (ours / plain - 1) * 100
            rows.append((name, *(f"{statistics.median(each):,.2f} ({min(each):,.2f} to "
                                 f"{max(each):,.2f}), {len(each)}" for each in figures),
                         f"{more:+.2f}%", expected))
            if most and more > most and not self.cuda.simulated:
                step.differences.append(f"{name}: {more:+.2f}% with the shim, aim {most}%")
            elif expected == "less" and more > 0 and not self.cuda.simulated:
                step.differences.append(f"{name}: {more:+.2f}% with the shim, expected less")
        step.tables.append((f"CUDA C programs, {kind} runtime", rows))
        return f"{len(rows) - 1} programs, {len(step.failures)} failed" + (
            "; " + NOT_JUDGED if self.cuda.simulated else
            f", {len(step.differences)} not as expected")

    def in_turns(self, command, turns, end):
        """([ms without], [ms with the shim]), why they cannot be compared or "")."""
        figures, results = ([], []), set()
        for turn in range(turns):
            which = turn % 4 in (1, 2)  # in turns, as clocks change
            if turn >= 4 and time.monotonic() > end:
                break
            ran = self.cuda.run(command, 40, "leak_report:off" if which else None,
                                cuda_programs.SIM)
            answer, why = cuda_programs.said(ran)
            if not answer:
                return figures, f"{'with' if which else 'without'} the shim: {why}"
            figures[which].append(answer["ms"])
            results.add(answer["result"])
        return figures, "" if len(results) == 1 else "computes something else with the shim"

    # --- traces -----------------------------------------------------------------------------------

    def recordings(self, step):
        """(name, command, what its environment needs besides), of programs that can run here."""
        if (self.cuda.build / "programs" / "shared" / "streams").exists():
            _, static = cuda_programs.kinds(self.cuda)[0]
            for name, (rounds, few, serves, _) in cuda_programs.PROGRAMS.items():
                if serves:
                    yield name, cuda_programs.command(self.cuda, name, min(rounds, few * 10),
                                                      static=static), None
        for words in PRELOAD:
            yield words[0], [self.cuda.build / "tests" / "preload" / words[0], *words[1:]], None
        for package, (off, cases) in POOL_OFF.items():
            try:
                python = self.python_with(package)
            except suite.Missing as reason:
                step.notes.append(f"{reason}.")
                continue
            for case in cases:
                yield case, [python, "-B", FRAMEWORKS, case, 1], {**suite.OWN_LIBRARIES, **off}

    def traces(self, step):
        """What programs allocate, recorded for build/replay, small enough to be kept."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            for name, command, more in self.recordings(step):
                trace = folder / f"{name}.csv"
                # A process that it starts leaves one of its own, numbered.
                ran = self.cuda.run(command, step.left(40), f"leak_report:off,record:{trace}",
                                    cuda_programs.SIM, more=more)
                if ran.rc != 0:
                    step.fail(f"{name}, record: {ran.last_line()}")
                elif not trace.exists():
                    step.fail(f"{name}: nothing was recorded")
            kept = self.pack(step, folder, sorted(folder.iterdir(), key=lambda p: p.stat().st_size))
            self.replay(step, folder)
        return f"{kept} traces, {len(step.failures)} failed"

    def pack(self, step, folder, traces):
        where = self.args.output or (self.cuda.build / "gpu" if self.cuda.simulated
                                     else suite.ROOT / "tests/gpu/results")
        where.mkdir(parents=True, exist_ok=True)
        path = where / (("traces" if self.cuda.simulated
                         else suite.file_name("traces", self.where)) + ".tar.gz")
        rows = [("trace", "lines", "bytes")]
        with tarfile.open(path, "w:gz") as archive:
            for trace in traces:
                # Text of numbers packs to a third at worst.
                if path.stat().st_size + trace.stat().st_size // 3 > TRACES_MOST:
                    step.notes.append(f"{trace.name}: {trace.stat().st_size:,} bytes, not kept.")
                    trace.unlink()
                    continue
                archive.add(trace, trace.name)
                archive.fileobj.flush()
                with open(trace, "rb") as lines:
                    rows.append((trace.name, f"{sum(1 for _ in lines):,}",
                                 f"{trace.stat().st_size:,}"))
        step.tables.append((f"{path.name}, {path.stat().st_size:,} bytes", rows))
        return len(rows) - 1

    def replay(self, step, folder):
        """On the simulator wherever it runs: what the pool holds for a trace, beside PyTorch's."""
        program = self.cuda.build / "replay"
        if not program.exists():
            step.notes.append("Not replayed: there is no replay in this build.")
            return
        simulator = suite.Cuda(self.cuda.build, self.cuda.library, str(self.cuda.build / "simcuda"),
                               True)
        ran = simulator.run([program, "--table", folder], step.left(60))
        if ran.rc != 0 and "error while loading shared libraries" in ran.err:
            step.notes.append(f"Not replayed: {ran.err.strip()[:200]}.")
        elif ran.rc != 0:
            step.fail(f"replay: {ran.last_line()}")
        else:
            rows = [("trace", "live MiB", "cachealloc", "pytorch", "calls", "its calls", "ns/op")]
            rows += [words for line in ran.out.splitlines()
                     if len(words := line.split()) == len(rows[0]) and words[0].endswith(".csv")]
            step.tables.append(("Replayed on the simulator: peak of live bytes over peak of held",
                                rows))
            if len(rows) == 1:
                step.fail(f"replay printed no table: {ran.out[:200]!r}")

    # --- frameworks -------------------------------------------------------------------------------

    def python_with(self, package):
        """A python that can import the package and sees the GPU with it."""
        if package not in self.pythons:
            try:
                self.pythons[package] = suite.python_with(self.cuda, package), ""
            except suite.Missing as reason:
                self.pythons[package] = None, str(reason)
        python, why = self.pythons[package]
        if not python:
            raise suite.Missing(why)
        return python

    def framework(self, step, python, what, runs, share=1.0):
        """Runs frameworks.py in several ways: {way: what it says}. The first is what the others are
        compared with, where it computes the same once more."""
        answers, again = {}, "once more"
        runs = [runs[0], (again, *runs[0][1:]), *runs[1:]]
        # Half a dozen seconds and more to import it.
        seconds = min(8.0, max(1.0, step.left() * share / len(runs) - 8))
        for way, conf, more in runs:
            command = [python, "-B", FRAMEWORKS, what, f"{seconds:.1f}"]
            more = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **suite.OWN_LIBRARIES, **more}
            ran = self.cuda.run(command, step.left(60), conf, more=more)
            try:
                answers[way] = json.loads(ran.out.strip().splitlines()[-1])
            except (ValueError, IndexError):
                if way == runs[0][0]:  # without the shim: it says nothing about that
                    raise suite.Missing(f"{what} does not run here: {ran.last_line()}") from None
                step.fail(f"{what}, {way}: {ran.last_line()}")
        first = runs[0][0]
        repeated = answers.pop(again, {})
        names = list(answers[first])
        for name in names:
            if repeated.get(name, {}).get("result") != answers[first][name]["result"]:
                step.notes.append(f"{what}, {name}: computes something else each time, so that "
                                  "results are not compared.")
                answers[first][name]["result"] = None
        rows = [(what, *names)]
        for way, said in answers.items():
            rows.append((way, *(f"{said[name]['step_ms']:.3f} ms, {said[name]['held_mib']:,.0f} MiB"
                                for name in names if name in said)))
            for name in names:
                expected = answers[first][name]["result"]
                if expected is not None and said.get(name, {}).get("result") != expected:
                    step.fail(f"{what}, {name}: another result {way} than {first}")
        step.tables.append((f"{what}: the median of a step, and what is in use of the GPU's memory",
                            rows))
        return answers

    def torch(self, step):
        python = self.python_with("torch")
        off = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        runs = [("natively", None, {}), ("without its cache", None, off)]
        runs += [(f"without it, with the shim{', ' + reuse if reuse else ''}",
                  ",".join(filter(None, ("leak_report:off,stacks:off", reuse))), off)
                 for reuse in REUSE]
        answers = self.framework(step, python, "training", runs, 0.85)
        worst = 0.0
        for way in list(answers)[2:]:
            for name, said in answers[way].items():
                more = (said["step_ms"] / answers["natively"][name]["step_ms"] - 1) * 100
                worst = max(worst, more)
                if more > 2:
                    step.differences.append(f"{name}, {way}: {more:+.1f}% step time, aim 2%")
                held = answers["natively"][name]["held_mib"]
                if held and said["held_mib"] / held > 1.02:
                    step.differences.append(f"{name}, {way}: {said['held_mib']:,.0f} MiB in use, "
                                            f"natively {held:,.0f}, aim 2%")
        pairs = self.framework(step, python, "pairs", [("natively", None, {})])
        step.notes.append("Pairs of PyTorch's allocator are asked for through Python, which takes "
                          "part of the time." if pairs else "PyTorch's pairs: not measured.")
        return f"a step takes {worst:+.1f}% at most beside PyTorch's own cache, aim 2%"

    def cupy(self, step):
        python = self.python_with("cupy")
        self.framework(step, python, "cupy", [("its pool", None, {}),
                                              ("pool off", None, {"CUPY_POOL_OFF": "1"}),
                                              ("pool off, with the shim",
                                               "leak_report:off,stacks:off",
                                               {"CUPY_POOL_OFF": "1"})])
        return f"{len(step.failures)} failed"

    def jax(self, step):
        python = self.python_with("jax")
        plain = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
        grows = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self.framework(step, python, "jax", [("its pool", None, grows), ("pool off", None, plain),
                                             ("pool off, with the shim",
                                              "leak_report:off,stacks:off", plain)])
        return f"{len(step.failures)} failed"


def main():
    parser = suite.arguments(__doc__.splitlines()[0])
    args = parser.parse_args()
    # Seconds for each.
    limits = {"sizes": 50, "busy": 60, "threads": 25, "pinned": 15, "null": 15, "programs": 20,
              "nvcc": 35, "torch": 130, "cupy": 25, "jax": 25, "traces": 40}
    suite.chosen([(name, None, None) for name in limits], args, parser)
    cuda = suite.find(args, "bench-gpu")
    where = suite.machine(cuda)
    measure = Measure(cuda, args, where)
    steps = suite.chosen([(name, getattr(measure, name), limit) for name, limit in limits.items()],
                         args, parser)
    done = suite.run_steps("bench-gpu", steps, args.seconds)
    for step in done:
        for title, rows in step.tables:
            print(f"\n{step.name}{': ' + title if title else ''}\n\n{suite.text_table(rows)}")
    return suite.keep("bench", "Hardware suite, figures", where, done, args)


if __name__ == "__main__":
    sys.exit(main())
