"""`cachealloc top`: what a page of statistics says, and nothing that is not one."""

import errno
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import types

import pytest

import conftest
from test_metrics import memory, metrics, runtime, start, until  # noqa: F401 (fixtures)

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


def test_top_on_a_terminal_goes_on_until_the_process_ends(paged):
    session, _ = paged
    leader, follower = conftest.terminal()
    with subprocess.Popen([sys.executable, TOP, "-d", "0.1", str(session.pid)], stdout=follower,
                          stderr=subprocess.PIPE, text=True,
                          env=conftest.plain_env()) as process:
        os.close(follower)
        shown = b""
        while shown.count(b"\033[H\033[J") < 3:
            shown += os.read(leader, 65536)
        assert session.end() == 3
        while True:  # until the terminal has no other end
            try:
                if not os.read(leader, 65536):
                    break
            except OSError as error:
                assert error.errno == errno.EIO
                break
        assert process.wait(60) == 0
        assert process.stderr.read() == f"cachealloc-top: process {session.pid} has ended\n"
    os.close(leader)


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
    assert (f"cachealloc-top: {page.parent}/1 does not begin as a page of statistics does\n"
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
    assert result.err == f"cachealloc-top: there is no process {session.pid}\n"


def test_the_page_of_an_earlier_process_of_that_id_is_not_believed(paged):
    session, page = paged
    text = page.read_text()
    page.unlink()
    page.write_text(re.sub(r" began \d+ ", " began 1 ", text))

    result = top(session.pid)

    assert (result.rc, result.out) == (1, "") and "has no page" in result.err


def test_top_tells_that_a_page_is_old(paged):
    session, page = paged
    session.process.send_signal(signal.SIGSTOP)
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
    session.process.send_signal(signal.SIGSTOP)
    text = page.read_text()
    page.unlink()
    page.write_text(change(text), errors="surrogateescape")

    result = top(session.pid)

    session.process.send_signal(signal.SIGCONT)
    assert (result.rc, result.out) == (1, ""), result.out
    assert result.err.startswith(f"cachealloc-top: {page} ") and said in result.err


def test_a_name_cannot_write_to_the_terminal(paged):
    session, page = paged
    session.process.send_signal(signal.SIGSTOP)
    text = page.read_text()
    page.unlink()
    page.write_text(text.replace('program="published"', 'program="a\x1b[2J\\"b"'))

    result = top(session.pid)

    session.process.send_signal(signal.SIGCONT)
    assert result.rc == 0 and result.out.startswith('a?[2J"b, pid')


@pytest.mark.parametrize("what", ["link", "pipe", "directory", "another's"])
def test_what_is_no_file_of_the_users_is_no_page(paged, what, memory):
    session, page = paged
    session.process.send_signal(signal.SIGSTOP)
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
    assert result.err.startswith(f"cachealloc-top: {page}") and result.err.count("\n") == 1


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
        session.process.send_signal(signal.SIGSTOP)
        assert top_as(user, session.pid) == (0, "")
        (place / str(session.pid)).unlink()
        assert top_as(user, session.pid) == (
            1, f"cachealloc-top: {runtime}/cachealloc/{session.pid}: Permission denied; in no other "
               "folder is there a page\n")
    finally:
        session.process.kill()
        shutil.rmtree(place)


@pytest.mark.parametrize("words, said", [
    (["x"], "'x': accepted is 1 to 2147483647"), ([0], "accepted is 1"),
    (["-n", 0, 1], "accepted is 1 to"), (["-d", "nan", 1], "accepted is 0.1 to 86400"),
    (["-d", 0, 1], "accepted is 0.1 to 86400")])
def test_what_top_does_not_take(words, said):
    result = top(*words)

    assert (result.rc, result.out) == (2, "") and said in result.err
