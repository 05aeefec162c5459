"""The page of tools/cachealloc-report: what it is made of, and what a reader sees and does.

The reader is a headless Chromium, with the page from the disk; it takes pictures, which go to
build/report_page.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import browser as chromium
import conftest
from report_json import (KINDS, bare_frame, event, frame, group, python_frame, report, section,
                         timeline)

SCRIPT = conftest.ROOT / "tools" / "cachealloc-report"
sys.path.insert(0, str(SCRIPT.parent))
from report_page import areas, page as page_maker, reports as page_reports  # noqa: E402
D3 = conftest.ROOT / "build" / "d3" / "d3.min.js"
ACCEPTED = 'accepted: JSON leak reports (schema "cachealloc-report", version 1)'
MIB = 1 << 20

pytestmark = [
    pytest.mark.skipif(conftest.SANITIZER is not None, reason="nothing of the page is compiled"),
    pytest.mark.skipif(not D3.exists(), reason="no D3: scripts/d3.sh"),
]

FRAMES = [frame("main", 187), frame("run_steps", 90), frame("assemble", 41, inlined=[("grow", 12)]),
          frame("solve<double>", 77), frame("halo_exchange", 55, file="halo.cc"),
          frame("ncclCommInitRank", 300, module="/usr/lib/libnccl.so.2", file="init.cc"),
          bare_frame(0x1a10), frame("_start", 0), frame("allocate_field", 12, file="field.h")]
MAIN, STEPS, ASSEMBLE, SOLVE, HALO, NCCL, BARE, START, FIELD = range(len(FRAMES))


def rank_report(rank):
    """What one of four ranks leaks: the same stacks, other amounts, and its own device."""
    groups = [
        group([FIELD, ASSEMBLE, STEPS, MAIN, START], (40 + rank) * MIB, 8, smallest=MIB,
              largest=8 * MIB, device=rank % 2, threads=["main", "worker-1"], thread_count=5,
              first_ns=2_000_000_000, last_ns=9_000_000_000),
        group([FIELD, HALO, SOLVE, STEPS, MAIN, START], 6 * MIB, 3, device=rank % 2,
              first_ns=4_000_000_000, last_ns=4_500_000_000),
        group([NCCL, MAIN, START], 4 * MIB, kind="pinned", threads=["nccl"], stream="0x5500"),
        group([BARE, HALO, STEPS, MAIN, START], 96 << 10, 24),
        group([], 512, threads=[]),
    ]
    peak = [group([FIELD, MAIN, START], 1 << 30, 4),
            group([FIELD, ASSEMBLE, STEPS, MAIN, START], 512 * MIB, 100)]
    return report(
        {"leaked": section(groups, beyond=(3, 4096) if rank == 2 else (0, 0)),
         "destroyed": section([]), "suppressed": section([group([NCCL, START], 2 * MIB)]),
         "peak": section(peak)}, FRAMES, rank=str(rank), pid=4000 + rank, host=f"node{rank // 2}",
        start_s=1790000000 + rank, timeline=timeline(300, 3 << 30, 12_500_000_000))


RANKS = [rank_report(rank) for rank in range(4)]


def make_page(directory, reports, name="page", rc=0):
    """The page of these reports, one file each."""
    files = []
    for number, one in enumerate(reports):
        file = directory / f"{name}-{number}.json"
        file.write_text(json.dumps(one))
        files.append(file)
    page = directory / f"{name}.html"
    result = call("-o", page, *files)
    assert result.returncode == rc, result.stderr
    return page


def call(*arguments, **kwargs):
    return subprocess.run([sys.executable, "-B", SCRIPT, *map(str, arguments)], text=True,
                          capture_output=True, timeout=60, check=False, **kwargs)


def data_of(page):
    """The JSON that a page holds."""
    _, _, rest = page.read_text().partition('<script type="application/json" id="data">')
    return json.loads(rest.partition("</script>")[0])


# --- files ----------------------------------------------------------------------------------------


def test_a_page_has_a_name_that_stdout_lacks_letters_of(tmp_path):
    (tmp_path / "one").write_text(json.dumps(RANKS[0]))
    page = tmp_path / "caf\u00e9.html"

    result = call("-o", page, tmp_path / "one", env={**os.environ, "PYTHONIOENCODING": "ascii"})

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{tmp_path}/caf?.html: 1 process, ")


def test_a_page_refers_to_nothing_outside_and_forbids_it(tmp_path):
    text = make_page(tmp_path, RANKS).read_text()

    own = text.replace(D3.read_text(), "")
    assert "://" not in own and "@import" not in own and "url(" not in own
    assert "default-src 'none'; script-src 'sha256-" in own
    assert "unsafe" not in own and " src=" not in own and "<link" not in own


@pytest.mark.parametrize("content, wrong", [
    ("", "the file is empty"),
    ("cachealloc[12]: leak report\nLEAK SUMMARY: 3 bytes in 1 allocations, 1 stacks\n",
     "holds a text report, which cachealloc merge reads"),
    (json.dumps(RANKS[0])[:-40], "the file may have been cut off"),
    ("not at all", "line 1, column 1: not JSON"),
    ("[1]", "the whole of it is [1], accepted: an object"),
    ("[" * 100000, "not JSON that a report holds"),
    ('{"schema":' + "9" * 5000 + "}", "not JSON that a report holds"),
    ('{"traceEvents": []}', "its schema is null"),
    (json.dumps({**RANKS[0], "schema_version": 2}), "its schema_version is 2"),
    (json.dumps({**RANKS[0], "pid": "12"}), 'report.pid is "12", accepted: a whole number'),
    (json.dumps({**RANKS[0], "pid": True}), "report.pid is true, accepted: a whole number"),
    (json.dumps({**RANKS[0], "peak_bytes": float("nan")}), "report.peak_bytes is NaN"),
    (json.dumps({**RANKS[0], "start_s": -1}), "report.start_s is -1"),
    (json.dumps({**RANKS[0], "rank": 3}), "report.rank is 3, accepted: a string or null"),
    (json.dumps({key: value for key, value in RANKS[0].items() if key != "pool"}),
     'report has no "pool"'),
    (json.dumps(report({"leaked": section([group([9], 1)])}, FRAMES)),
     "sections.leaked.groups[0].frames has 9, accepted: whole numbers below 9"),
    (json.dumps(report({"leaked": section([group([-1], 1)])}, FRAMES)),
     "sections.leaked.groups[0].frames has -1"),
    (json.dumps(report({"peak": section([{"bytes": 1, "count": 1, "frames": []}])}, FRAMES)),
     'sections.peak.groups[0] has no "smallest"'),
    (json.dumps({**RANKS[0], "timeline": [{"ns": 1}]}), 'timeline[0] has no "live"'),
])
def test_a_file_of_no_use_is_named_and_the_others_make_the_page(tmp_path, content, wrong):
    bad, good, page = tmp_path / "bad", tmp_path / "good", tmp_path / "page.html"
    bad.write_text(content)
    good.write_text(json.dumps(RANKS[1]))

    result = call("-o", page, bad, good)

    assert result.returncode == 1
    message = result.stderr.splitlines()[0]
    assert message.startswith(f"cachealloc report: {bad}: ") and wrong in message, message
    assert message.endswith(ACCEPTED)
    assert [one["pid"] for one in data_of(page)["processes"]] == [4001]
    assert wrong in data_of(page)["unreadable"][0][1]


def test_without_any_report_there_is_no_page(tmp_path):
    page = tmp_path / "page.html"

    result = call("-o", page, tmp_path / "missing", tmp_path)

    assert result.returncode == 1 and not page.exists()
    assert result.stderr.splitlines() == [
        f"cachealloc report: {tmp_path}/missing: No such file or directory",
        f"cachealloc report: {tmp_path}: Is a directory"]


def test_what_is_not_utf8_is_shown_as_well_as_can_be(tmp_path):
    file, page = tmp_path / "report", tmp_path / "page.html"
    named = json.dumps({**RANKS[0], "program": "NAME"}).encode()
    file.write_bytes(named.replace(b"NAME", b"a\xff"))

    assert call("-o", page, file).returncode == 0
    assert data_of(page)["processes"][0]["program"] == "a\ufffd"


def test_several_reports_in_one_file_and_the_page_on_stdout(tmp_path):
    result = call("-o", "-", "-", input="\n".join(map(json.dumps, RANKS)))

    assert result.returncode == 0
    page = tmp_path / "page.html"
    page.write_text(result.stdout)
    assert len(data_of(page)["processes"]) == 4


def test_of_several_reports_of_one_process_the_latest_counts(tmp_path):
    early = {**RANKS[0], "cause": "dump", "now_ns": 7}

    data = data_of(make_page(tmp_path, [RANKS[0], early, RANKS[0], RANKS[1]]))

    assert [one["cause"] for one in data["processes"]] == ["exit", "exit"]
    assert data["earlier"] == 2
    assert len(data["groups"]["leaked"]["bytes"]) == 10


@pytest.mark.parametrize("cause, kept", [("dump", "journal"), ("exit", "exit")])
def test_a_journal_counts_for_more_than_reports_while_it_was_written(tmp_path, cause, kept):
    """It has no times of its own."""
    other = {**RANKS[0], "cause": cause}
    journal = {**RANKS[0], "cause": "journal", "now_ns": 0, "timeline": []}

    for reports in ([other, journal], [journal, other]):
        data = data_of(make_page(tmp_path, reports))
        assert [one["cause"] for one in data["processes"]] == [kept]
        assert data["earlier"] == 1 and len(data["groups"]["leaked"]["bytes"]) == 5


def test_an_input_is_not_replaced_by_the_page(tmp_path):
    file = tmp_path / "report"
    file.write_text(json.dumps(RANKS[0]))

    result = call("-o", file, file)

    assert result.returncode == 2 and "to be read and to be written" in result.stderr
    assert json.loads(file.read_text()) == RANKS[0]


def test_a_page_that_cannot_be_written_is_said(tmp_path):
    file = tmp_path / "report"
    file.write_text(json.dumps(RANKS[0]))

    result = call("-o", tmp_path / "no" / "page.html", file)

    assert result.returncode == 1
    assert f"{tmp_path}/no/page.html: No such file or directory" in result.stderr


@pytest.mark.skipif(pathlib.Path("/usr/share/nodejs/d3").exists(), reason="Debian's D3 is there")
def test_without_d3_it_is_said_what_brings_it(tmp_path):
    shutil.copytree(SCRIPT.parent, tmp_path / "tools")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "d3.sh").touch()

    result = subprocess.run([sys.executable, tmp_path / "tools" / SCRIPT.name, "-"], text=True,
                            capture_output=True, timeout=60, check=False,
                            input=json.dumps(report({}, [])))

    assert result.returncode == 1
    for piece in (f"{tmp_path}/scripts/d3.sh", "apt-get install node-d3",
                  "cachealloc report --d3 FILE"):
        assert piece in result.stderr


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    path = chromium.find()
    if path is None:
        pytest.skip("no Chromium")
    browser = chromium.Browser(path, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Each made once, of reports, or as another made it."""
    directory, made = tmp_path_factory.mktemp("pages"), {}

    def page(name, reports):
        if name not in made:
            one = reports()
            made[name] = one if isinstance(one, pathlib.Path) else make_page(directory, one, name)
        return made[name]

    return page


@pytest.fixture
def opened(reader, pages):
    """opened(name, reports) opens a page, of which the browser must have nothing to complain."""
    def open_page(name="ranks", reports=lambda: RANKS, **how):
        page = pages(name, reports)
        reader.open(page, **how)
        opened_pages.append(page)
        assert reader.js("document.body.dataset.ready") == "yes", reader.problems
        return reader

    opened_pages = []
    yield open_page
    reader.js("1")  # whatever it has to say by now comes before the answer
    assert reader.problems == []
    assert reader.requests == [opened_pages[-1].as_uri()]


def picture(reader, name, **how):
    directory = conftest.BUILD / "report_page"
    directory.mkdir(exist_ok=True)
    reader.screenshot(directory / f"{name}.png", **how)


def table(reader):
    """Its rows, as {column: text}."""
    return reader.js("""[...document.querySelectorAll("#table tr.group")].map((row) =>
        Object.fromEntries([...row.cells].map((cell) =>
            [cell.className, cell.innerText.trim()])))""")


def column(reader, name):
    return [row[name] for row in table(reader)]


def numbers(reader, name):
    return [int(text.replace(",", "")) for text in column(reader, name)]


def text(reader, selector):
    return reader.js(f"document.querySelector({json.dumps(selector)}).innerText")


def boxes(reader):
    """{what a box of the flame graph is called: its width}"""
    return dict(reader.js("""[...document.querySelectorAll("#flame .box")].map((box) =>
        [box.getAttribute("aria-label").split(": ")[0], box.firstChild.width.baseVal.value])"""))


def leaked(**wanted):
    """(count, bytes) of the ranks' leaked groups that have these values."""
    chosen = [one for rank in RANKS for one in rank["sections"]["leaked"]["groups"]
              if all(one[key] == value for key, value in wanted.items())]
    return sum(one["count"] for one in chosen), sum(one["bytes"] for one in chosen)


@pytest.mark.parametrize("how", [{}, {"dark": True}, {"width": 390, "height": 844, "phone": True}],
                         ids=["light", "dark", "phone"])
def test_the_sums_are_the_reports(opened, how, request):
    reader = opened(**how)

    for title in ("leaked", "suppressed", "destroyed"):
        total = sum(rank["sections"][title]["bytes"] for rank in RANKS)
        count = sum(rank["sections"][title]["count"] for rank in RANKS)
        said = text(reader, f"#total-{title}")
        assert f"{total:,} bytes" in said and f"{count} allocation" in said
    assert f"{4 * (3 << 29):,} bytes" in text(reader, "#total-peak")
    assert "40 MiB" in text(reader, "#total-pool")
    assert "12 GiB at most" in text(reader, "#total-pool")
    assert text(reader, "#covers") == ("solver on node0, node1; 4 processes: ranks 0-3; "
                                       "2026-09-21 14:13:20 UTC, 15.5 s")
    listed = leaked()[1]
    assert sum(numbers(reader, "bytes")) == listed
    assert f"5 groups, {listed:,} bytes of {listed + 4096:,} bytes" in text(reader, "#table-says")
    assert reader.js("document.documentElement.scrollWidth <= innerWidth"), "wider than the window"
    picture(reader, f"ranks-{request.node.callspec.id}")


def test_it_is_dark_or_light_as_the_reader_prefers(opened):
    paper = "getComputedStyle(document.body).backgroundColor"

    assert opened().js(paper) == "rgb(245, 246, 248)"
    assert opened(dark=True).js(paper) == "rgb(18, 22, 28)"


def test_a_group_is_one_whatever_rank_and_device_it_is_of(opened):
    first = table(opened())[0]

    assert first["bytes"] == f"{166 * MIB:,}" and first["count"] == "32"
    assert first["smallest"] == f"{MIB:,}" and first["largest"] == f"{8 * MIB:,}"
    assert first["device"] == "0-1" and first["ranks"] == "0-3" and first["kind"] == "device"
    assert first["threads"] == "main, worker-1 and 18 more"
    assert first["where"] == "allocate_field at field.h:12"


@pytest.mark.parametrize("name", ["bytes", "count", "smallest", "largest"])
def test_a_column_sorts_both_ways(opened, name):
    reader = opened()
    values = numbers(reader, name)
    if name != "bytes":  # by which it is sorted at first
        reader.click(f"th.{name} button")

    assert numbers(reader, name) == sorted(values, reverse=True)
    assert reader.js(f"document.querySelector('th.{name}').ariaSort") == "descending"
    reader.click(f"th.{name} button")
    assert numbers(reader, name) == sorted(values)
    assert reader.js(f"document.querySelector('th.{name}').ariaSort") == "ascending"


@pytest.mark.parametrize("name", ["device", "kind", "threads", "ranks", "where"])
def test_other_columns_sort_too(opened, name):
    reader = opened()
    reader.click(f"th.{name} button")
    there = column(reader, name)
    reader.click(f"th.{name} button")

    assert reader.js(f"document.querySelector('th.{name}').ariaSort") is not None
    if name in ("kind", "where"):
        assert there == sorted(there) and column(reader, name) == sorted(there, reverse=True)
    else:
        assert sorted(there) == sorted(column(reader, name))


def test_a_list_sorts_on_a_phone(opened):
    reader = opened(width=390, height=844, phone=True)
    reader.choose("#sort", "count")
    counts = numbers(reader, "count")
    reader.click("#direction")

    assert counts == sorted(counts, reverse=True)
    assert numbers(reader, "count") == sorted(counts)


@pytest.mark.parametrize("field, value, wanted", [
    ("#device", "1", {"device": 1}), ("#kind", "pinned", {"kind": "pinned"})])
def test_filters_leave_what_they_say(opened, field, value, wanted):
    reader = opened()
    reader.choose(field, value)

    count, total = leaked(**wanted)
    assert sum(numbers(reader, "bytes")) == total and sum(numbers(reader, "count")) == count
    assert f"all: {total:,} bytes" in reader.js(
        "document.querySelector('#flame .root').getAttribute('aria-label')")
    reader.click("#clear")
    assert sum(numbers(reader, "bytes")) == leaked()[1]


def test_one_process_can_be_chosen(opened):
    reader = opened()
    reader.choose("#process", "2")

    groups = RANKS[2]["sections"]["leaked"]["groups"]
    assert numbers(reader, "bytes") == [one["bytes"] for one in groups]
    assert set(column(reader, "ranks")) == {"2"}
    assert "from 2026-09-21 14:13:22 UTC" in text(reader, "#time-says")


def test_small_groups_can_be_left_out(opened):
    reader = opened()
    reader.choose("#least", "1.5M")
    assert numbers(reader, "bytes") == [166 * MIB, 24 * MIB, 16 * MIB]

    reader.choose("#least", "much")
    assert reader.js("document.querySelector('#least').validationMessage") == \
        "a size: 4096, 64K, 1.5M"
    assert len(table(reader)) == 3


@pytest.mark.parametrize("query, found", [
    ("HALO_", [24 * MIB, 4 * 96 << 10]), ("libnccl", [16 * MIB]),
    ("field.h", [166 * MIB, 24 * MIB]), ("worker-1", [166 * MIB]), ("(.*", []),
    ("solve<double>", [24 * MIB])])
def test_a_search_finds_functions_files_modules_and_threads(opened, query, found):
    reader = opened()
    reader.press("/", "Slash")
    assert reader.js("document.activeElement.id") == "query"
    reader.choose("#query", query)
    reader.until(f"document.querySelectorAll('#table tr.group').length === {len(found)}")

    assert numbers(reader, "bytes") == found
    hits = reader.js("document.querySelectorAll('#flame .hit').length")
    assert (hits > 0) == (query not in ("worker-1", "(.*"))
    if query == "field.h":
        total = leaked()[1]
        assert f"found in 190 MiB, {100 * 190 * MIB / total:.0f}%" in text(reader, "#flame-says")


@pytest.mark.parametrize("query, found", [
    ("^halo_", [24 * MIB, 4 * 96 << 10]), ("nccl|worker", [166 * MIB, 16 * MIB]),
    ("field[.]h$", [166 * MIB, 24 * MIB]), ("^loc", [])])
def test_a_search_may_be_a_regular_expression(opened, query, found):
    reader = opened()
    reader.click("#regex")
    reader.choose("#query", query)
    reader.until(f"document.querySelectorAll('#table tr.group').length === {len(found)}")

    assert numbers(reader, "bytes") == found


def test_what_is_no_regular_expression_is_said_and_changes_nothing(opened):
    reader = opened()
    reader.click("#regex")
    reader.choose("#query", "halo")
    reader.until("document.querySelectorAll('#table tr.group').length === 2")
    reader.choose("#query", "halo(")
    reader.until("!document.querySelector('#query-wrong').hidden")

    assert text(reader, "#query-wrong") == "no regular expression: Unterminated group"
    assert not reader.js("document.querySelector('#query').validity.valid")
    assert len(table(reader)) == 2
    reader.click("#regex")
    reader.until("document.querySelector('#query-wrong').hidden")
    assert table(reader) == [] and reader.js("document.querySelector('#query').validity.valid")


# --- by function, line and file -------------------------------------------------------------------


@pytest.mark.parametrize("way, name, own, through", [
    ("function", "allocate_field", 190 * MIB, 190 * MIB), ("function", "grow", 0, 166 * MIB),
    ("function", "run_steps", 0, (190 << 20) + (4 * 96 << 10)),
    ("line", "allocate_field at field.h:12", 190 * MIB, 190 * MIB),
    ("line", "assemble at solver.cc:41", 0, 166 * MIB),
    ("file", "field.h", 190 * MIB, 190 * MIB), ("file", "init.cc", 16 * MIB, 16 * MIB),
    ("file", "/usr/lib/libframework.so", 4 * 96 << 10, 4 * 96 << 10),
    ("function", "(no call stack)", 4 * 512, 4 * 512)])
def test_groups_are_by_function_line_or_file(opened, way, name, own, through):
    reader = opened()
    reader.choose("#way", way)
    row = next(row for row in table(reader) if row["where"] == name)

    assert (row["bytes"], row["through"]) == (f"{own:,}", f"{through:,}")
    assert sum(numbers(reader, "bytes")) == leaked()[1]
    assert f" {way}s, {leaked()[1]:,} bytes of" in text(reader, "#table-says")
    reader.choose("#sort", "through")
    assert numbers(reader, "through") == sorted(numbers(reader, "through"), reverse=True)
    reader.choose("#way", "stack")
    assert "through" not in table(reader)[0]


def test_a_function_opens_with_the_stacks_that_go_through_it(opened):
    reader = opened()
    reader.choose("#way", "function")
    reader.choose("#query", "run_steps")
    reader.until("document.querySelectorAll('#table tr.group').length === 1")
    reader.click("#table .opener")
    reader.click("#table ul.through summary")

    said = reader.js("[...document.querySelectorAll('ul.through summary')].map((e) => e.innerText)")
    assert [one.strip().split(" bytes: ") for one in said] == [
        [f"{166 * MIB:,}", "allocate_field at field.h:12"],
        [f"{24 * MIB:,}", "allocate_field at field.h:12"],
        [f"{4 * 96 << 10:,}", "libframework.so+0x1a10"]]
    reader.until("document.querySelectorAll('ul.through .stack li').length === 5")


def test_counts_of_allocations_and_of_temporaries_have_columns_where_they_are_known(opened):
    def counted():
        most = {**group([HALO, MAIN], 40 * MIB, 10), "allocations": 10, "temporaries": 9}
        more = {**group([NCCL, MAIN], 50 * MIB, 5), "allocations": 5, "temporaries": 0}
        return [report({"leaked": section([group([NCCL, MAIN], 10 * MIB, 1)]),
                        "allocated": section([more, most])}, FRAMES)]

    reader = opened("counted", counted)
    assert "temporaries" not in table(reader)[0]
    reader.click("#sections input[value=allocated]+span")

    assert text(reader, "#choose-says").startswith("Allocated in all: ")
    assert [(row["allocations"], row["temporaries"]) for row in table(reader)] == [
        ("5", "0"), ("10", "9")]
    reader.click("th.temporaries button")
    assert column(reader, "temporaries") == ["9", "0"]
    reader.choose("#weight", "temporaries")
    assert set(boxes(reader)) == {"all", "main", "halo_exchange"}
    assert reader.js("document.querySelector('#flame .root').getAttribute('aria-label')") == \
        "all: 9 temporaries, 100%"
    reader.choose("#weight", "allocations")
    assert boxes(reader)["ncclCommInitRank"] == pytest.approx(boxes(reader)["all"] / 3, abs=2)


# --- Python, and the inner frames of frameworks ---------------------------------------------------

TORCH = "/opt/torch/lib/libtorch_cpu.so"
PYTHON = [frame("c10::cuda::raw_alloc", module="/opt/torch/lib/libc10_cuda.so"),
          frame("at::detail::empty_cuda", module=TORCH),
          frame("at::native::relu(at::Tensor const&)", module=TORCH),
          frame("at::_ops::relu::redispatch", module=TORCH),
          frame("at::_ops::relu::call", module=TORCH),
          python_frame("relu", 1471, "/usr/lib/python3/dist-packages/torch/nn/functional.py"),
          python_frame("Block.forward", 6, "/home/me/leak.py"),
          python_frame("<module>", 12, "/home/me/leak.py"), frame("_start", module="/bin/python3")]


def python_report():
    return [report({"leaked": section([group(range(len(PYTHON)), 4 * MIB, 4)])}, PYTHON)]


def test_a_python_programs_line_is_where_it_allocates(opened):
    reader = opened("python", python_report)

    assert column(reader, "where") == ["Block.forward at leak.py:6 at::native::relu"]
    reader.choose("#way", "function")
    assert table(reader)[0]["where"] == "Block.forward" and \
        table(reader)[0]["bytes"] == f"{4 * MIB:,}"
    reader.choose("#way", "file")
    assert table(reader)[0]["where"] == "/home/me/leak.py"
    reader.click('#flame [aria-label^="Block.forward"]')
    assert reader.js("document.querySelector('#flame [aria-label^=Block]').dataset.hue") == "python"
    reader.choose("#query", "python")  # its frames are found by their language
    reader.until("document.querySelector('#table-says').innerText.includes('python')")
    picture(reader, "python")


def test_inner_frames_of_frameworks_are_folded_until_they_are_asked_for(opened):
    reader = opened("python", python_report)
    lines = """[...document.querySelectorAll('.stack li')].map((e) =>
        `${e.value} ${(e.querySelector('code') || e).innerText}`)"""

    assert "inside libc10_cuda.so" in boxes(reader) and "inside libtorch_cpu.so" in boxes(reader)
    assert "at::detail::empty_cuda" not in boxes(reader)
    reader.click("#table .opener")
    assert reader.js(lines)[:3] == ["1 2 frames inside libc10_cuda.so, libtorch_cpu.so",
                                    "3 at::native::relu(at::Tensor const&) at solver.cc:7",
                                    "4 2 frames inside libtorch_cpu.so"]
    assert reader.js("document.querySelectorAll('#flame [aria-label^=\"inside libt\"]').length"
                     ) == 2, "a run is one box"
    reader.click(".stack .folded button")
    assert reader.js(lines)[:3] == ["1 c10::cuda::raw_alloc at solver.cc:7",
                                    "2 at::detail::empty_cuda at solver.cc:7",
                                    "3 at::native::relu(at::Tensor const&) at solver.cc:7"]
    reader.click("#fold")
    assert "at::detail::empty_cuda" in boxes(reader)
    assert column(reader, "where") == ["c10::cuda::raw_alloc at solver.cc:7"]


def test_what_holds_no_framework_is_not_asked_about_folding(opened):
    assert opened().js("document.querySelector('#fold').closest('label').hidden")


def test_sections_are_chosen(opened):
    reader = opened()
    reader.click("#sections input[value=peak]+span")

    assert numbers(reader, "bytes") == [4 << 30, 2 << 30]
    assert boxes(reader)["assemble"] == pytest.approx(boxes(reader)["all"] / 3, rel=0.01)
    assert text(reader, "#choose-says") == "At the peak: what was alive when the most bytes were"
    reader.click("#sections input[value=destroyed]+span")
    assert table(reader) == [] and text(reader, "#flame") == "Nothing is listed here."


# --- the flame graph ------------------------------------------------------------------------------


def test_boxes_are_as_wide_as_what_went_through_them(opened):
    widths = boxes(opened())

    whole = leaked()[1]
    for name, size in (("main", whole - 2048), ("run_steps", whole - 2048 - 16 * MIB),
                       ("grow", 166 * MIB), ("ncclCommInitRank", 16 * MIB)):
        assert widths[name] == pytest.approx(widths["all"] * size / whole, abs=2), name


def test_a_click_zooms_and_the_table_follows(opened):
    reader = opened()
    whole = boxes(reader)["all"]
    reader.click('#flame [aria-label^="solve<double>"]')

    assert boxes(reader)["solve<double>"] == whole and "assemble" not in boxes(reader)
    assert "zoomed to solve<double>: 25,165,824 bytes" in text(reader, "#flame-says") or \
        "solve<double>: 25,165,824 bytes in 12 allocations" in text(reader, "#flame-says")
    assert numbers(reader, "bytes") == [24 * MIB]
    assert "through solve<double>" in text(reader, "#table-says")
    picture(reader, "zoomed")
    reader.click("#out")
    reader.click('#flame .root')
    assert "assemble" in boxes(reader) and len(table(reader)) == 5


def test_the_keyboard_walks_and_zooms(opened):
    reader = opened()
    focused = "document.activeElement.getAttribute('aria-label')"
    reader.js("document.querySelector('#weight').focus()")
    reader.press("Tab")
    assert reader.js(focused).startswith("all: ")
    for _ in range(3):
        reader.press("ArrowDown")
    reader.press("ArrowRight")
    assert reader.js(focused).startswith("ncclCommInitRank: 16,777,216 bytes")
    assert "init.cc:300; /usr/lib/libnccl.so.2" in text(reader, "#flame-says")

    reader.press("Enter")
    assert numbers(reader, "bytes") == [16 * MIB]
    assert reader.js(focused).startswith("ncclCommInitRank")
    reader.press("Escape")
    reader.press("Escape")
    reader.press("Escape")
    assert len(table(reader)) == 5


def test_a_box_says_what_it_is_when_it_is_pointed_at(opened):
    reader = opened()
    reader.js("""document.querySelector('#flame [aria-label^="grow"]')
        .dispatchEvent(new PointerEvent("pointerenter"))""")

    said = text(reader, "#flame-says")
    assert said == (f"grow: {166 * MIB:,} bytes in 32 allocations, 1 group, "
                    f"{100 * 166 * MIB / leaked()[1]:.0f}% of all; solver.cc:12; /opt/app/solver")


def test_it_can_begin_where_memory_was_allocated_and_count_allocations(opened):
    reader = opened()
    reader.choose("#order", "site")
    reader.choose("#weight", "count")

    count = leaked()[0]
    widths = boxes(reader)
    assert widths["allocate_field"] == pytest.approx(widths["all"] * 44 / count, abs=2)
    assert reader.js("""document.querySelector('#flame [aria-label^="allocate_field"]')
        .ariaLevel""") == "2"


# --- rows and time --------------------------------------------------------------------------------


def test_a_row_opens_with_its_stack_and_its_parts(opened):
    reader = opened()
    reader.click("#table .opener")

    assert reader.js("[...document.querySelectorAll('.stack code')].map((e) => e.innerText)") == [
        "allocate_field at field.h:12", "grow at solver.cc:12 < assemble at solver.cc:41",
        "run_steps at solver.cc:90", "main at solver.cc:187", "_start at solver.cc:0"]
    parts = reader.js("[...document.querySelectorAll('.parts tbody tr')].map((e) => e.innerText)")
    assert len(parts) == 4
    assert parts[1].split("\t")[:5] == ["rank 1", "1", f"{41 * MIB:,}", "8", "2.00 s to 9.00 s"]
    assert reader.js("document.querySelectorAll('#time .span').length") == 4
    picture(reader, "opened")
    reader.click("#table .opener")
    assert reader.js("document.querySelectorAll('.details, #time .span').length") == 0


def climb(**changes):
    """Live memory for 3 seconds, whose peak of 8 MiB no point of the timeline has; the report took
    7 seconds more."""
    peak = section([group([MAIN], 8 * MIB)])
    return report({"leaked": section([group([MAIN], MIB)]), "peak": peak}, FRAMES, now_ns=10**10,
                  peak_bytes=9 * MIB, peak_ns=2_500_000_000, timeline=[
                      {"ns": at * 10**9, "sequence": at, "live": live, "reserved": 8 * MIB}
                      for at, live in enumerate((0, 3 * MIB, 7 * MIB, MIB))], **changes)


def test_the_timeline_says_each_point_and_ends_with_the_program(opened):
    reader = opened("time", lambda: [climb()])

    reader.js("document.querySelector('#time').focus()")
    for key, said in (("Home", "0 bytes live"), ("ArrowRight", f"{3 * MIB:,} bytes live"),
                      ("ArrowRight", f"{7 * MIB:,} bytes live"),
                      ("ArrowRight", f"2.50 s (2026-09-21 14:13:22 UTC): {8 * MIB:,} bytes live"),
                      ("End", f"{MIB:,} bytes live")):
        reader.press(key)
        assert said in text(reader, "#time-says")
    assert text(reader, "#time-says").startswith("3.00 s (2026-09-21 14:13:23 UTC)")
    assert "14:13:20 UTC, 3.00 s" in text(reader, "#covers")
    box = "document.querySelector('#time .line.live').getBBox()"
    width = reader.js("document.querySelector('#time svg').width.baseVal.value")
    assert reader.js(f"{box}.x + {box}.width") == pytest.approx(width - 24, abs=2)


def test_a_page_tells_of_one_peak_alone(opened):
    """The moment of which the report has the groups, not the bound beside it."""
    reader = opened("time", lambda: [climb()])
    reader.js("document.querySelector('#processes').open = true")
    whole = text(reader, "body")

    assert reader.js("document.querySelector('#time .mark').lastChild.textContent") == "peak 8 MiB"
    assert text(reader, "#total-peak").split("\n") == ["Peak of live memory", "8 MiB",
                                                       f"{8 * MIB:,} bytes"]
    assert "At the peak 8 MiB" in whole and "9 MiB" not in whole and "at most so" not in whole


def test_no_sample_is_above_the_peak(opened):
    """Several threads may seem to have more together for a moment."""
    points = [{"ns": at * 10**9, "sequence": at, "live": live, "reserved": 10 * MIB}
              for at, live in enumerate((0, 9 * MIB, MIB))]
    reader = opened("above", lambda: [{**climb(), "timeline": points}])
    reader.js("document.querySelector('#time').focus()")
    reader.press("Home")
    reader.press("ArrowRight")

    assert f"1.00 s (2026-09-21 14:13:21 UTC): {8 * MIB:,} bytes live" in text(reader, "#time-says")


def test_a_peak_that_no_groups_are_of_is_a_bound(opened):
    reader = opened("bound", lambda: [{**climb(), "sections": {}}])

    assert "9 MiB" in text(reader, "#total-peak") and "at most" in text(reader, "#total-peak")
    assert reader.js("document.querySelector('#time .mark').lastChild.textContent") == \
        "peak at most 9 MiB"


def test_the_timeline_shows_what_the_program_has_marked(opened):
    def one():
        return [report({}, [], timeline=timeline(20, 3 << 20, 9 * 10**9), marks=[
            {"ns": 10**9, "sequence": 1, "live": 0, "name": "load </script><b>"},
            {"ns": 10**9 + 1, "sequence": 1, "live": 0, "name": "at once"},
            {"ns": 8 * 10**9, "sequence": 9, "live": 0, "name": "end train"}])]

    reader = opened("marks", one)

    names = "[...document.querySelectorAll('#time .own text')].map((e) => e.textContent)"
    assert reader.js(names) == ["load </script><b>", "", "end train"]
    assert reader.js("document.querySelector('#time .own title').textContent") == (
        "load </script><b>, 1.00 s")
    picture(reader, "marks")


def test_the_timelines_of_several_processes_are_added_up(opened):
    def two():
        return [report({}, [], pid=pid, start_s=1790000000 + pid, ended_ns=4 * 10**9, timeline=[
            {"ns": 0, "sequence": 1, "live": MIB * pid, "reserved": 2 * MIB * pid},
            {"ns": 2_000_000_000, "sequence": 2, "live": 4 * MIB * pid, "reserved": 8 * MIB * pid}])
            for pid in (1, 2)]

    reader = opened("sum", two)
    reader.js("document.querySelector('#time').focus()")
    said = []
    for key in ("Home", *["ArrowRight"] * 5):
        reader.press(key)
        said.append(text(reader, "#time-says").partition(": ")[2].partition(" bytes")[0])

    # 1 s: the second begins; 2 s, 3 s: they grow; 4 s: the first has ended; 5 s: the second.
    assert said == [f"{mib * MIB:,}" for mib in (1, 3, 6, 12, 8, 8)]


def test_marks_of_every_rank_are_there_and_those_at_one_place_are_one(opened):
    def two():
        return [report({}, [], rank=str(rank), timeline=timeline(20, MIB, 9 * 10**9), marks=[
            {"ns": 10**9, "sequence": 1, "live": 0, "name": "load"},
            {"ns": (3 + 3 * rank) * 10**9, "sequence": 1, "live": 0, "name": "train"}])
            for rank in (0, 1)]

    reader = opened("rank-marks", two)
    titles = "[...document.querySelectorAll('#time .own title')].map((e) => e.textContent)"

    assert reader.js(titles) == ["ranks 0-1: load, 1.00 s", "rank 0: train, 3.00 s",
                                 "rank 1: train, 6.00 s"]
    reader.choose("#process", "1")
    assert reader.js(titles) == ["load, 1.00 s", "train, 6.00 s"]


# --- what held it ---------------------------------------------------------------------------------


def with_history(rank="0", dropped=0, **changes):
    """1 s of loading, then twice 2 s of training: at most 12 MiB in the first, 20 in the second."""
    names = ["load", "train", "train"]
    told = [event("alloc", 10**8, 1, 8 * MIB, [FIELD, MAIN]),
            event("alloc", 10**9 + 1, 2, 4 * MIB, [HALO, MAIN]), event("free", 2 * 10**9, 2, 0),
            event("alloc", 3 * 10**9 + 1, 3, 12 * MIB, [HALO, MAIN]),
            event("free", 3 * 10**9 + 2, 3, 0), event("free", 4 * 10**9, 1, 0),
            event("alloc", 5 * 10**9, 4, MIB, [NCCL], kind="pinned", device=1)]
    marks = [{"ns": ns, "sequence": 1, "live": live, "name": name} for name, ns, live in zip(
        names, (5 * 10**7, 10**9, 3 * 10**9), (0, 8 * MIB, 8 * MIB))]
    return report({"leaked": section([group([NCCL], MIB, kind="pinned", device=1)])}, FRAMES,
                  rank=rank, pid=int(rank) + 1, history=told, history_dropped=dropped, marks=marks,
                  peak_bytes=20 * MIB, ended_ns=6 * 10**9, timeline=[
                      {"ns": at, "sequence": 1, "live": live, "reserved": 20 * MIB}
                      for at, live in ((10**8, 0), (6 * 10**9, MIB))], **changes)


def held(reader):
    """{what held memory: how much, as the key of the areas says}"""
    return dict(reader.js("""[...document.querySelectorAll('#areas-key li')].map((line) =>
        [line.querySelector('.name').innerText, line.querySelector('small').innerText])"""))


def test_areas_say_what_held_the_memory_at_each_moment(opened):
    reader = opened("history", lambda: [with_history()])

    assert held(reader) == {"allocate_field at field.h:12": "at most 8 MiB",
                            "halo_exchange at halo.cc:55": "at most 12 MiB",
                            "ncclCommInitRank at init.cc:300": "at most 1 MiB"}
    assert reader.js("document.querySelectorAll('#time .held').length") == 3
    reader.js("document.querySelector('#time').focus()")
    seen = []
    for key in ("Home", *["ArrowRight"] * 8):
        reader.press(key)
        if "20 MiB" in text(reader, "#time-says") or f"{20 * MIB:,} bytes live" in \
                text(reader, "#time-says"):
            seen.append(held(reader))
    assert {"allocate_field at field.h:12": "8 MiB", "halo_exchange at halo.cc:55": "12 MiB",
            "ncclCommInitRank at init.cc:300": "0 bytes"} in seen
    picture(reader, "areas")


@pytest.mark.parametrize("way, wanted", [
    ("function", {"allocate_field": "at most 8 MiB", "halo_exchange": "at most 12 MiB",
                  "ncclCommInitRank": "at most 1 MiB"}),
    ("file", {"field.h": "at most 8 MiB", "halo.cc": "at most 12 MiB", "init.cc": "at most 1 MiB"}),
    ("kind", {"device memory": "at most 20 MiB", "pinned memory": "at most 1 MiB"}),
    ("device", {"device 0": "at most 20 MiB", "device 1": "at most 1 MiB"})])
def test_areas_are_by_what_is_chosen(opened, way, wanted):
    reader = opened("history", lambda: [with_history()])
    reader.choose("#areas", way)

    assert held(reader) == wanted
    reader.choose("#areas", "")
    assert reader.js("document.querySelectorAll('#time .held').length") == 0
    assert reader.js("document.querySelector('#areas-key').hidden")


def test_areas_of_several_processes_are_added_up(opened):
    ranks = [with_history("0"), with_history("1"), {**with_history("2"), "history": []}]
    reader = opened("histories", lambda: ranks)

    assert held(reader)["allocate_field at field.h:12"] == "at most 16 MiB"
    assert "no history of rank 2" in text(reader, "#time-says")
    reader.choose("#process", "1")
    assert held(reader)["allocate_field at field.h:12"] == "at most 8 MiB"
    reader.choose("#process", "2")
    assert held(reader) == {}


def test_what_has_ended_holds_nothing_any_more(opened):
    """The first ends at 6 s, the second began at 5 s."""
    ranks = [with_history("0"), with_history("1", start_s=1790000005)]
    reader = opened("ended", lambda: ranks)
    reader.js("document.querySelector('#time').focus()")
    reader.press("End")

    assert held(reader)["ncclCommInitRank at init.cc:300"] == "1 MiB"
    assert f"11.0 s (2026-09-21 14:13:31 UTC): {MIB:,} bytes live" in text(reader, "#time-says")


def test_areas_are_of_what_ever_held_most(opened):
    """Eleven stacks of one process, and for a moment one of another, which comes last."""
    def twelve():
        frames = [frame(f"f{number}", number) for number in range(12)]
        told = [event("alloc", 10**6 * (number + 1), number, MIB, [number]) for number in range(11)]
        moment = [event("alloc", 10**7, 1, 100 * MIB, [11]), event("free", 10**7 + 9, 1, 0)]
        return [report({}, frames, history=told, rank="0", timeline=timeline(5, MIB, 10**8)),
                report({}, frames, history=moment, rank="1", timeline=timeline(5, MIB, 10**8))]

    reader = opened("twelve", twelve)

    names = held(reader)
    assert len(names) == 9 and names["f11 at solver.cc:11"] == "at most 100 MiB"
    assert names["everything else"] == "at most 4 MiB"


def test_without_a_history_it_is_said_what_would_bring_one(opened):
    reader = opened()

    assert "history:100000" in text(reader, "#areas-hint")
    assert reader.js("document.querySelector('#areas').closest('label').hidden")


def test_each_phase_has_its_peak_and_what_held_most_of_it(opened):
    reader = opened("history", lambda: [with_history()])
    reader.js("document.querySelector('#phases').open = true")
    lines = reader.js("[...document.querySelectorAll('#phases tr')].map((e) => e.innerText)")

    assert [line.split("\t") for line in lines] == [
        ["Phase", "From", "To", "Peak", "At", "Held most"],
        ["load", "50.0 ms", "1.00 s", f"{8 * MIB:,} bytes", "100 ms",
         "8 MiB: allocate_field at field.h:12"],
        ["train", "1.00 s", "3.00 s", f"{12 * MIB:,} bytes", "1.00 s",
         "8 MiB: allocate_field at field.h:12"],
        ["train", "3.00 s", "6.00 s", f"{20 * MIB:,} bytes", "3.00 s",
         "12 MiB: halo_exchange at halo.cc:55"]]


def test_a_phase_that_only_samples_are_known_of_has_at_least_their_most(opened):
    """What was live at its begin is one of them, what was before is not."""
    marks = [{"ns": 2 * 10**9, "sequence": 1, "live": 2 * MIB, "name": "end"}]
    reader = opened("sampled", lambda: [report({}, [], peak_bytes=7 * MIB, marks=marks, timeline=[
        {"ns": at * 10**9, "sequence": at, "live": live, "reserved": 8 * MIB}
        for at, live in ((0, 0), (1, 7 * MIB), (3, MIB))])])
    reader.js("document.querySelector('#phases').open = true")

    assert reader.js("[...document.querySelectorAll('#phases tr')].map((e) => e.cells[3].innerText)"
                     ) == ["Peak", f"at least {7 * MIB:,} bytes", f"at least {2 * MIB:,} bytes"]


def test_the_phases_of_a_report_count_where_no_history_has_everything(opened):
    """They are bounds, unless the peak is the bound, and none is above it."""
    def told(**changes):
        phases = [{"name": name, "ns": at * 10**9, "ended_ns": (at + 1) * 10**9,
                   "peak_bytes": size * MIB, "peak_ns": None}
                  for name, at, size in ((None, 0, 3), ("load", 1, 21))]
        return {**with_history(dropped=5), "phases": phases, "peak_at_most": 22 * MIB,
                **changes}

    lines = "[...document.querySelectorAll('#phases tr')].slice(1).map((e) => e.innerText)"
    reader = opened("phases", lambda: [told()])
    reader.js("document.querySelector('#phases').open = true")
    assert [line.split("\t") for line in reader.js(lines)] == [
        ["(before the first mark)", "0 us", "1.00 s", f"at most {3 * MIB:,} bytes", "", ""],
        ["load", "1.00 s", "2.00 s", f"at most {20 * MIB:,} bytes", "", ""]]

    reader = opened("phases-exact", lambda: [told(peak_at_most=20 * MIB)])
    reader.js("document.querySelector('#phases').open = true")
    assert "at most" not in "".join(reader.js(lines))

    reader = opened("phases-history", lambda: [told(history_dropped=0)])
    reader.js("document.querySelector('#phases').open = true")
    assert len(reader.js(lines)) == 3, "the history knows more"


def areas_of(one):
    return areas.held_over_time(page_reports.check_report(one), lambda frames: frames)


def test_an_area_loses_no_peak_of_many_events_and_no_last_state():
    """100 stacks come and go 10,000 times; one of them is there for a moment alone."""
    told, live, most = [], 0, 0
    for at in range(10_000):
        told.append(event("alloc", 10 * at, at, MIB + at % 100, [at % len(FRAMES)]))
        live += MIB + at % 100
        if at == 7777:
            told.append(event("alloc", 10 * at + 1, 1 << 20, 1 << 30, [START, START]))
            most = live + (1 << 30)
            told.append(event("free", 10 * at + 2, 1 << 20, 0))
        if at >= 5:
            told.append(event("free", 10 * at + 3, at - 5, 0))
            live -= MIB + (at - 5) % 100
    left = section([group([MAIN], live)])

    made = areas_of(report({"leaked": left}, FRAMES, history=told))

    assert max(made["totals"]) == most and made["totals"][-1] == live
    assert len(made["times"]) < 1000 and not any(made["earlier"])
    assert [1 << 30] == [max(points[1::2]) for frames, _, _, points in made["series"]
                         if frames == (START, START)]
    for point, total in enumerate(made["totals"]):
        assert total == sum(value_at(points, point) for *_, points in made["series"])


def test_a_phase_however_short_keeps_its_peak_and_what_it_ends_with():
    """100 phases of 100 ns at the begin of a second: one interval would have the highest alone."""
    told = []
    for phase in range(100):
        told += [event("alloc", phase * 100 + 10, phase, MIB + phase, [MAIN]),
                 event("free", phase * 100 + 20, phase, 0)]
    told.append(event("alloc", 10**9, 1000, MIB, [MAIN]))
    marks = [{"ns": phase * 100 + 5, "sequence": 1, "live": 0, "name": "p"} for phase in range(100)]

    made = areas_of(report({}, FRAMES, history=told, marks=marks))

    assert {MIB + phase for phase in range(100)} <= set(made["totals"])
    assert made["totals"].count(0) == 100  # the start, and the end of each but the last


def value_at(points, point):
    return next((points[at + 1] for at in range(len(points) - 2, -1, -2) if points[at] <= point), 0)


def test_events_that_are_late_or_missing_hold_nothing_for_ever():
    """The second is late, and the free of address 2 is not there as it is given out again."""
    told = [event("free", 20, 1, MIB), event("alloc", 10, 1, MIB, [MAIN]),
            event("alloc", 30, 2, 2 * MIB, [MAIN]), event("alloc", 40, 2, 4 * MIB, [HALO])]

    made = areas_of(report({}, FRAMES, history=told))

    assert made["totals"][-1] == 4 * MIB and not any(made["earlier"])
    assert made["times"] == sorted(made["times"])
    assert {frames: points[-1] for frames, _, _, points in made["series"]} == {
        (MAIN,): 0, (HALO,): 4 * MIB}


@pytest.mark.parametrize("dropped, before", [(5, 7), (0, 4)])
def test_memory_from_before_the_history_is_an_area_of_its_own(dropped, before):
    """Of 7 MiB that were there 4 are freed later, as the frees say; where no event is dropped the
    other 3 are of nothing that events tell of."""
    told = [event("alloc", 10, 1, MIB, [MAIN]), event("free", 20, 99, 4 * MIB),
            event("free", 30, 1, MIB)]
    made = areas_of(report({"leaked": section([group([MAIN], 3 * MIB)])}, FRAMES, history=told,
                           history_dropped=dropped))

    left = (before - 4) * MIB
    assert (made["totals"][0], made["totals"][-1]) == (before * MIB, left)
    assert made["earlier"][0] == before * MIB and made["earlier"][-1] == left
    assert max(made["totals"]) == (before + 1) * MIB


# --- two reports compared -------------------------------------------------------------------------


def compared_pair():
    """One stack has grown, one shrunk, one is new, one gone, two are as they were; lines have
    moved, a function is inlined no more, and a library without names was built anew."""
    moved = [{**one, "text": one["text"].replace(":12", ":19"), "places": [
        {**place, "line": (place["line"] or 0) + 7} for place in one["places"]]}
        for one in FRAMES] + [frame("assemble", 48), frame("grow", 19)]
    moved[BARE] = bare_frame(0x1b44)
    split = [FIELD, len(FRAMES) + 1, len(FRAMES), MAIN]
    before = report({"leaked": section([
        group([FIELD, ASSEMBLE, MAIN], 10 * MIB, 10), group([HALO, MAIN], 5 * MIB, 5),
        group([NCCL], MIB, 1), group([STEPS], MIB, 1), group([BARE], MIB, 1)]),
        "peak": section([group([MAIN], 20 * MIB)])}, FRAMES,
        timeline=timeline(20, 20 * MIB, 9 * 10**9))
    after = report({"leaked": section([
        group(split, 16 * MIB, 12), group([HALO, MAIN], 2 * MIB, 2), group([BARE], MIB, 1),
        group([SOLVE, MAIN], 3 * MIB, 1), group([STEPS], MIB, 1)]),
        "peak": section([group([MAIN], 24 * MIB)])}, moved,
        pid=9, timeline=timeline(20, 24 * MIB, 9 * 10**9))
    return before, after


@pytest.fixture
def difference(opened, pages, tmp_path_factory):
    """A page of compared_pair(), open."""
    def make():
        directory = tmp_path_factory.mktemp("diff")
        for name, one in zip(("a.json", "b.json"), compared_pair()):
            (directory / name).write_text(json.dumps(one))
        page = directory / "diff.html"
        result = call("--diff", "-o", page, directory / "a.json", directory / "b.json")
        assert result.returncode == 0, result.stderr
        return page

    return lambda **how: opened("diff", make, **how)


def test_two_reports_compared_say_what_grew(difference):
    reader = difference()

    assert text(reader, "h1") == "Leak reports compared"
    assert "before: " in text(reader, "#covers") and "a.json" in text(reader, "#covers")
    assert [(row["where"].partition(" at ")[0], row["bytes"], row["before"], row["after"],
             row["count"]) for row in table(reader)] == [
        ("allocate_field", f"+{6 * MIB:,}", f"{10 * MIB:,}", f"{16 * MIB:,}", "+2"),
        ("solve<double>", f"+{3 * MIB:,}", "0", f"{3 * MIB:,}", "+1"),
        ("ncclCommInitRank", f"-{MIB:,}", f"{MIB:,}", "0", "-1"),
        ("halo_exchange", f"-{3 * MIB:,}", f"{5 * MIB:,}", f"{2 * MIB:,}", "-3")]
    assert text(reader, "#total-leaked").split("\n") == [
        "Leaked", "+5 MiB", f"from {18 * MIB:,} bytes", f"to {23 * MIB:,} bytes"]
    assert "+4 MiB" in text(reader, "#total-peak")
    assert f"4 groups, grew by {5 * MIB:,} bytes in all" in text(reader, "#table-says")
    picture(reader, "diff")


def test_the_flame_graph_of_a_difference_is_of_what_grew_or_of_what_shrank(difference):
    reader = difference()

    assert set(boxes(reader)) == {"all", "main", "assemble", "grow", "allocate_field",
                                  "solve<double>"}
    assert boxes(reader)["assemble"] == pytest.approx(boxes(reader)["all"] * 6 / 9, abs=2)
    reader.choose("#weight", "shrunk")
    assert set(boxes(reader)) == {"all", "main", "halo_exchange", "ncclCommInitRank"}
    reader.choose("#way", "function")
    assert dict(zip(column(reader, "where"), column(reader, "through")))["main"] == \
        f"+{6 * MIB:,}"


def test_where_nothing_has_changed_that_is_said(opened, tmp_path):
    (tmp_path / "a").write_text(json.dumps(RANKS[0]))
    assert call("--diff", "-o", tmp_path / "same.html", tmp_path / "a",
                tmp_path / "a").returncode == 0
    reader = opened("same", lambda: tmp_path / "same.html")

    assert text(reader, "#table-says") == "0 groups, nothing grew, nothing shrank"
    assert text(reader, "#sections").split("\n")[0] == "Leaked 0 bytes"


def test_the_timelines_of_a_difference_are_two_lines(difference):
    reader = difference()
    reader.js("document.querySelector('#time').focus()")
    reader.press("End")

    before, after = (one["timeline"][-1]["live"] for one in compared_pair())
    assert f": {after:,} bytes live, {before:,} bytes before" in text(reader, "#time-says")


def test_a_frame_without_a_name_is_its_place_in_a_module_that_is_the_same():
    nameless = [{**bare_frame(offset), "build_id": build} for offset, build in (
        (0x10, "ab"), (0x20, "ab"), (0x20, "cd"))]

    def stacks(*which):
        before, after = ([("name", page_reports.check_report(report(
            {"leaked": section([group([0], MIB)])}, [nameless[one]])))] for one in which)
        return len(page_maker.merge(before, [], after)["stacks"])

    assert (stacks(0, 1), stacks(1, 1), stacks(0, 2)) == (2, 1, 1)


def test_a_difference_is_of_two_files(tmp_path):
    result = call("--diff", "-o", tmp_path / "page", tmp_path / "one")

    assert result.returncode == 2 and "--diff compares two files, not 1" in result.stderr


# --- any width ------------------------------------------------------------------------------------

WIDTHS = (320, 360, 600, 800, 1000, 1200, 1400)


@pytest.mark.parametrize("name", ["ranks", "python", "history", "hostile", "counted", "diff"])
def test_no_page_scrolls_sideways_at_any_width(opened, difference, name):
    made = {"ranks": lambda: RANKS, "python": python_report, "hostile": hostile_reports,
            "history": lambda: [with_history()], "counted": wide_report}
    reader = difference() if name == "diff" else opened(name + "-wide", made[name])
    for button in (".tabs label:last-child span", "#processes summary", "#table .opener"):
        if reader.js(f"document.querySelector({json.dumps(button)}) !== null"):
            reader.click(button)
    for way in ("stack", "function"):
        reader.choose("#way", way)
        for width in WIDTHS:
            reader.send("Emulation.setDeviceMetricsOverride", width=width, height=900,
                        deviceScaleFactor=1, mobile=False)
            reader.drawn()
            scrolled = reader.js("document.documentElement.scrollWidth")
            assert scrolled <= width, f"{name} by {way} at {width}: {scrolled}"


def wide_report():
    """Every column there is, in large numbers."""
    huge = [{**group([number, MAIN], (1 << 50) - number, (1 << 40), device=number, kind="pinned",
                     threads=["a_thread_with_a_name", "worker-1"], thread_count=7000),
             "allocations": 1 << 44, "temporaries": 1 << 43} for number in range(len(FRAMES))]
    return [report({"leaked": section(huge), "allocated": section(huge)}, FRAMES, rank=str(rank),
                   pid=rank) for rank in range(8)]


# --- what is missing, what is hostile, what is much -----------------------------------------------


def test_of_a_journal_it_is_said_that_the_process_was_killed(opened):
    whole = section([group([MAIN], 512)])
    told = report({"leaked": whole}, FRAMES, cause="journal", now_ns=0)
    reader = opened("journal", lambda: [told])

    assert text(reader, "#notes ul").splitlines()[-1] == (
        "From the journal of a process that was killed: what is called leaked was live then, and "
        "nothing is known of times, the pool and who held the peak")
    assert "still running" not in text(reader, "#notes")
    assert "written at its sudden end, by its journal" in text(reader, "#covers")


def test_what_is_left_out_or_incomplete_is_said(opened):
    def reports():
        whole = section([group([MAIN], 512)], beyond=(7, 900), small=(2, 30), incomplete=True)
        pool = {**RANKS[0]["pool"], "incomplete": True}
        return [report({"leaked": whole}, FRAMES, cause="signal", shards_busy=2, pool=pool),
                report({"leaked": section([]), "peak": section([])}, FRAMES, pid=9),
                report({}, FRAMES, pid=9, now_ns=1)]

    reader = opened("left-out", reports)

    assert text(reader, "#notes ul").splitlines() == [
        "Leaked: 7 groups, 900 bytes, not listed: beyond leak_max",
        "Leaked: 2 groups, 30 bytes, not listed: below leak_min",
        "Leaked: incomplete, some could not be read (pid 4711)",
        "At the peak: not in the report (pid 4711)",
        "Tables that were in use when a signal came were left out (pid 4711)",
        "Pool: incomplete, part of it could not be read (pid 4711)",
        "The process was still running: what is called leaked may be freed later (pid 4711)",
        "1 earlier report left out: of each process the latest counts"]
    assert "930 bytes are in groups that the reports do not list" in text(reader, "#table-says")
    assert text(reader, "#time") == "The reports hold no timeline."


def test_nothing_is_said_to_be_missing_where_nothing_is(opened):
    reader = opened("whole", lambda: [rank_report(0)])

    assert reader.js("document.querySelector('#notes').hidden")
    assert "ranks" not in table(reader)[0]


def test_what_a_program_leaks_is_what_its_page_shows(reader, run, program, tmp_path):
    file = tmp_path / "leaks.json"
    run([program("leaks")], conf=f"leak_report:{file},history:10000")
    wanted = json.loads(file.read_text())["sections"]["leaked"]

    reader.open(make_page(tmp_path, [json.loads(file.read_text())]))

    assert (wanted["bytes"], wanted["count"]) == (310173, 7)  # what leaks.c forgets
    assert sum(numbers(reader, "bytes")) == wanted["bytes"]
    assert sum(numbers(reader, "count")) == wanted["count"]
    assert f"{wanted['bytes']:,} bytes" in text(reader, "#total-leaked")
    reader.js("document.querySelector('#time').focus()")
    reader.press("End")
    assert f": {wanted['bytes']:,} bytes live" in text(reader, "#time-says")
    assert len(held(reader)) > 1 and "everything else" not in held(reader)
    assert reader.problems == []


HOSTILE = ['</script><script>window.hacked=1</script>', '<img src=x onerror="window.hacked=1">',
           '"><svg onload=window.hacked=1>', "<!--<script>", "</ScRiPt x><img src=y ",
           "{{POLICY}}", "${window.hacked=1}",
           "'\"`\\", "\u2028\u2029\u202e", "\ud800", "javascript:window.hacked=1", "a" * 5000,
           "<style>*{display:none}</style>", "&lt;b&gt;", "__proto__", "constructor", "]]>\n\t\x01"]


def hostile_reports():
    frames = [{**frame(name, module=name, file=name), "text": name, "build_id": name,
               "offset": name, "address": name} for name in HOSTILE]
    groups = [group([number, 0], 1 << 20, kind=name, threads=[name], stream=name)
              for number, name in enumerate(HOSTILE)]
    return [report({"leaked": section(groups)}, frames, program=name, host=name, rank=name,
                   cause=name, unwinder=name, cachealloc=name, pid=pid)
            for pid, name in enumerate(HOSTILE)]


def test_hostile_names_are_shown_and_do_nothing(opened):
    reader = opened("hostile", hostile_reports)
    for button in range(len(HOSTILE)):
        reader.js(f"document.querySelectorAll('#table .opener')[{button}].click()")
    reader.js("""document.querySelectorAll('#flame .box').forEach((box) =>
        box.dispatchEvent(new PointerEvent("pointerenter")))""")
    reader.js("document.querySelector('#processes').open = true")
    reader.choose("#kind", HOSTILE[0])
    reader.choose("#query", HOSTILE[0])
    reader.until("document.querySelectorAll('#table tr.group').length === 1")

    assert column(reader, "where") == [HOSTILE[0]]
    assert not reader.js("/[\\u202e\\x01]/.test(document.body.innerText)"), "it turns what follows"
    assert reader.js("typeof window.hacked") == "undefined"
    assert reader.js("document.querySelectorAll('script').length") == 3
    assert reader.js("document.querySelectorAll('img, style:not(head *), #table svg').length") == 0
    assert HOSTILE[1] in text(reader, "#processes") and "{{POLICY}}" in text(reader, "#processes")
    assert reader.js("document.documentElement.scrollWidth <= innerWidth"), "wider than the window"
    picture(reader, "hostile")


def test_the_policy_stops_what_would_get_into_the_page(opened):
    """What would happen if text did get in as markup."""
    reader = opened()
    reader.js("""document.body.insertAdjacentHTML("beforeend",
        '<img src="https://example.invalid/x" onerror="window.hacked=1">')""")
    reader.js("document.body.append(Object.assign(document.createElement('script'), "
              "{textContent: 'window.hacked=1'}))")

    assert reader.js("typeof window.hacked") == "undefined"
    reader.until("document.querySelector('img').complete")
    assert sum("Content Security Policy" in problem for problem in reader.problems) == 3
    assert reader.blocked == ["csp"] and reader.requests.pop().startswith("https://example.invalid")
    reader.problems.clear()


def many_stacks():
    frames = [frame(f"function_{number}_with_a_name", number, module=f"/opt/m{number % 9}.so")
              for number in range(600)]
    groups = [group([number % 600] + [(number // 9 * step) % 600 for step in range(1, 12)] +
                    [number % 5, 0], (number * 7919) % (1 << 20) + 1, number % 9 + 1,
                    device=number % 4, kind=KINDS[number % 3]) for number in range(1, 5001)]
    return [report({"leaked": section(groups)}, frames,
                   timeline=timeline(4000, 3 << 30, 12_500_000_000))]


def test_five_thousand_stacks_stay_usable(opened):
    reader = opened("many", many_stacks)
    total = many_stacks()[0]["sections"]["leaked"]["bytes"]

    assert text(reader, "#table-says") == \
        f"5,000 groups, {total:,} bytes of {total:,} bytes in the reports"
    assert len(table(reader)) == 100
    reader.click("#more")
    assert len(table(reader)) == 300
    assert reader.js("document.querySelectorAll('*').length") < 12000
    reader.click('#flame [aria-label^="function_4_"]')
    reader.click("#flame .rest")
    seen = boxes(reader)
    assert 40 <= len(seen) < 600 and min(seen.values()) > 2, "the widest can be seen and pointed at"
    before = set(seen)
    reader.click("#flame .rest")
    assert len(set(boxes(reader)) - before) >= 40, "and those behind them"
    for _ in range(3):
        reader.click("#out")
    assert reader.js("document.querySelector('#out').disabled")
    # Not how quick this machine is: that nothing is done 5,000 times 5,000 times.
    spent = reader.js("""(() => {
        const start = performance.now();
        document.querySelector("th.count button").click();
        for (const order of ["site", "callers"]) {
            const list = document.querySelector("#order");
            list.value = order;
            list.dispatchEvent(new Event("change"));
        }
        return performance.now() - start;
    })()""")
    assert spent < 10000
    reader.choose("#query", "function_599_")
    reader.until("document.querySelector('#table').dataset.groups < 1000")
    assert table(reader) != []
    reader.choose("#query", "")
    reader.until("document.querySelector('#table').dataset.groups === '5000'")
    picture(reader, "many", height=1600)
