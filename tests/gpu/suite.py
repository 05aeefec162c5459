"""What check.py and measure.py share: which CUDA there is, how programs are run, what is kept.

Standard library only, and neither make nor a network: a build folder made elsewhere will do.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SKIPPED = 77  # exit status where there is nothing to run on
NO_DEVICE, NO_RUNTIME = 1, 2  # of cuda_probe
# What the caller's environment must not decide.
FOREIGN = ("ALLOC_CONF", "CACHEALLOC_CONF", "SIMCUDA", "LD_PRELOAD")
# Frameworks bring CUDA's libraries, which another toolkit's must not take the place of.
OWN_LIBRARIES = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
PASSED, FAILED, ABSENT = "passed", "failed", "not found"


class Missing(Exception):
    """What a step needs is not on this machine: neither passed nor failed."""


# --- running programs -----------------------------------------------------------------------------


class Ran:
    """What came of a command: rc is negative after a signal, None where it was stopped."""

    def __init__(self, rc, out, err, seconds):
        self.rc, self.out, self.err, self.seconds = rc, out, err, seconds

    def ended(self):
        if self.rc is None:
            return f"no end after {self.seconds:.0f} s"
        return f"signal {-self.rc}" if self.rc < 0 else f"exit status {self.rc}"

    def last_line(self):
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return f"{self.ended()}{': ' + lines[-1][:200] if lines else ''}"


def execute(command, env, limit, cwd=None):
    """Runs a command for `limit` seconds at most and leaves nothing of it behind."""
    begun = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], env=env, text=True, cwd=cwd,
                               errors="replace", stdin=subprocess.DEVNULL, start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=max(limit, 0.1))
        rc = process.returncode
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        rc = None
    return Ran(rc, out, err, time.monotonic() - begun)


class Cuda:
    """A CUDA to run on: the machine's, or the simulator."""

    def __init__(self, build, library, folder, simulated):
        self.build, self.library, self.simulated = build, library, simulated
        self.env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        inherited = [one for one in self.env.get("LD_LIBRARY_PATH", "").split(":")
                     if one and not one.endswith("simcuda")]
        self.env["LD_LIBRARY_PATH"] = ":".join([folder] * bool(folder) + inherited)

    def environment(self, conf=None, sim=None, more=None):
        """For a process under the shim, unless conf is None. sim is for the simulator alone."""
        env = {**self.env, **(more or {})}
        if conf is not None:
            env.update(LD_PRELOAD=str(self.library), ALLOC_CONF=conf)
        if sim and self.simulated:
            env["SIMCUDA"] = sim
        return env

    def run(self, command, limit, conf=None, sim=None, more=None, cwd=None):
        return execute(command, self.environment(conf, sim, more), limit, cwd)


# --- which CUDA -----------------------------------------------------------------------------------


def runtime_folders(asked, build):
    """Where a libcudart.so.13 may be, besides where the loader looks; the kit's own at last."""
    yield from [str(asked)] if asked else []
    for top in filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda")):
        yield from (f"{top}/lib64", f"{top}/lib")
    yield from map(str, sorted(pathlib.Path("/usr/local").glob("cuda-13*/lib64")))
    # Where pip puts it, for the python on the PATH too, which may be another one.
    pythons = {sys.prefix}
    if shutil.which("python3"):
        pythons.add(str(pathlib.Path(shutil.which("python3")).parent.parent))
    for prefix in sorted(pythons):
        for package in ("cu13", "cuda_runtime"):
            yield from map(str, pathlib.Path(prefix).glob(
                f"lib/python3*/site-packages/nvidia/{package}/lib"))
    yield str(build / "cudart")


def find(args, what):
    """The CUDA to run on. Ends the process, with 77 where there is none."""
    # A driver makes one context after the other: eight processes began four times slower than three.
    args.jobs = args.jobs or min(8 if args.simulated else 3, os.cpu_count() or 1)
    build = args.build.resolve()
    library = (args.library or build / "libcachealloc.so").resolve()
    needed = [library, build / "facts", build / "cuda_probe"]
    if any(not path.exists() for path in needed):
        absent = ", ".join(str(path) for path in needed if not path.exists())
        sys.exit(f"{what}: missing: {absent} (make gpu-kit, or make {what})")
    if args.simulated:
        return Cuda(build, library, str(build / "simcuda"), True)
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    probe = execute([build / "cuda_probe", *runtime_folders(args.cudart, build)], env, 60)
    if probe.rc == 0:
        return Cuda(build, library, probe.out.strip(), False)
    reason = {
        NO_DEVICE: "no driver with a GPU answers here",
        NO_RUNTIME: "a driver answers, but there is no libcudart.so.13 (--cudart FOLDER)",
    }.get(probe.rc, f"the driver could not be asked: {probe.last_line()}")
    print(f"{what}: no GPU: {reason}; SIMULATED=1 runs it on the simulator", flush=True)
    sys.exit(SKIPPED)


def commit(build):
    """The commit that was built: the kit says it in a file, where there is no repository."""
    told = build / "commit"
    if told.exists():
        return told.read_text().strip()
    try:
        asked = execute(["git", "describe", "--always", "--dirty", "--abbrev=12"], None, 20, ROOT)
    except OSError:
        return "unknown"
    return asked.out.strip() if asked.rc == 0 and asked.out.strip() else "unknown"


def tool(name):
    """A program of the toolkit, on the PATH or in its usual place; None."""
    found = shutil.which(name)
    usual = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / name
    return found or (str(usual) if usual.exists() else None)


def asked_of(command, limit=30):
    """The last line that a command prints, or None."""
    try:
        ran = execute(command, None, limit)
    except OSError:
        return None
    lines = ran.out.strip().splitlines()
    return lines[-1].strip() if ran.rc == 0 and lines else None


def python_with(cuda, package):
    """A python that can import the package and sees the GPU with it."""
    if cuda.simulated:
        raise Missing(f"{package} needs kernels, which the simulator has not")
    # It takes most of the GPU's memory for itself when it starts, unless it is set otherwise.
    more = {**OWN_LIBRARIES, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    why = f"no python here has {package}"
    for python in dict.fromkeys(filter(None, (sys.executable, shutil.which("python3")))):
        ran = cuda.run([python, "-B", ROOT / "tests/gpu/frameworks.py", "sees", package], 60,
                       more=more)
        if ran.rc == 0:
            return python
        if "ModuleNotFoundError" not in ran.err:
            why = f"{package} does not run here: {ran.last_line()}"
    raise Missing(why)


def machine(cuda):
    """What the results are from: date, GPU, driver, toolkit, commit."""
    facts = facts_of(cuda, "platform", 60)
    rows = facts[0]["rows"] if facts else []
    platform = rows[0] if rows else {}
    device = rows[1] if len(rows) > 1 else {}
    driver = None if cuda.simulated else asked_of(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    nvcc = tool("nvcc")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "simulated": cuda.simulated,
        "gpu": device.get("name", "unknown"),
        "gpus": platform.get("devices", 0),
        "memory": device.get("total_bytes", 0),
        "free": device.get("free_bytes", 0),
        "driver": driver or "simulated" if cuda.simulated else driver or "unknown",
        "driver api": platform.get("driver"),
        "runtime": platform.get("runtime"),
        "toolkit": re.sub(r"^Build |/.*", "", asked_of([nvcc, "--version"]) or "unknown")
                   if nvcc else "no nvcc",
        "commit": commit(cuda.build),
        "library": cuda.library.name,
        "host": f"{os.cpu_count()} cores, {os.uname().sysname} {os.uname().release}, "
                f"{'.'.join(map(str, sys.version_info[:3]))} python",
    }


def facts_of(cuda, group, limit, label="facts", conf=None):
    """Asks the fact script one group of facts; under the shim where conf is not None."""
    with tempfile.TemporaryDirectory() as folder:
        # On the simulator a file is the device that two processes share.
        sim = f"shared:{folder}/device" if group == "ipc" else None
        ran = cuda.run([cuda.build / "facts", "--fact", group, "--label", label, "--limit",
                        max(1, int(limit) - 2)], limit, conf, sim)
    try:
        return json.loads(ran.out)["facts"]
    except (ValueError, KeyError) as error:
        raise RuntimeError(f"facts --fact {group}: {ran.last_line()}") from error


# --- steps ----------------------------------------------------------------------------------------


class Step:
    """One part of a suite: `found` is what it has to say, whatever became of it."""

    def __init__(self, name, limit):
        self.name, self.limit = name, limit
        self.state, self.says, self.seconds = PASSED, "", 0.0
        self.failures, self.differences, self.notes, self.tables = [], [], [], []
        self.data = None  # for the JSON file alone
        self.deadline = 0.0

    def left(self, most=None):
        """Seconds that are left of its limit, and no more than `most`."""
        rest = max(0.0, self.deadline - time.monotonic())
        return rest if most is None else min(rest, most)

    def fail(self, what):
        self.failures.append(what)

    def as_json(self):
        return {"name": self.name, "state": self.state, "says": self.says,
                "seconds": round(self.seconds, 1), "limit": round(self.limit, 1),
                "failures": self.failures,
                "differences": self.differences, "notes": self.notes, "tables": self.tables,
                "data": self.data}


def run_steps(what, steps, total):
    """Runs each (name, function, limit); one that fails or runs over does not end the others."""
    end, done = time.monotonic() + total, []
    for name, function, limit in steps:
        # What the steps before left over is shared by those that are left.
        share = (end - time.monotonic()) / sum(later for _, _, later in steps[len(done):])
        step = Step(name, limit * max(0.0, min(1.0, share)))
        print(f"{what}: {name} (at most {step.limit:.0f} s)", file=sys.stderr, flush=True)
        start = time.monotonic()
        step.deadline = start + step.limit
        try:
            if step.limit < 1:
                raise TimeoutError("no time was left for it")
            step.says = function(step) or step.says
            step.state = FAILED if step.failures else PASSED
        except Missing as reason:
            step.state, step.says = ABSENT, str(reason)
        except Exception as error:  # whatever it is, the other steps are run
            step.state, step.says = FAILED, f"{type(error).__name__}: {error}"
            step.fail(traceback.format_exc())
        step.seconds = time.monotonic() - start
        done.append(step)
    return done


# --- results --------------------------------------------------------------------------------------


def text_table(rows):
    """Columns of the same width, for a terminal."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip()
                     for row in rows)


def page_table(rows):
    def line(cells):
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
    return "\n".join([line(rows[0]), "|" + "---|" * len(rows[0]), *map(line, rows[1:])])


def page(title, where, steps):
    yield f"# {title}: {where['gpu']}"
    yield ""
    if where["simulated"]:
        yield ("**On the simulator: this shows that the suite runs and says nothing about "
               "hardware.**")
        yield ""
    yield page_table([("", ""), *((key, f"{value:,}" if key in ("memory", "free") else value)
                                  for key, value in where.items())])
    yield ""
    yield page_table([("step", "result", "", "seconds"),
                      *((s.name, s.state, s.says, f"{s.seconds:.0f}") for s in steps)])
    yield ""
    for step in steps:
        if not (step.failures or step.differences or step.notes or step.tables):
            continue
        yield f"## {step.name}"
        yield ""
        for note in step.notes:
            yield f"{note}"
            yield ""
        for title_of, rows in step.tables:
            yield f"{title_of}:" if title_of else ""
            yield ""
            yield page_table(rows)
            yield ""
        for head, lines in (("Failed", step.failures), ("Differences", step.differences)):
            if lines:
                yield f"{head}, {len(lines)}:"
                yield ""
                yield "```"
                yield from lines[:200]
                if len(lines) > 200:
                    yield f"... and {len(lines) - 200} more, in the JSON file"
                yield "```"
                yield ""


def file_name(kind, where):
    """check-h100-80gb-hbm3-580: a machine's result takes the place of its last one."""
    gpu = re.sub(r"[^a-z0-9]+", "-", where["gpu"].lower().replace("nvidia", "")).strip("-")
    return f"{kind}-{gpu}-{where['driver'].split('.')[0]}"


def keep(kind, title, where, steps, args):
    """Writes the result and its page, prints the short table. The exit status."""
    simulated = where["simulated"]
    folder = args.output or (args.build / "gpu" if simulated else ROOT / "tests/gpu/results")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (kind if simulated else file_name(kind, where))
    result = {"schema": 1, "suite": kind, "machine": where,
              "steps": [step.as_json() for step in steps]}
    # Appended, as a name may have dots of its own.
    path.with_name(path.name + ".json").write_text(json.dumps(result, indent=1) + "\n")
    path.with_name(path.name + ".md").write_text("\n".join(page(title, where, steps)).rstrip()
                                                 + "\n")
    for step in steps:
        for failure in step.failures[:5]:
            print(f"{step.name}: {failure}")
    print(f"\n{title}: {where['gpu']}, driver {where['driver']}, {where['toolkit']}, commit "
          f"{where['commit']}; {path}.json, .md\n")
    print(text_table([("step", "result", "seconds", ""),
                      *((s.name, s.state, f"{s.seconds:.0f}", s.says) for s in steps)]), flush=True)
    return 1 if any(step.state == FAILED for step in steps) else 0


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"),
                        help="the build folder, or what make gpu-kit made")
    parser.add_argument("--library", type=pathlib.Path,
                        help="the libcachealloc.so, where it is not the build folder's")
    parser.add_argument("--cudart", help="the folder of libcudart.so.13, where it is not found")
    parser.add_argument("--simulated", action="store_true",
                        default=os.environ.get("SIMULATED", "0") not in ("", "0"),
                        help="on the simulator, as SIMULATED=1 does; the result goes to BUILD/gpu")
    parser.add_argument("--output", type=pathlib.Path, help="the folder for the result")
    parser.add_argument("--seconds", type=float, default=440, help="for the whole, at most")
    parser.add_argument("--jobs", type=int,
                        help="programs at the same time, where no time is measured")
    parser.add_argument("--short", action="store_true", help="a little of each step")
    parser.add_argument("--steps", help="only these, by name, separated by commas")
    return parser


def chosen(steps, args, parser):
    names = args.steps.split(",") if args.steps else [name for name, _, _ in steps]
    for name in names:
        if name not in [known for known, _, _ in steps]:
            parser.error(f"no step {name}; there are {', '.join(name for name, _, _ in steps)}")
    return [step for step in steps if step[0] in names]
