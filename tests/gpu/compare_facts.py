"""Compares the answers of the fact script (design.md 12) line by line with the simulator's.

A row has what was asked and what was answered; times, sizes of the machine and numbers that are
drawn are no facts. What a kernel held is compared with what a host function held, where the
simulator, which has no kernels that watch memory, has no such row.
"""

# Keys of a row that say what was asked. All others are answers.
ASKED = {"after", "asked for", "between", "bytes", "call", "capture mode", "case", "device",
         "flags", "from", "from version", "handle", "handles", "held by", "in relaxed mode", "kind",
        "live",
         "on", "pair", "pointer", "question", "round", "state", "streams", "then", "when", "width",
         "work", "work on"}
# Answers that are the machine's or change from run to run.
DRAWN = {"samples", "name", "total_bytes", "free_bytes", "multiprocessors", "major", "minor", "id",
         "driver", "runtime", "devices", "async engines", "dma-buf", "symbol",
         "nearest symbol by dladdr", "farthest distance", "nearest distance", "ascending steps",
         "device bytes for the first", "device bytes kept after the frees", "first of them",
         "last of them", "mappings"}
TIMES = ("_ns", "_us")
# Addresses that happen to be had are aligned to more than is promised; of handles that differ
# it is drawn in how many bytes.
MOST = {"common alignment": 4096, "bytes that differ from the first's": 1}


def is_fact(key):
    return key not in ASKED and key not in DRAWN and not key.endswith(TIMES)


def keyed(facts):
    """{(fact, question, how many of the same came before): answers}"""
    found, seen = {}, {}
    for fact in facts:
        for row in fact["rows"]:
            if set(row) == {"note"}:
                continue
            question = tuple(sorted((key, str(value)) for key, value in row.items()
                                    if key in ASKED))
            nth = seen[fact["name"], question] = seen.get((fact["name"], question), -1) + 1
            answers = {key: value for key, value in row.items() if is_fact(key)}
            found[fact["name"], question, nth] = answers
    return found


def as_held_by_host(key):
    fact, question, nth = key
    return fact, tuple((name, "host_function" if name == "held by" else value)
                       for name, value in question), nth


def told(key):
    fact, question, nth = key
    words = ", ".join(f"{name} {value}" for name, value in question)
    return f"{fact}: {words}{f' (again, {nth})' if nth else ''}"


def intended(line, forwards):
    """What a pool changes: memory that was freed is there still, and that a kernel broke the context
    it knows as soon as it calls the driver. Nothing where all is forwarded. Whether a handle or an
    address comes again at once is drawn."""
    drawn = line.startswith("handles: handle created context") or (
        line.startswith("after_reset/") and "a second time" in line)
    changed = ("sticky/kernel: call", "sticky/copy: call")
    return drawn or not forwards and line.startswith(changed)


def compare(ours, simulators, other="the simulator"):
    """(lines compared, differences as lines, rows that the simulator does not have)."""
    mine, theirs = keyed(ours), keyed(simulators)
    lines, differences, alone = 0, [], []
    for key, answers in mine.items():
        expected = theirs.get(key, theirs.get(as_held_by_host(key)))
        if expected is None:
            alone.append(told(key))
            continue
        lines += 1
        for name in dict.fromkeys([*answers, *expected]):
            here, there = (one.get(name, "nothing") for one in (answers, expected))
            if name in MOST and "nothing" not in (here, there):
                here, there = min(here, MOST[name]), min(there, MOST[name])
            if here != there:
                differences.append(f"{told(key)}: {name}: here {here}, {other} {there}")
    missing = [told(key) for key in theirs if key not in mine]
    for one in missing:
        differences.append(f"{one}: asked of {other} alone")
    by_name = {fact["name"]: fact["status"] for fact in simulators}
    for fact in ours:
        if fact["status"] != by_name.get(fact["name"], "ok"):
            differences.append(f"{fact['name']}: here {fact['status']}, {other} "
                               f"{by_name.get(fact['name'])}")
    return lines, differences, alone
