"""Four ranks under each launcher of jobs: the library is in all of them, and their reports are one.

`make check-launchers` installs the launchers and fails where one is missing; a test here skips then.
"""

import os
import pathlib
import platform
import re
import shutil
import socket
import subprocess
import time

import pytest

import conftest
import leak_report

CACHEALLOC = conftest.ROOT / "tools" / "cachealloc"
RANKS = range(4)
BYTES = 4096
LIMIT_S = 240  # torchrun imports PyTorch, which takes 20 s and more on a busy machine

# One rank: it leaks one allocation more than the rank before it, and keeps a copy of its metrics,
# which go with the process.
RANK = """
rank=${OMPI_COMM_WORLD_RANK-${PMI_RANK-${SLURM_PROCID-$RANK}}}
{
    echo alloc $((rank + 1)) 4096
    tries=0
    until [ -e metrics.$rank.prom ] || [ $tries = 500 ]; do
        tries=$((tries + 1))
        sleep 0.02
    done
    cp metrics.$rank.prom told.$rank
} | "$0"
"""
CONF = "leak_report:leaks.%r,report_format:text+json,metrics:metrics.%r"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1}


def needs(*commands):
    for command in commands:
        if not shutil.which(command):
            conftest.missing(f"no {command} here (make check-launchers brings it)")


def openmpi():
    needs("mpirun.openmpi")
    if not os.path.isdir("/sys/devices/system/cpu"):
        conftest.missing("mpirun looks for processors in /sys, and says that it finds none")
    return ["mpirun.openmpi", "--oversubscribe", "-n", len(RANKS)]


def mpich():
    conftest.only_in_its_target()
    needs("mpirun.mpich")
    return ["mpirun.mpich", "-n", len(RANKS)]


def torchrun():
    """Of the Python in CA_TORCH_PYTHON, or the one in PATH. Its workers here are no Python."""
    conftest.only_in_its_target()
    python = os.environ.get("CA_TORCH_PYTHON")
    if not python and not shutil.which("torchrun"):
        conftest.missing("no torchrun here (make check-launchers PYTHON=one that has torch)")
    start = [python, "-m", "torch.distributed.run"] if python else ["torchrun"]
    return [*start, f"--nproc-per-node={len(RANKS)}", "--no-python"]


# --- a cluster of one node ------------------------------------------------------------------------

# Neither cgroups nor accounting: nothing of this machine is changed. The node has as many
# processors as there are ranks, whatever this machine has.
SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def until(what, condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what}: not within {seconds} s")
        time.sleep(0.05)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """SLURM_CONF of a cluster whose daemons end with the tests."""
    conftest.only_in_its_target()
    needs("srun", "slurmctld", "slurmd", "munged")
    if os.geteuid() != 0:
        conftest.missing("Slurm's daemons start programs as any user, so they run as root")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o400)
    key.write_bytes(os.urandom(128))
    conf = folder / "slurm.conf"
    conf.write_text(SLURM_CONF.format(host=platform.node().partition(".")[0], folder=folder,
                                      ports=free_ports(2), cpus=len(RANKS)))
    env = conftest.plain_env({"SLURM_CONF": conf})
    daemons = []

    def start(*command):
        daemons.append(subprocess.Popen([str(word) for word in command], env=env,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True))

    def is_idle():
        asked = subprocess.run(["sinfo", "--noheader", "--format=%T"], env=env, text=True,
                               capture_output=True, timeout=20, check=False)
        return asked.stdout.strip() == "idle"

    try:
        files = ((f"--{name}-file" if name != "socket" else "--socket", f"{folder}/munge.{name}")
                 for name in ("key", "socket", "pid", "log", "seed"))
        start("munged", "--foreground", "--force", "--num-threads=1",
              *(f"{option}={path}" for option, path in files))
        until("munge's socket", (folder / "munge.socket").exists)
        start("slurmctld", "-D")
        start("slurmd", "-D")
        until("an idle node", is_idle)
        yield conf
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()


# --- four ranks -----------------------------------------------------------------------------------


@pytest.fixture
def job(run, program, tmp_path):
    """job(launcher, ...) runs RANK under a launcher, the environment apart without the library, and
    looks at what the ranks left."""
    def start(launcher, env=None):
        result = run([*launcher, "sh", "-c", RANK, program("published")], preload=False, cwd=tmp_path,
                     env={**AS_ROOT, **(env or {})}, timeout=LIMIT_S)
        assert result.rc == 0, result.err
        left_a_report_each(tmp_path)
        return result
    return start


def left_a_report_each(folder):
    pids = []
    assert {file.name for file in folder.glob("leaks.*")} == {
        f"leaks.{rank}{ending}" for rank in RANKS for ending in ("", ".json")}
    for rank in RANKS:
        text = (folder / f"leaks.{rank}").read_text()
        report = leak_report.parse(text)
        assert (report.bytes, report.count) == ((rank + 1) * BYTES, rank + 1)
        assert text.startswith(f"cachealloc[{report.pid}]: leak report, rank {rank}\n")
        samples = [line for line in (folder / f"told.{rank}").read_text().splitlines()
                   if not line.startswith("#")]
        assert samples and all(f'pid="{report.pid}"' in line and f'rank="{rank}"' in line
                               for line in samples)
        pids.append(report.pid)
    assert len(set(pids)) == len(RANKS)
    merged = subprocess.run([CACHEALLOC, "merge", *sorted(folder.glob("leaks.*"))], text=True,
                            capture_output=True, check=True)
    assert merged.stderr == "" and merged.stdout.startswith("MERGED LEAK REPORT: 4 processes\n")
    for rank, pid in zip(RANKS, pids):
        assert (f"  rank {rank}, pid {pid}: {(rank + 1) * BYTES} bytes in {rank + 1} allocations, "
                in merged.stdout)
    all_of_them = sum(RANKS) + len(RANKS)
    assert (f"LEAK SUMMARY: {all_of_them * BYTES} bytes in {all_of_them} allocations, 1 stacks\n"
            in merged.stdout)
    assert "\n  in 4 of 4 processes: ranks 0-3\n" in merged.stdout


def by_cachealloc(shim, conf=CONF):
    return [CACHEALLOC, "run", "--library", shim, "-o", conf]


def test_open_mpi_hands_the_variables_on(job, shim):
    job([*openmpi(), "-x", f"LD_PRELOAD={shim}", "-x", f"ALLOC_CONF={CONF}"])


def test_open_mpi_starts_the_launcher(job, shim):
    assert job([*openmpi(), *by_cachealloc(shim)]).err == ""


def test_mpich_sets_the_variables(job, shim):
    job([*mpich(), "-genv", "LD_PRELOAD", shim, "-genv", "ALLOC_CONF", CONF])


def test_mpich_starts_the_launcher(job, shim):
    assert job([*mpich(), *by_cachealloc(shim)]).err == ""


def test_slurm_starts_the_launcher(job, shim, slurm):
    job(["srun", "-n", len(RANKS), *by_cachealloc(shim)], env={"SLURM_CONF": slurm})


def test_slurm_exports_what_is_in_the_environment(job, shim, slurm):
    """Its --export cuts a value at a comma, and ends there."""
    job(["srun", "-n", len(RANKS), f"--export=ALL,LD_PRELOAD={shim}"],
        env={"SLURM_CONF": slurm, "ALLOC_CONF": CONF})


def test_torchrun_starts_workers_with_its_environment(job, shim):
    job(torchrun(), env={"LD_PRELOAD": shim, "ALLOC_CONF": CONF})


def test_torchrun_starts_the_launcher(job, shim):
    job([*torchrun(), *by_cachealloc(shim)])


# --- what ranks share -----------------------------------------------------------------------------


@pytest.mark.parametrize("log, times", [("warn", 1), ("info", len(RANKS))])
def test_what_is_wrong_in_the_options_of_all_is_said_by_one(run, program, shim, log, times):
    wrong = by_cachealloc(shim, f"limit:5/4,log:{log},leak_report:off")
    result = run([*openmpi(), *wrong, program("leaks")], preload=False, env=AS_ROOT)
    assert result.rc == 0
    assert result.err.count("limit:5/4 is out of range; accepted: ") == times


def test_a_limit_gives_each_rank_its_share_of_one_device(run, program, shim, tmp_path):
    share = by_cachealloc(shim, "limit:1/4,oom_report:off")
    result = run([*openmpi(), *share, program("at_limit")], preload=False, env=AS_ROOT,
                 sim=f"memory:256M,shared:{tmp_path}/device")
    assert result.out.splitlines() == len(RANKS) * ["8 2"], result.err
