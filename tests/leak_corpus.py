"""Reads what the leaking programs of tests/leaks expect of their report, and holds reports to it.

The head comment of a program has lines `key: value`; a value goes on in lines that are indented by
four more. `key[BUILD]` stands for that build alone, in the place of `key`:

    builds: O0 O3             made in these ways too (leaks.mk)
    also: depth1              run in this way too, as built already
    arguments, conf, sim      of the run; %B is the directory of these programs, %S the simulator's
    parts: FILE ...           sources whose lines are meant as well
    exit: 3, exit: SIGABRT    how it ends, where it is not by 0
    prints: TEXT              what is on stdout
    plain: REASON             why not in a process with a sanitizer's run-time
    journal: REASON           why a journal of it does not say the same
    expect: nothing           no report of a leak
    expect: BYTES bytes in COUNT, KIND[, device N][, thread NAME][, N threads NAME ...]
        [, sizes A to B][, up to N frames][, no stack][, a stream][: FRAMES]
    expect destroyed: ...     of what a destroyed context held
    expect peak: ...          of when there was most memory; looked at where there is such a line
    expect child: ...         in a report of another process
    expect journal: ...       in the report of a journal, where that is not the same
    omitted: leak_max N groups N bytes, leak_min ...

Each `expect` is a group and nothing else may be reported. What it says nothing of is as of one
thread, called like the program, device 0, one size, no stream. FRAMES are functions, innermost
first, joined with ` < `; `...` is any number of frames, behind the last anything may follow:

    function@mark     on the line that has the comment @mark; without lines (g0, stripped) just so
    function          on any line
    ?function@mark    without a name, but its offset leads there in the build that is not stripped
    [glob]            in the module of that name; ?[glob] without a name of its own
"""

import dataclasses
import fnmatch
import pathlib
import re
import signal
import subprocess

FOLDER = pathlib.Path(__file__).resolve().parent / "leaks"
KEY = re.compile(r"^[ *#/]{0,3}"
                 r"(builds|also|arguments|conf|sim|parts|exit|prints|expect|omitted|plain|journal)"
                 r"(?: (destroyed|peak|child|journal))?(?:\[(\w+)\])?: (.*)$")
CONTINUED = re.compile(r"^[ *#/]{0,3} {4}(\S.*)$")
MARK = re.compile(r"(?:/\*|#) @(\w+)")
GROUP = re.compile(r"^(\d+) bytes in (\d+), ([^:]*)(?::\s+(.*))?$")
WITHOUT_LINES = ("g0", "stripped")
SECTIONS = ("destroyed", "peak")


@dataclasses.dataclass
class Place:
    """One function of a stack, as a report has it; what it does not say is None."""
    function: str
    file: str
    line: int
    module: str
    offset: str


@dataclasses.dataclass
class Expected:
    """One group."""
    bytes: int
    count: int
    kind: str
    frames: list
    threads: list
    thread_count: int = 1
    device: int = 0
    sizes: tuple = None
    frames_most: int = None
    has_stack: bool = True
    has_stream: bool = False


class Program:
    """A program of the corpus as one of its rows builds and runs it."""

    def __init__(self, source, row=""):
        self.source, self.row = source, row
        self.values = list(self.read_head())
        self.name = source.stem
        self.is_build = row in self.words("builds")
        self.marks = {}
        for part in [source, *(FOLDER / name for name in self.words("parts"))]:
            self.read_marks(part)

    def read_head(self):
        """(key, name, rows, value) of each line of the head comment."""
        text = self.source.read_text()
        head = text[:text.index('"""' if self.source.suffix == ".py" else "#include", 3)]
        entry = None
        for line in head.splitlines():
            if match := KEY.match(line):
                if entry:
                    yield tuple(entry)
                entry = [match[1], match[2] or "", match[3], match[4]]
            elif (match := CONTINUED.match(line)) and entry:
                entry[3] += " " + match[1]
            elif entry:
                yield tuple(entry)
                entry = None
        if entry:
            yield tuple(entry)

    def read_marks(self, path):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in MARK.findall(line):
                assert name not in self.marks, f"{path.name}: @{name} twice"
                self.marks[name] = (path.name, number)

    def all(self, key):
        """(name, value) of each line of that key: the row's own, or else everybody's."""
        found = [entry for entry in self.values if entry[0] == key]
        own = [entry for entry in found if self.row and entry[2] == self.row]
        return [(entry[1], entry[3]) for entry in own or found if own or entry[2] is None]

    def value(self, key, default=""):
        values = self.all(key)
        assert len(values) <= 1, f"{key} twice"
        return values[0][1] if values else default

    def words(self, key):
        return self.value(key).split()

    def rows(self):
        return ["", *self.words("builds"), *self.words("also")]

    def has_lines(self):
        return self.row not in WITHOUT_LINES

    def file_name(self):
        return f"{self.name}.{self.row}" if self.is_build else self.name

    def status(self):
        text = self.value("exit", "0")
        return -signal.Signals[text].value if text.startswith("SIG") else int(text)

    def configuration(self):
        has_peak = any(name == "peak" for name, _ in self.all("expect"))
        return ",".join(filter(None, [self.value("conf"), "" if has_peak else "peak:off"]))

    def reports(self):
        """The groups that are expected, by the process and by what became of them:
        {"": {"leaked": [...]}, "child": ...}."""
        found = {}
        for name, text in self.all("expect"):
            if name == "journal":
                continue
            process, section = ("", name) if name in SECTIONS else (name, "leaked")
            if text != "nothing":
                sections = found.setdefault(process, {"leaked": []})
                sections.setdefault(section, []).append(self.group(text))
        assert self.all("expect"), f"{self.source.name} expects nothing in particular"
        return found

    def journals(self):
        """The groups that are expected of each process's journal, in no particular order."""
        own = [self.group(text) for name, text in self.all("expect") if name == "journal"]
        return [own] if own else [sections["leaked"] for sections in self.reports().values()]

    def group(self, text):
        match = GROUP.match(text)
        assert match, f"{self.source.name}: {text}"
        kind, *attributes = match[3].split(", ")
        group = Expected(int(match[1]), int(match[2]), kind, (match[4] or "...").split(" < "),
                         [self.file_name()[:15]])
        for attribute in attributes:
            read_attribute(group, attribute)
        if group.sizes is None:
            group.sizes = (group.bytes // group.count,) * 2
        return group

    def omitted(self):
        found = {}
        for text in filter(None, self.value("omitted").split(", ")):
            option, groups, bytes_ = re.match(r"(\w+) (\d+) groups (\d+) bytes$", text).groups()
            found[option] = (int(groups), int(bytes_))
        return found


def read_attribute(group, text):
    if match := re.match(r"device (\d+)$", text):
        group.device = int(match[1])
    elif match := re.match(r"thread (\S+)$", text):
        group.threads = [match[1]]
    elif match := re.match(r"(\d+) threads (.+)$", text):
        group.thread_count, group.threads = int(match[1]), match[2].split()
    elif match := re.match(r"sizes (\d+) to (\d+)$", text):
        group.sizes = (int(match[1]), int(match[2]))
    elif match := re.match(r"up to (\d+) frames$", text):
        group.frames_most = int(match[1])
    elif text == "no stack":
        group.has_stack = False
    elif text == "a stream":
        group.has_stream = True
    else:
        raise AssertionError(f"not understood: {text}")


# --- what reports say -----------------------------------------------------------------------------


def text_places(line):
    """The function of a line of the text report, as a list."""
    if match := re.match(r"(.+) at (\S+):(\d+)$", line):
        return [Place(match[1], match[2], int(match[3]), None, None)]
    if match := re.match(r"(?:(.+) \()?([^ ()]+)\+(0x[0-9a-f]+)\)?$", line):
        return [Place(match[1], None, None, match[2], match[3])]
    return [Place(line, None, None, None, None)]


def json_places(frame):
    """The same of a frame of the JSON report."""
    module = pathlib.PurePath(frame["module"]).name if frame["module"] else None
    offset = frame["offset"]
    if not frame["places"]:
        return [Place(None, None, None, module, offset)]
    return [Place(place["function"], place["file"] and pathlib.PurePath(place["file"]).name,
                  place["line"], module, offset) for place in frame["places"]]


def named_by_offset(binary, offset):
    """(function, file, line) of an offset, as a user would ask."""
    lines = subprocess.run(["addr2line", "-f", "-e", binary, offset], text=True, check=True,
                           capture_output=True).stdout.splitlines()
    file, _, line = lines[1].split(" ")[0].rpartition(":")
    return lines[0], pathlib.PurePath(file).name, int(line)


def is_function(shown, whole):
    """Whether a report shows this function: the text may cut template arguments."""
    return re.fullmatch(re.escape(shown).replace(re.escape("<...>"), "<.*>"), whole) is not None


def fits_place(program, binary, wanted, place):
    """Whether `place` is what `wanted` says; in text a module may be left unsaid."""
    if wanted.startswith(("[", "?[")):
        globs = wanted.strip("?[]").split("|")
        if wanted.startswith("?") and place.function is not None:
            return False
        return place.module is None or any(fnmatch.fnmatch(place.module, glob) for glob in globs)
    function, _, mark = wanted.rpartition("@") if "@" in wanted else (wanted, "", "")
    where = program.marks[mark] if mark else None
    if function.startswith("?"):
        if place.function is not None or place.module != program.file_name():
            return False
        found = named_by_offset(binary.with_suffix(""), place.offset)
        return found[0] == function[1:] and (not where or found[1:] == where)
    if not place.function or not is_function(place.function, function):
        return False
    if not program.has_lines():
        return place.file is None
    return not where or (place.file, place.line) == where


def fits_stack(program, binary, wanted, places):
    if not wanted:
        return True
    if wanted[0] == "...":
        return any(fits_stack(program, binary, wanted[1:], places[i:])
                   for i in range(len(places) + 1))
    return bool(places) and fits_place(program, binary, wanted[0], places[0]) and fits_stack(
        program, binary, wanted[1:], places[1:])


def check_group(program, binary, wanted, group, frames):
    """`group` has attributes as leak_report.parse gives them, `frames` lists of places."""
    assert (group.bytes, group.count, group.kind, group.device) == (
        wanted.bytes, wanted.count, wanted.kind, wanted.device)
    assert (group.smallest, group.largest) == wanted.sizes
    assert group.first + group.count - 1 <= group.last
    assert group.thread_count == wanted.thread_count
    assert len(group.threads) == len(wanted.threads), group.threads
    for name, glob in zip(group.threads, wanted.threads):
        assert fnmatch.fnmatchcase(name, glob), group.threads
    assert (len(frames) > 0) == wanted.has_stack
    if wanted.frames_most is not None:
        assert len(frames) <= wanted.frames_most
    places = [place for frame in frames for place in frame]
    assert fits_stack(program, binary, wanted.frames, places), "\n".join(
        ["wanted", *wanted.frames, "reported", *map(str, places)])
    for place in places:
        assert not place.module or not place.module.startswith("libcachealloc"), place
