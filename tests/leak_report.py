"""Reads the leak report as a user's script would: by its documented lines alone."""

import re
import types

HEADER = re.compile(r"^cachealloc\[(\d+)\]: leak report$")
SUMMARY = re.compile(r"^LEAK SUMMARY: (\d+) bytes in (\d+) allocations, (\d+) stacks$")
TOTAL = re.compile(r"^  device (\d+), (\w+) memory: (\d+) bytes in (\d+) allocations$")
GROUP = re.compile(r"^#(\d+): (\d+) bytes in (\d+) allocations, device (\d+), (\w+) memory$")
OMITTED = re.compile(r"^\((\d+) more groups, (\d+) bytes, not listed: (leak_\w+):(\d+)\)$")


def parse(text):
    """The report in `text`, or None. Anything between its lines that is no report fails.

    pid, bytes, count, stacks; totals[(device, kind)] = (bytes, count); groups with bytes, count,
    device, kind and frames; omitted[option] = (groups, bytes).
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if HEADER.match(line)]
    assert len(starts) <= 1, f"several reports:\n{text}"
    if not starts:
        assert "LEAK SUMMARY" not in text
        return None
    lines = lines[starts[0]:]
    pid = int(HEADER.match(lines[0])[1])
    summary = SUMMARY.match(lines[1])
    assert summary, f"not a summary: {lines[1]}"
    report = types.SimpleNamespace(pid=pid, bytes=int(summary[1]), count=int(summary[2]),
                                   stacks=int(summary[3]), totals={}, groups=[], omitted={})
    for line in lines[2:]:
        if match := TOTAL.match(line):
            report.totals[(int(match[1]), match[2])] = (int(match[3]), int(match[4]))
        elif match := GROUP.match(line):
            assert int(match[1]) == len(report.groups) + 1
            report.groups.append(types.SimpleNamespace(
                bytes=int(match[2]), count=int(match[3]), device=int(match[4]), kind=match[5],
                frames=[]))
        elif match := OMITTED.match(line):
            report.omitted[match[3]] = (int(match[1]), int(match[2]))
        elif line.startswith("    ") and report.groups:
            report.groups[-1].frames.append(line.strip())
        else:
            break
    check(report)
    return report


def check(report):
    """What must hold for every report: the parts add up, the largest group comes first."""
    assert sum(total[0] for total in report.totals.values()) == report.bytes
    assert sum(total[1] for total in report.totals.values()) == report.count
    listed = sum(group.bytes for group in report.groups)
    assert listed + sum(omitted[1] for omitted in report.omitted.values()) == report.bytes
    sizes = [group.bytes for group in report.groups]
    assert sizes == sorted(sizes, reverse=True)


def places(group):
    """The functions of a group's stack, innermost first, by name."""
    return [re.split(r"[ +(.]", frame)[0] for frame in group.frames]
