"""A process that is killed leaves a journal, and its report is that of the moment."""

import errno
import json
import platform
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import time

import pytest

import conftest
import leak_corpus
import leak_report
import test_leak_corpus
from test_leak_corpus import check_sections, command, json_sections, same_stacks, text_sections

SCRIPT = conftest.ROOT / "tools" / "cachealloc-journal"
# The script under the shim reads with this very library, not with one of another build.
READER = [sys.executable, SCRIPT, "--library", conftest.SHIM]
LANES = ["x_runtime_hooks:true", "x_runtime_hooks:false"]
# At the end of a corpus program its journal would be removed. What it says beyond that end, or
# cannot say, is not the report's: these programs have a line `journal: REASON`.
CORPUS = [program for program in test_leak_corpus.ROWS if not program.value("journal")]


def read_journal(run, journal, *arguments, conf=None):
    """The script's result; it runs under the shim."""
    return run([*READER, *arguments, journal], conf=conf)


def reports(run, journal, conf="report_format:text+json"):
    """(text, JSON) of a journal."""
    path = journal.parent / f"report-{journal.name}"
    result = run([*READER, journal, path], conf=conf)
    assert (result.rc, result.out, result.err) == (0, "", "")
    if not path.exists():
        return "", None
    return path.read_text(), json.loads(path.with_suffix(path.suffix + ".json").read_text())


def the_file(directory, pattern):
    path, = directory.glob(pattern)
    return path


# --- what it says ---------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", [*LANES, "stacks:off", "backend:off", "stack_depth:3",
                                  "debug:frees", "history:100", "leak_depth:2"])
def test_it_says_what_a_dump_just_before_said(run, program, tmp_path, conf):
    """30,000 allocations, more than its first tables hold."""
    dumped = tmp_path / "dumped.json"

    result = run([program("journaled"), "hold", 30000, dumped], cwd=tmp_path,
                 conf=f"{conf},report_format:text+json,journal:journal-%p",
                 sim="latency:cuDevicePrimaryCtxRetain=1100000000")  # between start and journal

    assert (result.rc, result.err) == (-signal.SIGKILL, "")
    journal = the_file(tmp_path, "journal-*")
    before = json.loads(dumped.read_text())
    text, after = reports(run, journal, conf=f"{conf},report_format:text+json")
    assert after["cause"] == "journal"
    for key in ("pid", "program", "host", "rank", "unwinder", "stack_depth", "stacks_sampled",
                "cachealloc", "peak_at_most", "leak_max", "leak_min", "start_s"):
        assert after[key] == before[key], key
    leaked, wanted = after["sections"]["leaked"], before["sections"]["leaked"]
    assert leaked["count"] == 20000
    named = [[after["frames"][number]["text"] for number in group.pop("frames")]
             for group in leaked["groups"]]
    expected = [[before["frames"][number]["text"] for number in group.pop("frames")]
                for group in wanted["groups"]]
    assert named == expected
    for group in wanted["groups"]:  # of its times a journal says nothing, nor what was freed
        group.update(first_ns=0, last_ns=0)
        group.pop("allocations", None), group.pop("temporaries", None)
    assert leaked == wanted
    assert leak_report.parse(text).count == 20000


@pytest.mark.parametrize("program", map(test_leak_corpus.parameter, CORPUS))
def test_the_corpus_s_journals_say_what_its_reports_do(run, tmp_path, program):
    binary, words = command(program)
    keeps = conftest.BUILD / "tests" / "preload" / "plugin_keeps_files.so"
    preload = " ".join([*conftest.SANITIZER_PRELOAD, str(keeps), str(conftest.SHIM)])
    conf = f"leak_report:off,journal:{tmp_path}/journal-%p"

    result = run(words, conf=f"{conf},{program.configuration()}", sim=program.value("sim") or None,
                 env={"LD_PRELOAD": preload})

    assert (result.rc, result.err) == (program.status(), "")
    expected = {sum(group.bytes for group in groups): {"leaked": groups}
                for groups in program.journals() if groups}
    for journal in sorted(tmp_path.glob("journal-*")):
        text, parsed = reports(run, journal,
                               conf=f"report_format:text+json,{program.configuration()}")
        if parsed is None or not parsed["sections"]["leaked"]["count"]:
            continue
        omitted = sum(bytes_ for _, bytes_ in program.omitted().values())
        sections = expected.pop(parsed["sections"]["leaked"]["bytes"] - omitted)
        check_sections(program, binary, sections, text_sections(text))
        found = {name: section for name, section in json_sections(parsed).items()
                 if name == "leaked"}
        check_sections(program, binary, sections, found)
        same_stacks(text, parsed)
    assert not expected


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("threads", [1, 4])
def test_a_process_killed_at_any_moment_has_what_was_live(run, program, tmp_path, threads, lane):
    environment = conftest.plain_env({
        "LD_LIBRARY_PATH": conftest.BUILD / "simcuda",
        "LD_PRELOAD": " ".join([*conftest.SANITIZER_PRELOAD, str(conftest.SHIM)]),
        "ALLOC_CONF": f"journal:{tmp_path}/journal-%p,{lane}"})
    for _ in range(10):
        with subprocess.Popen([program("journaled"), "churn", str(threads)], env=environment,
                              stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"churning\n"
            time.sleep(random.random() * 0.02)
            process.kill()
        _, report = reports(run, tmp_path / f"journal-{process.pid}")

        by_size = {}
        for group in report["sections"]["leaked"]["groups"]:
            assert group["smallest"] == group["largest"] or threads > 1
            by_size.setdefault(group["smallest"], 0)
            by_size[group["smallest"]] += group["count"]
        # Each thread may be between a free and an allocation; the others may have just begun.
        assert by_size[1000] in (9, 10), report["sections"]
        assert 9 <= report["sections"]["leaked"]["count"] <= 10 * threads


# --- when there is one ----------------------------------------------------------------------------


@pytest.mark.parametrize("how, rc, stays", [("exit", 3, False), ("_exit", 3, False),
                                            ("return", 0, False), ("abort", -signal.SIGABRT, True)])
def test_it_goes_when_the_process_ends_by_itself(run, program, tmp_path, how, rc, stays):
    result = run([program("journaled"), "end", how], conf=f"journal:{tmp_path}/journal")

    assert result.rc == rc
    assert (tmp_path / "journal").exists() == stays
    assert ("1000 bytes in 1 allocations" in result.err) == (not stays)
    if stays:
        assert leak_report.parse(reports(run, tmp_path / "journal")[0]).bytes == 1000


def test_a_process_without_cuda_leaves_none(run, tmp_path):
    result = run(["sh", "-c", "ls; true"], conf=f"journal:{tmp_path}/journal-%p")

    assert (result.rc, result.err) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_replaced(run, program, tmp_path):
    path = tmp_path / "journal"
    path.write_text("of somebody else")

    result = run([program("journaled"), "end", "abort"], conf=f"journal:{path}")

    other = the_file(tmp_path, "journal.*")
    assert path.read_text() == "of somebody else"
    assert result.err == (f"cachealloc[{other.suffix[1:]}]: warning: journal: the file that was "
                          f"asked for exists, so the journal is in {other}\n")
    assert leak_report.parse(reports(run, other)[0]).bytes == 1000


@pytest.mark.parametrize("lane", LANES)
def test_without_a_directory_the_program_goes_on(run, program, tmp_path, lane):
    path = tmp_path / "missing" / "journal"

    result = run([program("journaled"), "end", "return"], conf=f"journal:{path},{lane}")

    assert result.rc == 0
    assert re.match(rf"cachealloc\[\d+\]: warning: journal: cannot make {path} "
                    r"\(No such file or directory\): there is none\n", result.err)
    assert leak_report.parse(result.err.partition("\n")[2]).bytes == 1000


@pytest.mark.skipif(conftest.SANITIZER == "tsan", reason="its own files are larger")
@pytest.mark.parametrize("limit, has_one", [(1 << 20, False), (1500 << 10, True)])
def test_where_there_is_no_room_the_program_goes_on(run, program, tmp_path, limit, has_one):
    """As where the disk is full: room that is not there is not written to."""
    dumped, journal = tmp_path / "dumped.json", tmp_path / "journal"

    result = run([program("journaled"), "hold", 30000, dumped],
                 conf=f"report_format:json,journal:{journal}",
                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))

    assert result.rc == -signal.SIGKILL
    assert json.loads(dumped.read_text())["sections"]["leaked"]["count"] == 20000
    assert journal.exists() == has_one
    if not has_one:
        assert "cannot make" in result.err and "File too large" in result.err
        return
    told = read_journal(run, journal)
    lost = int(re.search(r"had no room for (\d+) allocations, live or freed since", told.err)[1])
    report = leak_report.parse(told.err.partition("\n")[2])
    assert told.rc == 0 and 10000 < lost < 20000
    assert 20000 - lost <= report.count <= 30000 - lost


# --- the script -----------------------------------------------------------------------------------


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="a sanitizer's comes first or not at all")
def test_the_script_finds_the_library_that_is_built(run, program, tmp_path):
    run([program("journaled"), "end", "abort"], conf=f"journal:{tmp_path}/journal")
    arguments = ["--library", conftest.SHIM] if conftest.BUILD.name != "build" else []

    result = run([SCRIPT, *arguments, tmp_path / "journal"], preload=False)

    assert result.rc == 0
    assert leak_report.parse(result.err).bytes == 1000


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="a sanitizer's comes first or not at all")
def test_another_library_is_refused(run, tmp_path):
    result = run([SCRIPT, "--library", "libm.so.6", tmp_path / "journal"], preload=False)

    assert (result.rc, result.err) == (
        1, "cachealloc journal: libm.so.6 reads no journals: it is not libcachealloc.so, or an older "
        "one\n")


@pytest.mark.parametrize("by_option", [False, True])
def test_the_patterns_of_its_report_are_the_killed_process_s(run, program, tmp_path, by_option):
    run([program("journaled"), "end", "abort"], conf=f"journal:{tmp_path}/journal.%p",
        env={"RANK": 7, "LOCAL_RANK": 3})
    journal = the_file(tmp_path, "journal.*")
    pid = journal.name.partition(".")[2]
    pattern = f"{tmp_path}/%e-%r-%l-%p-%h"
    (tmp_path / f"journaled-7-{pid}-{pid}-{platform.node()}").write_text("mine")

    result = run([*READER, journal, *([] if by_option else [pattern])], env={"RANK": 1},
                 conf=f"leak_report:{pattern}")

    assert result.rc == 0
    report = the_file(tmp_path, f"journaled-7-{pid}-{pid}-{platform.node()}.{pid}")
    assert report.read_text().startswith(f"cachealloc[{pid}]: leak report, rank 7, cause journal\n")
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("pattern, wrong", [
    ("a-%z", "has an unknown pattern %z"), ("a-%q{CA_NOT_SET}", "CA_NOT_SET")])
def test_what_is_wrong_with_the_name_of_its_report_is_told(run, program, tmp_path, pattern, wrong):
    run([program("journaled"), "end", "abort"], conf=f"journal:{tmp_path}/journal")

    result = run([*READER, tmp_path / "journal", pattern], cwd=tmp_path)

    assert result.rc == 1
    assert re.match(rf"cachealloc\[\d+\]: warning: {re.escape(pattern)} .*{re.escape(wrong)}",
                    result.err)
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


def test_where_the_report_cannot_be_written_both_files_are_named(run, program, tmp_path):
    run([program("journaled"), "end", "abort"], conf=f"journal:{tmp_path}/journal")

    result = run([*READER, tmp_path / "journal", tmp_path / "none/report"])

    assert (result.rc, result.err) == (1, f"cachealloc journal: {tmp_path}/journal, report "
                                          f"{tmp_path}/none/report: No such file or directory\n")


def test_of_the_process_that_reads_it_nothing_is_told(run, program, tmp_path):
    run([program("journaled"), "end", "abort"], conf=f"journal:{tmp_path}/journal")

    result = run([*READER, tmp_path / "journal", tmp_path / "report"],
                 conf="peak:always,stats:exit,leak_exitcode:9")

    assert (result.rc, result.out, result.err) == (0, "", "")
    assert leak_report.parse((tmp_path / "report").read_text()).bytes == 1000


def test_a_process_reads_one_that_can_be_read(run, program, tmp_path):
    """What is refused leaves it as it was."""
    run([program("journaled"), "end", "abort"], conf=f"journal:{tmp_path}/journal")
    (tmp_path / "none").write_text("no journal")
    code = ("import ctypes, os, sys; call = ctypes.CDLL(None).cachealloc_report_journal;"
            "print(*(call(*map(os.fsencode, pair.split(','))) for pair in sys.argv[1:]))")
    pairs = [f"{tmp_path}/{name},{tmp_path}/{report}" for name, report in [
        ("missing", "a"), ("none", "b"), ("journal", "bad-%z"), ("journal", "c"), ("journal", "d")]]

    result = run([sys.executable, "-c", code, *pairs])

    assert result.out.split() == [str(code) for code in (errno.ENOENT, errno.EINVAL, errno.EINVAL,
                                                         0, errno.EBUSY)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "journal", "none"]


def test_python_reads_one(run, program, tmp_path):
    run([program("journaled"), "end", "abort"], conf=f"journal:{tmp_path}/journal")
    code = "import sys, cachealloc; cachealloc.report_journal(*sys.argv[1:])"

    for path, error in ((tmp_path / "journal", None), (tmp_path / "missing", "FileNotFoundError")):
        result = run([sys.executable, "-c", code, path, tmp_path / "report"],
                     env={"PYTHONPATH": conftest.ROOT / "python"})
        assert result.rc == (1 if error else 0), result.err
        assert not error or error in result.err.splitlines()[-1]
        assert not error or result.err.endswith(f"'{path}' -> '{tmp_path}/report'\n")
    assert leak_report.parse((tmp_path / "report").read_text()).bytes == 1000


@pytest.mark.parametrize("left", [1.0, 0.9, 0.5, 0.0])
def test_a_journal_that_was_cut_off_is_told(run, program, tmp_path, left):
    """As by a copy on a full disk: what is missing would read as memory that was freed."""
    run([program("journaled"), "end", "abort"], conf=f"journal:{tmp_path}/journal")
    whole = (tmp_path / "journal").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:max(4096, int(left * len(whole)))])

    result = read_journal(run, tmp_path / "cut")

    assert result.rc == 0
    assert ("cut is not whole" in result.err) == (left < 1)


def test_a_journal_of_the_version_before_is_read(run, program, tmp_path):
    """It has no Python frames."""
    run([program("journaled"), "end", "abort"], conf=f"journal:{tmp_path}/journal")
    content = (tmp_path / "journal").read_bytes()
    assert content[8:12] == struct.pack("I", 2)
    (tmp_path / "before").write_bytes(content[:8] + struct.pack("I", 1) + content[12:])

    results = [read_journal(run, tmp_path / name) for name in ("journal", "before")]

    assert [(one.rc, one.out) for one in results] == [(0, results[0].out)] * 2
    assert "LEAK SUMMARY" in results[1].out + results[1].err


@pytest.mark.parametrize("content, message", ids=["empty", "other", "later"], argvalues=[
    (b"", "it is no journal"), (b"x" * 100000, "it is no journal"),
    (b"CAJOURNL" + b"\7\0\0\0" + b"\0" * 100000, "it is of another version (7")])
def test_what_is_no_journal_is_refused(run, tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)

    result = read_journal(run, path)

    assert result.rc == 1
    assert f"{path} cannot be read: {message}" in result.err
    assert f"cachealloc journal: {path}: no report is made; accepted: " in result.err


def test_a_journal_that_is_not_there_is_told(run, tmp_path):
    result = read_journal(run, tmp_path / "missing")

    assert result.rc == 1
    assert "missing cannot be read: No such file or directory" in result.err


def test_a_journal_that_was_made_to_take_hours_is_read_in_a_moment(run, program, tmp_path):
    """Chunks that are one log, and modules that go and never came."""
    run([program("journaled"), "hold", 30, tmp_path / "dumped"], conf=f"journal:{tmp_path}/journal")
    head = bytearray((tmp_path / "journal").read_bytes()[:4096])
    module = struct.pack("<IIQQQII32s8s", 2, 80, 1 << 40, 1 << 40, 2 << 40, 1, 0, b"", b"x")
    gone = struct.pack("<IIQII", 3, 24, 1, 1, 2)
    log = module * 6500 + gone * 20000
    struct.pack_into("<I", head, 256, 112)
    for number in range(112):
        struct.pack_into("<iIQQ", head, 264 + 24 * number, 2, 0, 4096, len(log))
    (tmp_path / "made").write_bytes(head + log)

    begin = time.monotonic()
    result = run([*READER, tmp_path / "made"], timeout=30)

    assert result.rc == 0, result.err
    print(f"{time.monotonic() - begin:.1f} s")


def test_what_is_left_of_a_journal_is_read(run, program, tmp_path):
    """Cut off, and with bytes changed: never more than was there, and never a crash."""
    run([program("journaled"), "hold", 3000, tmp_path / "dumped"],
        conf=f"journal:{tmp_path}/journal")
    whole = (tmp_path / "journal").read_bytes()
    chance = random.Random(7)
    for number in range(60):
        content = bytearray(whole[:chance.randrange(4096, len(whole))] if number % 2 else whole)
        for _ in range(number):
            # Half of them where the structure is.
            most = chance.choice([4096, len(content)])
            content[chance.randrange(8, most)] = chance.randrange(256)
        (tmp_path / "broken").write_bytes(content)
        result = read_journal(run, tmp_path / "broken")
        assert result.rc in (0, 1), result.err
