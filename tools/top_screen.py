"""The screen of cachealloc-top: what a terminal of a given size shows of processes, and the loop
that shows it. lines_of() decides what is seen and knows no terminal."""

import curses
import locale
import signal
import sys
import time

PLAIN, TITLE, CHOSEN = range(3)  # styles of a line
LEAST_BAR, MOST_BAR = 10, 48
MOST_PROCESSES = 8  # of the list, where there are more it scrolls
STALE_S = 10        # beyond a page's interval: the process is stopped, or became another program
FEW_ROWS = 4        # of devices, and of kinds of memory, where others need the lines


class Watched:
    """A process: its page, and the one before that, of which rates are."""

    def __init__(self, page):
        self.page, self.before = page, None

    def take(self, page):
        if page.written != self.page.written:
            self.page, self.before = page, self.page

    def rate(self, name):
        """Of a count, so many in a second; None where there is no page before."""
        now, then = (page and page.total(name) for page in (self.page, self.before))
        if now is None or then is None or self.page.written <= self.before.written:
            return None
        return max(0, now - then) / (self.page.written - self.before.written)


# --- what is seen ---------------------------------------------------------------------------------


def amount(value):
    """Bytes, in a unit that people read."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            return f"{value} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024


def bar(share, width, marks):
    """`marks` are the characters of what is full and of what is empty."""
    full = min(width, max(0, round(share * width)))
    if share > 0 and full == 0:
        full = 1  # something is there
    return marks[0] * full + marks[1] * (width - full)


def a_second(rate):
    return "-" if rate is None else f"{rate:,.0f}"


def since(seconds):
    hours, seconds = divmod(int(max(0, seconds)), 3600)
    return f"{hours}:{seconds // 60:02}:{seconds % 60:02}"


def whole_words(pieces, width):
    """As many of them, from the first on, as are whole in a line; the first in any case."""
    line = pieces[0]
    for piece in pieces[1:]:
        if len((line + piece).rstrip()) > width:
            break
        line += piece
    return line.rstrip()


def fit(left, right, width):
    """Both in one line; the right one is whole where it fits at all."""
    space = width - len(right) - 1
    return f"{left[:space]:<{space}} {right}" if space >= 10 else left[:width]


def head(watched, width, now):
    page = watched.page
    rank = f", rank {page.labels['rank']}" if "rank" in page.labels else ""
    age = max(0.0, now - page.written)
    up = now - (page.total("cachealloc_start_time_seconds") or now)
    right = f"up {since(up)}, figures {age:.0f} s old"
    if age > page.every_s + STALE_S:
        right = f"NOT REFRESHED for {age:.0f} s"
    return fit(f"{page.program}, pid {page.pid}{rank}", right, width), TITLE


def gauges(watched, width, marks):
    """What is live and held, beside the most that ever was."""
    page = watched.page
    live, held = page.total("cachealloc_live_bytes"), page.total("cachealloc_pool_reserved_bytes")
    peaks = [page.total(f"cachealloc_{name}_peak_bytes") for name in ("live", "pool_reserved")]
    count = page.total("cachealloc_live_allocations") or 0
    whole = max(1, *(value or 0 for value in (live, held, *peaks)))
    size = max(LEAST_BAR, min(MOST_BAR, width - 52))
    pinned = page.total("cachealloc_pinned_pool_reserved_bytes")
    for label, value, peak, said in (("live", live, peaks[0], f"{count:,} allocations"),
                                     ("held", held, peaks[1], "by the pool")):
        if value is None:
            continue
        highest = "" if peak is None else f"peak {amount(peak)}"
        yield whole_words([f"{label:<6}{amount(value):>10} ", bar(value / whole, size, marks),
                           f" {highest:<16}", said], width)
    if pinned:
        yield f"{'':<6}{amount(pinned):>10} of pinned memory, besides"
    hits, misses = (page.total(f"cachealloc_pool_{name}_total") or 0 for name in ("hits", "misses"))
    if hits + misses:
        share = hits / (hits + misses)
        yield whole_words([f"{'hits':<6}{100 * share:>8.1f} % ", bar(share, size, marks),
                           f" {'of allocations':<16}", f"{misses:,} took new memory"], width)


def calls(watched):
    rates = {name: a_second(watched.rate(f"cachealloc_{name}_total")) for name in
             ("alloc_calls", "free_calls", "upstream_allocs", "upstream_frees", "fence_waits")}
    yield (f"{'calls':<6}{rates['alloc_calls']:>10} allocations, {rates['free_calls']} frees, "
           f"{rates['fence_waits']} waits a second")
    yield (f"{'driver':<6}{rates['upstream_allocs']:>10} allocations, "
           f"{rates['upstream_frees']} frees a second")
    wrong = [(watched.page.total(f"cachealloc_{name}_total") or 0, text) for name, text in (
        ("out_of_memory", "out of memory"), ("wrong_frees", "wrong frees"),
        ("passed_through", "left to the driver"))]
    said = ", ".join(f"{value:,} {text}" for value, text in wrong if value)
    if said:
        yield f"{'note':<6}{said}"


def by_device(page):
    """{device: {statistic: bytes}} of the pools."""
    devices = {}
    for name, (_, _, values) in page.families.items():
        if name.startswith("cachealloc_pool_"):
            for own, value in values.items():
                device = dict(own).get("device")
                if device is not None:
                    devices.setdefault(device, {})[name[len("cachealloc_pool_"):]] = value
    return devices


def cut(rows, most):
    if len(rows) <= most:
        return rows
    return rows[:most - 1] + [f"  ... and {len(rows) - most + 1} more"]


def device_table(page, most, width):
    columns = (("reserved", "held"), ("live", "live"), ("ready", "ready"), ("pending", "pending"),
               ("idle", "idle"))[:max(2, (width - 18) // 11)]
    rows = []
    for device, values in sorted(by_device(page).items(), key=lambda one: int(one[0])):
        ready, largest = (values.get(f"{name}_bytes", 0) for name in ("ready", "largest_ready"))
        # Of what is free for reuse, what one request could not have.
        split = f"{100 * (1 - largest / ready):.0f} %" if ready else "-"
        rows.append(f"{device:<6}" + "".join(f"{amount(values.get(f'{name}_bytes', 0)):>11}"
                                             for name, _ in columns) + f"{split:>12}")
    if rows:
        yield (f"{'device':<6}" + "".join(f"{title:>11}" for _, title in columns) +
               f"{'fragmented':>12}", TITLE)
        yield from ((row, PLAIN) for row in cut(rows, most))


def kind_table(page, most, _):
    _, _, sizes = page.families.get("cachealloc_live_bytes", (None, None, {}))
    _, _, counts = page.families.get("cachealloc_live_allocations", (None, None, {}))
    rows = [f"device {dict(own).get('device', '?')}, {dict(own).get('kind', '?'):<12}"
            f"{amount(size):>12}{counts.get(own, 0):>14,}"
            for own, size in sorted(sizes.items(), key=lambda one: -one[1])]
    if rows:
        yield f"{'kind of memory':<22}{'live':>12}{'allocations':>14}", TITLE
        yield from ((row, PLAIN) for row in cut(rows, most))


def everything(watched):
    """All counts, with totals and rates, for a screen that has space."""
    yield f"{'count':<46}{'total':>16}{'a second':>12}", TITLE
    for name, (kind, meaning, values) in watched.page.families.items():
        if kind == "counter":
            yield (f"{meaning[:45]:<46}{sum(values.values()):>16,}"
                   f"{a_second(watched.rate(name)):>12}", PLAIN)


def process_list(processes, chosen, rows):
    """The processes around the chosen one."""
    names = list(processes)
    at = names.index(chosen)
    first = max(0, min(at - rows // 2, len(names) - rows))
    yield f"{'pid':>9}{'live':>12}{'held':>12}{'calls/s':>10}  program ({len(names)})", TITLE
    for pid in names[first:first + rows]:
        watched = processes[pid]
        live, held = (watched.page.total(f"cachealloc_{name}_bytes") or 0
                      for name in ("live", "pool_reserved"))
        rate = a_second(watched.rate("cachealloc_alloc_calls_total"))
        yield (f"{pid:>9}{amount(live):>12}{amount(held):>12}{rate:>10}  {watched.page.program}",
               CHOSEN if pid == chosen else PLAIN)


def lines_of(processes, chosen, width, height, marks="#.", now=None, message=""):
    """[(text, its style)]: `height` lines at most, each of `width` characters at most.
    `processes` are {pid: Watched} in the order of the list, one of which is `chosen`."""
    watched = processes[chosen]
    now = time.time() if now is None else now
    several = len(processes) > 1
    lines = []
    if several:
        rows = max(2, min(len(processes), MOST_PROCESSES, height - 19))
        lines += [*process_list(processes, chosen, rows), ("", PLAIN)]
    lines += [head(watched, width, now), ("", PLAIN)]
    lines += [(line, PLAIN) for line in (*gauges(watched, width, marks), *calls(watched))]
    space = height - len(lines) - 1 - 4  # the foot; two headings, each behind an empty line
    for table in (device_table, kind_table):
        most = max(FEW_ROWS, space // 2) if space >= 2 * FEW_ROWS else 2
        rows = list(table(watched.page, most, width))
        lines += [("", PLAIN), *rows] if rows else []
    rows = list(everything(watched))
    if len(lines) + 1 + len(rows) < height:  # a part of them helps no reader
        lines += [("", PLAIN), *rows]
    foot = f"q quits{', arrows choose a process' if several else ''}"
    lines = lines[:max(0, height - 1)]
    lines += [("", PLAIN)] * (height - 1 - len(lines))
    lines.append((fit(message, foot, width) if message else foot, PLAIN))
    return [(line[:width], style) for line, style in lines]


# --- the terminal ---------------------------------------------------------------------------------


def paint(screen, lines, styles):
    screen.erase()
    for at, (text, style) in enumerate(lines):
        try:
            screen.addstr(at, 0, text, styles[style])
        except curses.error:  # the last place of the last line, or letters of two places
            pass
    screen.refresh()


def step(names, chosen, key):
    """The process that a key chooses."""
    at = names.index(chosen)
    at += (key in (curses.KEY_DOWN, curses.KEY_RIGHT)) - (key in (curses.KEY_UP, curses.KEY_LEFT))
    return names[max(0, min(len(names) - 1, at))]


def loop(screen, collect, pause, marks):
    """`collect` gives ({pid: page}, what to say below); without a page it is over."""
    try:
        curses.curs_set(0)
        curses.use_default_colors()
    except curses.error:
        pass  # a terminal that cannot
    styles = {PLAIN: curses.A_NORMAL, TITLE: curses.A_BOLD, CHOSEN: curses.A_REVERSE}
    processes, chosen, message, due = {}, None, "", 0.0
    while True:
        if time.monotonic() >= due:
            due = time.monotonic() + pause
            pages, message = collect()
            for pid, page in pages.items():
                processes.setdefault(pid, Watched(page)).take(page)
            processes = {pid: processes[pid] for pid in pages}
            if not processes:
                return
            if chosen not in processes:
                chosen = next(iter(processes))
        height, width = screen.getmaxyx()
        paint(screen, lines_of(processes, chosen, width, height, marks, message=message), styles)
        screen.timeout(max(1, int(1000 * (due - time.monotonic()))))
        key = screen.getch()
        if key in (ord("q"), ord("Q")):
            return
        chosen = step(list(processes), chosen, key)


def stop(number, frame):
    sys.exit(128 + number)  # curses gives the terminal back on the way


def can_show():
    """Whether there is a terminal that curses can use, and that has keys."""
    if not (sys.stdout.isatty() and sys.stdin and sys.stdin.isatty()):
        return False
    try:
        curses.setupterm()
    except curses.error:
        return False
    return bool(curses.tigetstr("cup"))


def show(collect, pause):
    locale.setlocale(locale.LC_ALL, "")
    unicode = locale.nl_langinfo(locale.CODESET).upper() in ("UTF-8", "UTF8")
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    curses.wrapper(loop, collect, pause, "\u2588\u2591" if unicode else "#.")
