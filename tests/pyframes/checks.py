"""checks.py LIBRARY CHECK...: stacks as the library captures them beside sys._getframe, in this
interpreter, 3.8 or later. Prints a line for each that is wrong, then `N checks`."""

import atexit
import ctypes
import gc
import json
import os
import sys
import threading

lib = ctypes.CDLL(sys.argv[1])      # without the interpreter's lock
held = ctypes.PyDLL(sys.argv[1])    # with it
for each in (lib, held):
    each.frames_capture.restype = each.frames_repeat.restype = ctypes.c_uint32
    each.frames_call.restype = ctypes.c_uint32
    each.frames_time.restype = each.frames_once.restype = ctypes.c_double
    each.frames_edge.restype = ctypes.c_size_t
    each.frames_of_code.argtypes = [ctypes.c_size_t]
PLACES = sys.version_info >= (3, 10)    # on the C stack
DEPTH = 128
FIELDS = 27     # of a layout
buffer = ctypes.create_string_buffer(1 << 17)
seen = []
wrong = []
checks = 0


def frames_of(ident):
    """All, native ones as their module."""
    held.frames_text(ident, buffer, len(buffer))
    return [tuple(line.split(b"\t")) for line in buffer.value.splitlines()]


def pythons(ident):
    return [frame for frame in frames_of(ident) if len(frame) == 3]


def expected(frame):
    found = []
    while frame is not None and len(found) < DEPTH:
        code = frame.f_code
        found.append((getattr(code, "co_qualname", code.co_name).encode(),
                      code.co_filename.encode("utf-8", "surrogateescape"),
                      b"%d" % frame.f_lineno))
        frame = frame.f_back
    return found


def check(ident, should):
    global checks
    checks += 1
    got = pythons(ident)
    if got != should:
        wrong.append("%r should be %r" % (got[:6], should[:6]))
    elif len(seen) < 20000:
        seen.append((ident, should))


def here(way):
    check(*(way.frames_capture(), expected(sys._getframe())))


class Block:
    def forward(self, way):
        check(way.frames_capture(), expected(sys._getframe()))

    @property
    def value(self):
        here(lib)

    def __del__(self):
        here(held)


class Made:
    """The interpreter calls its __init__ in line, with a frame of its own beneath, from some calls
    on (3.12 and later)."""

    def __init__(self, way):
        check(way.frames_capture(), expected(sys._getframe()))


def make_many(way):
    for _ in range(100):
        Made(way)


def deep(levels, way):
    if levels:
        return deep(levels - 1, way)
    return here(way)


def numbers(way):
    for i in range(3):
        here(way)
        yield i


def delegate(way):
    yield from numbers(way)


async def step(way):
    here(way)


async def steps(way):
    await step(way)
    here(way)


def run(coroutine):
    try:
        coroutine.send(None)
    except StopIteration:
        pass


def forms():
    """Every form of a call; each twice, so that it is known again."""
    callback = ctypes.CFUNCTYPE(ctypes.c_uint32)(lambda: here(lib) or 0)
    by_callback = ctypes.CFUNCTYPE(ctypes.c_uint32)(lambda: lib.frames_call(callback))
    text = "def función(way):\n\n    here(way)\n"
    scope = {"here": here}
    exec(compile(text, "/tmp/ñ\u4e16\U0001f600\udcff.py", "exec"), scope)
    latin = {"here": here}
    exec(compile(text.replace("función", "f"), "/tmp/latin-\xe9.py", "exec"), latin)
    for way in (lib, held):
        for _ in range(2):
            here(way)
            block = Block()
            block.forward(way)
            block.value
            del block
            for levels in (1, 7, 40, 300):
                deep(levels, way)
            make_many(way)
            list(numbers(way))
            list(delegate(way))
            [here(way) for _ in range(2)]
            sorted([2, 1], key=lambda one: here(way) or one)
            run(steps(way))
            scope["función"](way)
            latin["f"](way)
            lib.frames_call(callback)
            lib.frames_call(by_callback)
            exec("here(way)", {"here": here, "way": way})
            eval("here(way)", {"here": here, "way": way})
            type("Made", (), {"of": here(way)})
            try:
                raise ValueError
            except ValueError:
                here(way)
            finally:
                here(way)


def long_lines():
    """Lines far apart, and backwards: what line tables have entries of many bytes for."""
    for gap in (1, 130, 300, 5000):
        way = (lib, held)[gap > 200]
        text = "def far(way):\n" + "\n" * gap + "    here(way)\n" + "    x = 1\n" * 40 + \
               "    (here\n" + "\n" * gap + "     (way))\n    here(way)\n"
        scope = {"here": here}
        exec(compile(text, "far%d.py" % gap, "exec"), scope)
        scope["far"](way)


def alternating():
    """Code objects in one another's place, at two addresses in turns."""
    for number in range(600):
        text = "def cell_%d(way):\n%s    here(way)\n" % (number, "\n" * (number % 3))
        scope = {"here": here}
        code = compile(text, "<cell %d>" % (number % 5), "exec")
        exec(code, scope)
        scope["cell_%d" % number](lib)
        del code, scope
        if number % 2:
            gc.collect(0)


def same_lines():
    """Made anew with the same names at the same addresses: other lines alone."""
    for number in range(300):
        scope = {"here": here}
        exec(compile("\n" * (number % 7) + "def cell(way): here(way)\n", "<cell>", "exec"), scope)
        scope["cell"](held)


PADS = (0, 30, 60, 180)     # some so long that nothing else comes into the place of a name


def called_by(change, times):
    """A function that has another code each time, in the place of the one before the last. Deeper
    and deeper, since of stacks with one innermost frame so many alone are known again."""
    scope = {"deep": deep}
    exec(compile("def cell(levels, way): deep(levels, way)\n", "renamed.py", "exec"), scope)
    cell, base = scope["cell"], scope["cell"].__code__
    for number in range(times):
        cell.__code__ = base.replace(**change(number))
        cell(number // 25, (lib, held)[number // 2 % 2])


def renamed():
    """Names of one length in one another's place, which nothing has hashed."""
    name = "co_qualname" if hasattr(here.__code__, "co_qualname") else "co_name"
    for pad in PADS:
        called_by(lambda number: {name: "Block%03d%s.cell" % (number, "_" * pad)}, 200)


def refiled():
    """The same of the files' names: all else of a code is as it was."""
    for pad in PADS:
        called_by(lambda number: {"co_filename": "/%03d%s/x.py" % (number, "_" * pad)}, 200)


def relined():
    """The same of the first lines, as in a file that was changed and read again."""
    called_by(lambda number: {"co_firstlineno": number % 9 + 1}, 200)


def twins():
    """Codes that say the same, at addresses of their own, in turns, by several ways; and made anew."""
    def one(cell, way):
        cell(way)

    def two(cell, way):
        one(cell, way)

    for number in range(60):
        cells = []
        for _ in range(3):
            scope = {"here": here}
            text = "\n" * (number // 20) + "def twin(way): here(way)\n"
            exec(compile(text, "twin.py", "exec"), scope)
            cells.append(scope["twin"])
        for call in (one, two, one):
            for cell in cells:
                call(cell, held)


def outer():
    """One innermost frame at one place, called from others."""
    def inner():
        here(lib)

    def one():
        inner()

    def two():
        inner()

    for _ in range(40):
        for call in (one, two, inner, lambda: one(), lambda: two()):
            call()


def threads():
    def work():
        for _ in range(30):
            here(lib)
            deep(5, held)
    started = [threading.Thread(target=work) for _ in range(4)]
    for one in started:
        one.start()
    for one in started:
        one.join()


def no_state():
    """A thread of the program's own has no Python frames, nor has one of ctypes' before a call."""
    libc = ctypes.CDLL(None)
    thread = ctypes.c_size_t()
    assert libc.pthread_create(ctypes.byref(thread), None, lib.frames_capture, None) == 0
    assert libc.pthread_join(thread, ctypes.byref(ctypes.c_size_t(0))) == 0
    for number in range(1, lib.frames_stacks() + 1):
        if any(frame[0] == b"?" * 2 for frame in frames_of(number)):
            wrong.append("a frame that nothing is known of")


def in_turns():
    """Native frames between Python ones, where they belong."""
    def inner():
        return lib.frames_capture()

    def middle():
        return lib.frames_call(ctypes.CFUNCTYPE(ctypes.c_uint32)(inner))

    def outermost():
        return lib.frames_call(ctypes.CFUNCTYPE(ctypes.c_uint32)(middle))

    global checks
    checks += 1
    library = b"@" + os.path.basename(os.path.realpath(sys.argv[1])).encode()
    wanted = {b"inner", b"middle", b"outermost", library}
    names = [frame[0] if len(frame) == 1 else frame[0].split(b".")[-1]
             for frame in frames_of(outermost())]
    got = [name for name in names if name in wanted]
    should = [library, b"inner", library, b"middle", library, b"outermost"]
    if PLACES and got != should:
        wrong.append("in turns: %r" % (got,))
    if any(name.startswith((b"@libpython", b"@python")) for name in names):
        wrong.append("frames of the interpreter: %r" % (names,))


def forked():
    """A child whose parent had captured nothing yet: see main."""
    pid = os.fork()
    if pid == 0:
        here(lib)
        forms()
        os._exit(len(wrong))
    if os.waitpid(pid, 0)[1] != 0:
        wrong.append("in the child")


def shifted():
    """Layouts with a wrong field: no crash, and no wrong name where it is not found out. Inner frames
    may be missing: another frame is taken for the innermost."""
    global checks
    amounts = [8, -8, 16, 4, -4, 24, -16, 40, 64, 2, 1, 32]
    here(lib)
    for seed in range(int(os.environ.get("SEEDS", 240))):
        checks += 1
        field, by = seed % FIELDS, amounts[seed // FIELDS % len(amounts)]
        result, should = lib.frames_shifted(field, by, buffer, len(buffer)), expected(sys._getframe())
        got = [tuple(line.split(b"\t")) for line in buffer.value.splitlines()]
        if result == 1 and got and got != should[-len(got):]:
            wrong.append("field %d by %d: %r should be %r" % (field, by, got[:9], should[:3]))


def versions():
    global checks
    for minor in range(8, 16):
        checks += 1
        found, should = lib.frames_of_version(minor, buffer, len(buffer)), expected(sys._getframe())
        got = [tuple(line.split(b"\t")) for line in buffer.value.splitlines()]
        if found == 1 and got != should:
            wrong.append("by the layout of 3.%d: %r" % (minor, got[:3]))


def dead_codes():
    """Addresses of code objects that are no more, of other objects, of the end of what is mapped."""
    global checks
    for number in range(200):
        code = compile("x = %d" % number, "dead", "exec")
        address = id(code)
        del code
        gc.collect(0)
        lib.frames_of_code(address)
        checks += 1
    for one in (None, 7, "text", b"bytes", (1, 2), len, int, lib, object()):
        checks += 1
        if lib.frames_of_code(id(one)) == 1:
            wrong.append("%r was taken for a code" % (one,))
    for bytes_left in (8, 16, 64, 120, 200):
        checks += 1
        if lib.frames_of_code(lib.frames_edge(bytes_left)) == 1:
            wrong.append("what is not there was taken for a code")


SUBINTERPRETER = """
import ctypes
lib = ctypes.CDLL(%r)
lib.frames_capture.restype = ctypes.c_uint32
def of_%03d():
    return lib.frames_capture()
ctypes.c_uint32.from_address(%d).value = of_%03d()
"""


def subinterpreters():
    """One after another, of which the next ones have codes at the addresses of those before, with the
    same versions: what a thread remembers of them is of one alone."""
    global checks
    if sys.version_info >= (3, 13):
        from _interpreters import create, destroy, exec as run_in
        kind = {"config": "legacy"}
    else:
        from _xxsubinterpreters import create, destroy, run_string as run_in
        kind = {"isolated": False}
    ident = ctypes.c_uint32()
    for number in range(30):
        one = create(**kind)
        run_in(one, SUBINTERPRETER % (sys.argv[1], number, ctypes.addressof(ident), number))
        destroy(one)
        checks += 1
        got, should = pythons(ident.value)[:1], [(b"of_%03d" % number, b"<string>", b"6")]
        if got != should:
            wrong.append("%r should be %r" % (got, should))


class AtEnd:
    """Lives until the interpreter takes its modules apart."""

    def __init__(self):
        self.lib, self.frames_of, self.say = lib, frames_of, os.write

    def __del__(self):
        got = [one for one in self.frames_of(self.lib.frames_capture()) if len(one) == 3]
        self.say(1, b"at the end: %d\n" % len(got))


def ending():
    """Threads of which some capture on while the interpreter ends; `at the end` has none."""
    import builtins
    builtins.kept = AtEnd()

    def work():
        while True:
            lib.frames_capture()
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    here(lib)


def repeat():
    """For what counts instructions: 5,000 captures with 16 Python frames."""
    def down(levels):
        return down(levels - 1) if levels else held.frames_repeat(5000)
    down(12)


def speed():
    """Nanoseconds of a capture with 16 Python frames: the same again, a new one of known code, and
    one of very many again."""
    def down(levels):
        if levels:
            return down(levels - 1)
        return held.frames_time(20000)

    def either(way, levels):
        if levels == 0:
            return held.frames_once()
        if way & 1:
            return either(way >> 1, levels - 1)
        return either(way >> 1, levels - 1)
    new = sorted(either(way, 12) for way in range(4096))
    known = sorted(either(way, 12) for way in range(4096))
    print(json.dumps({"same": down(12), "new": new[2048], "one_of_4096": known[2048]}))


def main():
    lib.frames_start(int(os.environ.get("CHOICE", "0")), DEPTH, 16 if "speed" in sys.argv else 40)
    for name in sys.argv[2:]:
        globals()[name]()
    for ident, should in seen:      # as they were, whatever has died since
        if pythons(ident) != should:
            wrong.append("later: %r should be %r" % (pythons(ident)[:3], should[:3]))
    for line in wrong[:5]:
        print("wrong:", line)
    print("%d wrong of %d checks, %d stacks" % (len(wrong), checks, lib.frames_stacks()), flush=True)


@atexit.register
def at_exit():
    here(lib)
    if wrong:
        print("wrong at exit:", wrong[-1], flush=True)


main()
