"""Reads the leak report as a user's script would: by its documented lines alone."""

import re
import types

HEADER = re.compile(r"^cachealloc\[(\d+)\]: leak report(?:, rank (\d+))?(?:, cause (\w+))?(?:, stacks sampled: (\w+))?$")
SUMMARY = re.compile(r"^LEAK SUMMARY: (\d+) bytes in (\d+) allocations, (\d+) stacks$")
INCOMPLETE = re.compile(r"^\(incomplete: (\d+) of 17 stripes were in use\)$")
UNREAD = "(incomplete: some of it could not be read: in use, or no memory)"
DESTROYED = re.compile(r"^ALIVE WHEN THEIR CONTEXT WAS DESTROYED: "
                       r"(\d+) bytes in (\d+) allocations, (\d+) stacks$")
SUPPRESSED = re.compile(r"^SUPPRESSED: (\d+) bytes in (\d+) allocations, (\d+) stacks$")
RULE = re.compile(r"^  (?:(\d+) bytes in (\d+) allocations|not used): (leak:.*) "
                  r"\((?:(.*):(\d+)|built in)\)$")
PEAK = re.compile(r"^PEAK: (\d+) bytes in (\d+) allocations, (\d+) stacks, "
                  r"(\d+\.\d{3}) s after the start$")
ELSEWHERE = re.compile(r"^\((\d+) more groups, (\d+) bytes, not listed here\)$")
RULES = "RULES FOR THE GROUPS ABOVE:"
TOTAL = re.compile(r"^  device (\d+), (\w+) memory: (\d+) bytes in (\d+) allocations$")
GROUP = re.compile(r"^#(\d+): (\d+) bytes in (\d+) allocations, device (\d+), (\w+) memory$")
DETAILS = re.compile(r"^  (?:sizes (\d+) to (\d+), )?sequence (\d+)(?: to (\d+))?"
                     r"(?:, (?:thread|(\d+) threads:) (.+))?$")
OMITTED = re.compile(r"^\((\d+) more groups, (\d+) bytes, not listed: (leak_\w+):(\d+)\)$")


def parse(text, at_rest=False):
    """The report in `text`, or None. Anything between its lines that is no report fails.

    pid, sampled, bytes, count, stacks; totals[(device, kind)] = (bytes, count); groups with bytes, count,
    device, kind, smallest, largest, first, last, thread_count, threads and frames;
    omitted[option] = (groups, bytes); incomplete, in stripes. destroyed is
    None or has bytes, count, stacks, groups and omitted of what destroyed contexts held; suppressed
    None or bytes, count, stacks and rules: [(bytes, count, rule, path, line)]. rules are those printed
    for the groups.

    `at_rest`: no thread was at work meanwhile. What one of them freed and allocated again may
    otherwise be in it twice, and the peak, which is of one moment before, be less.
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
    report.cause = HEADER.match(lines[0])[3]  # None for the end of the process
    report.sampled = HEADER.match(lines[0])[4]
    report.incomplete, report.destroyed, report.suppressed, report.rules = 0, None, None, None
    report.peak, report.said_nothing, current = None, False, report
    for line in lines[2:]:
        if match := INCOMPLETE.match(line):
            report.incomplete = int(match[1])
        elif line == "(nothing leaked)" and current is report:
            assert (report.bytes, report.count, report.groups) == (0, 0, [])
            report.said_nothing = True
        elif line == UNREAD and not current.groups:
            current.unread = True
        elif match := TOTAL.match(line):
            current.totals[(int(match[1]), match[2])] = (int(match[3]), int(match[4]))
        elif match := GROUP.match(line):
            assert int(match[1]) == len(current.groups) + 1
            current.groups.append(types.SimpleNamespace(
                bytes=int(match[2]), count=int(match[3]), device=int(match[4]), kind=match[5],
                frames=[]))
        elif (match := DETAILS.match(line)) and current.groups:
            add_details(current.groups[-1], match)
        elif match := OMITTED.match(line):
            current.omitted[match[3]] = (int(match[1]), int(match[2]))
        elif (match := DESTROYED.match(line)) and current is report:
            current = report.destroyed = part(match)
        elif match := SUPPRESSED.match(line):
            current = report.suppressed = part(match)
            current.rules = []
        elif (match := RULE.match(line)) and current is report.suppressed:
            current.rules.append((int(match[1] or 0), int(match[2] or 0), *match.groups()[2:4],
                                  int(match[5] or 0)))
        elif match := PEAK.match(line):
            current = report.peak = part(match)
            report.peak.seconds = float(match[4])
        elif (match := ELSEWHERE.match(line)) and current is report.peak:
            current.omitted["here"] = (int(match[1]), int(match[2]))
        elif line == RULES:
            report.rules = []
        elif report.rules is not None and line.startswith("leak:"):
            report.rules.append(line)
        elif line.startswith("    ") and current.groups:
            current.groups[-1].frames.append(line.strip())
        else:
            break
    assert sum(total[0] for total in report.totals.values()) == report.bytes
    assert sum(total[1] for total in report.totals.values()) == report.count
    check(report)
    if report.destroyed:
        check(report.destroyed)
    if report.peak:
        check(report.peak)
        assert len(report.peak.groups) <= 5
        assert sum(total[0] for total in report.peak.totals.values()) == report.peak.bytes
        assert report.peak.bytes >= report.bytes or report.incomplete or not at_rest
    if report.suppressed:
        for index, total in enumerate((report.suppressed.bytes, report.suppressed.count)):
            assert sum(rule[index] for rule in report.suppressed.rules) == total
    return report


def add_details(group, match):
    """What the line below a group says; a size that is not told is everybody's."""
    assert not group.frames and not hasattr(group, "first"), "details of no group"
    group.smallest = int(match[1] or group.bytes // group.count)
    group.largest = int(match[2] or group.bytes // group.count)
    group.first = int(match[3])
    group.last = int(match[4] or group.first)
    group.threads = match[6].split(", ") if match[6] else []
    group.thread_count = int(match[5] or len(group.threads))


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
                                 totals={}, groups=[], omitted={}, unread=False)


def check(report):
    """What must hold for every part: its groups add up, the largest comes first."""
    listed = sum(group.bytes for group in report.groups)
    listed += sum(omitted[1] for omitted in report.omitted.values())
    assert listed == report.bytes or (report.unread and listed < report.bytes)
    for group in report.groups:
        assert group.count * group.smallest <= group.bytes <= group.count * group.largest
        assert group.first <= group.last and group.frames
    sizes = [group.bytes for group in report.groups]
    assert sizes == sorted(sizes, reverse=True)


def places(group):
    """The functions of a group's stack, innermost first, by name."""
    return [re.split(r"[ +(.]", frame)[0] for frame in group.frames]
