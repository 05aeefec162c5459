"""What the writers of other formats share: JSON reports with all that those need, and text as the
library shows it."""

from report_page import reports
from report_page.reports import FLAG, LIST, MAYBE, NUMBER, OBJECT, TEXT, check, check_object

# In the order in which the library lists them.
KINDS = ("device", "pitched", "async", "managed", "pinned", "array", "mipmap", "vmm", "registered",
         "external", "alias")
STRIPES = 17  # of the registry
# Of an older report, which has not all that its text said.
AS_TEXT = {"groups": 20, "fold": True, "rules": False, "even_empty": True, "names_timed_out": 0,
           "rules_path": None}

TOTAL = {"device": NUMBER, "kind": TEXT, "count": NUMBER, "bytes": NUMBER}
GROUP = {"first": NUMBER, "last": NUMBER}
RULE = {"rule": TEXT, "line": NUMBER, "groups": NUMBER, "count": NUMBER, "bytes": NUMBER}
EVENT = {"stream": (TEXT, MAYBE)}
SHOWN = {"groups": NUMBER, "fold": FLAG, "rules": FLAG, "even_empty": FLAG,
         "names_timed_out": NUMBER, "rules_path": (TEXT, MAYBE)}


def check_number(text, where):
    """A number that is a string in JSON."""
    if text is None:
        return
    try:
        if 0 <= int(text, 16) <= reports.LARGEST:
            return
    except ValueError:
        pass
    raise reports.Bad(f"{where} is {reports.shown(text)}, accepted: a hexadecimal number")


def check_frame(frame, where):
    for key in ("address", "offset"):
        check_number(frame[key], f"{where}.{key}")
    check(frame.setdefault("lines", frame["text"]), TEXT, f"{where}.lines")
    check(frame.setdefault("fold", False), FLAG, f"{where}.fold")
    for number, place in enumerate(frame["places"]):
        check(place.setdefault("fold", frame["fold"]), FLAG, f"{where}.places[{number}].fold")
        check(place.setdefault("short", place["function"]), (TEXT, MAYBE),
              f"{where}.places[{number}].short")


def prepare(report):
    """The report that reports.read() accepted, if it has what the writers need; else a Bad."""
    check(report.setdefault("names_missing", None), (TEXT, MAYBE), "names_missing")
    check(report.setdefault("marks_dropped", 0), NUMBER, "marks_dropped")
    report["peak_ns"] = report["peak_ns"] or 0  # where it has one there is a peak, too
    for index, rule in enumerate(check(report.setdefault("suppressions", []), LIST,
                                       "suppressions")):
        check_object(rule, RULE, f"suppressions[{index}]")
    check(report.setdefault("as_text", dict(AS_TEXT)), OBJECT, "as_text")
    check_object(report["as_text"], SHOWN, "as_text")
    for index, frame in enumerate(report["frames"]):
        check_frame(frame, f"frames[{index}]")
    for name, section in report["sections"].items():
        if name not in reports.SECTIONS:
            continue
        for index, total in enumerate(check(section.get("totals"), LIST,
                                            f"sections.{name}.totals")):
            check_object(total, TOTAL, f"sections.{name}.totals[{index}]")
        for index, group in enumerate(section["groups"]):
            check_object(group, GROUP, f"sections.{name}.groups[{index}]")
            check_number(group["stream"], f"sections.{name}.groups[{index}].stream")
    for index, event in enumerate(report["history"]):
        check_object(event, EVENT, f"history[{index}]")
        for key in ("address", "stream"):
            check_number(event[key], f"history[{index}].{key}")
    return report


def number(text):
    return int(text, 16) if text else 0


def escape_character(letter):
    code = ord(letter)
    if code < 0x20 or 0x7f <= code < 0xa0 or code in (0x2028, 0x2029) or 0xd800 <= code < 0xe000:
        return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogatepass"))
    return letter


def escape(text, most=None):
    """Without what would change a line or a terminal; of more than `most` bytes the begin, and
    dots."""
    pieces = [escape_character(letter) for letter in text]
    if most is None or sum(len(piece.encode()) for piece in pieces) <= most:
        return "".join(pieces)
    kept, size = [], 0
    for piece in pieces:
        size += len(piece.encode())
        if size + 3 > most:
            break
        kept.append(piece)
    return "".join(kept) + "..."


def last_component(path):
    return path.rpartition("/")[2]


def not_listed(section):
    """(allocations, bytes) that are in no group of it."""
    return tuple(max(0, section[key] - sum(group[key] for group in section["groups"]))
                 for key in ("count", "bytes"))


class Interned:
    """Numbers of keys, in the order in which they first come up."""

    def __init__(self):
        self.numbers = {}

    def number(self, key):
        return self.numbers.setdefault(key, len(self.numbers))

    def __contains__(self, key):
        return key in self.numbers

    def __iter__(self):
        return iter(list(self.numbers))

    def __len__(self):
        return len(self.numbers)
