"""A JSON report as the text that the library writes (registry/report/format_text.c and
registry/names/stack_text.c, which describe it)."""

from report_page.shown import STRIPES, escape, last_component

FEW_GROUPS = 5   # of the peak, and of all that was allocated
FEW_PHASES = 20  # the highest of these
NAME_MOST = 200  # bytes of a name in a run of inner functions
LINE_MOST = 1023
SOURCES = 4      # modules that are named
COMPARED = 200   # groups before, whose rules are not repeated
UNITS = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"), (1, ""))


def cut(line):
    """As long as a line may be; what was cut ends in dots."""
    data = line.encode("utf-8", "replace")
    if len(data) <= LINE_MOST:
        return line
    return data[:LINE_MOST - 3].decode(errors="ignore") + "..."


# --- call stacks ----------------------------------------------------------------------------------


class At:
    """One function of a stack: of a frame, with those that are inlined in it before it."""

    def __init__(self, frame, index):
        self.frame, self.index = frame, index
        self.place = frame["places"][index] if frame["places"] else None
        self.python = frame["language"] == "python"
        self.inner = self.place["fold"] if self.place else frame["fold"]

    def name(self):
        function = self.place and self.place["function"]
        if function is None:
            return self.frame["text"]
        return function if self.python else self.place["short"] or function

    def is_glue(self):
        """A template is glue around what it calls, and what has no name tells nothing."""
        return not self.place or self.place["function"] is None or "<...>" in self.name()

    def source(self):
        path = self.place["file"] if self.python and self.place else self.frame["module"]
        return last_component(path) if path else None


def run_from(chain, at):
    """How many functions from there on make one line."""
    end = at
    while end < len(chain) and chain[end].inner and chain[end].python == chain[at].python:
        end += 1
    return end - at


def sources_of(run):
    named = []
    for one in run:
        source = one.source()
        if source is None or source in named:
            continue
        if len(named) == SOURCES:
            return ", ".join(escape(name, NAME_MOST) for name in named) + ", ..."
        named.append(source)
    return ", ".join(escape(name, NAME_MOST) for name in named)


def line_of_run(run):
    named = [at for at, one in enumerate(run) if not one.is_glue()] or [0, len(run) - 1]
    first, last = named[0], named[-1]
    more = len(run) - (1 if first == last else 2)
    line = escape(run[first].name(), NAME_MOST)
    if first != last:
        line += " < " if first + 1 == last else " < ... < "
        line += escape(run[last].name(), NAME_MOST)
    return cut(f"{line} ({f'+{more} frames of ' if more else ''}{sources_of(run)})")


def line_of_place(one):
    """One of several functions at an address, of which others are on another line."""
    line = one.frame["lines"].split("\n")[one.index]
    frame = one.frame
    if one.index + 1 == len(frame["places"]) and not one.python:
        suffix = " (JIT)"
        if frame["module"] is not None:
            suffix = f" ({last_component(frame['module'])}+{frame['offset']})"
        if frame["module"] is None or frame["places"][0]["file"] is None:
            line = line[:-len(suffix)] if line.endswith(suffix) else line
    return line


def is_long(one):
    """A framework's function alone: all that its text has more is arguments, and an offset."""
    return not one.python and len(one.frame["places"]) == 1 and one.place["file"] is None


def stack_lines(frames, fold):
    chain = [At(frame, index) for frame in frames for index in range(max(1, len(frame["places"])))]
    if not chain:
        yield "(no call stack)"
    at = 0
    while at < len(chain):
        one = chain[at]
        functions = max(1, len(one.frame["places"]))
        length = run_from(chain, at) if fold else 0
        whole = not fold or functions == 1 or all(
            run_from(chain, at + i) < 2 for i in range(functions - one.index))
        if length > 1 or (length == 1 and is_long(one)):
            yield line_of_run(chain[at:at + length])
            at += length
        elif one.index == 0 and whole:
            yield from one.frame["lines"].split("\n")
            at += functions
        else:
            yield line_of_place(one)
            at += 1


# --- sections -------------------------------------------------------------------------------------


def amount(one):
    return f"{one['bytes']} bytes in {one['count']} allocations"


def place(one):
    return f"device {one['device']}, {one['kind']} memory"


def seconds(ns):
    return "{}.{:03}".format(*divmod((ns + 500000) // 1000000, 1000))


def details(group):
    said = ""
    if group["smallest"] != group["largest"]:
        said = f"sizes {group['smallest']} to {group['largest']}, "
    said += f"sequence {group['first']}"
    if group["last"] != group["first"]:
        said += f" to {group['last']}"
    names = ", ".join(escape(name, 24) for name in group["threads"])
    if len(group["threads"]) == 4 and group["thread_count"] > 4:
        names += ", ..."
    if group["thread_count"] == 1:
        said += f", thread {names}"
    elif group["thread_count"] > 1:
        said += f", {group['thread_count']} threads: {names}"
    return said


class Writer:
    def __init__(self, report, every):
        self.report, self.shown = report, report["as_text"]
        self.most = float("inf") if every else self.shown["groups"]

    def frames(self, group):
        return [self.report["frames"][number] for number in group["frames"]]

    def total(self, title, section):
        yield f"{title}: {amount(section)}, {section['stacks']} stacks"
        yield from self.incomplete(section)

    @staticmethod
    def incomplete(section):
        if section["incomplete"]:
            yield "(incomplete: some of it could not be read: in use, or no memory)"

    @staticmethod
    def totals(section):
        for one in section["totals"]:
            yield f"  {place(one)}: {amount(one)}"

    def group(self, number, group):
        yield f"#{number}: {amount(group)}, {place(group)}"
        yield f"  {details(group)}"
        for line in stack_lines(self.frames(group), self.shown["fold"]):
            yield f"    {line}"

    def groups(self, section):
        omitted = section["omitted"]
        more = [omitted["leak_max"]["groups"], omitted["leak_max"]["bytes"]]
        for number, group in enumerate(section["groups"], 1):
            if number <= self.most:
                yield from self.group(number, group)
            else:
                more[0] += 1
                more[1] += group["bytes"]
        for (groups, size), reason, value in (
                (more, "leak_max", min(self.most, self.report["leak_max"])),
                ((omitted["leak_min"]["groups"], omitted["leak_min"]["bytes"]), "leak_min",
                 self.report["leak_min"])):
            if groups:
                yield f"({groups} more groups, {size} bytes, not listed: {reason}:{value})"

    def few(self, section):
        listed = section["groups"][:FEW_GROUPS]
        yield from self.incomplete(section)
        yield from self.totals(section)
        for number, group in enumerate(listed, 1):
            yield from self.group(number, group)
        omitted = section["omitted"]
        more = (len(section["groups"]) - len(listed) + omitted["leak_max"]["groups"] +
                omitted["leak_min"]["groups"])
        if more:
            size = section["bytes"] - sum(group["bytes"] for group in listed)
            yield f"({more} more groups, {size} bytes, not listed here)"

    # --- parts ---

    def head(self):
        report = self.report
        line = f"cachealloc[{report['pid']}]: leak report"
        if report["rank"]:
            line += f", rank {escape(report['rank'])}"
        if report["cause"] != "exit":
            line += f", cause {report['cause']}"
        if report["stacks_sampled"]:
            size = report["stacks_sampled"]
            factor, unit = next(one for one in UNITS if size % one[0] == 0)
            line += f", stacks sampled: {size // factor}{unit}"
        yield line

    def live(self):
        report, section = self.report, self.report["sections"]["leaked"]
        yield from self.total("LEAK SUMMARY", section)
        if report["shards_busy"]:
            yield f"(incomplete: {report['shards_busy']} of {STRIPES} stripes were in use)"
        yield from self.totals(section)
        yield from self.groups(section)
        if self.shown["even_empty"] and report["cause"] == "exit" and not report["shards_busy"]:
            if not any(report["sections"][name]["count"] for name in
                       ("leaked", "destroyed", "suppressed") if name in report["sections"]):
                yield "(nothing leaked)"

    def suppressed(self, section):
        yield from self.total("SUPPRESSED", section)
        rules = self.report["suppressions"]
        for rule in [one for one in rules if one["groups"]] + [one for one in rules
                                                               if not one["groups"]]:
            said = amount(rule) if rule["groups"] else "not used"
            where = "built in"
            if rule["line"]:
                where = f"{escape(self.shown['rules_path'] or '?')}:{rule['line']}"
            yield f"  {said}: {escape(rule['rule'], 511)} ({where})"

    def target(self, group):
        """What a rule for the group would look for: (file or None, function or None)."""
        best, worth = (None, None), 0
        for frame in self.frames(group):
            python = frame["language"] == "python"
            for one in frame["places"]:
                its = 1 + 2 * python + (not one["fold"])
                if one["function"] is not None and its > worth:
                    worth, best = its, (one["file"] if python else None, one["function"])
        return best

    def rules_for(self, section):
        targets = []
        for group in section["groups"][:min(self.most, len(section["groups"]))]:
            target = (group["kind"], *self.target(group))
            again = target in targets[-COMPARED:]
            targets.append(target)
            if target[2] is None or again:
                continue
            file = "^" if target[1] is None else escape(last_component(target[1])) + ":"
            yield f"leak:{file}{escape(target[2])}$ kind={group['kind']}"

    def phases(self):
        phases = self.report["phases"]
        yield f"PHASES: {len(phases)}, from mark to mark"
        highest = sorted(range(len(phases)), key=lambda at: (-phases[at]["peak_bytes"], at))
        listed = sorted(highest[:FEW_PHASES])
        for at in listed:
            phase = phases[at]
            name = "(before the first mark)" if phase["name"] is None else phase["name"]
            yield (f"  {escape(name)}: peak {'' if phase['exact'] else 'at most '}"
                   f"{phase['peak_bytes']} bytes, {seconds(phase['ns'])} to "
                   f"{seconds(phase['ended_ns'])} s")
        if len(listed) < len(phases):
            yield (f"({len(phases) - len(listed)} more phases, of lower peaks, not listed here)")

    def is_empty(self):
        sections = self.report["sections"]
        return not (self.report["shards_busy"] or self.shown["even_empty"] or any(
            sections[name]["count"] for name in ("leaked", "destroyed", "suppressed")
            if name in sections))

    def lines(self):
        report, sections = self.report, self.report["sections"]
        if self.is_empty() or "leaked" not in sections:
            return
        yield from self.head()
        yield from self.live()
        listed = [sections[name] for name in ("leaked", "destroyed") if name in sections]
        for section in listed[1:]:
            yield from self.total("ALIVE WHEN THEIR CONTEXT WAS DESTROYED", section)
            yield from self.groups(section)
        if "suppressed" in sections:
            yield from self.suppressed(sections["suppressed"])
        if self.shown["rules"] and any(section["groups"] for section in listed):
            yield "RULES FOR THE GROUPS ABOVE:"
            for section in listed:
                yield from self.rules_for(section)
        if "peak" in sections:
            yield (f"PEAK: {amount(sections['peak'])}, {sections['peak']['stacks']} stacks, "
                   f"{seconds(report['peak_ns'])} s after the start")
            yield from self.few(sections["peak"])
        if "allocated" in sections:
            section = sections["allocated"]
            yield (f"ALLOCATED IN ALL: {amount(section)}, {section['stacks']} stacks, "
                   f"{section['temporaries']} temporary")
            yield from self.few(section)
        if report["phases"]:
            yield from self.phases()
        if self.shown["names_timed_out"]:
            yield (f"({self.shown['names_timed_out']} frames are module and offset alone: there "
                   "was no time for all names)")
        if report["names_missing"] is not None:
            yield ("(functions and lines are missing where files cannot be read: "
                   f"{report['names_missing']})")


def lines_of(report, every=False):
    """The lines of a prepared report (shown.prepare); with all groups that it has, if so asked.
    What the library wrote is escaped already; others may have written it."""
    return map(escape, Writer(report, every).lines())


def write(report):
    return "".join(f"{line}\n" for line in lines_of(report)).encode("utf-8", "replace")
