"""`cachealloc top`: what a page of statistics says, and nothing that is not one."""

import errno
import fcntl
import os
import pathlib
import re
import runpy
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time
import types

import pytest

import conftest
from test_metrics import memory, metrics, runtime, start, stop, until  # noqa: F401 (fixtures)

TOP = conftest.ROOT / "tools" / "cachealloc-top"


def top(*arguments, env=None):
    done = subprocess.run([sys.executable, TOP, *map(str, arguments)], text=True, errors="replace",
                          capture_output=True, check=False, timeout=60,
                          env=conftest.plain_env(env))
    return types.SimpleNamespace(rc=done.returncode, out=done.stdout, err=done.stderr)


def row(out, title):
    return re.findall(rf"^  {re.escape(title)} +(\S.*?)$", out, re.MULTILINE)


@pytest.fixture
def paged(start, runtime):
    """A session whose page has its figures, and the path of that."""
    session = start("stats_page:true")
    session.tell("alloc", 1, 3 << 20)
    session.tell("pinned", 2, 4096)
    page = runtime / "cachealloc" / str(session.pid)
    metrics(page, (3 << 20) + 8192)
    return session, page


def test_top_shows_the_figures(paged):
    session, _ = paged

    result = top(session.pid)

    assert (result.rc, result.err) == (0, "")
    assert result.out.startswith(f"published, pid {session.pid}, ")
    assert row(result.out, "live bytes (device 0, kind device)") == ["3.0 MiB"]
    assert row(result.out, "live allocations (device 0, kind pinned)") == ["2"]
    assert row(result.out, "alloc calls") == ["3"]
    assert "\033" not in result.out


def test_top_shows_it_as_often_as_asked(paged):
    session, _ = paged

    result = top("-n", 3, "-d", 0.1, session.pid)

    assert result.rc == 0 and result.out.count("published, pid") == 3


def test_top_tells_that_its_output_is_full(paged):
    session, _ = paged
    for words in ([], [session.pid]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([sys.executable, TOP, "--once", *map(str, words)], text=True,
                                  stdout=full, stderr=subprocess.PIPE, check=False, timeout=60,
                                  env=conftest.plain_env())

        assert done.returncode == 1
        assert done.stderr == "cachealloc top: stdout: No space left on device\n"


def test_top_tells_how_many_in_a_second(paged):
    session, page = paged
    with subprocess.Popen([sys.executable, TOP, "-n", "1000", "-d", "0.2", str(session.pid)],
                          text=True, stdout=subprocess.PIPE, env=conftest.plain_env()) as process:
        session.tell("alloc", 50, 1000)
        for line in process.stdout:
            if re.match(r"  alloc calls +53 +\d+\.\d$", line):
                break
        else:
            pytest.fail("no rate")
        process.kill()


class Terminal:
    """cachealloc-top on a terminal of that size."""

    def __init__(self, columns, lines, *arguments, **env):
        pyte = pytest.importorskip("pyte")
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.leader, follower = conftest.terminal()
        self.set_size()
        self.process = subprocess.Popen(
            [sys.executable, TOP, *map(str, arguments)], stdin=follower, stdout=follower,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # for the signal of a resize
            env=conftest.plain_env({"TERM": "linux", "LC_ALL": "C.UTF-8", **env}))
        os.close(follower)

    def set_size(self):
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ,
                    struct.pack("HHHH", self.screen.lines, self.screen.columns, 0, 0))

    def resize(self, columns, lines):
        self.screen.resize(lines, columns)
        self.set_size()

    def press(self, keys):
        os.write(self.leader, keys)

    def read(self, seconds):
        """False where the terminal has no other end any more."""
        if not select.select([self.leader], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.leader, 65536)
        except OSError as error:
            assert error.errno == errno.EIO
            return False
        self.stream.feed(data)
        return bool(data)

    def wait_for(self, *patterns):
        """The lines of the screen, once all of them are there."""
        end = time.monotonic() + 30 * conftest.SLOWDOWN
        while time.monotonic() < end:
            lines = [line.rstrip() for line in self.screen.display]
            if all(re.search(pattern, "\n".join(lines), re.MULTILINE) for pattern in patterns):
                return lines
            if not self.read(0.5):
                break
        return pytest.fail(f"no {patterns} in:\n" + "\n".join(self.screen.display))

    def choice(self):
        """The process whose figures are shown, or None while a screen is being drawn.

        Only what changed is written, and a screen may be read half written: a process id may be
        the first digits of one and the last ones of another. The rows of the list come before it.
        """
        rows = [line for line in range(self.screen.lines) if self.screen.buffer[line][0].reverse]
        listed = [" ".join(self.screen.display[line].split()[:1]) for line in rows]
        shown = re.findall(r", pid (\d+) ", "\n".join(self.screen.display))
        return int(shown[0]) if len(rows) == 1 and listed == shown else None

    def wait_for_choice(self, before=None):
        """The process whose figures are shown, once it is another one than `before`."""
        end = time.monotonic() + 30 * conftest.SLOWDOWN
        while time.monotonic() < end:
            if self.choice() not in (None, before):
                return self.choice()
            if not self.read(0.5):
                break
        return pytest.fail(f"no choice but {before} in:\n" + "\n".join(self.screen.display))

    def end(self):
        """(exit status, stderr)"""
        while self.read(30 * conftest.SLOWDOWN):
            pass
        os.close(self.leader)
        self.process.wait(60)
        return self.process.returncode, self.process.stderr.read()


HEADS = (r"^live +3\.\d MiB .*\u2588", r"^held .* MiB \u2588", r"^calls +\d+ allocations")


def test_top_fits_a_terminal_until_a_key_ends_it(paged):
    session, _ = paged
    terminal = Terminal(80, 24, "-d", 0.1, session.pid)

    lines = terminal.wait_for(*HEADS, "^q quits$")

    assert len(lines) == 24 and lines[0].startswith(f"published, pid {session.pid} ")
    assert {"device", "kind of memory"} <= {" ".join(line.split("  ")[:1]) for line in lines}
    assert any(re.match(r"device 0, pinned +8\.0 KiB +2$", line) for line in lines), lines
    assert lines[-1] == "q quits"
    session.tell("alloc", 50, 1000)
    assert not any(re.match("allocation calls ", line) for line in lines)
    terminal.resize(120, 44)
    terminal.wait_for(*HEADS, r"^allocation calls +53 ")
    terminal.resize(40, 6)
    assert terminal.wait_for("^live +3", "^q quits$")[-1] == "q quits"
    terminal.press(b"q")
    assert terminal.end() == (0, "")


def test_top_on_a_terminal_goes_on_until_the_process_ends(paged):
    session, _ = paged
    terminal = Terminal(80, 24, "-d", 0.1, session.pid)
    terminal.wait_for("^live ")

    assert session.end() == 3

    assert terminal.end() == (0, f"cachealloc top: process {session.pid} has ended\n")


def test_arrows_choose_one_of_several_processes(paged, start):
    session, page = paged
    other = start("stats_page:true")
    other.tell("alloc", 1, 77 << 20)
    metrics(page.parent / str(other.pid), 77 << 20)
    terminal = Terminal(80, 24, "-d", 0.1)
    first, second = sorted((session.pid, other.pid))
    size = {session.pid: r"3\.0", other.pid: r"77\.0"}

    terminal.wait_for(r"program \(\d+\)$", rf"^ +{first} ", rf"^ +{second} ")

    for key, pid in ((b"\x1b[B", second), (b"\x1b[A", first), (b"\x1b[C", second)):
        shown = terminal.wait_for_choice()
        for _ in range(20):  # others may have pages, too
            if shown == pid:
                break
            terminal.press(key)
            shown = terminal.wait_for_choice(shown)
        terminal.wait_for(rf"^published, pid {pid} ", rf"^live +{size[pid]} MiB")
    terminal.process.terminate()
    assert terminal.end() == (128 + signal.SIGTERM, "")


def test_on_a_terminal_lines_are_printed_where_asked(paged):
    session, _ = paged
    for words in (["--once", session.pid], ["-n", 1, session.pid], ["--once"]):
        terminal = Terminal(120, 60, *words)
        terminal.wait_for("published")
        assert not any("q quits" in line for line in terminal.screen.display)
        assert terminal.end() == (0, "")


def test_a_terminal_without_a_cursor_gets_lines(paged):
    session, _ = paged
    terminal = Terminal(120, 60, "-d", 0.1, session.pid, TERM="dumb")

    terminal.wait_for("^published, pid ", "^  alloc calls +3")

    session.end()
    assert terminal.end()[0] == 0


@pytest.mark.parametrize("ends", [True, False])
def test_a_process_may_end_some_time_after_its_page(paged, ends):
    session, page = paged
    terminal = Terminal(80, 24, "-d", 0.1, session.pid)
    terminal.wait_for("^live ")
    stop(session.process)

    page.unlink()
    if ends:
        time.sleep(0.4)
        session.process.kill()

    said = "has ended" if ends else "has no page of statistics any more"
    assert terminal.end() == (0 if ends else 1,
                              f"cachealloc top: process {session.pid} {said}\n")
    session.process.kill()


def fake(written=1000, pid=7, rank="", **values):
    """A page that is read by the rules of one."""
    lines = [f"# cachealloc statistics 1 pid {pid} began 0 every 1000 ms"]
    whose = f'pid="{pid}",start="1",program="train' + (f'",rank="{rank}' if rank else "")
    for name, (kind, samples) in values.items():
        lines += [f"# HELP cachealloc_{name} what it is", f"# TYPE cachealloc_{name} {kind}"]
        lines += [f"cachealloc_{name}{{{whose}{labels} {value}" for labels, value in samples]
    module = runpy.run_path(str(TOP), run_name="top")
    return module["Page"]("\n".join([*lines, "# EOF", ""]), written)


def counts(**values):
    return {f"{name}_total": ("counter", [('"}', value)]) for name, value in values.items()}


def gauges(**values):
    return {name: ("gauge", [('"}', value)]) for name, value in values.items()}


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.syspath_prepend(str(TOP.parent))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return pytest.importorskip("top_screen")


def test_the_screen_of_the_documentation_is_one(screen):
    page = (conftest.ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- top -->\n```text\n(.*?)```\n<!-- /top -->", page, re.DOTALL)[1]
    mib, on = 1 << 20, '",device="0'
    pool = {"reserved": 1640, "live": 1018, "ready": 602, "largest_ready": 96, "pending": 20,
            "idle": 278}

    def at(written, calls):
        return fake(written, 4711, "0", **gauges(live_peak_bytes=1330 * mib, start_time_seconds=983,
                                               pool_reserved_peak_bytes=1640 * mib),
                    live_bytes=("gauge", [(f'{on}",kind="device"}}', 1017 * mib),
                                          (f'{on}",kind="pinned"}}', 3 * mib)]),
                    live_allocations=("gauge", [(f'{on}",kind="device"}}', 40),
                                                (f'{on}",kind="pinned"}}', 3)]),
                    **{f"pool_{name}_bytes": ("gauge", [(f'{on}"}}', value * mib)])
                       for name, value in pool.items()},
                    **counts(alloc_calls=calls, free_calls=calls, pool_hits=15968, pool_misses=32,
                             fence_waits=0, upstream_allocs=32, upstream_frees=0))

    processes = {4711: screen.Watched(at(999, 15015)), 4712: screen.Watched(
        fake(1000, 4712, "1", **gauges(live_bytes=1126 * mib, pool_reserved_bytes=1640 * mib)))}
    processes[4711].take(at(1000, 16000))
    lines = screen.lines_of(processes, 4711, 80, 24, "\u2588\u2591", now=1001)

    assert "\n".join(text for text, _ in lines).rstrip() == shown.rstrip()


def test_what_a_screen_has_no_place_for_is_cut_and_counted(screen):
    labels = [f'",device="{device}' for device in range(30)]
    page = fake(live_bytes=("gauge", [(f'{label}",kind="device"}}', 1 << 60) for label in labels]),
                live_allocations=("gauge", [('"}', 30)]),
                pool_ready_bytes=("gauge", [(f'{label}"}}', 100) for label in labels]),
                pool_largest_ready_bytes=("gauge", [(f'{label}"}}', 25) for label in labels]),
                alloc_calls_total=("counter", [('"}', 12)]))
    processes = {pid: screen.Watched(page) for pid in range(100, 200)}

    for width, height in ((80, 24), (120, 40), (20, 5), (1, 1), (300, 100)):
        lines = screen.lines_of(processes, 150, width, height, now=1001.0)
        assert len(lines) == height and all(len(text) <= width for text, _ in lines)
    text = "\n".join(text for text, _ in screen.lines_of(processes, 150, 80, 24, now=1001.0))
    assert "  150 " in text and "program (100)" in text and "... and 29 more" in text
    assert re.search(r"^0 +.* 75 %$", text, re.MULTILINE), text
    old = screen.lines_of({7: screen.Watched(page)}, 7, 80, 24, now=1050.0)
    assert "NOT REFRESHED for 50 s" in old[0][0]


def test_top_lists_the_processes_that_have_pages(paged, start):
    session, page = paged
    (page.parent / "1").write_text("garbage")
    killed = start("stats_page:true")
    killed.tell("alloc", 1, 1000)
    metrics(page.parent / str(killed.pid), 1000)
    killed.end("kill")

    result = top()

    assert result.rc == 0
    lines = result.out.splitlines()
    assert lines[0].split() == ["pid", "live", "reserved", "program"]
    ended = {line.split()[0]: line.endswith(" published (has ended)") for line in lines[1:]}
    assert ended[str(killed.pid)] and ended[str(session.pid)] is False  # others may have one, too
    assert (f"cachealloc top: {page.parent}/1 does not begin as a page of statistics does\n"
            in result.err)


def test_top_shows_names_in_an_encoding_that_lacks_their_letters(start, runtime, program, tmp_path):
    odd = tmp_path / "caf\u00e9"
    shutil.copy(program("published"), odd)
    session = start("stats_page:true", path=odd)
    session.tell("alloc", 1, 1000)
    metrics(runtime / "cachealloc" / str(session.pid), 1000)

    one, listed = (top(*pid, env={"PYTHONIOENCODING": "ascii"}) for pid in ([session.pid], []))

    assert (one.rc, one.err, listed.rc) == (0, "", 0)
    assert one.out.startswith(f"caf?, pid {session.pid}, ")
    assert re.search(rf"^ *{session.pid} .* caf\?$", listed.out, re.MULTILINE)


def test_top_says_how_to_get_a_page(start):
    session = start("stats_page:false")
    session.tell("alloc", 1, 1000)

    result = top(session.pid)

    assert (result.rc, result.out) == (1, "")
    assert f"process {session.pid} has no page of statistics" in result.err
    assert "stats_page:true" in result.err


def test_top_knows_who_has_ended(paged):
    session, page = paged
    session.end("kill")

    result = top(session.pid)

    assert page.exists()
    assert (result.rc, result.out) == (1, "")
    assert result.err == f"cachealloc top: there is no process {session.pid}\n"


def test_the_page_of_an_earlier_process_of_that_id_is_not_believed(paged):
    session, page = paged
    stop(session.process)
    text = page.read_text()
    page.unlink()
    page.write_text(re.sub(r" began \d+ ", " began 1 ", text))

    result = top(session.pid)

    session.process.send_signal(signal.SIGCONT)
    assert (result.rc, result.out) == (1, "") and "has no page" in result.err


def test_top_tells_that_a_page_is_old(paged):
    session, page = paged
    stop(session.process)
    os.utime(page, (time.time() - 100, time.time() - 100))

    result = top(session.pid)

    session.process.send_signal(signal.SIGCONT)
    assert result.rc == 0 and "not refreshed: the process is stopped" in result.out


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user too")
def test_another_users_process_is_told_as_such():
    result = subprocess.run(
        [sys.executable, "-c", "import os, sys; os.setuid(65534); os.execv(sys.executable, "
         f"[sys.executable, '-', str(os.getppid())])"], text=True, capture_output=True,
        stdin=open(TOP, encoding="utf-8"), check=False)

    assert result.returncode == 1
    assert f"process {os.getpid()} is another user's (0)" in result.stderr


HOSTILE = {
    "empty": (lambda text: "", "does not begin as a page"),
    "garbage": (lambda text: "\x00\x01" * 5000, "does not begin as a page"),
    "truncated": (lambda text: text[:len(text) // 2], "is not whole"),
    "version": (lambda text: text.replace("statistics 1 ", "statistics 2 ", 1), "is of version 2"),
    "large": (lambda text: text + "x" * (1 << 20), "is too large"),
    "number": (lambda text: re.sub(r"\} \d+\n", "} 99999999999999999999\n", text, count=1),
               "has something else in line"),
    "negative": (lambda text: re.sub(r"\} \d+\n", "} -1\n", text, count=1),
                 "has something else in line"),
    "escapes": (lambda text: text.replace("# EOF", "\x1b[2Jx 1\n# EOF"),
                "has something else in line"),
    "other pid": (lambda text: re.sub(r'pid="\d+"', 'pid="1"', text), "does not say whose it is"),
    "two": (lambda text: text.replace('pid="', 'pid="1', 1), "has something else in line"),
    "no text": (lambda text: text.replace("published", "\udcff"), "no text"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_nothing_in_a_page_is_believed_unseen(paged, how):
    session, page = paged
    change, said = HOSTILE[how]
    stop(session.process)
    text = page.read_text()
    page.unlink()
    page.write_text(change(text), errors="surrogateescape")

    result = top(session.pid)

    session.process.send_signal(signal.SIGCONT)
    assert (result.rc, result.out) == (1, ""), result.out
    assert result.err.startswith(f"cachealloc top: {page} ") and said in result.err


def test_a_name_cannot_write_to_the_terminal(paged):
    session, page = paged
    stop(session.process)
    text = page.read_text()
    page.unlink()
    page.write_text(text.replace('program="published"', 'program="a\x1b[2J\\"b"'))

    result = top(session.pid)

    session.process.send_signal(signal.SIGCONT)
    assert result.rc == 0 and result.out.startswith('a?[2J"b, pid')


@pytest.mark.parametrize("what", ["link", "pipe", "directory", "another's"])
def test_what_is_no_file_of_the_users_is_no_page(paged, what, memory):
    session, page = paged
    stop(session.process)
    os.rename(page, memory / "page")
    if what == "link":
        page.symlink_to(memory / "page")
    elif what == "pipe":
        os.mkfifo(page)
    elif what == "directory":
        page.mkdir()
    elif os.geteuid() == 0:
        shutil.copy(memory / "page", page)
        os.chown(page, 65534, 65534)
    else:
        session.process.send_signal(signal.SIGCONT)
        pytest.skip("needs root, to be another user too")

    result = top(session.pid)

    session.process.send_signal(signal.SIGCONT)
    assert (result.rc, result.out) == (1, "")
    assert result.err.startswith(f"cachealloc top: {page}") and result.err.count("\n") == 1


def test_a_page_s_place_is_its_users_alone(start, runtime):
    """Where the runtime folder will not do it goes below /tmp, where others may have been first."""
    shared = runtime / "cachealloc"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    session = start("stats_page:true")
    session.tell("alloc", 1, 1000)
    other = pathlib.Path(f"/tmp/cachealloc-{os.geteuid()}/{session.pid}")

    metrics(other, 1000)

    assert list(shared.iterdir()) == []
    assert stat.S_IMODE(other.parent.stat().st_mode) == 0o700
    assert top(session.pid).rc == 0
    assert session.end() == 3 and not other.exists()


@pytest.fixture
def start_as(start, program):
    """start_as(user, conf) is a session of another user, to whom the tree may be closed, as below
    /root: what it runs lies elsewhere."""
    with tempfile.TemporaryDirectory(prefix="cachealloc-test-") as top:
        os.chmod(top, 0o755)
        simcuda = shutil.copytree(conftest.BUILD / "simcuda", pathlib.Path(top, "simcuda"))
        path, shim = (shutil.copy(path, top) for path in (program("published"), conftest.SHIM))

        yield lambda user, conf: start(conf, path=path, user=user, cwd="/", env={
            "LD_LIBRARY_PATH": simcuda,
            "LD_PRELOAD": " ".join([*conftest.SANITIZER_PRELOAD, shim])})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user too")
def test_a_place_that_is_not_its_users_alone_is_told(start_as):
    user = 20000 + os.getpid() % 40000  # nobody's
    place = pathlib.Path(f"/tmp/cachealloc-{user}")
    place.mkdir(mode=0o755)
    session = start_as(user, "stats_page:true")
    try:
        session.tell("alloc", 1, 1000)
        until("a message", session.said)
        assert session.end() == 3
    finally:
        place.rmdir()

    assert f"stats_page: {place} is not this user's alone; accepted: a folder of" in session.said()


def top_as(user, pid):
    with open(TOP, encoding="utf-8") as script:
        done = subprocess.run([sys.executable, "-", str(pid)], text=True, user=user, stdin=script,
                              capture_output=True, check=False, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user too")
def test_a_folder_that_su_left_behind_is_passed_over(start_as, runtime):
    """XDG_RUNTIME_DIR is still that of the user before."""
    user = 20000 + os.getpid() % 40000  # nobody's
    place = pathlib.Path(f"/tmp/cachealloc-{user}")
    runtime.chmod(0o700)
    session = start_as(user, "stats_page:true")
    try:
        session.tell("alloc", 1, 1000)
        metrics(place / str(session.pid), 1000)
        stop(session.process)
        assert top_as(user, session.pid) == (0, "")
        (place / str(session.pid)).unlink()
        assert top_as(user, session.pid) == (
            1, f"cachealloc top: {runtime}/cachealloc/{session.pid}: Permission denied; in no other "
               "folder is there a page\n")
    finally:
        session.process.kill()
        session.process.wait()
        shutil.rmtree(place)


@pytest.mark.parametrize("words, said", [
    (["x"], "'x': accepted is 1 to 2147483647"), ([0], "accepted is 1"),
    (["-n", 0, 1], "accepted is 1 to"), (["-d", "nan", 1], "accepted is 0.1 to 86400"),
    (["-d", 0, 1], "accepted is 0.1 to 86400")])
def test_what_top_does_not_take(words, said):
    result = top(*words)

    assert (result.rc, result.out) == (2, "") and said in result.err
