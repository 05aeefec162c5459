"""How a random program is run: the configurations, one run, and what came of it.

Standard library only. A run is judged by its exit status and by what it printed, which must be the
same in every configuration.
"""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROFILES = ("mixed", "churn", "nonblocking", "ordered", "threads", "peers", "resets", "contexts",
            "async", "pinned", "api", "graphs")
RACE = 99  # the simulator's exit status after a race
NO_SHIM = -1000  # instead of 0: the run was to be under the shim, and it printed no statistics
DIFFERENT = -1001  # instead of 0: the run printed something else than the one without the shim

# name: (under the shim, ALLOC_CONF, more for SIMCUDA). The small device holds what a program has
# live, and not much more: the pool has to give back and to wait.
CONFIGURATIONS = {
    "plain": (False, "", ""),
    "shim": (True, "x_warmup:16", ""),
    "lane_d": (True, "x_runtime_hooks:false,x_warmup:16", ""),
    "small": (True, "headroom:0", "memory:{memory}"),
    "order": (True, "reuse:order,x_warmup:16", ""),
    "wait": (True, "reuse:wait", ""),
    "sync": (True, "free_sync:true,x_warmup:16", ""),
    "debug": (True, "debug:frees+poison+redzone,x_warmup:16", ""),
}
# What needs a shim of its own: they hold too little for segments that grow (`range_small`).
OTHERS = {
    "expandable": (True, "expandable_segments:true,x_warmup:16", ""),
    "expandable_small": (True, "expandable_segments:true,headroom:0", "memory:{memory}"),
    "expandable_order": (True, "expandable_segments:true,reuse:order,x_warmup:16,decay:1ms", ""),
}
ASYNC = ("mixed", "resets", "async", "api", "graphs")  # who has stream-ordered memory: others need no "wait"
# All others: 48M. Pin mode gives nothing back.
SMALL = {"nonblocking": "64M", "contexts": "64M", "async": "64M", "api": "256M"}
FOREIGN = ("ALLOC_CONF", "CACHEALLOC_CONF", "SIMCUDA", "LD_PRELOAD", "LD_LIBRARY_PATH",
           "CA_MUTATION")
SERVED = re.compile(r"served from cached memory +(\d+)")


@dataclasses.dataclass(frozen=True)
class Program:
    """A seed and all else that decides what the program is."""
    seed: int
    ops: int
    profile: str
    extra: tuple = ()

    def arguments(self):
        return ["--seed", str(self.seed), "--ops", str(self.ops), "--profile", self.profile,
                *self.extra]


def configurations_of(profile, asked):
    return [name for name in asked if name != "wait" or profile in ASYNC]


@dataclasses.dataclass
class Result:
    rc: int  # negative: a signal
    out: str
    err: str
    hung: bool = False
    served: int = 0  # allocations that the pool answered from memory it had

    @property
    def failed(self):
        return self.hung or self.rc != 0

    def what(self):
        """The kind of failure, which must stay the same while a program is shrunk."""
        return "hang" if self.hung else self.rc

    def says(self):
        lines = [line for line in self.err.splitlines() if not line.startswith("cachealloc[") and
                 not re.match(r"  [a-z].* \S+$", line)]
        first = "no end within the time limit" if self.hung else f"exit status {self.rc}"
        return "\n".join([first] + ["    " + line for line in lines[:8]])


def sanitizer(build):
    """Environment and first library to preload for a sanitizer's build directory."""
    name = pathlib.Path(build).name.partition("-")[2]
    if name not in ("asan", "tsan"):
        return {}, []
    library = subprocess.run(["gcc", f"-print-file-name=lib{name}.so"], text=True, check=True,
                             capture_output=True).stdout.strip()
    # As in tests/conftest.py.
    return {"ASAN_OPTIONS": "exitcode=98:detect_leaks=0",
            "TSAN_OPTIONS": "exitcode=98:atexit_sleep_ms=50"}, [library]


class Runner:
    """Runs programs of one build. `preload` comes before the shim, `env` is what a build needs, `sim` more
    for SIMCUDA."""

    def __init__(self, build, shim=None, env=None, preload=(), racecheck=True, devices=2,
                 time_limit=60, sim=""):
        self.build = pathlib.Path(build)
        self.shim = pathlib.Path(shim) if shim else self.build / "libcachealloc.so"
        self.preload = [str(library) for library in preload]
        self.sim = f"devices:{devices}" + (",racecheck:1" if racecheck else "")
        if sim:
            self.sim += f",{sim}"
        self.time_limit = time_limit
        self.env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        self.env.update(env or {})
        self.env["LD_LIBRARY_PATH"] = str(self.build / "simcuda")

    def environment(self, program, configuration):
        shim, conf, sim = {**CONFIGURATIONS, **OTHERS}[configuration]
        sim = sim.format(memory=SMALL.get(program.profile, "48M"))
        more = {"SIMCUDA": ",".join(part for part in (self.sim, sim) if part)}
        if shim:
            more["LD_PRELOAD"] = " ".join(self.preload + [str(self.shim)])
            more["ALLOC_CONF"] = ",".join(
                part for part in ("leak_report:off", "stats:exit", conf) if part)
        return more

    def command(self, program, more=()):
        return [str(self.build / "random"), *program.arguments(), *more]

    def run(self, program, configuration, more=()):
        process = subprocess.Popen(self.command(program, more), text=True, errors="replace",
                                   env={**self.env, **self.environment(program, configuration)},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
        try:
            out, err = process.communicate(timeout=self.time_limit)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                return Result(-signal.SIGKILL, out, err, hung=True)
            raise
        served = SERVED.search(err)
        result = Result(process.returncode, out, err, served=int(served[1]) if served else 0)
        if result.rc == 0 and not served and configuration != "plain":
            result.rc = NO_SHIM
        return result

    def by_hand(self, program, configuration, more=()):
        """The same run as a line for the shell."""
        words = [f"{name}={value}" if " " not in value else f"{name}='{value}'"
                 for name, value in self.environment(program, configuration).items()]
        words.append(f"LD_LIBRARY_PATH={self.env['LD_LIBRARY_PATH']}")
        if "CA_MUTATION" in self.env:
            words.append(f"CA_MUTATION={self.env['CA_MUTATION']}")
        return " ".join(["env", *words, *self.command(program, more)])
