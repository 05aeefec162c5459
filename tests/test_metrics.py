"""What a process tells while it runs: `metrics`, for node_exporter, and `stats_page`, for
`cachealloc top` (test_top.py). Files are whole, the process's own, and gone when it ends."""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import stat
import subprocess
import tempfile
import time

import pytest

import conftest

OFTEN = "metrics_interval:100ms"
PATIENCE_S = 30 * conftest.SLOWDOWN


def until(what, holds, process=None):
    """The first true answer of holds()."""
    begin = time.monotonic()
    while time.monotonic() - begin < PATIENCE_S:
        if found := holds():
            return found
        if process is not None and process.poll() is not None:
            break
        time.sleep(0.01)
    pytest.fail(f"it does not come to it: {what}")


def stop(process):
    """Returns when none of its threads runs on. The signal goes to one of them, and only once that
    one has a core do the others hear of it."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


class Session:
    """A `published` that does what it is told."""

    def __init__(self, program, conf, errors, env=None, **kwargs):
        full = conftest.plain_env({
            "LD_LIBRARY_PATH": conftest.BUILD / "simcuda",
            "LD_PRELOAD": " ".join([*conftest.SANITIZER_PRELOAD, str(conftest.SHIM)]),
            "ALLOC_CONF": f"leak_report:off,x_warmup:16,{conf}", **(env or {})})
        self.errors = errors
        with open(errors, "a", encoding="utf-8") as err:
            self.process = subprocess.Popen([program], env=full, text=True, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=err, **kwargs)
        self.pid = self.process.pid

    def tell(self, *words):
        """Its answer, without the last line."""
        print(*words, file=self.process.stdin, flush=True)
        lines = []
        for line in self.process.stdout:
            if line == "ok\n":
                return "".join(lines)
            lines.append(line)
        return pytest.fail(f"{words}: {self.process.wait()} {self.said()}")

    def stats(self):
        return {name: int(value) for name, value in
                (line.split() for line in self.tell("stats").splitlines())}

    def end(self, how="exit"):
        print("end", how, file=self.process.stdin, flush=True)
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)

    def said(self):
        return self.errors.read_text()


@pytest.fixture
def memory():
    """A folder in memory, where there is one: on a busy disk a file may take a minute."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="cachealloc-test-", dir=where) as path:
        yield pathlib.Path(path)


@pytest.fixture
def runtime(memory):
    """The user's runtime folder."""
    path = memory / "runtime"
    path.mkdir()
    return path


@pytest.fixture
def start(program, runtime, tmp_path, monkeypatch):
    """start(conf, ...) is a session. Its pages go to `runtime`."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    sessions = []

    def begin(conf, path=program("published"), **kwargs):
        errors = tmp_path / f"stderr-{len(sessions)}"
        sessions.append(Session(path, conf, errors, **kwargs))
        return sessions[-1]

    yield begin
    for session in sessions:
        session.process.kill()
        session.process.wait()
        session.process.stdin.close()
        session.process.stdout.close()


@pytest.fixture
def folder(memory):
    """The collector's."""
    path = memory / "collector"
    path.mkdir()
    return path


def parse(text):
    """name -> {labels but the process's: value}, by the format's own library."""
    parser = pytest.importorskip("prometheus_client.parser", reason="no prometheus_client here")
    found = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.name.startswith("cachealloc_") and family.documentation
        assert family.type in ("gauge", "counter")
        for sample in family.samples:
            assert sample.name == family.name + ("_total" if family.type == "counter" else "")
            assert sample.value == int(sample.value) >= 0 and sample.timestamp is None
            own = {name: value for name, value in sample.labels.items()
                   if name not in ("pid", "start", "program", "host", "rank")}
            assert len(own) + 4 <= len(sample.labels)
            found.setdefault(sample.name[len("cachealloc_"):], {})[
                tuple(own.values())] = int(sample.value)
    assert found
    return found


def metrics(path, live):
    """The figures of a file, once it has so many live bytes."""
    def look():
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        assert text.startswith("# cachealloc statistics ") and text.endswith("\n# EOF\n")
        figures = parse(text)
        return figures if sum(figures.get("live_bytes", {}).values()) == live else None
    return until(f"{live} live bytes in {path}", look)


def only(folder):
    """The one file; not a temporary one, and not the one that it takes the place of."""
    files = until("a file", lambda: list(folder.glob("[!.]*")))
    assert len(files) == 1, files
    return files[0]


# --- metrics --------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_statistics_and_the_report(start, folder, tmp_path):
    session = start(f"metrics:{folder}/x.prom,{OFTEN}")
    for words in (("alloc", 30, 5000), ("pinned", 2, 70000), ("managed", 1, 900), ("free", 10)):
        session.tell(*words)
    session.tell("dump", tmp_path / "dumped.json")
    report = json.loads((tmp_path / "dumped.json").read_text())
    stats = session.stats()

    told = metrics(folder / "x.prom", 20 * 5000 + 2 * 70000 + 900)

    assert told["live_bytes"] == {("0", "device"): 100000, ("0", "pinned"): 140000,
                                  ("0", "managed"): 900}
    assert told["live_allocations"] == {("0", "device"): 20, ("0", "pinned"): 2,
                                        ("0", "managed"): 1}
    for total in report["sections"]["leaked"]["totals"]:
        key = (str(total["device"]), total["kind"])
        assert (told["live_bytes"].pop(key), told["live_allocations"].pop(key)) == (
            total["bytes"], total["count"])
    assert not told["live_bytes"] and not told["live_allocations"]
    pool = report["pool"]
    assert told["pinned_pool_reserved_bytes"] == {(): pool["pinned_reserved"]}
    assert told["pool_reserved_bytes"] == {("0",): pool["reserved"]}
    assert told["live_peak_bytes"] == {(): report["peak_at_most"]}
    assert "_live_peak_bytes upper bound of " in (folder / "x.prom").read_text()
    plain = {"live_peak_bytes": "live_peak_bytes",
             "pool_reserved_peak_bytes": "reserved_peak_bytes",
             "pinned_pool_reserved_bytes": "pinned_reserved_bytes", "contexts": "contexts",
             "call_stacks": "stacks", "alloc_calls_total": "alloc_calls",
             "free_calls_total": "free_calls", "pool_hits_total": "hits",
             "pool_misses_total": "misses", "upstream_allocs_total": "upstream_allocs",
             "wrong_frees_total": "wrong_frees", "out_of_memory_total": "out_of_memory",
             "fence_records_total": "fence_records"}
    for name, other in plain.items():
        assert told[name] == {(): stats[other]}, name
    on_device = {"reserved_bytes": "reserved_bytes", "live_bytes": "block_bytes",
                 "pending_bytes": "pending_bytes", "ready_bytes": "ready_bytes",
                 "idle_bytes": "idle_bytes", "segments": "segments", "blocks": "blocks"}
    for name, other in on_device.items():
        assert told[f"pool_{name}"] == {("0",): stats[other]}, name
    for name in ("fence_queries", "fence_waits", "fence_joins", "passed_through", "splits",
                 "upstream_frees", "lost_bytes", "lost_allocations", "lane_r_allocs"):
        assert () in told[f"{name}_total"]
    assert stats["alloc_calls"] == 33 and stats["free_calls"] == 10
    assert session.said() == ""


def test_what_is_freed_is_told_as_nothing(start, folder):
    session = start(f"metrics:{folder}/x.prom,{OFTEN}")
    session.tell("alloc", 3, 1000)
    metrics(folder / "x.prom", 3000)

    session.tell("free", 3)

    assert metrics(folder / "x.prom", 0)["live_bytes"] == {("0", "device"): 0}


@pytest.mark.parametrize("how, rc, stays", [
    ("exit", 3, False), ("_exit", 3, False), ("quick_exit", 3, False),
    ("abort", -signal.SIGABRT, True), ("kill", -signal.SIGKILL, True)])
def test_the_files_go_when_the_process_ends_by_itself(start, folder, how, rc, stays, runtime):
    session = start(f"metrics:{folder}/x.prom,{OFTEN},stats_page:true")
    session.tell("alloc", 1, 1000)
    metrics(folder / "x.prom", 1000)
    page = runtime / "cachealloc" / str(session.pid)
    until("a page", page.exists)

    assert session.end(how) == rc

    assert ((folder / "x.prom").exists(), page.exists()) == (stays, stays)
    if not stays:
        assert list(folder.iterdir()) == list(page.parent.iterdir()) == []


def test_off_there_is_no_file_and_no_thread(start, folder, runtime):
    session = start("metrics:off", cwd=folder)
    session.tell("alloc", 1, 1000)

    assert session.tell("threads") == "0\n"
    assert session.end() == 3
    assert list(folder.iterdir()) == list(runtime.iterdir()) == []


def test_both_are_kept_by_one_thread(start, folder):
    session = start(f"metrics:{folder}/x,{OFTEN},stats_page:true")
    session.tell("alloc", 1, 1000)
    metrics(folder / "x.prom", 1000)

    assert session.tell("threads") == "1\n"


def test_without_cuda_there_is_none(run, folder):
    result = run(["sh", "-c", "ls; true"], conf=f"metrics:{folder}/%p.prom")

    assert (result.rc, result.err, list(folder.iterdir())) == (0, "", [])


def test_the_collector_may_read_it_and_nobody_reads_the_page(start, folder, runtime):
    session = start(f"metrics:{folder}/x.prom,stats_page:true", umask=0o77)
    session.tell("alloc", 1, 1000)
    pages = runtime / "cachealloc"
    until("a page", lambda: pages.exists() and list(pages.glob("[0-9]*")))

    assert stat.S_IMODE(only(folder).stat().st_mode) == 0o644
    assert stat.S_IMODE(pages.stat().st_mode) == 0o700
    assert stat.S_IMODE(only(pages).stat().st_mode) == 0o400


def test_names_are_escaped_and_the_rank_is_told(start, folder, program, tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    odd = tmp_path / 'a"b\\c\n\x1bé\udcff'
    shutil.copy(program("published"), odd)

    session = start(f"metrics:{folder}/x.prom", path=odd, env={"RANK": "7"})
    session.tell("alloc", 1, 1000)

    text = only(folder).read_text(encoding="utf-8")
    families = list(parser.text_string_to_metric_families(text))
    labels = next(family for family in families
                  if family.name == "cachealloc_info").samples[0].labels
    assert labels["program"] == 'a"b\\c\\x0a\\x1bé\\xff'
    assert (labels["pid"], labels["rank"]) == (str(session.pid), "7")
    assert labels["host"] and int(labels["start"]) > 0


def test_every_process_has_a_file_of_its_own_that_the_collector_reads(start, folder):
    sessions = [start(f"metrics:{folder}/x.prom,{OFTEN}") for _ in range(3)]
    for number, session in enumerate(sessions, 1):
        session.tell("alloc", number, 1000)
        until("a file", lambda: len(list(folder.glob("*.prom"))) == number)

    assert {path.name for path in folder.glob("[!.]*")} == {
        "x.prom", f"x.{sessions[1].pid}.prom", f"x.{sessions[2].pid}.prom"}
    metrics(folder / f"x.{sessions[2].pid}.prom", 3000)
    assert sessions[0].said() == ""
    for session in sessions[1:]:
        assert re.fullmatch(rf"cachealloc\[{session.pid}\]: warning: metrics: the file that was "
                            rf"asked for exists, so it is {folder}/x.{session.pid}.prom\n",
                            session.said())
        assert session.end() == 3
    assert only(folder).name == "x.prom"


def test_patterns_and_relative_paths(start, folder):
    """The program leaves its folder, and closes what it does not know. It would close a file that is
    just being written, too: one has come, and the next one is due a second later."""
    session = start("metrics:%e-%p-%q{WHO},metrics_interval:1s", cwd=folder, env={"WHO": "me"})
    session.tell("alloc", 1, 1000)
    path = folder / f"published-{session.pid}-me.prom"
    until("a file", path.exists)

    session.tell("chdir", "/")
    session.tell("close")
    session.tell("alloc", 1, 1000)

    metrics(path, 2000)
    assert session.end() == 3
    assert list(folder.iterdir()) == [] and session.said() == ""


@pytest.mark.parametrize("what", ["file", "link", "dangling", "directory", "pipe"])
def test_what_is_there_is_left_alone(start, folder, tmp_path, what):
    path, victim = folder / "x.prom", tmp_path / "victim"
    victim.write_text("precious")
    if what == "file":
        path.write_text("precious")
    elif what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(victim if what == "link" else tmp_path / "missing")
    before = path.lstat()

    session = start(f"metrics:{path},{OFTEN}")
    session.tell("alloc", 1, 1000)

    metrics(folder / f"x.{session.pid}.prom", 1000)
    assert f"exists, so it is {folder}/x.{session.pid}.prom" in session.said()
    assert session.end() == 3
    after = path.lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before.st_ino, before.st_mode, before.st_mtime_ns)
    assert victim.read_text() == "precious" and not (tmp_path / "missing").exists()
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("what", ["file", "link"])
def test_what_takes_its_place_is_left_alone(start, folder, tmp_path, what):
    path, victim = folder / "x.prom", tmp_path / "victim"
    victim.write_text("precious")
    session = start(f"metrics:{path},{OFTEN}")
    session.tell("alloc", 1, 1000)
    metrics(path, 1000)

    other = folder.parent / "other"
    if what == "file":
        other.write_text("precious")
    else:
        other.symlink_to(victim)
    os.replace(other, path)

    until("a message", session.said)
    session.tell("alloc", 1, 1000)
    assert session.end() == 3
    assert session.said() == (f"cachealloc[{session.pid}]: warning: metrics: {path} is another "
                              "file than the one written last, and is left alone\n")
    assert path.read_text() == victim.read_text() == "precious"
    assert path.is_symlink() == (what == "link")
    assert list(folder.iterdir()) == [path]


def test_a_file_that_was_removed_comes_again(start, folder):
    session = start(f"metrics:{folder}/x.prom,{OFTEN}")
    session.tell("alloc", 1, 1000)
    metrics(folder / "x.prom", 1000)

    (folder / "x.prom").unlink()

    metrics(folder / "x.prom", 1000)
    assert session.said() == ""


def test_a_folder_that_goes_is_told_once_and_may_come_again(start, folder):
    session = start(f"metrics:{folder}/x.prom,{OFTEN}")
    session.tell("alloc", 1, 1000)
    metrics(folder / "x.prom", 1000)

    while folder.exists():  # a temporary file may come meanwhile
        shutil.rmtree(folder, ignore_errors=True)
    until("a message", session.said)
    session.tell("alloc", 1, 1000)
    folder.mkdir(exist_ok=True)

    metrics(folder / "x.prom", 2000)
    assert session.said().count("\n") == 1 and "No such file or directory" in session.said()


def test_a_missing_folder_is_told_once_and_the_program_runs_on(start, folder, runtime):
    session = start(f"metrics:{folder}/no/x.prom,{OFTEN},stats_page:true")
    session.tell("alloc", 1, 1000)
    page = runtime / "cachealloc" / str(session.pid)

    until("a message", session.said)
    until("a page", page.exists)
    first = page.stat().st_mtime_ns
    until("a second of tries", lambda: page.stat().st_mtime_ns != first)

    assert session.said() == (f"cachealloc[{session.pid}]: warning: metrics: cannot write "
                              f"{folder}/no/x.prom (No such file or directory)\n")
    assert session.end() == 3


def test_the_collectors_folder_is_no_name_for_a_file(start, folder):
    for path in (folder, f"{folder}/"):
        session = start(f"metrics:{path},{OFTEN}")
        session.tell("alloc", 1, 1000)
        until("a message", session.said)
        assert "Is a directory" in session.said()
        assert session.end() == 3
    assert list(folder.iterdir()) == [] and not list(folder.parent.glob("*.prom"))


def test_where_there_is_no_room_the_last_file_stays(start, folder, runtime):
    """As far as it can tell: a file may have 2000 bytes, and no signal ends the program."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which Python ignores, and children inherit

    session = start(f"metrics:{folder}/x.prom,{OFTEN},stats_page:true", preexec_fn=limit)
    session.tell("alloc", 1, 1000)

    until("messages", lambda: session.said().count("File too large") == 2)
    assert session.end() == 3
    assert session.said().count("\n") == 2
    assert list(folder.iterdir()) == list((runtime / "cachealloc").iterdir()) == []


@pytest.mark.parametrize("how, rc", [("exit", 3), ("_exit", 3), ("kill", -signal.SIGKILL)])
def test_a_child_leaves_the_files_of_its_parent(start, folder, how, rc, runtime):
    session = start(f"metrics:{folder}/x.prom,{OFTEN},stats_page:true")
    session.tell("alloc", 1, 1000)
    metrics(folder / "x.prom", 1000)
    page = runtime / "cachealloc" / str(session.pid)
    until("a page", page.exists)

    assert session.tell("fork", how) == f"{rc}\n"

    assert (folder / "x.prom").exists() and page.exists()
    session.tell("alloc", 1, 1000)
    metrics(folder / "x.prom", 2000)
    assert session.end() == 3
    assert list(folder.iterdir()) == [] and session.said() == ""


def test_a_child_from_before_the_first_context_has_files_of_its_own(run, program, folder):
    result = run([program("forks")], conf=f"metrics:{folder}/%p.prom,{OFTEN},stats_page:true",
                 env={"XDG_RUNTIME_DIR": folder})

    assert result.rc == run([program("forks")]).rc
    assert [path.name for path in folder.iterdir()] in ([], ["cachealloc"])
    assert list(folder.glob("cachealloc/*")) == []


def test_a_program_that_becomes_another_gets_another_file(start, folder, runtime):
    session = start(f"metrics:{folder}/x.%p.prom,{OFTEN},stats_page:true")
    session.tell("alloc", 1, 1000)
    metrics(folder / f"x.{session.pid}.prom", 1000)
    page = runtime / "cachealloc" / str(session.pid)
    until("a page", page.exists)

    print("exec", file=session.process.stdin, flush=True)
    session.tell("alloc", 2, 1000)

    metrics(folder / f"x.{session.pid}.{session.pid}.prom", 2000)
    metrics(page, 2000)  # there can be no other process of that id
    assert session.end() == 3
    assert [path.name for path in folder.iterdir()] == [f"x.{session.pid}.prom"]
    assert not page.exists()


@pytest.mark.parametrize("item, said", [
    ("metrics_interval:1ms", "metrics_interval:1ms is out of range; accepted: 100ms to 86400s"),
    ("metrics_interval:5", "accepted: "), ("stats_page:maybe", "stays false"),
    ("metrics:%z", "has an unknown pattern %z")])
def test_what_is_wrong_is_told(start, item, said):
    session = start(item)
    session.tell("alloc", 1, 1000)

    assert said in session.said()
