"""Tables of a bench's results, and how they compare with what is aimed at."""

import statistics

PEERS = ("rmm_pool", "rmm_binning", "rmm_arena", "rmm_tracking", "cub")
ORDERED_PEERS = ("cudaMallocAsync", "cub")  # what serves memory in flight on its own stream
COLUMNS = 6  # of a table, besides the allocator


def in_flight(size):
    return (f"pair of {size} under kernels, in order, over cudaMallocAsync's or cub's",
            ("cachealloc_order", f"hot_{size.replace(' ', '')}_busy", 1),
            ("ordered peers", f"hot_{size.replace(' ', '')}_busy", 1), "<=", 1.0, 4)


# What is compared: the figure is first / second, of (allocator, case, threads); "peers" is the
# fastest of them. A throughput over another one is a time under it. Then what is aimed at, and a
# limit so wide that a busy machine stays within it.
CRITERIA = [
    *map(in_flight, ("64 KiB", "1 MiB", "16 MiB", "256 MiB")),
    ("hot pair of 1 KiB, over the fastest peer's", ("cachealloc", "hot_1KiB", 1),
     ("peers", "hot_1KiB", 1), "<=", 0.40, 1.2),
    ("the same with stacks of 16 frames", ("cachealloc_stacks", "hot_1KiB", 1),
     ("peers", "hot_1KiB", 1), "<=", 0.60, 2),
    ("10,000 live, over the best peer's", ("cachealloc", "live_10000", 1),
     ("peers", "live_10000", 1), "<=", 0.45, 2.5),
    ("10,000 live, over our own with 64", ("cachealloc", "live_10000", 1),
     ("cachealloc", "live_64", 1), "<=", 1.6, 6),
    ("100,000 live, over the best peer's", ("cachealloc", "live_100000", 1),
     ("peers", "live_100000", 1), "<=", 0.80, 4),
    ("hot, throughput of two threads over one's", ("cachealloc", "hot_1KiB", 1),
     ("cachealloc", "hot_1KiB", 2), ">=", 1.7, 0.4),
    ("hot, throughput of eight threads over one's", ("cachealloc", "hot_1KiB", 1),
     ("cachealloc", "hot_1KiB", 8), ">=", 1.5, 0.5),
    ("mixed sizes, 1,000 live, throughput of two threads over one's",
     ("cachealloc", "live_1000", 1), ("cachealloc", "live_1000", 2), ">=", 1.3, 0.4),
    ("producer and consumer, over RMM pool's", ("cachealloc", "prodcons", 2),
     ("rmm_pool", "prodcons", 2), "<=", 0.30, 3),
    ("stream-ordered on 8 streams, over 1 stream", ("cachealloc", "async_8", 1),
     ("cachealloc", "async_1", 1), "<=", 1.3, 4),
    ("pinned hit of 64 KiB, over a device hit", ("cachealloc", "pinned_64KiB", 1),
     ("cachealloc", "hot_64KiB", 1), "<=", 1.5, 6),
    ("a miss, over the driver's call of 50 us", ("cachealloc", "miss_64MiB", 1),
     ("driver", "miss_64MiB", 1), "<=", 1.03, 1.5),
]


def find(results, allocator, case, threads):
    """The (ns, allocator) asked for, or None where it was not measured."""
    names = {"peers": PEERS, "ordered peers": ORDERED_PEERS}.get(allocator, (allocator,))
    found = [(one["ns_per_pair"], one["allocator"]) for one in results
             if one["case"] == case and one["threads"] == threads and one["allocator"] in names]
    return min(found, default=None)


def number(ns):
    return f"{ns:.1f}" if ns < 99.95 else f"{ns:,.0f}"


def cell(one):
    return (f"{number(one['ns_per_pair'])} ({number(min(one['repetitions']))}"
            f"..{number(max(one['repetitions']))})")


def title(case, threads):
    case, _, streams = case.partition("_busy")
    return (case + (f", {streams} streams" if streams else "") +
            (f", {threads} threads" if threads > 1 else ""))


def print_rows(header, rows):
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |")
    print()


def held(one):
    mib = one["held_bytes"] / (1 << 20)
    return f"{mib:,.0f}" if mib >= 10 or mib == int(mib) else f"{mib:.1f}"


def print_table(results, show_one=cell):
    """One table of at most COLUMNS cases after the other, in the order in which they were run."""
    cases = list(dict.fromkeys((one["case"], one["threads"]) for one in results))
    for first in range(0, len(cases), COLUMNS):
        columns = cases[first:first + COLUMNS]
        cells = {(one["allocator"], one["case"], one["threads"]): show_one(one) for one in results}
        names = dict.fromkeys(one["allocator"] for one in results)
        rows = [[name] + [cells.get((name, *column), "-") for column in columns] for name in names]
        print_rows(["allocator"] + [title(*column) for column in columns],
                   [row for row in rows if set(row[1:]) != {"-"}])


def compare(results, core_time, wide):
    """(criterion, figure or None, against whom, whether it is met), for each of them."""
    for criterion in CRITERIA:
        _, first, second, relation, aim, widest = criterion
        limit = widest if wide else aim
        one, other = find(results, *first), find(results, *second)
        # Several threads are measured by the clock on the wall alone.
        if not one or not other or (core_time and first[2] != second[2]):
            yield criterion, None, "", False
            continue
        figure = one[0] / other[0]
        yield (criterion, figure, f" ({other[1]})" if second[0].endswith("peers") else "",
               figure <= limit if relation == "<=" else figure >= limit)


def print_criteria(results, core_time):
    rows = []
    for (text, _, _, relation, aim, _), figure, against, met in compare(results, core_time, False):
        state = "not measured" if figure is None else "ok" if met else "MISSED"
        rows.append([text, "-" if figure is None else f"{figure:.2f}{against}",
                     f"{relation} {aim:.2f}", state])
    print_rows(["aim", "figure", "target", ""], rows)


def show(results, core_time):
    what = "time on a core" if core_time else "wall time"
    spread = "median (least..most of the repetitions)"
    what = f"ns per pair, {what} over the pairs of all threads, {spread}"
    busy = [one for one in results if "_busy" in one["case"]]
    if busy:
        print(f"{what}; kernels of 20 us are in flight all the time, and the driver's calls take "
              "as long as on an H100 (SIMCUDA=latencies:h100):\n")
        print_table(busy)
        print("MiB of the device that the same held at most:\n")
        print_table([one for one in busy if one["held_bytes"]], held)
    idle = [one for one in results
            if "_busy" not in one["case"] and not one["case"].startswith("miss")]
    if idle:
        print(f"{what}; the device is idle, and the driver's calls take no time:\n")
        print_table(idle)
    misses = [one for one in results if one["case"].startswith("miss")]
    if misses:
        print("ns of an allocation that goes to the driver, which takes 50 us:\n")
        print_table(misses)
    print_criteria(results, core_time)


# Of call stacks: (text, case, whether over unw_backtrace's, aim).
STACK_AIMS = [
    ("a capture of 16 frames, over unw_backtrace's", "frames_16", True, 0.125),
    ("a capture of 16 frames, ns", "frames_16", False, 20),
    ("one of 8 stacks by one wrapper, ns", "wrapper_8", False, 40),
    ("one of 32 stacks by one wrapper, ns", "wrapper_32", False, 40),
]
PAIR_AIM = 20  # ns that a hot pair takes more with stacks


def compare_stacks(stacks, results):
    """(text, figure or None, aim) for each aim and number of threads."""
    for threads in (1, 2):
        for text, case, over, aim in STACK_AIMS:
            found = [one for one in stacks if (one["case"], one["threads"]) == (case, threads)]
            figure = None
            if found:
                ours = statistics.median(found[0]["ours"])
                figure = ours / statistics.median(found[0]["unw_backtrace"]) if over else ours
            yield title(text, threads), figure, aim
        pair = [find(results, name, "hot_1KiB", threads)
                for name in ("cachealloc_stacks", "cachealloc")]
        # Of several threads, the time of each: what is in the results is all pairs'.
        figure = (pair[0][0] - pair[1][0]) * threads if all(pair) else None
        yield title("hot pair of 1 KiB with stacks, ns more", threads), figure, PAIR_AIM


def show_stacks(stacks, results, core_time):
    what = "time on a core" if core_time else "wall time"
    print(f"ns per capture of a call stack of 16 frames, {what} of each thread, median "
          "(least..most), without the calls around it:\n")
    print_rows(["", "ours", "unw_backtrace"],
               [[title(one["case"], one["threads"])] +
                [f"{number(statistics.median(one[what]))} ({number(min(one[what]))}.."
                 f"{number(max(one[what]))})" for what in ("ours", "unw_backtrace")]
                for one in stacks])
    rows = []
    for text, figure, aim in compare_stacks(stacks, results):
        rows.append([text, "-" if figure is None else f"{figure:.2f}", f"<= {aim:.3g}",
                     "not measured" if figure is None else "ok" if figure <= aim else "MISSED"])
    print_rows(["aim", "figure", "target", ""], rows)


def show_python(figures):
    """Beside the native frames, of a stack that was captured before and of a new one."""
    print("\nns that 16 Python frames take more, median (least..most):\n")
    print_rows(["CPython", "the same stack", "target", "a new one", "target"],
               [[one["version"]] + [
                   cell for what, target in (
                       ("same", 60 if int(one["version"].split(".")[1]) >= 12 else 230),
                       ("new", 1500))
                   for cell in (f"{number(statistics.median(one[what]))} "
                                f"({number(min(one[what]))}..{number(max(one[what]))})",
                                f"<= {target}")] for one in figures])
