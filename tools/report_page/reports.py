"""Reads JSON leak reports (schema "cachealloc-report", version 1), checks all that the page uses.

A report that is read is one that fits: the code after it need not look again. What does not fit
is a Bad with the place and what is accepted there. Keys that are not known are passed over.
"""

import json

SCHEMA, VERSION = "cachealloc-report", 1
ACCEPTED = f'JSON leak reports (schema "{SCHEMA}", version {VERSION})'
SECTIONS = ("leaked", "peak", "allocated", "destroyed", "suppressed")
LARGEST = 2**64 - 1

TEXT, NUMBER, FLAG = "a string", "a whole number", "true or false"
LIST, OBJECT = "a list", "an object"
TYPES = {TEXT: str, FLAG: bool, LIST: list, OBJECT: dict}
MAYBE = object()  # null is accepted too

REPORT = {"cachealloc": TEXT, "cause": TEXT, "pid": NUMBER, "program": TEXT, "host": TEXT,
          "rank": (TEXT, MAYBE), "start_s": NUMBER, "now_ns": NUMBER, "unwinder": TEXT,
          "stack_depth": NUMBER, "leak_max": NUMBER, "leak_min": NUMBER, "shards_busy": NUMBER,
          "peak_bytes": NUMBER, "pool": OBJECT, "sections": OBJECT, "frames": LIST,
          "timeline": LIST}
POOL = {"live_blocks": NUMBER, "pending": NUMBER, "ready": NUMBER, "reserved": NUMBER,
        "reserved_peak": NUMBER, "pinned_reserved": NUMBER, "incomplete": FLAG}
SECTION = {"count": NUMBER, "bytes": NUMBER, "stacks": NUMBER, "incomplete": FLAG,
           "omitted": OBJECT, "groups": LIST}
OMITTED = {"leak_max": OBJECT, "leak_min": OBJECT}
LEFT_OUT = {"groups": NUMBER, "bytes": NUMBER}
GROUP = {"bytes": NUMBER, "count": NUMBER, "smallest": NUMBER, "largest": NUMBER,
         "device": NUMBER, "kind": TEXT, "first_ns": NUMBER, "last_ns": NUMBER,
         "stream": (TEXT, MAYBE), "threads": LIST, "thread_count": NUMBER, "frames": LIST}
COUNTS = {"allocations": NUMBER, "temporaries": NUMBER}  # of a group; older reports have none
FRAME = {"address": (TEXT, MAYBE), "module": (TEXT, MAYBE), "build_id": (TEXT, MAYBE),
         "offset": (TEXT, MAYBE), "text": TEXT, "places": LIST}
PLACE = {"function": (TEXT, MAYBE), "file": (TEXT, MAYBE), "line": (NUMBER, MAYBE)}
POINT = {"ns": NUMBER, "live": NUMBER, "reserved": NUMBER}
MARK = {"ns": NUMBER, "live": NUMBER, "name": TEXT}
PHASE = {"name": (TEXT, MAYBE), "ns": NUMBER, "ended_ns": NUMBER, "peak_bytes": NUMBER}
EVENT = {"ns": NUMBER, "event": TEXT, "device": (NUMBER, MAYBE), "kind": (TEXT, MAYBE),
         "address": TEXT, "bytes": NUMBER, "frames": LIST}
# What a report may lack, as one of an older version does, and what it then counts as.
ABSENT = {"marks": (LIST, []), "phases": (LIST, []), "history": (LIST, []),
          "history_dropped": (NUMBER, 0), "stacks_sampled": (NUMBER, 0),
          "ended_ns": ((NUMBER, MAYBE), None), "peak_ns": ((NUMBER, MAYBE), None),
          "peak_at_most": ((NUMBER, MAYBE), None)}


class Bad(Exception):
    """What does not fit, and where."""


def shown(value):
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def check(value, wanted, where):
    """`value`, which is what `wanted` says, or a Bad."""
    maybe = isinstance(wanted, tuple)
    kind = wanted[0] if maybe else wanted
    if maybe and value is None:
        return value
    if kind == NUMBER:
        fits = type(value) is int and 0 <= value <= LARGEST  # bool is an int
    else:
        fits = isinstance(value, TYPES[kind])
    if not fits:
        raise Bad(f"{where} is {shown(value)}, accepted: {kind}{' or null' if maybe else ''}")
    return value


def check_object(value, keys, where):
    check(value, OBJECT, where)
    for key, wanted in keys.items():
        if key not in value:
            raise Bad(f"{where} has no {shown(key)}")
        check(value[key], wanted, f"{where}.{key}")
    return value


def check_stack(stack, frames, where):
    for frame in stack:
        if type(frame) is not int or not 0 <= frame < frames:
            raise Bad(f"{where}.frames has {shown(frame)}, accepted: whole numbers below {frames}, "
                      "the number of frames")


def check_group(group, frames, where):
    check_object(group, GROUP, where)
    for key, wanted in COUNTS.items():
        check(group.setdefault(key, 0), wanted, f"{where}.{key}")
    for thread in group["threads"]:
        check(thread, TEXT, f"{where}.threads")
    check_stack(group["frames"], frames, where)


def check_section(section, frames, where):
    check_object(section, SECTION, where)
    check_object(section["omitted"], OMITTED, f"{where}.omitted")
    for reason in OMITTED:
        check_object(section["omitted"][reason], LEFT_OUT, f"{where}.omitted.{reason}")
    check(section.setdefault("temporaries", 0), NUMBER, f"{where}.temporaries")
    for index, group in enumerate(section["groups"]):
        check_group(group, frames, f"{where}.groups[{index}]")


def check_report(report):
    """The report, or a Bad."""
    check(report, OBJECT, "the whole of it")
    if report.get("schema") != SCHEMA:
        raise Bad(f"its schema is {shown(report.get('schema'))}")
    if report.get("schema_version") != VERSION:
        raise Bad(f"its schema_version is {shown(report.get('schema_version'))}")
    check_object(report, REPORT, "report")
    check_object(report["pool"], POOL, "pool")
    for index, frame in enumerate(report["frames"]):
        check_object(frame, FRAME, f"frames[{index}]")
        for number, place in enumerate(frame["places"]):
            check_object(place, PLACE, f"frames[{index}].places[{number}]")
        check(frame.setdefault("language", None), (TEXT, MAYBE), f"frames[{index}].language")
    for name in SECTIONS:
        if name in report["sections"]:
            check_section(report["sections"][name], len(report["frames"]), f"sections.{name}")
    for index, point in enumerate(report["timeline"]):
        check_object(point, POINT, f"timeline[{index}]")
    for key, (wanted, otherwise) in ABSENT.items():
        check(report.setdefault(key, otherwise), wanted, key)
    for key, wanted in (("marks", MARK), ("phases", PHASE), ("history", EVENT)):
        for index, one in enumerate(report[key]):
            check_object(one, wanted, f"{key}[{index}]")
    for index, phase in enumerate(report["phases"]):
        check(phase.setdefault("peak_ns", None), (NUMBER, MAYBE), f"phases[{index}].peak_ns")
        check(phase.setdefault("exact", False), FLAG, f"phases[{index}].exact")
    for index, event in enumerate(report["history"]):
        check_stack(event["frames"], len(report["frames"]), f"history[{index}]")
    return report


def documents(text):
    """Each JSON value of a text that holds several, one after another; a Bad at what is none."""
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            if "]: leak report" in text or "LEAK SUMMARY" in text:
                raise Bad("holds a text report, which cachealloc merge reads") from None
            raise Bad(f"line {error.lineno}, column {error.colno}: not JSON ({error.msg}); "
                      "the file may have been cut off") from None
        except (ValueError, RecursionError):  # a number of thousands of digits, a thousand brackets
            raise Bad("not JSON that a report holds") from None
        yield value


def read(file):
    """Yields the reports of an open text file; a Bad ends it where one does not fit."""
    text = file.read()
    found = False
    for value in documents(text[1:] if text.startswith("\ufeff") else text):
        yield check_report(value)
        found = True
    if not found:
        raise Bad("the file is empty")
