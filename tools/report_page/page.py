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

from report_page import reports

HERE = pathlib.Path(__file__).resolve().parent
# In this order one script, with one scope.
SCRIPTS = ("text.js", "data.js", "timeline.js", "flame.js", "table.js", "main.js")


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


def compact(name, report, frames, stacks):
    """(what the page says of a process, its groups); frames and stacks are Numbered."""
    own = []
    for frame in report["frames"]:
        places = [[place["function"], place["file"], place["line"]] for place in frame["places"]]
        # Processes are loaded at different addresses: a frame is what it says.
        own.append(frames.number((frame["text"], module_name(frame)),
                                 [frame["text"], frame["module"], frame["build_id"],
                                  frame["offset"], places]))
    process = {key: report[key] for key in reports.REPORT
               if key not in ("sections", "frames", "timeline")}
    process["file"] = name
    process["timeline"] = [[point["ns"], point["live"], point["reserved"]]
                           for point in report["timeline"]]
    process["marks"] = [[mark["ns"], mark["name"]] for mark in report["marks"]]
    process["sections"], groups = {}, {}
    for title in reports.SECTIONS:
        section = report["sections"].get(title)
        if section is None:
            continue
        process["sections"][title] = {key: section[key] for key in reports.SECTION
                                      if key != "groups"}
        groups[title] = []
        for group in section["groups"]:
            stack = tuple(own[frame] for frame in group["frames"])
            groups[title].append([stacks.number(stack, stack)] + [group[key] for key in (
                "device", "kind", "bytes", "count", "smallest", "largest", "first_ns", "last_ns",
                "stream", "threads", "thread_count")])
    return process, groups


def merge(named, unreadable):
    """The data of the page: see data.js. `named` are (file name, report)."""
    kept = latest_of_each(named)
    frames, stacks = Numbered(), Numbered()
    processes, groups = [], {title: [] for title in reports.SECTIONS}
    for number, (name, report) in enumerate(kept):
        process, own = compact(name, report, frames, stacks)
        processes.append(process)
        for title, listed in own.items():
            groups[title] += [[number] + group for group in listed]
    return {"processes": processes, "frames": frames.values, "stacks": stacks.values,
            "groups": groups, "earlier": len(named) - len(kept), "unreadable": unreadable}


def embedded(data):
    """JSON that may stand in a script element, in any encoding, whatever is in it."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # ASCII alone


def checksum(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def title(data):
    programs = sorted({process["program"] for process in data["processes"]})
    text = "Leak report: " + ", ".join(programs[:3]) + ", ..." * (len(programs) > 3)
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
    pieces = {"POLICY": policy, "TITLE": title(data), "STYLE": style, "DATA": embedded(data),
              "D3": d3, "SCRIPT": script}
    # In one pass: what stands in a piece is never read as a place of the next.
    before, *rest = page.split("{{")
    out = [before]
    for part in rest:
        name, _, after = part.partition("}}")
        out += [pieces[name], after]
    return "".join(out)
