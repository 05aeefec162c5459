"""A JSON report as a profile that pprof reads, as the library writes it
(registry/report/format_pprof.c, which says what is in it, and has the numbers of fields)."""

from report_page.shown import Interned, escape, last_component, not_listed, number

PAGE = 4096
DEVICES = 256
COMMENT_MOST = 319
MASK = 2**64 - 1
SORTS = (("leaked", "inuse"), ("destroyed", "destroyed"), ("peak", "peak"))


def varint(value):
    value &= MASK
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(at, value):
    """A number, which is left out where it is 0."""
    return varint(at << 3) + varint(value) if value else b""


def message(at, data):
    return varint(at << 3 | 2) + varint(len(data)) + data


def call_address(frame):
    return max(0, number(frame["address"]) - 1)


class Profile:
    """What samples refer to gets its number when it first comes up."""

    def __init__(self, report):
        self.report, self.frames = report, report["frames"]
        self.texts, self.functions = Interned(), Interned()
        self.locations, self.mappings = Interned(), Interned()
        self.sorts = [sort for sort in SORTS
                      if sort[0] == "leaked" or sort[0] in report["sections"]]

    def text(self, text):
        return self.texts.number(text)

    def mapping(self, frame):
        """Its number from 1; 0 for none."""
        if frame["module"] is None:
            return 0
        call, offset = call_address(frame), number(frame["offset"])
        start = call - offset if offset and offset <= call else 0
        return self.mappings.number((self.text(frame["module"]), start)) + 1

    def begin_with_program(self):
        for title, _ in SORTS:
            for group in self.report["sections"].get(title, {"groups": []})["groups"]:
                for at in reversed(group["frames"]):
                    module = self.frames[at]["module"]
                    if (module and "/" in module and
                            last_component(module) == self.report["program"]):
                        self.mapping(self.frames[at])
                        return

    def types(self):
        out = b""
        for _, name in self.sorts:
            for what, unit in (("objects", "count"), ("space", "bytes")):
                data = field(1, self.text(f"{name}_{what}")) + field(2, self.text(unit))
                out += message(1, data)
        return out + field(14, self.text("inuse_space"))

    def label(self, key, value):
        if not value:
            return b""
        return message(3, field(1, self.text(key)) + field(2, self.text(value)))

    def sample(self, title, count, size, group):
        if group and group["frames"]:
            keys = [("frame", at) for at in group["frames"]]
        else:
            keys = [("text", self.text("(no call stack)" if group else "(not listed)"))]
        out = message(1, b"".join(varint(self.locations.number(key) + 1) for key in keys))
        out += message(2, b"".join(varint(value if sort[0] == title else 0) for sort in self.sorts
                                   for value in (count, size)))
        if group:
            device = group["device"]
            out += self.label("device", str(device) if device < DEVICES else "other")
            out += self.label("kind", group["kind"])
            for thread in group["threads"][:4]:
                out += self.label("thread", thread)
            if len(group["threads"]) >= 4 and group["thread_count"] > 4:
                out += self.label("thread", "others")
        return message(2, out)

    def samples(self, title):
        section = self.report["sections"].get(title)
        if section is None:
            return b""
        out = b"".join(self.sample(title, group["count"], group["bytes"], group)
                       for group in section["groups"])
        rest = not_listed(section)
        return out + (self.sample(title, *rest, None) if any(rest) else b"")

    def function(self, name, file):
        name_text = self.text(name)
        return self.functions.number((name_text, self.text(file or ""))) + 1

    def location(self, at, key):
        sort, value = key
        out = field(1, at + 1)
        if sort == "text":
            return out + message(4, field(1, self.functions.number((value, 0)) + 1))
        frame = self.frames[value]
        out += field(2, self.mapping(frame)) + field(3, call_address(frame))
        places = frame["places"]
        if not places and frame["module"] is None:
            places = [{"function": frame["text"], "file": None, "line": None}]
        for place in places:
            name = frame["text"] if place["function"] is None else place["function"]
            out += message(4, field(1, self.function(name, place["file"])) +
                           field(2, place["line"] or 0))
        return out

    def mapping_data(self, at, key):
        module, start = key
        last, build_id = start, ""
        functions = files = lines = False
        for sort, value in self.locations:
            frame = self.frames[value] if sort == "frame" else None
            if frame is None or self.mapping(frame) != at + 1:
                continue
            last, build_id = max(last, call_address(frame)), frame["build_id"] or build_id
            functions |= any(place["function"] is not None for place in frame["places"])
            files |= any(place["file"] is not None for place in frame["places"])
            lines |= any(place["line"] for place in frame["places"])
        return b"".join(map(field, (1, 2, 3, 5, 6, 7, 8, 9, 10), (
            at + 1, start, (last // PAGE + 1) * PAGE, module, self.text(build_id), functions, files,
            lines, lines)))

    def function_data(self, at, key):
        return field(1, at + 1) + field(2, key[0]) + field(3, key[0]) + field(4, key[1])

    def comments(self):
        report = self.report
        said = [f"{title} {value}" for title, value in (
            ("cachealloc", report["cachealloc"]), ("report at", report["cause"]),
            ("pid", str(report["pid"])), ("host", report["host"]), ("rank", report["rank"]))
                if value]
        cut = [text.encode("utf-8", "replace")[:COMMENT_MOST].decode(errors="ignore")
               for text in said]
        return message(13, b"".join(varint(self.text(text)) for text in cut))

    def data(self):
        self.text("")
        self.begin_with_program()
        out = self.types() + b"".join(self.samples(title) for title, _ in SORTS)
        for at, table, write in ((4, self.locations, self.location),
                                 (5, self.functions, self.function_data),
                                 (3, self.mappings, self.mapping_data)):
            out += b"".join(message(at, write(i, key)) for i, key in enumerate(table))
        out += field(9, self.report["start_s"] * 10**9) + field(10, self.report["now_ns"])
        out += self.comments()
        return out + b"".join(message(6, escape(text).encode()) for text in self.texts)


def write(report):
    return Profile(report).data()
