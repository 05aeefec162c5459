"""The words that pages, comments and names of the product do without, since the field has one:
docs/internals/glossary.md. The only list of them.

A pattern is searched without regard to case: in the prose of a page, in a comment, and in a name
whose parts are words (`ca_hit_take` and `hitTake` are "ca hit take" and "hit take")."""

import collections
import pathlib
import re
import typing

EVERYWHERE = ("pages", "comments", "names")
CODE = ("comments", "names")


class Word(typing.NamedTuple):
    pattern: str
    instead: str
    where: tuple = EVERYWHERE
    allowed: str = "(?!)"  # phrases in which it is right
    rooms: tuple = ()      # for CODE: those alone; empty: all


THING = ("(threads?|blocks?|calls?|callers?|kernels?|process(es)?|programs?|segments?|streams?|"
         "libraries|library|drivers?)")
# Names of statistics: programs read them from cachealloc.h, python/cachealloc, JSON and Prometheus.
USERS_SEE = {"lanes?": "^lane r (allocs|frees)$", "hits?": "^pool hits$", "shards?": "^shards busy$",
             "wrong frees?": "^wrong frees$"}
ALLOCATOR = ("base", "config", "include", "pool", "registry", "shim")
WORDS = [
    Word("lanes?", "runtime hooks, driver hooks", EVERYWHERE, USERS_SEE["lanes?"]),
    Word("(no )?hits?", "fast path, slow path", EVERYWHERE,
         # a search has hits too
         f"cache hits?|hits (and|or) misses|hit rate|^hits$|{USERS_SEE['hits?']}",
         ALLOCATOR),
    Word("the general way", "slow path", ("pages", "comments")),
    Word("settl(e|es|ed|ing)", "warm-up, drain, apply, decide"),
    Word("careful", "warm-up", ("names",)),
    Word("mine", "thread state", CODE),
    Word("tickets?", "generation"),
    Word("tall(y|ies)", "per-thread counters"),
    Word("live spare.*|spare most", "local credit", ("names",)),
    Word("told", "published, warned, reported", CODE),
    Word("untell", "publish"),
    Word("tell", "publish", ("names",)),
    Word("stocks?", "cached bytes"),
    Word("spill(s|ed)?", "flush"),
    Word("thin(s|ned)?", "trim", CODE, "thin wrapper", ("pool", "shim")),
    Word("shut", "lock out", CODE, "shut(s|ting)? down|^shut( wr| rd)?$"),
    Word(r"^ca .*\brest$", "flush idle", ("names",)),
    Word("glance[sd]?", "optimistic look-up"),
    Word("memos?", "call-stack cache"),
    Word("harvest(s|ed)?", "reap"),
    Word("presence", "in-flight count"),
    Word("patience", "timed lock"),
    Word("turns?", "report lock", ("names",)),
    Word("shards?", "arena set, arena, table stripe", EVERYWHERE, USERS_SEE["shards?"]),
    # The simulator has the driver's heaps.
    Word("heaps?", "arena", CODE, "(no|host's|C library's) heap|heap sort", ALLOCATOR),
    Word("visiting", "remote cache"),
    Word("late", "not safe to block on, overdue", ("names",)),
    Word("^ca line( t)?$", "fence queue", ("names",), rooms=("shim",)),
    Word("lines?", "fence queue", CODE, "(cache|next|each other's|two) lines?", ("pool",)),
    Word("^ca stream .*whole$", "default queue", ("names",)),
    Word("(with|ca) ends|^ends$", "pending destroys", ("names",), rooms=ALLOCATOR),
    Word("resting|rested|at rest|^rest ns$", "idle, parked", ("names",)),
    Word("room", "reclaim, free memory", ("names",)),
    Word("room", "memory, reclaim", ("comments",), rooms=("pool",)),
    Word("words?", "state", ("names",), "ca word is", ("pool",)),
    Word("slots?", "record; of a table: bucket, entry, place", EVERYWHERE, "jump slot"),
    Word("(slot|record|block)s?('s)? (word|note)s?", "state, payload", CODE),
    Word("figures", "statistics, metrics", ("names",)),
    Word("wrong frees?", "invalid free", EVERYWHERE, USERS_SEE["wrong frees?"]),
    Word("gone", "destroyed, unloaded", CODE, "gone (back|through)"),
    Word("given|taken", "released, acquired, used", ("names",)),
    Word("bytes (were )?given|given bytes", "released", ("comments",)),
    Word("note", "payload", ("names",), "[a-z] note|note [a-z]", ("base", "config", "pool", "registry")),
    Word("looks?", "check, scan, find, poll", ("names",), "look up"),
    Word("(an?|the|its|two|both|each|first|second|last|next|nth|submission's|cheap) looks?(?![- ]up)",
         "check, scan, poll, free-memory estimate", ("comments",)),
    Word("who(ever|m)?", "the thread that, the code that", CODE),
    Word("nobody('s)?|somebody|everybody|anybody", "no thread, another thread", CODE),
    Word("whoever|nobody('s)?", "the thread that, no thread", ("pages",)),
    Word(f"{THING} who", "that", ("pages",)),
    Word("who (allocate|free|hold|serve|ask|want|wait)(s|d|ed)?|who (freed|held)", "that", ("pages",)),
    Word("to be gone|time comes before memory", "destroyed", ("pages", "comments")),
]
ROOMS = ("base", "config", "include", "pool", "python", "registry", "shim", "simcuda", "tools")


def found(where, text, room=None):
    """(what stands there, what is right instead) of each refused word."""
    for word in WORDS:
        if where in word.where and (room is None or not word.rooms or room in word.rooms):
            rest = re.sub(word.allowed, " ", text, flags=re.IGNORECASE)
            pattern = word.pattern if word.pattern.startswith("^") else rf"\b({word.pattern})\b"
            for match in re.finditer(pattern, rest, re.IGNORECASE):
                yield match[0], word.instead


# --- the product's sources ------------------------------------------------------------------------

SUFFIXES = {".c", ".h", ".S", ".def", ".py", ".js", ""}
STRING = r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\''
LANGUAGES = {"c": re.compile(rf"(/\*.*?\*/|//[^\n]*)|{STRING}", re.DOTALL),
             "python": re.compile(rf'("""(?:.*?)"""|#[^\n]*)|{STRING}', re.DOTALL),
             "shell": re.compile(r"(^#[^\n]*| # [^\n]*)", re.MULTILINE)}


def language(path, text):
    if path.suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
        return "python"
    return "shell" if text.startswith("#!") else "c"


def parts(name):
    """`ca_hit_take` and `hitTake` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").strip().lower()


def split(path, text):
    """Its comments, each in one line, and its names. The strings of options.def are comments: users
    read them."""
    pattern = LANGUAGES[language(path, text)]
    comments = [re.sub(r"\s*\n[\s*#]*", " ", match[1]) for match in pattern.finditer(text) if match[1]]
    if path.name == "options.def":
        text = re.sub(r"^CA_RE(?:NAMED|MOVED).*$", "", text, flags=re.MULTILINE)
        comments += [match[0] for match in pattern.finditer(text) if not match[1]]
    names = set(re.findall(r"[A-Za-z_]\w*", pattern.sub(" ", text)))
    return comments, {name for name in names if not re.fullmatch(r"__\w+__", name)}  # Python's own


def in_room(root, room):
    """Each refused word of a folder: (place, what, instead). A name counts once in the folder."""
    names = {}
    for path in sorted((root / room).rglob("*")):
        if not path.is_file() or path.suffix not in SUFFIXES:
            continue
        place = str(path.relative_to(root))
        comments, used = split(path, path.read_text(errors="replace"))
        for comment in comments:
            for what, instead in found("comments", comment, room):
                yield place, what, instead
        for name in used:
            names.setdefault(name, place)
    for name, place in sorted(names.items()):
        for _, instead in found("names", parts(name), room):
            yield place, name, instead


def count(root, rooms):
    return collections.Counter({room: sum(1 for _ in in_room(root, room)) for room in rooms})


if __name__ == "__main__":
    ROOT = pathlib.Path(__file__).resolve().parent.parent
    for ROOM in ROOMS:
        for PLACE, WHAT, INSTEAD in in_room(ROOT, ROOM):
            print(f"{PLACE}: {WHAT}: {INSTEAD}")
