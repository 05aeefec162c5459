"""A report of very many leaks is there in a moment."""

import json
import time

import pytest

import conftest
import leak_report

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
