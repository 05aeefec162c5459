"""What held the live memory over time, from the events of a report's history.

Events pair by address: a free without its allocation is of memory from before the history. The
page cannot draw each of 100,000 events: of each short interval it has one moment, that at which
most was live, so that no peak is lost.
"""

import bisect

INTERVALS = 480  # of the history; each mark of the program begins a new one
MOST = 300  # stacks that are listed, by the most that each ever held; the total has the others, too


def changes(report):
    """([(ns, key, bytes more or less)], the bytes that were live before the first). The key is
    (frames, device, kind), None of what is from before. Threads note their events side by side, so
    that one may be late; one that was just being written is missing."""
    held, out, freed = {}, [], 0
    for event in sorted(report["history"], key=lambda event: event["ns"]):
        if event["event"] == "alloc":
            if event["address"] in held:  # whose free is missing
                key, size = held[event["address"]]
                out.append((event["ns"], key, -size))
            key = (tuple(event["frames"]), event["device"] or 0, event["kind"] or "device")
            held[event["address"]] = (key, event["bytes"])
            out.append((event["ns"], key, event["bytes"]))
        elif event["event"] == "free":
            key, size = held.pop(event["address"], (None, event["bytes"]))
            out.append((event["ns"], key, -size))
            freed += size if key is None else 0
    live = sum(report["sections"][title]["bytes"] for title in ("leaked", "suppressed")
               if title in report["sections"])
    left = live - sum(size for _, size in held.values())
    return out, (max(0, left) + freed if report["history_dropped"] else freed)


def moments(steps, before, cuts):
    """The positions of the steps after which the page has a point: the highest of each interval,
    and the last before each mark."""
    begin, length = steps[0][0], max(1, steps[-1][0] - steps[0][0] + 1)
    most, last, total = {}, {}, before
    for position, (ns, _, change) in enumerate(steps):
        total += change
        phase = bisect.bisect_left(cuts, ns)
        last[phase] = position
        interval = (phase, (ns - begin) * INTERVALS // length)
        if interval not in most or total > most[interval][0]:
            most[interval] = (total, position)
    return {position for _, position in most.values()} | set(last.values())


def held_over_time(report, stack_number):
    """None without a history, or {"times": ns of each point, "totals": live bytes, "earlier": those
    of them that are from before, "dropped": events that are not kept,
    "series": [[stack, device, kind, [point, bytes from it on, point, bytes, ...]], ...]}."""
    steps, before = changes(report)
    if not steps:
        return None
    chosen = moments(steps, before, sorted(mark["ns"] for mark in report["marks"]))
    times, totals, earlier = [steps[0][0] if before else 0], [before], [before]
    now, said, series, changed = {None: before}, {}, {}, set()
    total = before
    for position, (ns, key, change) in enumerate(steps):
        now[key] = now.get(key, 0) + change
        total += change
        changed.add(key)
        if position not in chosen:
            continue
        for key in changed:
            if key is not None and now[key] != said.get(key, 0):
                said[key] = now[key]
                series.setdefault(key, []).extend((len(times), now[key]))
        changed.clear()
        times.append(ns)
        totals.append(total)
        earlier.append(now[None])
    largest = sorted(series.items(), key=lambda one: -max(one[1][1::2]))[:MOST]
    return {"times": times, "totals": totals, "earlier": earlier,
            "dropped": report["history_dropped"],
            "series": [[stack_number(key[0]), *key[1:], points] for key, points in largest]}
