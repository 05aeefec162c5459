"""Makes JSON leak reports such as the library writes, for tests of what reads them."""

KINDS = ("device", "pinned", "managed")


def frame(name, line=7, module="/opt/app/solver", file="solver.cc", inlined=()):
    """One frame; `inlined` are (function, line), innermost first, before `name` itself."""
    places = [{"function": function, "file": file, "line": at} for function, at in inlined]
    places.append({"function": name, "file": file, "line": line})
    text = " < ".join(f"{place['function']} at {file}:{place['line']}" for place in places)
    return {"address": "0x7f0012345678", "module": module, "build_id": "ab12cd", "offset": "0x1a10",
            "text": text, "places": places}


def bare_frame(offset, module="/usr/lib/libframework.so"):
    """One that has no names."""
    name = module.rpartition("/")[2]
    return {"address": "0x7f00aaaa0000", "module": module, "build_id": None, "offset": hex(offset),
            "text": f"{name}+{offset:#x}", "places": []}


def group(frames, size, count=1, *, smallest=None, largest=None, device=0, kind="device",
          threads=("main",), thread_count=None, first_ns=1000, last_ns=2000, stream=None):
    return {"bytes": size, "count": count,
            "smallest": size // count if smallest is None else smallest,
            "largest": size // count if largest is None else largest,
            "device": device, "kind": kind, "stream": stream,
            "first": 1, "last": 7, "first_ns": first_ns, "last_ns": last_ns,
            "threads": list(threads), "thread_count": thread_count or len(threads),
            "frames": list(frames)}


def python_frame(name, line, file):
    return {"address": None, "module": None, "build_id": None, "offset": None, "language": "python",
            "text": f"{name} at {file.rpartition('/')[2]}:{line}",
            "places": [{"function": name, "file": file, "line": line}]}


def event(what, ns, address, size, frames=(), device=0, kind="device"):
    """One of a history."""
    return {"ns": ns, "event": what, "device": device, "kind": kind, "address": hex(address),
            "bytes": size, "stream": None, "thread": "main", "frames": list(frames)}


def section(groups, beyond=(0, 0), small=(0, 0), incomplete=False):
    """Totals are of what is listed and what is not; beyond and small are (groups, bytes)."""
    return {"count": sum(one["count"] for one in groups) + beyond[0] + small[0],
            "bytes": sum(one["bytes"] for one in groups) + beyond[1] + small[1],
            "stacks": len({tuple(one["frames"]) for one in groups}) + beyond[0] + small[0],
            "incomplete": incomplete,
            "omitted": {"leak_max": {"groups": beyond[0], "bytes": beyond[1]},
                        "leak_min": {"groups": small[0], "bytes": small[1]}},
            "groups": groups}


def report(sections, frames, **changes):
    """A whole report; `changes` are other values of its keys."""
    whole = {"schema": "cachealloc-report", "schema_version": 1, "cachealloc": "0.1.0",
             "cause": "exit", "pid": 4711, "program": "solver", "host": "node1", "rank": None,
             "start_s": 1790000000, "now_ns": 12_500_000_000, "unwinder": "eh_frame",
             "names_missing": None, "stack_depth": 16, "leak_max": 20, "leak_min": 0,
             "shards_busy": 0, "peak_bytes": 3 << 30,
             "pool": {"live_blocks": 5120, "pending": 0, "ready": 4 << 20, "reserved": 10 << 20,
                      "reserved_peak": 3 << 30, "pinned_reserved": 1 << 20, "incomplete": False},
             "sections": sections, "frames": frames, "timeline": []}
    whole.update(changes)
    return whole


def timeline(points, most, until_ns):
    """Live memory that rises and falls in steps, below what is reserved."""
    out, reserved = [], 0
    for at in range(points):
        live = int(most * at / points * (0.6 + 0.4 * ((at * 7919) % 13) / 12))
        reserved = max(reserved, live + (live >> 3))
        out.append({"ns": until_ns * at // points, "sequence": at, "live": live,
                    "reserved": reserved})
    return out
