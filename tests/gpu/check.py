#!/usr/bin/env python3
"""The hardware suite's checks: make check-gpu, or `tests/gpu/check.py --build build` without make.

    check.py --build build/gpu-kit            what make gpu-kit made elsewhere
    check.py --steps parity,random            some of it
    SIMULATED=1 check.py                      on the simulator, to see that the suite is whole

Exit status: 0, 1 where a step failed, 77 where there is no GPU. A step fails where the shim changes
what a program does. Where the machine differs from the simulator or from tests/parity/table.tsv,
that is listed: the simulator or the table is then to be mended (design.md 12). On the simulator itself
it is a failure. Plain allocations only; no setting of the card is touched.
"""

import concurrent.futures
import os
import re
import sys
import tempfile
import threading

import compare_facts
import cuda_programs
import order_questions
import preload_programs
import suite
import vmm_questions

# The warm-up ends early, so that short programs run in it and after it.
CONF = "x_warmup:16,leak_report:off,oom_report:off"
STATISTICS = CONF + ",stats:exit"
SERVED = re.compile(r"served from cached memory +(\d+)")
BY_KERNELS = re.compile(r"(\d+) by kernels")
GROUPS = ("platform", "codes_runtime", "codes_driver", "codes_context", "first_call", "free_waits",
          "record_covers", "record_rules", "record_gone", "green", "capture", "others_wait",
          "stream_order", "entry_points", "layout", "address_range", "ipc", "pinned_flags",
          "after_reset", "sticky", "handles", "set_device", "teardown", "alloc_cost", "call_cost")
# Of these, what a process with the shim is answered as well.
ANSWERED = ("codes_runtime", "codes_driver", "codes_context", "first_call", "capture",
            "after_reset", "sticky", "handles", "set_device", "teardown")
# Cases of error parity that must run alone.
FILLS = ("malloc_more_than_is_left",)
SHORT_GROUPS = ("platform", "codes_runtime", "codes_driver", "layout", "capture")
PROFILES = ("mixed", "churn", "nonblocking", "threads", "async", "pinned", "api", "graphs", "peers",
            "contexts", "resets")
# In turns, beside the pool as it is.
MORE = ("backend:async", "debug:frees+poison+redzone", "debug:zero,x_warmup:16", "reuse:grow,x_warmup:16",
        "free_sync:true,x_warmup:16", "reuse:wait,x_warmup:16")
NO_TIME = "not run: no time was left"


def at_once(jobs, function, items):
    """The results in the order of the items. A program that fails is its result, not ours."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(function, items))


# --- facts ----------------------------------------------------------------------------------------


class Check:
    def __init__(self, cuda, simulator, args):
        self.cuda, self.simulator, self.args = cuda, simulator, args
        self.tests = cuda.build / "tests"

    def ask(self, cuda, groups, step, label):
        facts = []
        for group in groups:
            if step.left() < 1:
                step.fail(f"{group}: no time left")
                continue
            try:
                facts += suite.facts_of(cuda, group, step.left(), label)
            except RuntimeError as error:
                step.fail(f"{label}: {error}")
        return facts

    def facts(self, step):
        groups = SHORT_GROUPS if self.args.short else GROUPS
        simulators = []
        # Beside the machine's: they take no GPU, and most of their time is waiting.
        beside = threading.Thread(target=lambda: simulators.extend(
            self.ask(self.simulator, groups, step, "the simulator")))
        beside.start()
        facts = self.ask(self.cuda, groups, step, "this machine")
        beside.join()
        lines, step.differences, alone = compare_facts.compare(facts, simulators)
        step.notes.append(f"{len(alone)} rows have no like on the simulator"
                          + (f", of {', '.join(sorted({one.split(':')[0] for one in alone}))}."
                             if alone else "."))
        if not lines:
            step.fail("nothing could be compared")
        if self.cuda.simulated:
            for one in step.differences:
                step.fail(f"the simulator differs from itself: {one}")
        step.data = facts
        return f"{len(facts)} facts, {lines} lines compared, {len(step.differences)} differ"

    def answers(self, step):
        """The same questions to a process with the shim: many codes for the price of one start."""
        groups = SHORT_GROUPS[1:3] if self.args.short else ANSWERED
        lines = 0
        for conf in (CONF, CONF + ",backend:off"):
            for group in groups:
                if step.left() < 2:
                    step.fail(f"{group}: {NO_TIME}")
                    continue
                plain, ours = (suite.facts_of(self.cuda, group, step.left(), conf=one)
                               for one in (None, conf))
                compared, changed, _ = compare_facts.compare(plain, ours, "the shim")
                lines += compared
                step.failures += [f"{conf}: {one}" for one in changed
                                  if not compare_facts.intended(one, conf.endswith("backend:off"))]
        return f"{lines} lines compared, {len(step.failures)} changed by the shim"

    # --- reuse in order, virtual memory ----------------------------------------------------------

    def asked(self, step, questions):
        """(facts, what to say of them): a table for each, compared with what the simulator, and so
        the library's tests, take for granted."""
        simulators = []
        beside = threading.Thread(target=lambda: simulators.extend(
            self.ask(self.simulator, questions.GROUPS, step, "the simulator")))
        beside.start()
        facts = self.ask(self.cuda, questions.GROUPS, step, "this machine")
        beside.join()
        lines, step.differences, _ = compare_facts.compare(facts, simulators)
        step.tables += questions.tables(facts)
        if self.cuda.simulated:
            for one in step.differences:
                step.fail(f"the simulator differs from itself: {one}")
        return facts, f"{lines} answers, {len(step.differences)} not the simulator's"

    def order(self, step):
        facts, says = self.asked(step, order_questions)
        step.data = facts + order_questions.launches(step, self.cuda)
        return says

    def vmm(self, step):
        step.data, says = self.asked(step, vmm_questions)
        return says

    # --- programs of tests/preload ----------------------------------------------------------------

    def command(self, words, scratch):
        words = [word.format(scratch=scratch, programs=self.tests / "preload") for word in words]
        return [self.tests / "preload" / words[0], *words[1:]]

    def preload(self, step):
        with tempfile.TemporaryDirectory() as folder:
            def both(row):
                words, compared = row
                if step.left() < 1:
                    return NO_TIME, 0
                ran = []
                for conf in (None, STATISTICS):
                    scratch = os.path.join(folder, f"{threading.get_ident()}-{len(ran)}")
                    ran.append(self.cuda.run(self.command(words, scratch), step.left(30), conf,
                                             cwd=folder))
                return self.judged(words, compared, *ran)

            def alone(row):
                words, status = row
                if step.left() < 1:
                    return NO_TIME
                ran = self.cuda.run(self.command(words, os.path.join(folder, "alone")),
                                    step.left(30), CONF, cwd=folder)
                return "" if ran.rc == status else f"with the shim: {ran.ended()}: {says(ran.err)}"

            same = preload_programs.SAME[::4] if self.args.short else preload_programs.SAME
            own = preload_programs.SHIM[::4] if self.args.short else preload_programs.SHIM
            shared, whole = ([row for row in same if (row[0][0] in preload_programs.WHOLE) == one]
                             for one in (False, True))
            said = at_once(1, both, whole) + at_once(self.args.jobs, both, shared)
            answers = list(zip([words for words, _ in whole + shared + own],
                               [one for one, _ in said] + at_once(self.args.jobs, alone, own)))
        skipped = [(" ".join(words), why[9:]) for words, why in answers
                   if why.startswith("skipped: ")]
        for words, why in answers:
            if why and not why.startswith("skipped: "):
                step.fail(f"{' '.join(words)}: {why}")
        served = sum(count for _, count in said)
        if served == 0:
            step.fail("the shim served nothing: was it loaded?")
        step.notes.append(f"Left out: {len(preload_programs.LEFT_OUT)} programs, each with its "
                          f"reason in tests/gpu/preload_programs.py. Skipped by themselves: "
                          f"{'; '.join(f'{name} ({why})' for name, why in skipped) or 'none'}.")
        return (f"{len(answers)} programs, {len(step.failures)} failed, {len(skipped)} skipped, "
                f"{served} allocations served from cached memory")

    @staticmethod
    def judged(words, compared, plain, ours):
        """(what is wrong or "", allocations that the pool served)"""
        served = SERVED.search(ours.err)
        count = int(served[1]) if served else 0
        if plain.rc is None or (plain.rc == suite.SKIPPED and ours.rc == suite.SKIPPED):
            why = plain.ended() if plain.rc is None else plain.out.strip() or "no reason given"
            # What hangs without the shim says nothing about it.
            return f"skipped: {why}" if plain.rc is not None else f"without the shim: {why}", count
        if plain.rc != ours.rc:
            return (f"without the shim {plain.last_line()}; with it {ours.ended()}: "
                    f"{says(ours.err)}"), count
        if plain.rc == 1:  # of a check that does not hold, which every program of SAME passes
            return f"in either case {plain.last_line()}", count
        if compared != preload_programs.STATUS and plain.out != ours.out:
            pairs = zip(plain.out.splitlines() + [""], ours.out.splitlines() + [""])
            first = next((pair for pair in pairs if pair[0] != pair[1]), ("", "a line more"))
            return f"prints {first[1]!r} with the shim, {first[0]!r} without it", count
        return "", count

    # --- error parity -----------------------------------------------------------------------------

    def parity(self, step):
        lines = [line.split("\t") for line in
                 (suite.ROOT / "tests/parity/table.tsv").read_text(encoding="utf-8").splitlines()
                 if line and not line.startswith("#")]
        rows = [dict(zip(lines[0], line)) for line in lines[1:]]
        left_out = [] if self.cuda.simulated else [
            row for row in rows if "runtime:" in row["sim"] or "sticky" in row["case"]
            or ("devices:2" in row["sim"] and self.args.gpus < 2)]
        rows = [row for row in rows if row not in left_out]
        rows = rows[::6] if self.args.short else rows
        program = self.tests / "parity" / "parity"

        def answers(row):
            if step.left() < 1:
                return None, None, None

            def asked(conf):
                ran = self.cuda.run([program, row["case"]], step.left(30), conf, row["sim"])
                return ran.out.strip() if ran.rc == 0 else f"{ran.ended()}: {says(ran.err)}"
            return asked(None), asked(CONF), asked(CONF + ",backend:off")

        # Beside a case that leaves nothing of the device another one has no context.
        whole = [row for row in rows if row["case"] in FILLS]
        rows = whole + [row for row in rows if row not in whole]
        said = (at_once(1, answers, whole)
                + at_once(self.args.jobs, answers, rows[len(whole):]))
        for row, (plain, ours, off) in zip(rows, said):
            table = f"{row['code']} {row['last error']} {row['output']}"
            if plain is None:
                step.fail(f"{row['case']}: {NO_TIME}")
                continue
            allowed = [plain] + [one.strip() for one in row["with shim"].split("|") if one.strip()]
            if ours not in allowed:
                step.fail(f"{row['case']}: {ours} with the shim, {plain} without it")
            if off != plain:
                step.fail(f"{row['case']}: {off} with backend:off, {plain} without the shim")
            if plain != table:
                step.differences.append(f"{row['case']}: here {plain}, the table {table}")
        if self.cuda.simulated:
            step.failures += step.differences
        if left_out:
            step.notes.append(f"Left out, {len(left_out)}: "
                              f"{', '.join(row['case'] for row in left_out)}: these need the "
                              f"simulator or a second GPU.")
        changed = len(step.failures) - self.cuda.simulated * len(step.differences)
        return (f"{len(rows)} cases, {changed} changed by the shim, "
                f"{len(step.differences)} differ from the table")

    # --- random programs --------------------------------------------------------------------------

    def random(self, step):
        """Every byte is looked at by the program itself; what it prints must be the same."""
        ops = 300 if self.args.short else 1000
        seeds = [(seed, profile) for seed in range(1, 2 if self.args.short else 1000)
                 for profile in PROFILES]
        program = self.cuda.build / "random"
        # The simulator reports races besides; real CUDA has no such report.
        sim = "racecheck:1,devices:2"

        def both(seed_profile):
            seed, profile = seed_profile
            if step.left() < min(5, step.limit / 4) or len(step.failures) >= 5:
                return None
            name = f"seed {seed}, profile {profile}, {ops} operations"
            command = [program, "--seed", seed, "--ops", ops, "--profile", profile]
            plain = self.cuda.run(command, step.left(40), None, sim)
            if plain.rc is None:  # what takes too long without the shim says nothing about it
                step.notes.append(f"{name}: no end after {plain.seconds:.0f} s without the shim.")
                return None
            if plain.rc != 0:
                step.fail(f"{name}, without the shim: {plain.last_line()}")
                return 0, 0, 0
            served = 0
            more = MORE[(seed + len(profile)) % len(MORE)]
            for conf in ("x_warmup:16", "x_runtime_hooks:false,x_warmup:16", more):
                ours = self.cuda.run(command, step.left(40),
                                     f"leak_report:off,stats:exit,{conf}", sim)
                if ours.rc is None and step.left() < 1:
                    return None
                found = SERVED.search(ours.err)
                served += int(found[1]) if found else 0
                if ours.rc != 0:
                    step.fail(f"{name}, {conf}: {ours.ended()}: {says(ours.err)}")
                elif not found:
                    step.fail(f"{name}, {conf}: the shim printed no statistics")
                elif ours.out != plain.out:
                    step.fail(f"{name}, {conf}: prints {ours.out.strip()}, without the shim "
                              f"{plain.out.strip()}")
            return 4, served, int(BY_KERNELS.search(plain.out)[1])

        done = [one for one in at_once(self.args.jobs, both, seeds) if one]
        kernels = sum(count for _, _, count in done)
        if not kernels and not self.cuda.simulated:
            step.differences.append("No kernel took part: the driver did not compile the PTX of "
                                    "tests/random/kernels.c, or what it made did not run.")
        step.notes.append(f"Contents are written by cudaMemset, copies and {kernels} kernels, "
                          f"which look again at what they wrote, and verified byte by byte.")
        served = sum(count for _, count, _ in done)
        if not served:
            step.fail("nothing was served from cached memory")
        return (f"{len(done)} programs of {ops} operations, "
                f"{sum(runs for runs, _, _ in done)} runs, {served} allocations served from cached "
                "memory")

    # --- programs for nvcc, kinds of processes ----------------------------------------------------

    def kernels(self, step):
        """CUDA C programs: kernels write and verify, and what each computes must be the same."""
        cuda_programs.needed(self.cuda)
        cases = [(name, kind, static) for name in cuda_programs.PROGRAMS
                 for kind, static in cuda_programs.kinds(self.cuda)]
        confs = (None, STATISTICS, STATISTICS + ",x_runtime_hooks:false", STATISTICS + ",reuse:grow")

        def run(case):
            name, kind, static = case
            rounds, few, serves, _ = cuda_programs.PROGRAMS[name]
            command = cuda_programs.command(self.cuda, name, few if self.args.short else rounds,
                                            static=static)
            first, served = None, 0
            for conf in confs:
                label = f"{name}, {kind} runtime, {conf or 'without the shim'}"
                if step.left() < 1:
                    return [f"{label}: {NO_TIME}"], served
                ran = self.cuda.run(command, step.left(40), conf, cuda_programs.SIM)
                answer, why = cuda_programs.said(ran)
                if not answer:
                    return [f"{label}: {why}"], served
                first = first or answer["result"]
                found = SERVED.search(ran.err)
                served += int(found[1]) if found else 0
                if answer["result"] != first:
                    return [f"{label}: computes {answer['result']}, {first} without it"], served
                if conf and (not found or (serves and found[1] == "0")):
                    return [f"{label}: the pool served nothing"], served
            return [], served

        # Kernels of one process hold another's back: no more than a few at a time.
        said = at_once(min(3, self.args.jobs), run, cases)
        for failures, _ in said:
            step.failures += failures
        return (f"{len(cases)} programs, {len(step.failures)} failed, "
                f"{sum(count for _, count in said)} allocations served from cached memory"
                + self.can_fail(step))

    def can_fail(self, step):
        """A list that gives memory away too early must be noticed, or the check shows nothing."""
        if self.cuda.simulated:
            return "; results not looked at on the simulator"
        ran = self.cuda.run(cuda_programs.command(self.cuda, "streams", 500, "unsafe"),
                            step.left(30))
        if ran.rc != 1 or '"failed"' not in ran.out:
            step.fail(f"streams, unsafe: memory given away too early is not noticed: "
                      f"{ran.last_line()}")
        return "; unsafe reuse is noticed" if ran.rc == 1 else ""

    def processes(self, step):
        """The kinds of processes of tests/matrix that make sense on any CUDA."""
        matrix, programs = self.tests / "matrix", self.cuda.build / "programs"
        if not (matrix / "shared").exists():
            raise suite.Missing("tests/matrix was not built")
        rows = cuda_programs.PROCESSES
        if self.cuda.simulated or not (programs / "linked_static").exists():
            rows = [row for row in rows if not row[2]]
            step.notes.append("Without those with the toolkit's static runtime, which "
                              + ("needs a real driver." if self.cuda.simulated else
                                 "was not there where this was built."))
        path = {"LD_LIBRARY_PATH": f"{self.cuda.env['LD_LIBRARY_PATH']}:{matrix}".lstrip(":")}

        def both(row):
            name, words, _, served = row
            if step.left() < 1:
                return f"{name}: {NO_TIME}"
            command = cuda_programs.process(self.cuda, words)
            plain, ours = (self.cuda.run(command, step.left(40), conf, more=path)
                           for conf in (None, STATISTICS))
            if plain.rc != 0 or cuda_programs.SUM not in plain.out:
                return f"{name}, without the shim: {plain.last_line()}"
            if (ours.rc, ours.out) != (plain.rc, plain.out):
                return f"{name}: with the shim {ours.last_line()}"
            found = SERVED.search(ours.err)
            if served and not (found and int(found[1]) > 100):
                return f"{name}: served {found[1] if found else 'nothing'}"
            return ""

        said = at_once(self.args.jobs, both, rows)
        step.failures += [one for one in said if one]
        return f"{len(rows)} kinds of processes, {len(step.failures)} failed"

    # --- compute-sanitizer ------------------------------------------------------------------------

    def sanitizer(self, step):
        found = suite.tool("compute-sanitizer")
        if not found:
            raise suite.Missing("no compute-sanitizer on the PATH")
        commands = [[self.tests / "preload" / "versioned", "200"],
                    [self.tests / "preload" / "threads", "4", "50"],
                    [self.cuda.build / "random", "--seed", "1", "--ops", "200", "--profile",
                     "churn"]]
        for command in commands:
            checked = [found, "--tool", "memcheck", "--error-exitcode", "98", *command]
            plain = self.cuda.run(checked, step.left(40))
            if plain.rc != 0:
                step.notes.append(f"{command[0].name}: does not work without the shim: "
                                  f"{plain.last_line()}")
                continue
            # Beside it the library steps aside; asked to cache all the same, it does.
            for conf in (CONF, CONF + ",backend:pool"):
                ours = self.cuda.run(checked, step.left(40), conf)
                if ours.rc != 0:
                    step.fail(f"{command[0].name}, {conf}: {ours.last_line()}")
        if len(step.notes) == len(commands):
            raise suite.Missing(f"compute-sanitizer does not work here: {step.notes[0]}")
        return (f"{len(commands) - len(step.notes)} programs under memcheck, "
                f"{len(step.failures)} failed")


def says(err):
    """The line that says what went wrong, among statistics and warnings of ours."""
    lines = [line for line in err.splitlines()
             if not line.startswith("cachealloc[") and not re.match(r"  [a-z].* \S+$", line)]
    return lines[0][:300] if lines else "it says nothing"


def main():
    parser = suite.arguments(__doc__.splitlines()[0])
    args = parser.parse_args()
    names = ("facts", "order", "vmm", "answers", "preload", "parity", "random", "kernels",
             "processes", "sanitizer")
    # Seconds: cudaMalloc's first call alone takes a few tenths of one on hardware.
    limits = (90, 60, 90, 60, 110, 80, 50, 50, 30, 30)
    suite.chosen([(name, None, None) for name in names], args, parser)
    cuda = suite.find(args, "check-gpu")
    simulator = suite.Cuda(cuda.build, cuda.library, str(cuda.build / "simcuda"), True)
    where = suite.machine(cuda)
    args.gpus = where["gpus"]
    check = Check(cuda, simulator, args)
    steps = suite.chosen([(name, getattr(check, name), limit)
                          for name, limit in zip(names, limits)], args, parser)
    done = suite.run_steps("check-gpu", steps, args.seconds)
    return suite.keep("check", "Hardware suite, checks", where, done, args)


if __name__ == "__main__":
    sys.exit(main())
