"""Reads the leak report as a user's script would: by its documented lines alone."""

import re
import types

HEADER = re.compile(r"^cachealloc\[(\d+)\]: leak report(?:, rank (\d+))?$")
SUMMARY = re.compile(r"^LEAK SUMMARY: (\d+) bytes in (\d+) allocations, (\d+) stacks$")
INCOMPLETE = re.compile(r"^\(incomplete: (\d+) of 32 shards were in use\)$")
DESTROYED = re.compile(r"^ALIVE WHEN THEIR CONTEXT WAS DESTROYED: "
                       r"(\d+) bytes in (\d+) allocations, (\d+) stacks$")
TOTAL = re.compile(r"^  device (\d+), (\w+) memory: (\d+) bytes in (\d+) allocations$")
GROUP = re.compile(r"^#(\d+): (\d+) bytes in (\d+) allocations, device (\d+), (\w+) memory$")
OMITTED = re.compile(r"^\((\d+) more groups, (\d+) bytes, not listed: (leak_\w+):(\d+)\)$")


def parse(text):
    """The report in `text`, or None. Anything between its lines that is no report fails.

    pid, bytes, count, stacks; totals[(device, kind)] = (bytes, count); groups with bytes, count,
    device, kind and frames; omitted[option] = (groups, bytes); incomplete, in shards. destroyed is
    None or has bytes, count, stacks, groups and omitted of what destroyed contexts held.
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if HEADER.match(line)]
    assert len(starts) <= 1, f"several reports:\n{text}"
    if not starts:
        assert "LEAK SUMMARY" not in text
        return None
    lines = lines[starts[0]:]
    report = part(SUMMARY.match(lines[1]))
    report.pid = int(HEADER.match(lines[0])[1])
    report.incomplete, report.destroyed = 0, None
    current = report
    for line in lines[2:]:
        if match := INCOMPLETE.match(line):
            report.incomplete = int(match[1])
        elif match := TOTAL.match(line):
            report.totals[(int(match[1]), match[2])] = (int(match[3]), int(match[4]))
        elif match := GROUP.match(line):
            assert int(match[1]) == len(current.groups) + 1
            current.groups.append(types.SimpleNamespace(
                bytes=int(match[2]), count=int(match[3]), device=int(match[4]), kind=match[5],
                frames=[]))
        elif match := OMITTED.match(line):
            current.omitted[match[3]] = (int(match[1]), int(match[2]))
        elif (match := DESTROYED.match(line)) and current is report:
            current = report.destroyed = part(match)
        elif line.startswith("    ") and current.groups:
            current.groups[-1].frames.append(line.strip())
        else:
            break
    assert sum(total[0] for total in report.totals.values()) == report.bytes
    assert sum(total[1] for total in report.totals.values()) == report.count
    check(report)
    if report.destroyed:
        check(report.destroyed)
    return report


def nothing_leaked(text):
    """Whether stderr holds no leak: nothing at all, or only what destroyed contexts took along."""
    report = parse(text)
    if report is None:
        return text == ""
    return report.count == 0 and report.destroyed is not None and text.startswith("cachealloc[")


def part(match):
    """The report's part that a line with bytes, allocations and stacks begins."""
    assert match, "not a summary"
    return types.SimpleNamespace(bytes=int(match[1]), count=int(match[2]), stacks=int(match[3]),
                                 totals={}, groups=[], omitted={})


def check(report):
    """What must hold for every part: its groups add up, the largest comes first."""
    listed = sum(group.bytes for group in report.groups)
    assert listed + sum(omitted[1] for omitted in report.omitted.values()) == report.bytes
    sizes = [group.bytes for group in report.groups]
    assert sizes == sorted(sizes, reverse=True)


def places(group):
    """The functions of a group's stack, innermost first, by name."""
    return [re.split(r"[ +(.]", frame)[0] for frame in group.frames]
