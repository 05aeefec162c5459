"""A report of very many leaks is there in a moment, and so is its page."""

import json
import sys
import time

import pytest

import browser as chromium
import conftest
import leak_report
from report_json import KINDS, frame, group, report, section, timeline

sys.path.insert(0, str(conftest.ROOT / "tools"))
from report_page import page, reports  # noqa: E402

pytestmark = pytest.mark.alone
ALLOCATIONS, STACKS = 100_000, 5_000
LIMIT = 5 * conftest.SLOWDOWN  # seconds; idle it is some tenths of one


def seconds(run, program, conf):
    """From the end of main to that of the process, and the report."""
    result = run([program("many_stacks"), ALLOCATIONS, STACKS], timeout=120,
                 conf=f"stack_depth:32,{conf}")
    ended = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert result.rc == 0, result.err[-2000:]
    return (ended - int(result.out)) / 1e9, result.err


@pytest.mark.parametrize("listed", [20, 1000000])
def test_text_of_100000_leaks_in_5000_stacks(run, program, listed):
    took, text = seconds(run, program, f"leak_max:{listed}")
    without, _ = seconds(run, program, "leak_report:off")

    print(f"{took:.2f} s, {without:.2f} s without a report")
    report = leak_report.parse(text)
    assert (report.count, report.bytes, report.stacks) == (ALLOCATIONS, ALLOCATIONS * 512, STACKS)
    assert len(report.groups) == min(listed, STACKS)
    assert took < LIMIT


def test_json_of_100000_leaks_in_5000_stacks_under_rules(run, program, tmp_path):
    (tmp_path / "known").write_text("".join(f"leak:none_of_{i}*these\n" for i in range(500)))
    conf = f"leak_max:1000000,leak_report:{tmp_path}/report.json,suppressions:{tmp_path}/known"
    took, said = seconds(run, program, conf)

    print(f"{took:.2f} s")
    assert said == ""
    groups = json.loads((tmp_path / "report.json").read_text())["sections"]["leaked"]["groups"]
    assert len(groups) == STACKS and {group["count"] for group in groups} == {20}
    assert took < LIMIT


# --- the page -------------------------------------------------------------------------------------

D3 = conftest.ROOT / "build" / "d3" / "d3.min.js"
GROUPS, RANKS, DEPTH = 10_000, 4, 20
OPEN, ANSWER = 2, 0.3  # seconds of the page


def many_groups():
    """Reports of four ranks: 10,000 stacks leaked, and other amounts of the same at the peak."""
    frames = [frame(f"function_{number}_with_a_name", number, module=f"/opt/m{number % 9}.so",
                    file=f"source_{number % 300}.cc") for number in range(3000)]
    stacks = [[number % 2993] + [(number // 9 * step + step) % 3000 for step in range(1, DEPTH)] +
              [number % 7, number % 5, number % 3, 0] for number in range(GROUPS)]

    def listed(factor):
        return section([group(stack, number * factor % (1 << 20) + 1, number % 9 + 1,
                              kind=KINDS[number % 3], threads=[f"worker-{number % 12}"])
                        for number, stack in enumerate(stacks)])

    one = reports.check_report(report({"leaked": listed(7919), "peak": listed(104729)}, frames,
                                      timeline=timeline(1000, 3 << 30, 12_500_000_000)))
    return [{**one, "rank": str(rank), "pid": rank} for rank in range(RANKS)]


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="nothing of the page is compiled")
@pytest.mark.skipif(not D3.exists(), reason="no D3: scripts/d3.sh")
def test_a_page_of_10000_groups_of_4_ranks_opens_and_answers_at_once(tmp_path):
    if chromium.find() is None:
        pytest.skip("no Chromium")
    file = tmp_path / "page.html"
    file.write_text(page.make(page.merge([("", one) for one in many_groups()], []),
                              D3.read_text()))
    browser = chromium.Browser(chromium.find(), tmp_path / "profile")
    took = {}

    def timed(name, act):
        before = browser.spent()
        act()
        browser.drawn()
        took[name] = browser.spent() - before

    def search(query, count):
        browser.choose("#query", query)
        browser.until(f"document.querySelector('#table').dataset.groups == {count}")

    try:
        browser.spent()
        browser.open(file)
        browser.drawn()
        took["open"] = browser.spent()  # it is a process of its own
        timed("search", lambda: search("function_599_", 22))
        timed("search for all", lambda: search("function", GROUPS))
        timed("tab", lambda: browser.click("#sections input[value=peak]+span"))
        for way in ("function", "line", "file"):
            timed(way, lambda: browser.choose("#way", way))  # noqa: B023 called at once
        timed("sort", lambda: browser.click("th.count button"))
        problems = browser.problems
    finally:
        browser.close()

    print({name: round(seconds, 3) for name, seconds in took.items()})
    assert problems == []
    assert took.pop("open") < OPEN
    assert max(took.values()) < ANSWER, took
