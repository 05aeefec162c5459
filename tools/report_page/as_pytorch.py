"""A JSON report as a memory snapshot of PyTorch's, as the library writes it
(registry/report/format_pytorch.c, which says what is in it). Python's own pickle has operations
that memory_viz's reader does not know."""

import struct

from report_page.reports import Bad
from report_page.shown import KINDS, Interned, escape, not_listed, number

DEVICES = 4096  # each below the last has a list
NO_STACK = "no call stack"  # the identity of all that have none
ACTIONS = {"alloc": "alloc", "free": "free_requested", "segment": "segment_alloc",
           "trim": "segment_free", "oom": "oom"}


class Pickle:
    def __init__(self):
        self.out, self.texts, self.values = [b"\x80\x02"], Interned(), Interned()

    def put(self, operation, argument=None):
        self.out.append(operation if argument is None else operation + struct.pack("<I", argument))

    def text(self, text):
        known = text in self.texts
        at = self.texts.number(text) * 2
        if known:
            self.put(b"j", at)
            return
        data = escape(text).encode()
        self.put(b"X", len(data))
        self.put(data)
        self.put(b"r", at)

    def number(self, value):
        if value <= 0xff:
            self.put(b"K" + bytes([value]))
        elif value <= 0x7fffffff:
            self.put(b"J", value)
        else:
            size = value.bit_length() // 8 + 1
            self.put(b"\x8a" + bytes([size]) + value.to_bytes(size, "little"))

    def set(self, key, value):
        self.text(key)
        if isinstance(value, bool):
            self.put(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            self.number(value)
        elif value is None:
            self.put(b"N")
        else:
            self.text(value)
        self.put(b"s")

    def again(self, identity):
        """Whether it stands there already, and now once more."""
        known = identity in self.values
        at = self.values.number(identity) * 2 + 1
        if known:
            self.put(b"j", at)
        return known

    def keep(self, identity):
        self.put(b"r", self.values.number(identity) * 2 + 1)


class Snapshot:
    def __init__(self, report):
        self.report, self.pickle = report, Pickle()
        self.leaked = report["sections"].get("leaked")
        groups = self.leaked["groups"] if self.leaked and not report["history"] else []
        order = {kind: at for at, kind in enumerate(KINDS)}
        chosen = sorted((group["device"], order.get(group["kind"], len(KINDS)), at)
                        for at, group in enumerate(groups) if group["bytes"])
        self.blocks, address = [], 0
        for _, _, at in chosen:
            self.blocks.append((at, groups[at], address))
            address += groups[at]["bytes"]

    # --- frames ---

    def push_frame(self, name, file, line):
        self.pickle.put(b"}")
        self.pickle.set("name", name)
        self.pickle.set("filename", file or "")
        self.pickle.set("line", line)

    def append_frame(self, at):
        pickle, frame = self.pickle, self.report["frames"][at]
        for index, place in enumerate(frame["places"]):
            if not pickle.again((at, index)):
                self.push_frame(frame["text"] if place["function"] is None else place["function"],
                                frame["module"] if place["file"] is None else place["file"],
                                place["line"] or 0)
                pickle.keep((at, index))
            pickle.put(b"a")
        if not frame["places"]:
            self.push_frame(frame["text"], frame["module"], 0)
            pickle.put(b"a")

    def set_frames(self, identity, frames):
        pickle = self.pickle
        pickle.text("frames")
        if not pickle.again(identity):
            pickle.put(b"]")
            for at in frames:
                self.append_frame(at)
            if not frames:
                self.push_frame("(no call stack)", None, 0)
                pickle.put(b"a")
            pickle.keep(identity)
        pickle.put(b"s")

    # --- segments and traces ---

    def segment(self, blocks):
        pickle = self.pickle
        first, last = blocks[0], blocks[-1]
        size = last[2] + last[1]["bytes"] - first[2]
        pickle.put(b"}")
        pickle.set("device", first[1]["device"])
        pickle.set("address", first[2])
        for key in ("total_size", "allocated_size", "active_size", "requested_size"):
            pickle.set(key, size)
        pickle.set("stream", 0)
        pickle.set("segment_type", "large")
        pickle.text("segment_pool_id")
        pickle.number(0)
        pickle.number(0)
        pickle.put(b"\x86")
        pickle.put(b"s")
        pickle.set("is_expandable", False)
        pickle.text("frames")
        pickle.put(b"]")
        self.push_frame(first[1]["kind"], "kind of memory", 0)
        pickle.put(b"a")
        pickle.put(b"s")
        pickle.text("blocks")
        pickle.put(b"]")
        for at, group, address in blocks:
            pickle.put(b"}")
            pickle.set("address", address)
            pickle.set("size", group["bytes"])
            pickle.set("requested_size", group["bytes"])
            pickle.set("state", "active_allocated")
            self.set_frames(("group", at), group["frames"])
            pickle.put(b"a")
        pickle.put(b"s")
        pickle.put(b"a")

    def segments(self):
        self.pickle.text("segments")
        self.pickle.put(b"]")
        begin = 0
        for end in range(1, len(self.blocks) + 1):
            same = end < len(self.blocks) and all(
                self.blocks[begin][1][key] == self.blocks[end][1][key]
                for key in ("device", "kind"))
            if not same:
                self.segment(self.blocks[begin:end])
                begin = end
        self.pickle.put(b"s")

    def event(self, action, address, size, stream, ns, identity, frames):
        pickle = self.pickle
        pickle.put(b"}")
        pickle.set("action", action)
        pickle.set("device_free" if action == "oom" else "addr", address)
        pickle.set("size", size)
        pickle.set("stream", number(stream))
        pickle.set("time_us", self.report["start_s"] * 10**6 + ns // 1000)
        self.set_frames(identity, frames)
        pickle.put(b"a")

    def past(self, device):
        for event in self.report["history"]:
            action = ACTIONS.get(event["event"])
            if (-1 if event["device"] is None else event["device"]) != device or action is None:
                continue
            frames = tuple(event["frames"])
            for name in (action, "free_completed")[:1 + (event["event"] == "free")]:
                self.event(name, number(event["address"]), event["bytes"], event["stream"],
                           event["ns"], ("stack", frames) if frames else NO_STACK, frames)

    def listed(self, device):
        for at, group, address in sorted((block for block in self.blocks
                                          if block[1]["device"] == device),
                                         key=lambda block: (block[1]["last"], block[0])):
            self.event("alloc", address, group["bytes"], group["stream"], group["last_ns"],
                       ("group", at), group["frames"])

    def traces(self):
        events = self.report["history"]
        devices = ([event["device"] or 0 for event in events] if events else
                   [block[1]["device"] for block in self.blocks])
        if max([0, *devices]) >= DEVICES:
            raise Bad(f"a device of number {max(devices)}, accepted: below {DEVICES}")
        self.pickle.text("device_traces")
        self.pickle.put(b"]")
        for device in range(max([0, *devices]) + 1):
            self.pickle.put(b"]")
            if events:
                self.past(device)
            else:
                self.listed(device)
            self.pickle.put(b"a")
        self.pickle.put(b"s")

    def about(self):
        report, pickle = self.report, self.pickle
        destroyed = report["sections"].get("destroyed")
        pickle.text("cachealloc")
        pickle.put(b"}")
        for key, value in (("version", report["cachealloc"]), ("cause", report["cause"]),
                           ("pid", report["pid"]), ("program", report["program"]),
                           ("host", report["host"]), ("rank", report["rank"] or None),
                           ("bytes", self.leaked["bytes"] if self.leaked else 0),
                           ("not_listed_bytes", not_listed(self.leaked)[1] if self.leaked else 0),
                           ("destroyed_bytes", destroyed["bytes"] if destroyed else 0)):
            pickle.set(key, value)
        pickle.put(b"s")

    def data(self):
        pickle = self.pickle
        pickle.put(b"}")
        self.segments()
        self.traces()
        for key, empty in (("allocator_settings", b"}"), ("external_annotations", b"]")):
            pickle.text(key)
            pickle.put(empty)
            pickle.put(b"s")
        self.about()
        pickle.put(b".")
        return b"".join(pickle.out)


def write(report):
    return Snapshot(report).data()
