"""What grew from the reports of one run of a program to those of another.

keys.py says which stacks are the same. What all processes of a side hold is added up.
"""

import collections

from report_page import page, reports
from report_page.keys import Keys

SCHEMA, VERSION = "cachealloc-diff", 1
# A section that a report lacks: nothing was there, or nothing is known.
EMPTY_WITHOUT = ("leaked", "destroyed", "suppressed")
TITLES = {"leaked": "LEAKED", "peak": "PEAK", "allocated": "ALLOCATED IN ALL",
          "destroyed": "ALIVE WHEN THEIR CONTEXT WAS DESTROYED", "suppressed": "SUPPRESSED"}
# What changes which stacks reports can tell apart, or list.
SETTINGS = ("stack_depth", "stacks_sampled", "leak_max", "leak_min")
AMOUNTS = ("bytes", "count", "allocations", "temporaries")
STATES = ("new", "grown", "gone", "shrunk", "same")


class Side:
    """The reports of one side, added up."""

    def __init__(self, files, named, keys):
        self.files, self.reports = files, [report for _, report in named]
        self.sections = {}
        for report in self.reports:
            own = [keys.of_frame(frame) for frame in report["frames"]]
            for title, section in report["sections"].items():
                if title in reports.SECTIONS:
                    self.add(title, section, own, report["frames"])

    def add(self, title, section, own, frames):
        whole = self.sections.setdefault(title, {
            "reports": 0, "bytes": 0, "count": 0, "temporaries": 0, "omitted": [0, 0],
            "incomplete": False, "groups": {}})
        whole["reports"] += 1
        whole["incomplete"] |= section["incomplete"]
        for key in ("bytes", "count", "temporaries"):
            whole[key] += section.get(key, 0)
        for left_out in section["omitted"].values():
            whole["omitted"][0] += left_out["groups"]
            whole["omitted"][1] += left_out["bytes"]
        for group in section["groups"]:
            key = (tuple(place for frame in group["frames"] for place in own[frame]), group["kind"])
            amounts, _ = whole["groups"].setdefault(
                key, (collections.Counter(), [frames[frame] for frame in group["frames"]]))
            for amount in AMOUNTS:
                amounts[amount] += group[amount]

    def has(self, title):
        there = title in self.sections and self.sections[title]["reports"]
        return title in EMPTY_WITHOUT or there == len(self.reports)

    def section(self, title):
        return self.sections.get(title) or {"bytes": 0, "count": 0, "temporaries": 0,
                                            "omitted": [0, 0], "incomplete": False, "groups": {}}

    def about(self):
        peaks = [report["peak_bytes"] for report in self.reports]
        return {"files": self.files, "peak_bytes": sum(peaks),
                "processes": [{key: report[key] for key in (
                    "pid", "program", "rank", "host", "cause", "cachealloc", "start_s", "now_ns")}
                              for report in self.reports]}


def state_of(before, after):
    if not before:
        return "new"
    if not after:
        return "gone"
    change = (after["bytes"] - before["bytes"], after["count"] - before["count"],
              after["allocations"] - before["allocations"])
    return "grown" if change > (0, 0, 0) else "shrunk" if change < (0, 0, 0) else "same"


def compare_section(before, after, number_of):
    groups, stacks = [], {state: 0 for state in STATES}
    for key in set(before["groups"]) | set(after["groups"]):
        (was, old), (now, frames) = (side["groups"].get(key, (None, None))
                                     for side in (before, after))
        state = state_of(was, now)
        stacks[state] += 1
        if state == "same":
            continue
        was, now = was and dict(was), now and dict(now)
        empty = {amount: 0 for amount in AMOUNTS}
        growth = {amount: (now or empty)[amount] - (was or empty)[amount] for amount in AMOUNTS}
        # Of what is not in one of them it may have been too small to be listed.
        missing = before if state == "new" else after if state == "gone" else None
        groups.append((key, {
            "state": state, "certain": missing is None or missing["omitted"][0] == 0,
            "kind": key[1], "growth": growth["bytes"], "growth_count": growth["count"],
            "before": was, "after": now, "frames": frames or old}))
    groups.sort(key=lambda one: (-one[1]["growth"], -one[1]["growth_count"], repr(one[0])))
    listed = [one for _, one in groups]
    for one in listed:
        one["frames"] = [number_of(frame) for frame in one["frames"]]
    sides = {"before": before, "after": after}
    return {
        **{name: {key: side[key] for key in ("bytes", "count", "temporaries")}
           for name, side in sides.items()},
        "growth": after["bytes"] - before["bytes"],
        "growth_count": after["count"] - before["count"],
        "incomplete": before["incomplete"] or after["incomplete"], "stacks": stacks,
        "omitted": {name: dict(zip(("groups", "bytes"), side["omitted"]))
                    for name, side in sides.items()},
        "groups": listed}


def settings_that_differ(sides):
    for key in SETTINGS:
        values = [sorted({report.get(key, 0) for report in side.reports}) for side in sides]
        if values[0] != values[1]:
            said = " and ".join(", ".join(map(str, some)) for some in values)
            yield f"{key} was not the same ({said}): stacks may not be told apart alike"


def compare(files, found):
    """What changed, as JSON has it. `files` are two names, `found` two lists of (name, report)."""
    named = [page.latest_of_each(side) for side in found]
    keys = Keys(named)
    sides = [Side([file], side, keys) for file, side in zip(files, named)]
    frames = page.Numbered()

    def number_of(frame):
        places = tuple(tuple(place[key] for key in reports.PLACE) for place in frame["places"])
        return frames.number((frame["text"], frame["module"], frame["offset"], places), frame)

    notes, sections = list(settings_that_differ(sides)), {}
    for title in reports.SECTIONS:
        if not any(title in side.sections for side in sides):
            continue
        lacking = [file for file, side in zip(files, sides) if not side.has(title)]
        if lacking:
            notes.append(f"{title} is not compared: no such section in every report of "
                         f"{' and '.join(lacking)}")
            continue
        sections[title] = compare_section(*(side.section(title) for side in sides), number_of)
    return {"schema": SCHEMA, "schema_version": VERSION, "notes": notes,
            "before": sides[0].about(), "after": sides[1].about(), "sections": sections,
            "frames": frames.values}


# --- as text --------------------------------------------------------------------------------------


def shown(text):
    """With the codes of what would break a line, or turn the direction of what is around it."""
    return page.UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plural(count, one):
    return f"{count} {one}{'' if count == 1 else 's'}"


def change(before, after, what):
    return f"{after - before:+} {what} ({before} -> {after})"


def side_line(name, side):
    many = side["processes"]
    first = many[0]
    whose = (f"{shown(first['program'])}, pid {first['pid']}" if len(many) == 1
             else f"{plural(len(many), 'process').replace('processs', 'processes')}")
    rank = f", rank {shown(first['rank'])}" if len(many) == 1 and first["rank"] else ""
    causes = sorted({one["cause"] for one in many} - {"exit"})
    cause = f", cause {' and '.join(causes)}" if causes else ""
    files = ", ".join("stdin" if file == "-" else shown(file) for file in side["files"])
    return f"  {name}: {files}: {whose}{rank}{cause}"


def group_lines(number, group, frames):
    empty = {amount: 0 for amount in AMOUNTS}
    was, now = group["before"] or empty, group["after"] or empty
    state = group["state"]
    if not group["certain"]:
        state += ", or not listed " + ("before" if state == "new" else "after")
    yield (f"#{number}: {change(was['bytes'], now['bytes'], 'bytes')}, "
           f"{change(was['count'], now['count'], 'allocations')}, {shown(group['kind'])} memory, "
           f"{state}")
    if any(side[key] for side in (was, now) for key in ("allocations", "temporaries")):
        yield (f"  allocated in all {was['allocations']} -> {now['allocations']}, temporaries "
               f"{was['temporaries']} -> {now['temporaries']}")
    if not group["frames"]:
        yield "    (no call stack)"
    for frame in group["frames"]:
        yield f"    {shown(frames[frame]['text'])}"


def section_lines(title, section, frames, most):
    before, after, stacks = section["before"], section["after"], section["stacks"]
    yield (f"{TITLES[title]}: {change(before['bytes'], after['bytes'], 'bytes')}, "
           f"{change(before['count'], after['count'], 'allocations')}")
    yield "  stacks: " + ", ".join(f"{stacks[state]} {state}" for state in STATES)
    if before["temporaries"] or after["temporaries"]:
        yield f"  {change(before['temporaries'], after['temporaries'], 'temporaries')}"
    if section["incomplete"]:
        yield "  (incomplete: some allocations could not be read)"
    for name, left_out in section["omitted"].items():
        if left_out["groups"]:
            yield (f"  ({plural(left_out['groups'], 'group')}, {left_out['bytes']} bytes, not "
                   f"listed in the reports {name}: leak_max and leak_min)")
    grown = [group for group in section["groups"] if group["state"] in ("new", "grown")]
    shrunk = [group for group in section["groups"] if group["state"] in ("gone", "shrunk")][::-1]
    number = 0
    for word, some in (("grew", grown), ("shrank", shrunk)):
        for group in some[:most]:
            number += 1
            yield from group_lines(number, group, frames)
        left = some[most:]
        if left:
            yield (f"({plural(len(left), 'more group')} that {word}, "
                   f"{sum(group['growth'] for group in left):+} bytes, not listed: --most {most})")


def text_of(difference, most):
    """The lines of a comparison. At most so many groups that grew, and that shrank, of a part."""
    yield "LEAK REPORTS COMPARED"
    for name in ("before", "after"):
        yield side_line(name, difference[name])
    peaks = [difference[name]["peak_bytes"] for name in ("before", "after")]
    yield f"  peak: {change(*peaks, 'bytes')}"
    for note in difference["notes"]:
        yield f"  ({shown(note)})"
    for title, section in difference["sections"].items():
        yield from section_lines(title, section, difference["frames"], most)
