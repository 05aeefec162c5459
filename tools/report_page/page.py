"""Makes the page of reports that were read: one file, with everything inside.

What the reports say may be anything, function names above all. It goes into the page as JSON in
which no character can end the element it stands in, and the page's script only ever shows it as
text. Should that fail, the page's policy still lets nothing run but the two scripts that are named
there by their checksums, and nothing be fetched.
"""

import base64
import hashlib
import html
import json
import pathlib
import re

from report_page import areas, reports
from report_page.keys import Keys

HERE = pathlib.Path(__file__).resolve().parent
# In this order one script, with one scope.
SCRIPTS = ("text.js", "data.js", "rows.js", "areas.js", "timeline.js", "phases.js", "flame.js",
           "table.js", "head.js", "main.js")
# A name that turns the direction of what is around it, or breaks its line, would lie about it.
UNSEEN = re.compile("[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e"
                    "\u2060-\u2069\ufeff]")
ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)|\x7f")  # of JSON in ASCII
# Of a group, as they are.
COLUMNS = ("device", "bytes", "count", "smallest", "largest", "first_ns", "last_ns",
           "thread_count", "allocations", "temporaries")
KEPT = ("ended_ns", "peak_ns", "peak_at_most")  # of what a report may lack
# Files of Python that are not the program's own.
LIBRARY = re.compile("/(?:site|dist)-packages/|/lib/python[0-9]|^<frozen ")
# Inner frames of frameworks, which say nothing of the program: the page shows a run of them as one.
FOLDED = re.compile(r"(?:c10|pybind11|at::_ops|at::detail|at::impl|torch::dispatch)::")


class Numbered:
    """Values in the order of their first coming."""

    def __init__(self):
        self.values, self.numbers = [], {}

    def number(self, key, value):
        if key not in self.numbers:
            self.numbers[key] = len(self.values)
            self.values.append(value)
        return self.numbers[key]


def identity(report):
    """The same for two reports of one process."""
    return tuple(report[key] for key in ("host", "pid", "start_s", "program", "rank"))


def moment(report):
    """When it is from, beside others of its process. A journal's has no time: it is of a process
    that did not come to its own last report."""
    last = {"journal": 1, "exit": 2}.get(report["cause"], 0)
    return last, report["now_ns"]


def latest_of_each(named):
    """Of several reports of one process the latest, so that nothing counts twice."""
    latest = {}
    for name, report in named:
        before = latest.get(identity(report))
        if before is None or moment(before[1]) <= moment(report):
            latest[identity(report)] = (name, report)

    def order(one):
        rank = one[1]["rank"]
        if rank is not None and re.fullmatch("[0-9]{1,18}", rank):
            return (0, int(rank), "", one[1]["pid"])
        return (1, 0, rank or "", one[1]["pid"])

    return sorted(latest.values(), key=order)


def module_name(frame):
    return None if frame["module"] is None else frame["module"].rpartition("/")[2]


def closeness(frame):
    """How near a frame is to what the reader wrote: 0 inside a framework, 1 native, 2 Python of a
    library, 3 Python of the program."""
    if frame["language"] == "python":
        files = [place["file"] or "" for place in frame["places"]]
        return 2 if any(LIBRARY.search(file) for file in files) else 3
    names = [place["function"] for place in frame["places"]]
    inside = bool(names) and all(name is not None and FOLDED.match(name) for name in names)
    return 0 if inside else 1


class Shared:
    """What the groups of all processes refer to, once; `keys` says which stacks of reports that are
    compared are the same, and is None where none are."""

    def __init__(self, keys):
        self.keys = keys
        self.frames, self.stacks = Numbered(), Numbered()
        self.kinds, self.threads, self.streams = Numbered(), Numbered(), Numbered()

    def frame(self, frame):
        # Processes are loaded at different addresses: a frame is what it says.
        places = [[place["function"], place["file"], place["line"]] for place in frame["places"]]
        return self.frames.number((frame["text"], module_name(frame), frame["language"]), [
            frame["text"], frame["module"], frame["build_id"], frame["offset"], places,
            frame["language"], closeness(frame)])

    def stack(self, numbers, frames):
        """`numbers` are those of the frames."""
        key = self.keys.of_stack(frames) if self.keys else numbers
        return self.stacks.number(key, numbers)

    def group(self, group, stack):
        return [stack, self.kinds.number(group["kind"], group["kind"]),
                self.threads.number(tuple(group["threads"]), group["threads"]),
                self.streams.number(group["stream"], group["stream"]),
                *(group[key] for key in COLUMNS)]


def compact(name, report, shared):
    """(what the page says of a process, its groups), with numbers into `shared`."""
    own = [shared.frame(frame) for frame in report["frames"]]

    def stack_number(frames):
        return shared.stack(tuple(own[frame] for frame in frames),
                            [report["frames"][frame] for frame in frames])

    process = {key: report[key] for key in (*reports.REPORT, *KEPT)
               if key not in ("sections", "frames", "timeline")}
    process["file"] = name
    process["timeline"] = [[point["ns"], point["live"], point["reserved"]]
                           for point in report["timeline"]]
    process["marks"] = [[mark["ns"], mark["name"], mark["live"]] for mark in report["marks"]]
    process["phases"] = [[phase[key] for key in (*reports.PHASE, "peak_ns", "exact")]
                         for phase in report["phases"]]
    process["sections"], groups = {}, {}
    for title in reports.SECTIONS:
        section = report["sections"].get(title)
        if section is None:
            continue
        process["sections"][title] = {key: section[key] for key in reports.SECTION
                                      if key != "groups"}
        groups[title] = [shared.group(group, stack_number(group["frames"]))
                         for group in section["groups"]]
    process["areas"] = areas.held_over_time(report, stack_number)
    if process["areas"]:
        for one in process["areas"]["series"]:
            one[2] = shared.kinds.number(one[2], one[2])
    return process, groups


def merge(named, unreadable, after=None):
    """The data of the page: see data.js. `named` are (file name, report); where `after` are such,
    too, the page says what has grown from the one to the other."""
    sides = [latest_of_each(one) for one in (named, after) if one is not None]
    shared = Shared(Keys(sides) if after is not None else None)
    processes, groups = [], {title: [] for title in reports.SECTIONS}
    # Frames are as the later ones have them.
    for side in reversed(range(len(sides))):
        for name, report in sides[side]:
            process, own = compact(name, report, shared)
            process["side"] = side
            for title, listed in own.items():
                groups[title] += [[len(processes), *group] for group in listed]
            processes.append(process)
    columns = ("process", "stack", "kind", "threads", "stream", *COLUMNS)
    return {"processes": processes, "frames": shared.frames.values, "stacks": shared.stacks.values,
            "kinds": shared.kinds.values, "threads": shared.threads.values,
            "streams": shared.streams.values, "compared": after is not None,
            "groups": {title: dict(zip(columns, map(list, zip(*rows)) if rows
                                       else ([] for _ in columns)))
                       for title, rows in groups.items()},
            "earlier": len(named) + len(after or ()) - len(processes), "unreadable": unreadable}


def shown(match):
    """The escape of a character, or what stands for it where it must not be shown."""
    return "\\ufffd" if UNSEEN.search(json.loads(f'"{match[0]}"')) else match[0]


def embedded(data):
    """JSON that may stand in a script element, in any encoding, whatever is in it."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII alone
    return ESCAPE.sub(shown, text).replace("<", "\\u003c")


def checksum(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def title(data):
    programs = sorted({process["program"] for process in data["processes"]})
    text = "Leak reports compared: " if data["compared"] else "Leak report: "
    text += ", ".join(programs[:3]) + ", ..." * (len(programs) > 3)
    return html.escape(text).encode("utf-8", "replace").decode()


def make(data, d3):
    """The page; `d3` is the text of the library."""
    if "</script" in d3.lower() or "<!--" in d3:
        raise reports.Bad("it cannot stand in a page")
    own = "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    style = (HERE / "page.css").read_text(encoding="utf-8")
    script = f'"use strict";\n(() => {{\n{own}\n}})();\n'
    policy = (f"default-src 'none'; script-src {checksum(d3)} {checksum(script)}; "
              f"style-src {checksum(style)}; base-uri 'none'; form-action 'none'")
    page = (HERE / "page.html").read_text(encoding="utf-8")
    heading = "Leak reports compared" if data["compared"] else "Leak report"
    lines = ("after", "before") if data["compared"] else ("live", "reserved by the pool")
    pieces = {"HEADING": heading, "LIVE": lines[0], "RESERVED": lines[1], "POLICY": policy,
              "TITLE": title(data), "STYLE": style, "DATA": embedded(data), "D3": d3,
              "SCRIPT": script}
    # In one pass: what stands in a piece is never read as a place of the next.
    before, *rest = page.split("{{")
    out = [before]
    for part in rest:
        name, _, after = part.partition("}}")
        out += [pieces[name], after]
    return "".join(out)
