"""The leak report in files: names that differ, files that are whole, nothing replaced or lost."""

import importlib.machinery
import os
import platform
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
import types
from random import Random

import pytest

import conftest
import leak_report

MERGE = conftest.ROOT / "tools" / "merge_reports"
LEAKED = (310173, 7)  # bytes and allocations that leaks.c forgets
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Whatever started the tests."""
    for name in RANKS + LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def reports(tmp_path):
    """An empty directory for them."""
    path = tmp_path / "reports"
    path.mkdir()
    return path


def leaks(run, program, path, *arguments, **kwargs):
    result = run([program("leaks"), *arguments], conf=f"leak_report:{path}", **kwargs)
    assert result.rc == 0
    return result


def parse(text):
    report = leak_report.parse(text)
    assert (report.bytes, report.count) == LEAKED
    return report


def only_file(reports):
    """The one file, which is a report; a temporary one that stayed would be a second."""
    file, = reports.iterdir()
    return file, parse(file.read_text())


def said_on_stderr(result, *pieces):
    """The report is on stderr, whole, after one message with these pieces."""
    parse(result.err)
    message = result.err.splitlines()[0]
    for piece in ("warning: leak_report: cannot write", *pieces):
        assert piece in message, message


# --- patterns -------------------------------------------------------------------------------------


def test_process_id(run, program, reports):
    assert leaks(run, program, f"{reports}/leaks-%p.txt").err == ""

    file, report = only_file(reports)
    assert file.name == f"leaks-{report.pid}.txt"


@pytest.mark.parametrize("pattern, names", [("%r", RANKS), ("%l", LOCAL_RANKS)])
def test_ranks_of_every_launcher_the_first_counts(run, program, reports, pattern, names):
    environment = {}
    for value, name in reversed(list(enumerate(names, 10))):
        environment[name] = value
        assert leaks(run, program, f"{reports}/{pattern}", env=environment).err == ""
        assert (reports / str(value)).exists(), name


@pytest.mark.parametrize("pattern", ["%r", "%l"])
def test_without_a_launcher_the_rank_is_the_process_id(run, program, reports, pattern):
    leaks(run, program, f"{reports}/{pattern}")

    file, report = only_file(reports)
    assert file.name == str(report.pid)


def test_the_report_names_its_rank(run, program, reports):
    leaks(run, program, f"{reports}/x", env={"SLURM_PROCID": 12})

    assert re.match(r"cachealloc\[\d+\]: leak report, rank 12\n", (reports / "x").read_text())


def test_host_program_variable_and_percent(run, program, reports):
    result = leaks(run, program, "%q{WHERE}/%h.%e.%q{NOTHING}%%", env={"WHERE": reports,
                                                                      "NOTHING": ""})

    assert result.err == ""
    assert only_file(reports)[0].name == f"{platform.node()}.leaks.%"


def test_a_relative_path_begins_where_the_program_was_at_first(run, program, reports, tmp_path):
    """As its environment counts: not where it has gone since."""
    (tmp_path / "elsewhere").mkdir()
    commands = f"echo alloc 3 5000; echo chdir {tmp_path}/elsewhere; echo dump dumped"

    for path in ("leaks.%e", "./deep/leaks", "stderr", "leaks.json"):
        result = run(["sh", "-c", f'{{ {commands}; }} | "$0"', program("published")], cwd=reports,
                     conf=f"leak_report:{path},report_format:text+folded")
        assert (result.rc, "LEAK SUMMARY" in result.err) == (0, path in ("stderr", "./deep/leaks"))

    names = {re.sub(r"\d{2,}", "PID", file.name) for file in reports.iterdir()}
    assert names == {"leaks.published", "leaks.published.folded", "cachealloc.PID.folded", "leaks",
                     "leaks.folded"}
    # A path that the program gives means the folder that it is in.
    assert {file.stem for file in (tmp_path / "elsewhere").iterdir()} >= {"dumped"}
    assert all(file.name.startswith("dumped") for file in (tmp_path / "elsewhere").iterdir())
    assert f"leak_report: cannot write {reports}/deep/leaks (No such file" in run(
        program("leaks"), conf="leak_report:./deep/leaks", cwd=reports).err.replace("/./", "/")


def test_time(run, program, reports):
    before = int(time.time())
    leaks(run, program, f"{reports}/%t")

    assert before <= int(only_file(reports)[0].name) <= time.time()


def test_number_is_the_lowest_that_is_free(run, program, reports):
    (reports / "leaks-2").write_text("mine")
    for _ in range(3):
        assert leaks(run, program, f"{reports}/leaks-%n").err == ""

    assert {file.name for file in reports.iterdir()} == {f"leaks-{i}" for i in range(1, 5)}
    assert (reports / "leaks-2").read_text() == "mine"
    for number in (1, 3, 4):
        parse((reports / f"leaks-{number}").read_text())


@pytest.mark.parametrize("pattern, wrong", [
    ("%z", "has an unknown pattern %z"), ("x%", "ends in a lone %"),
    ("%q{NOT_SET}", "names a variable that is not set, NOT_SET"),
    ("%q", "has a %q without its {VARIABLE}"), ("%q{A", "has a %q without its {VARIABLE}")])
def test_what_is_wrong_is_named_and_the_report_goes_to_stderr(run, program, reports, pattern,
                                                              wrong):
    result = leaks(run, program, f"{reports}/{pattern}")

    parse(result.err)
    message = result.err.splitlines()[0]
    for piece in ("warning: ALLOC_CONF character 13: leak_report:", wrong, "accepted: stderr, off",
                  "%q{VAR}", "stays stderr"):
        assert piece in message
    assert list(reports.iterdir()) == []


def test_what_a_program_does_to_its_environment_changes_nothing(run, program, reports):
    result = leaks(run, program, "%q{WHERE}/%r", "clearenv", env={"WHERE": reports, "RANK": 3})

    assert result.err == ""
    file, report = only_file(reports)
    assert file.name == "3" and report.pid


# --- files ----------------------------------------------------------------------------------------


def test_a_file_is_its_owners_alone(run, program, reports):
    leaks(run, program, f"{reports}/x", umask=0)

    assert stat.S_IMODE((reports / "x").stat().st_mode) == 0o600


def test_a_name_may_be_as_long_as_names_can_be(run, program, reports):
    assert leaks(run, program, f"{reports}/{'n' * 255}").err == ""

    assert only_file(reports)[0].name == "n" * 255


def test_four_processes_and_one_path_leave_four_reports(run, program, reports):
    together = f"for i in 1 2 3 4; do '{program('leaks')}' & done; wait"
    result = run(["sh", "-c", together], conf=f"leak_report:{reports}/leaks.txt")

    assert result.rc == 0
    files = {file.name: parse(file.read_text()).pid for file in reports.iterdir()}
    assert len(set(files.values())) == len(files) == 4
    first = files.pop("leaks.txt")
    assert set(files) == {f"leaks.txt.{pid}" for pid in files.values()}
    lines = result.err.splitlines()
    assert len(lines) == 3 and f"cachealloc[{first}]" not in result.err
    for name, pid in files.items():
        assert any(line.startswith(f"cachealloc[{pid}]: ") and "leaks.txt exists" in line
                   and line.endswith(f"/{name}") for line in lines), lines


def test_a_rank_whose_path_is_taken_is_told_how_to_have_its_own(run, program, reports):
    (reports / "leaks").write_text("another rank's")

    err = leaks(run, program, f"{reports}/leaks", env={"RANK": 1}).err

    assert err.endswith(" (%r in the path is the rank)\n") and len(err.splitlines()) == 1


def test_four_processes_number_their_reports(run, program, reports):
    together = f"for i in 1 2 3 4; do '{program('leaks')}' & done; wait"
    result = run(["sh", "-c", together], conf=f"leak_report:{reports}/%n")

    assert (result.rc, result.err) == (0, "")
    assert {file.name for file in reports.iterdir()} == {"1", "2", "3", "4"}
    assert len({parse(file.read_text()).pid for file in reports.iterdir()}) == 4


def test_a_link_is_neither_followed_nor_replaced(run, program, reports, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name, target in (("a", victim), ("b", tmp_path / "missing")):
        (reports / name).symlink_to(target)

        result = leaks(run, program, f"{reports}/{name}")

        assert f"{reports}/{name} exists" in result.err
        assert (reports / name).is_symlink()
        file, = reports.glob(f"{name}.*")
        assert file.name == f"{name}.{parse(file.read_text()).pid}"
    assert victim.read_text() == "precious" and not (tmp_path / "missing").exists()


@pytest.mark.parametrize("ends", ["", "_exit"])
def test_a_file_says_that_nothing_leaked(run, program, reports, ends):
    assert run([program("leaks"), "none", ends], conf=f"leak_report:{reports}/x").err == ""

    report = leak_report.parse((reports / "x").read_text())
    assert report.said_nothing and report.peak.bytes > 0 and report.peak.groups
    merged = subprocess.run([MERGE, reports / "x"], capture_output=True, text=True, check=True)
    assert "LEAK SUMMARY: 0 bytes in 0 allocations" in merged.stdout and merged.stderr == ""


def test_a_process_that_allocates_nothing_makes_no_file(run, program, reports):
    """Such as a shell, or the child of a fork."""
    command = ["sh", "-c", f"{program('leaks')} none; true"]
    assert run(command, conf=f"leak_report:{reports}/%p").err == ""

    assert len(list(reports.iterdir())) == 1


# --- what cannot be written -----------------------------------------------------------------------


def test_full_device(run, program):
    said_on_stderr(leaks(run, program, "/dev/full"), "/dev/full", "No space left on device")


def test_missing_directory(run, program, reports):
    said_on_stderr(leaks(run, program, f"{reports}/no/such/x"), f"{reports}/no/such/x",
                   "No such file or directory")


def test_directory(run, program, reports):
    for path in (reports, f"{reports}/"):
        said_on_stderr(leaks(run, program, path), f"cannot write {path} (", "Is a directory")
    assert list(reports.iterdir()) == []


def test_name_too_long(run, program, reports):
    said_on_stderr(leaks(run, program, f"{reports}/{'n' * 300}"), "nnn", "File name too long")
    assert list(reports.iterdir()) == []


def test_disk_that_fills_up(run, program, reports):
    """As far as the report can tell: a file may have 100 bytes, and no signal ends the program."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which Python ignores, and children inherit

    result = leaks(run, program, f"{reports}/x", preexec_fn=limit)

    said_on_stderr(result, f"{reports}/x", "File too large")
    assert list(reports.iterdir()) == []


def test_no_permission(run, program):
    """Where root may not write either."""
    if not os.path.ismount("/sys"):
        pytest.skip("/sys is a folder like any other here")
    result = leaks(run, program, "/sys/leaks")

    said_on_stderr(result, "/sys/leaks")
    assert re.search(r"\((Permission denied|Read-only file system|Operation not permitted)\)",
                     result.err)


def test_pipe_that_nobody_reads(run, program, reports):
    os.mkfifo(reports / "pipe")

    said_on_stderr(leaks(run, program, f"{reports}/pipe"), f"{reports}/pipe", "No such device")


def test_pipe_that_is_read(run, program, reports):
    os.mkfifo(reports / "pipe")
    reader = os.open(reports / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert leaks(run, program, f"{reports}/pipe").err == ""
        parse(os.read(reader, 65536).decode())
    finally:
        os.close(reader)


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "does-not-block"])
def test_of_a_stderr_that_nobody_reads_the_end_is_told_and_not_waited_for(run, program, blocks):
    """Whole lines, and behind them a message that says so, though the pipe is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, blocks)
    try:
        result = run(["bash", "-c", f"exec '{program('many_stacks')}' 2000 2000 2>&{writer}"],
                     conf="leak_max:100000,stats:exit", env=conftest.shortened(), pass_fds=[writer])
    finally:
        os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()

    assert (result.rc, result.err) == (0, "")
    assert len(said) > 32768 and "\nLEAK SUMMARY: 1024000 bytes in 2000 allocations" in said
    report, _, end = said.partition("\n\ncachealloc[")
    assert end.partition("]: warning: ")[2].startswith("cut here: nobody reads this stderr")
    assert not report.endswith(" ")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_stdout_keeps_what_is_in_it(run, program, reports, name):
    log = reports / "log"
    log.write_text("before\n")
    command = f"exec >>'{log}'; echo first; '{program('leaks')}'; echo last"
    result = run(["sh", "-c", command], conf=f"leak_report:{name}")

    assert (result.rc, result.err) == (0, "")
    text = log.read_text()
    parse(text)
    assert text.startswith("before\nfirst\ncachealloc[") and text.endswith("\nlast\n")


# --- many reports ---------------------------------------------------------------------------------


def merge(*arguments):
    done = subprocess.run([sys.executable, MERGE, *map(str, arguments)], text=True,
                          capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


GROUP = re.compile(r"^#(\d+): (\d+) bytes in (\d+) allocations, (\w+) memory, "
                   r"devices? ([\d, -]+)$")


def merged_groups(text):
    """(bytes, count, kind, device, who, frames) of each group."""
    groups = []
    for line in text.splitlines():
        if match := GROUP.match(line):
            groups.append((int(match[2]), int(match[3]), match[4], match[5], [], []))
        elif groups and line.startswith("    "):
            groups[-1][5].append(line.strip())
        elif groups and line.startswith("  "):
            groups[-1][4].append(line.strip())
    return groups


def test_merge_adds_up_four_ranks(run, program, reports):
    for rank in range(4):
        assert leaks(run, program, f"{reports}/%r", env={"RANK": rank}).err == ""
    files = sorted(reports.iterdir())
    single = parse(files[0].read_text())

    rc, out, err = merge(*files)

    assert (rc, err) == (0, "")
    assert out.splitlines()[0] == "MERGED LEAK REPORT: 4 processes"
    assert f"LEAK SUMMARY: {4 * LEAKED[0]} bytes in {4 * LEAKED[1]} allocations, 2 stacks" in out
    for (device, kind), (total, count) in single.totals.items():
        assert f"  device {device}, {kind} memory: {4 * total} bytes in {4 * count}" in out
    for rank, file in enumerate(files):
        pid = parse(file.read_text()).pid
        assert f"  rank {rank}, pid {pid}: {LEAKED[0]} bytes in 7 allocations, {file}\n" in out
    groups = merged_groups(out)
    assert [group[:4] for group in groups] == [
        (4 * group.bytes, 4 * group.count, group.kind, "0") for group in single.groups]
    assert [group[5] for group in groups] == [group.frames for group in single.groups]
    assert all(group[4] == ["in 4 of 4 processes: ranks 0-3", "4 threads: leaks"]
               for group in groups)


REPORT = """cachealloc[{pid}]: leak report{rank}
LEAK SUMMARY: {total} bytes in 2 allocations, 1 stacks
  device {device}, device memory: {total} bytes in 2 allocations
#1: {bytes} bytes in 1 allocations, device {device}, device memory
    load at {where}
    main at a.c:9
(1 more groups, 8 bytes, not listed: leak_max:1)
ALIVE WHEN THEIR CONTEXT WAS DESTROYED: 64 bytes in 1 allocations, 0 stacks
#1: 64 bytes in 1 allocations, device {device}, pinned memory
    (no call stack)
"""


def made(pid, device=0, where="a.c:1", leaked=100, rank=""):
    return REPORT.format(pid=pid, device=device, where=where, bytes=leaked, total=leaked + 8,
                         rank=rank)


def test_merge_tells_functions_apart_and_processes_by_pid(reports):
    """Not lines. One file with several reports, as a shared stderr is, and what else stands there."""
    (reports / "err").write_text("hello\n" + made(11) +
                                 made(12, device=1, leaked=50, where="a.c:2") + "bye\n" +
                                 made(13, where="a.c:1\n    between at a.c:5"))

    rc, out, err = merge(reports / "err")

    assert (rc, err) == (0, "")
    assert "LEAK SUMMARY: 274 bytes in 6 allocations, 2 stacks\n" in out
    assert "(3 more groups, 24 bytes, not listed in the reports)\n" in out
    assert "ALIVE WHEN THEIR CONTEXT WAS DESTROYED: 192 bytes in 3 allocations, 0 stacks\n" in out
    assert [group[:5] for group in merged_groups(out)] == [
        (150, 2, "device", "0-1", ["in 2 of 3 processes: pids 11, 12"]),
        (100, 1, "device", "0", ["in 1 of 3 processes: pid 13"]),
        (192, 3, "pinned", "0-1", ["in 3 of 3 processes: pids 11, 12, 13"])]


def test_merge_counts_a_process_once(reports):
    """What it wrote while it ran gives way to its end's, or to the latest of these."""
    written = [("a.10", made(11, leaked=300, rank=", cause dump")),  # the later of two
               ("a.2", made(11, leaked=200, rank=", cause signal")),
               ("b", made(12, leaked=20, rank=", rank 1, cause signal") +
                made(12, leaked=10, rank=", rank 1")),
               ("c", made(12, leaked=1, rank=", rank 2, cause dump") +
                made(13, leaked=40, rank=", cause journal")),
               ("d", made(13, leaked=5, rank=", cause dump"))]
    for number, (name, text) in enumerate(written):
        (reports / name).write_text(text)
        os.utime(reports / name, ns=(0, 10 - number))

    rc, out, err = merge(*sorted(reports.iterdir()))

    assert (rc, err) == (
        0, "cachealloc merge: of several reports of one process the latest counts; 3 left out\n")
    told = re.findall(r"^  (.*?): (\d+) bytes in 3 allocations(.*), .*/(\S+)$", out, re.MULTILINE)
    assert told == [
        ("rank 1, pid 12", "82", "", "b"), ("rank 2, pid 12", "73", ", cause dump", "c"),
        ("pid 11", "372", ", cause dump", "a.10"), ("pid 13", "112", ", cause journal", "c")]
    assert "LEAK SUMMARY: 383 bytes in 8 allocations" in out


def test_merge_keeps_what_one_pid_of_many_hosts_wrote(reports):
    """In containers that is 1."""
    for host in range(3):
        (reports / f"{host}").write_text(made(1))

    rc, out, err = merge(*sorted(reports.iterdir()))

    assert (rc, err) == (0, "") and out.startswith("MERGED LEAK REPORT: 3 processes\n")


def damaged(random, text):
    """With some of its numbers, lines and letters other ones, or gone."""
    for _ in range(random.randint(1, 6)):
        lines = text.split("\n")
        at, other = random.randrange(len(lines)), random.randrange(len(lines))
        match random.randrange(6):
            case 0:
                numbers = list(re.finditer(r"\d+", text)) or [re.match("", text)]
                found = random.choice(numbers)
                number = random.choice(["0", "-1", "", "1.5", "9" * 25, "9" * 5000, "\u0663"])
                text = text[:found.start()] + number + text[found.end():]
            case 1:
                text = "\n".join(lines[:at] + lines[at + 1:])
            case 2:
                text = "\n".join(lines[:at] + [lines[other]] + lines[at:])
            case 3:
                text = text[:random.randrange(len(text) + 1)]
            case 4:
                place = random.randrange(len(text) + 1)
                text = text[:place] + chr(random.randrange(1, 0x300)) + text[place + 1:]
            case 5:
                text += random.choice(["\n  sizes 1 to 2, sequence 3, thread a", "\n  not used: leak:",
                                       "\n(incomplete: x)", "\n    f at a.c:1 < g"])
    return text


def test_merge_takes_whatever_it_is_given(tmp_path, monkeypatch, capsys):
    """It says of what use a file is, and ends."""
    loader = importlib.machinery.SourceFileLoader("merge_reports", str(MERGE))
    tool = types.ModuleType("merge_reports")
    tool.__file__ = str(MERGE)
    loader.exec_module(tool)
    random, file, answers = Random(1), tmp_path / "report", []

    for _ in range(1000):
        file.write_text(damaged(random, made(1) + made(2, device=1, rank=", rank 7")),
                        encoding="utf-8", errors="surrogatepass")
        monkeypatch.setattr(sys, "argv", ["merge_reports", str(file)])
        answers.append(tool.main())

    assert set(answers) == {0, 1}
    out, err = capsys.readouterr()
    assert "is not whole" in err and "no leak report in it" in err and "MERGED LEAK REPORT" in out


def test_merge_counts_what_is_suppressed_apart(run, program, reports):
    rules = reports / "rules"
    rules.write_text("leak:forget_tiles\nleak:nowhere\n")
    for rank in range(2):
        run(program("leaks"), f"leak_report:{reports}/r%r,suppressions:{rules},suppressions_print:1",
            env={"RANK": rank})

    rc, out, err = merge(reports / "r0", reports / "r1")

    assert (rc, err) == (0, "")
    assert "LEAK SUMMARY: 12154 bytes in 6 allocations, 1 stacks\n" in out
    assert out.endswith("\nSUPPRESSED: 608192 bytes in 8 allocations\n")
    assert [group[:3] for group in merged_groups(out)] == [(12000, 4, "managed"), (154, 2, "device")]


def test_merge_keeps_sizes_and_threads(reports):
    details = ["sizes 20 to 80, sequence 1 to 9, 5 threads: a, b, c, d, ...",
               "sequence 3, thread e", "sizes 10 to 60, sequence 3 to 4"]
    (reports / "a").write_text("".join(
        made(pid).replace("memory\n    load", f"memory\n  {detail}\n    load")
        for pid, detail in enumerate(details)))

    _, out, _ = merge(reports / "a")

    assert merged_groups(out)[0][4] == ["in 3 of 3 processes: pids 0, 1, 2",
                                        "sizes 10 to 100, 6 threads: a, b, c, d, e, ..."]


def test_merge_tells_kinds_of_memory_apart(reports):
    pinned = made(2).replace("device memory\n    load", "pinned memory\n    load")
    (reports / "a").write_text(made(1) + pinned)

    _, out, _ = merge(reports / "a")

    assert [group[:3] for group in merged_groups(out)][:2] == [(100, 1, "device"),
                                                               (100, 1, "pinned")]


PHASES = """PHASES: 3, from mark to mark
  (before the first mark): peak {0} bytes, 0.000 to 0.010 s
  step: one: peak at most {1} bytes, 0.010 to 1.250 s
  step: one: peak at most 5 bytes, 1.250 to 1.260 s
"""


def test_merge_tells_the_peaks_of_phases_and_whose_is_the_highest(reports):
    for rank, (begin, step) in enumerate(((7, 100), (7, 900), (7, 300))):
        peak = "PEAK: 900 bytes in 1 allocations, 1 stacks, 0.100 s after the start\n"
        (reports / f"{rank}").write_text(made(rank + 1, rank=f", rank {rank}") + peak +
                                         PHASES.format(begin, step))
    (reports / "x").write_text("  step: one: peak 1 bytes, 0.000 to 0.010 s\n" + made(9))

    rc, out, err = merge(*sorted(reports.iterdir()))

    assert (rc, err) == (0, "")
    assert out.partition("PHASES: ")[2].splitlines() == [
        "9, from mark to mark",
        "  (before the first mark): peak 7 bytes in 3 of ranks 0-2, highest in rank 0 from 0.000 to "
        "0.010 s",
        "  step: one: peak at most 5 to 900 bytes in 6 of ranks 0-2, highest in rank 1 from 0.010 to "
        "1.250 s"]


def test_the_text_tells_phases_and_all_that_was_allocated_where_asked(run, program, reports):
    """Of as many as anybody reads the highest; a mark's name stays on its line."""
    marks = "; ".join(f"echo alloc 1 {1000 - number}; echo free 1; echo mark m{number}"
                      for number in range(30))
    script = f'{{ echo alloc 1 5; printf "mark a\\033b\\n"; {marks}; }} | "$0"'
    text = run(["sh", "-c", script, program("published")], conf="history:1").err

    plain = run(["sh", "-c", 'echo alloc 1 5 | "$0"', program("published")]).err
    phases = text.partition("\nPHASES: ")[2].splitlines()
    assert phases[0] == "32, from mark to mark"
    assert re.fullmatch(r"  a\\x1bb: peak 1005 bytes, \d\.\d{3} to \d\.\d{3} s", phases[1])
    assert re.fullmatch(r"  m0: peak 1004 bytes, \d\.\d{3} to \d\.\d{3} s", phases[2])
    assert phases[21:] == ["(12 more phases, of lower peaks, not listed here)"]
    assert "\nALLOCATED IN ALL: 29570 bytes in 31 allocations, 1 stacks, 30 temporary\n" in text
    assert "PHASES" not in plain and "ALLOCATED" not in plain
    merged = subprocess.run([sys.executable, MERGE, "-"], input=text, text=True,
                            capture_output=True, check=True).stdout
    assert "PHASES: 20, from mark to mark\n  a\\x1bb: peak 1005 bytes in 1 of pid" in merged


def test_merge_says_whose_stacks_were_sampled(reports):
    (reports / "a").write_text(made(1).replace("leak report", "leak report, stacks sampled: 1M"))
    (reports / "b").write_text(made(2))

    rc, out, _ = merge(reports / "a", reports / "b")

    assert rc == 0
    assert [", stacks sampled: 1M, " in line for line in out.splitlines()[1:3]] == [True, False]


def test_merge_lists_as_many_groups_as_asked(reports):
    (reports / "a").write_text(made(1) + made(2, where="b.c:1\n    between at b.c:5", leaked=7))

    rc, out, _ = merge("--most", 1, reports / "a")

    assert rc == 0
    assert [group[0] for group in merged_groups(out)] == [100, 128]
    assert "(1 more groups, 7 bytes, not listed: --most 1)\n" in out


def test_merge_tells_what_it_cannot_use(reports):
    (reports / "good").write_text(made(1, rank=", rank 5"))
    (reports / "none").write_text("no report\n")
    (reports / "cut").write_text("".join(made(2).splitlines(True)[:3]))

    rc, out, err = merge(*(reports / name for name in ("good", "none", "cut", "missing")))

    assert rc == 1
    assert "rank 5, pid 1" in out
    assert f"{reports}/none: no leak report" in err
    assert f"{reports}/cut: the report of pid 2 is not whole" in err
    assert f"{reports}/missing: No such file" in err


def test_merge_counts_a_file_once(reports):
    """As where two patterns name it."""
    (reports / "one").write_text(made(1))
    (reports / "link").symlink_to("one")

    rc, out, err = merge(reports / "one", reports / "one", reports / "link")

    assert (rc, err) == (0, "") and out.startswith("MERGED LEAK REPORT: 1 processes\n")


def test_merge_passes_over_other_formats_of_reports_that_it_has(reports):
    """`leaks.*` names them all. One without its text is of no use."""
    (reports / "leaks.0").write_text(made(1))
    for name in ("leaks.0.folded", "leaks.0.pprof", "leaks.1.pprof"):
        (reports / name).write_text("main;allocate 12")

    rc, out, err = merge(*sorted(reports.iterdir()))

    assert rc == 1 and out.startswith("MERGED LEAK REPORT: 1 processes\n")
    assert re.findall(r"leaks\S+(?=:)", err) == ["leaks.1.pprof"] and len(err.splitlines()) == 1


@pytest.mark.parametrize("ranks, missing", [((0, 1, 2), None), ((1, 2), "0"), ((0, 3, 4, 7), "1-2, 5-6"),
                                            ((9999999999,), "0-9999999998"), ((None,), None)])
def test_merge_tells_which_ranks_left_no_report(reports, ranks, missing):
    (reports / "err").write_text("".join(
        made(pid, rank="" if rank is None else f", rank {rank}") for pid, rank in enumerate(ranks)))

    _, out, _ = merge(reports / "err")

    assert re.findall(r"^  no report of rank (.*): killed, or without an allocation$", out,
                      re.MULTILINE) == ([missing] if missing else [])


def test_merge_of_no_report_at_all(reports):
    (reports / "none").write_text("")

    rc, out, err = merge(reports / "none")

    assert (rc, out) == (1, "")
    assert err == (f"cachealloc merge: {reports}/none: no leak report in it; accepted: what "
                   "report_format:text or json writes\n")


# --- a real launcher ------------------------------------------------------------------------------


def mpirun(run, program, conf):
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun here")
    if not os.path.isdir("/sys/devices/system/cpu"):
        pytest.skip("mpirun looks for processors in /sys, and says that it finds none")
    if conftest.SANITIZER == "tsan":
        pytest.skip("the launcher's own threads race")
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1}
    result = run(["mpirun", "--oversubscribe", "-np", "4", program("leaks")], conf=conf, env=allowed)
    assert result.rc == 0, result.err
    return result


def test_ranks_under_mpirun_get_a_report_each_which_merge(run, program, reports):
    result = mpirun(run, program, conf=f"leak_report:{reports}/%r.%l")

    assert result.err == ""
    files = sorted(reports.iterdir())
    assert [file.name for file in files] == [f"{i}.{i}" for i in range(4)]
    single = parse(files[0].read_text())
    for file in files:
        report = parse(file.read_text())
        assert (report.bytes, report.count) == LEAKED
        assert report.groups == single.groups
    rc, out, err = merge(*files)
    assert (rc, err) == (0, "")
    assert [group[4] for group in merged_groups(out)] == (
        len(single.groups) * [["in 4 of 4 processes: ranks 0-3", "4 threads: leaks"]])


def without_times(text):
    return re.sub(r"[0-9.]+ s after", "some s after", text)


def test_reports_of_ranks_on_one_stderr_have_whole_lines(run, program, reports):
    mpirun(run, program, conf=f"leak_report:{reports}/one")
    whole = set(without_times((reports / "one").read_text()).splitlines()[1:])

    lines = without_times(mpirun(run, program, conf="").err).splitlines()

    heads = [line for line in lines if re.fullmatch(r"cachealloc\[\d+\]: .*leak report.*", line)]
    assert len(heads) == 4 == len(set(heads))
    assert sorted(set(lines) - set(heads)) == sorted(whole)
    assert len(lines) == 4 * (1 + len((reports / "one").read_text().splitlines()[1:]))
