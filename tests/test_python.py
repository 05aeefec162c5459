"""python/cachealloc: the public interface, phases, and buffers that other libraries take."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

import conftest
import leak_report

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
MODES = [pytest.param(None, id="pool"), pytest.param("backend:off", id="tracking")]

# What the programs share: a consumer of DLPack as its specification has it, written by hand.
PRELUDE = """
import ctypes, gc, os, sys, threading, weakref
import cachealloc

api = ctypes.PyDLL(None)
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
USED = ctypes.create_string_buffer(b"used_dltensor")

class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]

class DLManagedTensor(ctypes.Structure):
    pass

DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManagedTensor))
DLManagedTensor._fields_ = [("tensor", DLTensor), ("manager_ctx", ctypes.c_void_p),
                            ("deleter", DELETER)]

def take(capsule):
    '''The address of a capsule's tensor, which is the taker's from now on.'''
    address = api.PyCapsule_GetPointer(capsule, b"dltensor")
    api.PyCapsule_SetName(capsule, USED)
    return address

class Consumed:
    '''An array that a consumer made of a capsule.'''
    def __init__(self, capsule):
        self.managed = DLManagedTensor.from_address(take(capsule))
    def __del__(self):
        self.managed.deleter(self.managed)

def live():
    stats = cachealloc.stats()
    assert not stats.incomplete
    return stats.live_allocations, stats.live_bytes

def leak(thing):
    ctypes.PyDLL(None).Py_IncRef(ctypes.py_object(thing))

class Index:
    '''What numpy's integers are to ctypes.'''
    def __init__(self, value):
        self.value = value
    def __index__(self):
        return self.value

def refuses(call, *words):
    try:
        made = call()
    except ValueError as error:
        for word in words:
            assert word in str(error), error
    else:
        raise SystemExit(f"{words} was taken: {made}")
"""


def python(run, code, *arguments, env=None, **kwargs):
    """Runs `code` behind the prelude."""
    env = {"PYTHONPATH": conftest.ROOT / "python", "PYTHONDONTWRITEBYTECODE": 1, **(env or {})}
    return run([PYTHON, "-c", PRELUDE + textwrap.dedent(code), *arguments], env=env, **kwargs)


def right(result, out=""):
    """It ended well, said nothing else, and every allocation was freed."""
    assert (result.rc, result.out, result.err) == (0, out, ""), result.err


def test_without_the_library_it_says_so(run):
    result = python(run, """
        assert not cachealloc.preloaded()
        cachealloc.mark("nobody hears")
        with cachealloc.phase("nor this"):
            pass
        for call in (cachealloc.version, cachealloc.stats, cachealloc.trim, cachealloc.dump,
                     lambda: cachealloc.info(1), lambda: cachealloc.empty(1),
                     lambda: cachealloc.alias(1, 2), lambda: cachealloc.register(1, 2),
                     lambda: cachealloc.unregister(1), lambda: cachealloc.is_registered(1),
                     lambda: cachealloc.pin_mode().__enter__()):
            try:
                call()
            except cachealloc.NotPreloadedError as error:
                assert "LD_PRELOAD=/path/to/libcachealloc.so" in str(error)
            else:
                raise SystemExit(f"{call} did not refuse")
    """, preload=False)

    right(result)


def test_importing_it_wakes_nothing(run):
    result = python(run, """
        assert cachealloc.preloaded() and 'libcuda' not in open('/proc/self/maps').read()
    """)

    right(result)


# --- statistics and steering ----------------------------------------------------------------------


def header_fields(name):
    """Of a struct of the header, in order, without its size."""
    header = (conftest.ROOT / "include" / "cachealloc.h").read_text()
    body = re.search(rf"struct {name} {{(.*?)}}", header, re.S)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    body = re.sub(r"\(\*(\w+)\)\(.*?\)", r" \1", body)  # pointers to functions
    return [field.split()[-1].lstrip("*") for field in body.split(";") if field.strip()][1:]


def test_structs_are_those_of_the_header(run):
    result = python(run, """
        print(*cachealloc.Stats._fields)
        print(*[name for name, _ in cachealloc._Stats._fields_][1:])
        print(*[name for name, _ in cachealloc._Info._fields_][1:])
        print(*[name for name, _ in cachealloc._Python._fields_][1:])
    """)

    assert result.out.splitlines() == [" ".join(names) for names in (
        header_fields("cachealloc_stats_s"), header_fields("cachealloc_stats_s"),
        header_fields("cachealloc_info_s"), header_fields("cachealloc_python_s"))]


def test_every_public_function_is_wrapped(run):
    header = (conftest.ROOT / "include" / "cachealloc.h").read_text()
    names = set(re.findall(r"CACHEALLOC_API [^;(]*?(cachealloc_\w+)\(", header))
    assert len(names) > 8
    result = python(run, "print(*cachealloc._SIGNATURES)")

    assert names <= set(result.out.split())


@pytest.mark.parametrize("conf", MODES)
def test_figures_follow_what_happens(run, conf):
    result = python(run, """
        assert cachealloc.version().count(".") == 2
        first = cachealloc.stats()
        assert first.version == 2 and first.incomplete is False
        assert None not in first and live() == (0, 0)
        buffer = cachealloc.empty(12345)
        assert live() == (1, 12345)
        del buffer
        last = cachealloc.stats()
        assert live() == (0, 0) and last.live_peak_bytes >= 12345
        assert last.alloc_calls == first.alloc_calls + 1
        assert last.free_calls == first.free_calls + 1
    """, conf=conf)

    right(result)


FAKE = """
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <errno.h>
const char *cachealloc_version(void) { return "9.9.9"; }
struct stats { size_t size; unsigned version, incomplete; unsigned long long figures[FIELDS]; };
int cachealloc_stats(struct stats *stats)
{
    struct stats now = {.size = stats->size, .version = VERSION, .incomplete = 1};
    size_t size = stats->size;
    for (int i = 0; i < FIELDS; i++)
        now.figures[i] = i + 100;
    memcpy(stats, &now, size < sizeof now ? size : sizeof now);
    if (size > sizeof now)
        memset((char *)stats + sizeof now, 0, size - sizeof now);
    return 0;
}
#if VERSION > 1
int cachealloc_dump(const char *path)
{
    if (path && strcmp(path, "no") == 0)
        return EACCES;
    puts(path ? path : "(null)");
    fflush(stdout);
    return 0;
}
#endif
"""


def fake_library(tmp_path, version, fields):
    """A library of another time: with that version and number of figures."""
    source, library = tmp_path / "fake.c", tmp_path / "libfake.so"
    source.write_text(FAKE)
    subprocess.run(["gcc", "-shared", "-fPIC", f"-DVERSION={version}", f"-DFIELDS={fields}", "-o",
                    library, source], check=True)
    return {"LD_PRELOAD": library}


def test_an_older_library_tells_what_it_knows(run, tmp_path):
    result = python(run, """
        stats = cachealloc.stats()
        assert stats.version == 1 and stats.incomplete is True
        assert stats.alloc_calls == 100 and stats.fence_waits == 112
        assert set(stats[15:]) == {None} and None not in stats[:15]
        cachealloc.mark("nobody hears")
        for call in (cachealloc.dump, cachealloc.trim):
            try:
                call()
            except cachealloc.UnsupportedError as error:
                assert "9.9.9" in str(error) and f"cachealloc_{call.__name__}" in str(error)
            else:
                raise SystemExit(f"{call} did not refuse")
    """, preload=False, env=fake_library(tmp_path, 1, 13))

    right(result)


def test_a_newer_library_tells_what_is_known_here(run, tmp_path):
    result = python(run, """
        stats = cachealloc.stats()
        assert stats.version == 3 and stats.live_allocations == 113
        assert stats.exported_bytes == 100 + len(stats) - 3 and None not in stats
    """, preload=False, env=fake_library(tmp_path, 3, 200))

    right(result)


def test_dump_is_called_where_the_library_has_it(run, tmp_path):
    result = python(run, """
        cachealloc.dump("some/path")
        cachealloc.dump()
        try:
            cachealloc.dump("no")
        except PermissionError as error:
            assert error.filename == "no"
        else:
            raise SystemExit("did not refuse")
    """, preload=False, env=fake_library(tmp_path, 2, 40))

    right(result, "some/path\n(null)\n")


def test_dump_writes_a_report_or_says_that_it_cannot(run, tmp_path):
    result = python(run, """
        buffer = cachealloc.empty(54321)
        try:
            cachealloc.dump(sys.argv[1])
        except cachealloc.UnsupportedError as error:
            assert "cachealloc_dump" in str(error)
            assert not hasattr(ctypes.CDLL(None), "cachealloc_dump")
        else:
            assert "54321 bytes" in open(sys.argv[1]).read()
    """, str(tmp_path / "dump"))

    right(result)


def test_idle_memory_is_given_back_and_pin_mode_keeps_it(run):
    result = python(run, """
        def reserved():
            return cachealloc.stats().reserved_bytes

        class Stop(Exception):
            pass

        del_me = cachealloc.empty(3 << 20)
        held = reserved()
        assert held >= 3 << 20
        del del_me
        try:
            with cachealloc.pin_mode():
                assert cachealloc.trim() == 0 and reserved() == held
                raise Stop
        except Stop:
            pass
        assert cachealloc.trim() == held and reserved() == 0
    """)

    right(result)


def test_a_function_may_make_room(run):
    result = python(run, """
        held = [cachealloc.empty(20 << 20) for _ in range(2)]
        def make_room(*what):
            assert what == (50 << 20, 0, False)
            held.clear()
            return True
        cachealloc.on_oom(make_room)
        buffer = cachealloc.empty(50 << 20)
        assert not held and live() == (1, 50 << 20)
    """, sim="memory:64M")

    right(result)


def test_a_function_that_raises_lets_the_allocation_fail(run):
    result = python(run, """
        held = cachealloc.empty(40 << 20)
        def fails(*what):
            raise ValueError("no room here")
        cachealloc.on_oom(fails)
        for function in (fails, None):
            cachealloc.on_oom(function)
            try:
                cachealloc.empty(50 << 20)
            except MemoryError:
                print("out")
    """, sim="memory:64M")

    assert (result.rc, result.out) == (0, "out\nout\n")
    assert result.err.count("ValueError: no room here") == 1


# --- phases ---------------------------------------------------------------------------------------


def marks_of(result, path):
    assert (result.rc, result.err) == (0, ""), result.err
    report = json.loads(path.read_text(encoding="utf-8"))
    try:
        import jsonschema
    except ImportError:
        return report
    schema = json.loads((conftest.ROOT / "tests" / "report.schema.json").read_text())
    jsonschema.Draft7Validator(schema).validate(report)
    return report


def test_phases_are_marked_with_what_was_live(run, tmp_path):
    path = tmp_path / "report.json"
    result = python(run, """
        kept = cachealloc.empty(1000)
        leak(kept)
        try:
            with cachealloc.phase("load"):
                with cachealloc.phase("weights \\u20ac"):
                    more = cachealloc.empty(5000)
                raise KeyError
        except KeyError:
            pass

        @cachealloc.phase("step")
        def step():
            global more
            del more

        step()
        cachealloc.mark("x" * 200)
        cachealloc.mark("a\\0b")
    """, conf=f"leak_report:{path}")
    report = marks_of(result, path)
    marks = report["marks"]

    assert report["marks_dropped"] == 0
    assert [(mark["name"], mark["live"]) for mark in marks] == [
        ("begin load", 1000), ("begin weights \u20ac", 1000), ("end weights \u20ac", 6000),
        ("end load", 6000), ("begin step", 6000), ("end step", 1000), ("x" * 92 + "...", 1000),
        ("a b", 1000)]
    assert [mark["sequence"] for mark in marks] == [1, 1, 2, 2, 2, 2, 2, 2]
    times = [mark["ns"] for mark in marks]
    assert times == sorted(times) and times[0] > 0


def test_the_last_marks_are_kept_whatever_thread_sets_them(run, tmp_path):
    path = tmp_path / "report.json"
    result = python(run, """
        leak(cachealloc.empty(1000))
        def set_marks(number):
            for i in range(500):
                cachealloc.mark(f"{number} {i}")
        threads = [threading.Thread(target=set_marks, args=(i,)) for i in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    """, conf=f"leak_report:{path}")
    report = marks_of(result, path)

    assert report["marks_dropped"] == 2000 - 1024 and len(report["marks"]) == 1024
    for thread in "0123":
        numbers = [int(mark["name"][2:]) for mark in report["marks"] if mark["name"][0] == thread]
        assert numbers == list(range(500 - len(numbers), 500))
    times = [mark["ns"] for mark in report["marks"]]
    assert times == sorted(times)


# --- single allocations ---------------------------------------------------------------------------


@pytest.mark.parametrize("conf", MODES)
def test_a_pointer_leads_to_its_allocation(run, conf):
    result = python(run, """
        buffer = cachealloc.empty(10000)
        info = cachealloc.info(buffer)
        assert info == cachealloc.info(buffer.ptr) == cachealloc.info(ctypes.c_void_p(buffer.ptr))
        assert (info.kind, info.kind_name) == (cachealloc.KIND_DEVICE, "device")
        assert (info.base, info.bytes, info.names, info.device) == (buffer.ptr, 10000, 1, 0)
        assert info.thread == threading.get_native_id() and info.age == 0
        assert len(info.stack) > 3 and all(info.stack)
        assert cachealloc.info(id(buffer)) is None and cachealloc.info(0) is None
        pooled = info.block_bytes > 0
        assert (cachealloc.info(buffer.ptr + 5000) == info) == pooled
        cachealloc.empty(10)
        assert cachealloc.info(buffer).age == 1
    """, conf=conf)

    right(result)


def test_names_count(run):
    result = python(run, """
        free = ctypes.CDLL("libcudart.so.13").cudaFree
        free.argtypes = [ctypes.c_void_p]
        buffer = cachealloc.empty(10000)
        name = buffer.ptr + 256
        cachealloc.alias(buffer, name)
        assert cachealloc.info(name).names == 2 and cachealloc.info(name).base == buffer.ptr
        for wrong, number in ((lambda: cachealloc.alias(buffer, name), 17),
                              (lambda: cachealloc.alias(1, 2), 2)):
            try:
                wrong()
            except cachealloc.Error as error:
                assert error.errno == number and "alias(" in str(error)
            else:
                raise SystemExit("did not refuse")
        del buffer
        assert live() == (1, 10000)
        assert free(name) == 0 and live() == (0, 0)
    """)

    right(result)


def test_memory_from_elsewhere_has_its_deleter(run):
    result = python(run, """
        runtime = ctypes.CDLL("libcudart.so.13")
        runtime.cudaFree.argtypes = [ctypes.c_void_p]
        memory = ctypes.create_string_buffer(100)
        address = ctypes.addressof(memory)
        calls = []

        cachealloc.register(address, 100, lambda *arguments: calls.append(arguments))
        assert cachealloc.is_registered(address) and live() == (1, 100)
        assert cachealloc.info(address).kind == cachealloc.KIND_EXTERNAL
        try:
            cachealloc.register(address, 100, lambda *arguments: calls.append("twice"))
        except cachealloc.Error as error:
            assert error.errno == 17
        else:
            raise SystemExit("did not refuse")
        assert calls == []
        assert runtime.cudaFree(address) == 0
        assert calls == [(address, 100)] and live() == (0, 0)

        watched = lambda *arguments: calls.append("unregistered")
        dead = weakref.ref(watched)
        cachealloc.register(address, 100, watched)
        del watched
        gc.collect()
        assert dead() is not None
        cachealloc.unregister(address)
        assert dead() is None and len(calls) == 1 and not cachealloc.is_registered(address)
        assert len(cachealloc._on_free) == 0  # nor is what held it kept
        try:
            cachealloc.unregister(address)
        except cachealloc.Error as error:
            assert error.errno == 2 and "not registered" in str(error)
        else:
            raise SystemExit("did not refuse")

        cachealloc.register(address, 50)
        assert live() == (1, 50)
        cachealloc.unregister(address)
    """)

    right(result)


@pytest.mark.skipif(conftest.SANITIZER == "tsan",
                    reason="its run-time keeps such handlers for the very end, behind the report")
def test_no_deleter_runs_after_the_interpreters_end(run):
    result = python(run, """
        cachealloc.empty(1)  # from here on there is a CUDA
        memory = ctypes.create_string_buffer(100)
        leak(memory)
        cachealloc.register(ctypes.addressof(memory), 100, lambda *arguments: print("too late"))
        at_end = ctypes.CDLL("libcudart.so.13").cudaFree
        ctypes.CDLL(None)["__cxa_atexit"](ctypes.cast(at_end, ctypes.c_void_p),
                                          ctypes.c_void_p(ctypes.addressof(memory)), None)
    """)

    right(result)


def test_a_size_that_c_has_no_room_for_is_refused(run):
    """ctypes cuts it off: a buffer would say that it has bytes that were never allocated."""
    result = python(run, """
        over = 1 << 64
        for call, shown in ((lambda: cachealloc.empty(over + 4096), over + 4096),
                            (lambda: cachealloc.empty(shape=(1 << 33, 1 << 33)), 1 << 66),
                            (lambda: cachealloc.empty(-1), -1),
                            (lambda: cachealloc.Buffer(4096, over), over),
                            (lambda: cachealloc.Buffer(4096, -1), -1),
                            (lambda: cachealloc.register(4096, over + 5), over + 5),
                            (lambda: cachealloc.register(4096, -5), -5)):
            refuses(call, f"size {shown}", f"0 to {over - 1}")
        for call in (cachealloc.info, cachealloc.is_registered, lambda at: cachealloc.alias(at, 1),
                     lambda at: cachealloc.register(at, 5), lambda at: cachealloc.Buffer(at, 5)):
            refuses(lambda: call(over + 4096), f"{over + 4096:#x}", f"0 to {over - 1:#x}")
        assert live() == (0, 0) and cachealloc.stats().alloc_calls == 0
    """)

    right(result)


def test_sizes_and_offsets_may_be_numpys(run):
    result = python(run, """
        buffer = cachealloc.empty(Index(4096))
        assert live() == (1, 4096)
        view = buffer.view(offset=Index(64))
        assert (view.ptr, view.nbytes) == (buffer.ptr + 64, 4032) and type(view.ptr) is int
        other = cachealloc.Buffer(Index(buffer.ptr), Index(8))
        assert (other.ptr, other.nbytes) == (buffer.ptr, 8)
        cachealloc.register(0x1000, Index(5))
        cachealloc.unregister(0x1000)
    """)

    right(result)


def test_a_path_with_a_null_byte_is_refused(run, tmp_path):
    """C would write to what stands before it."""
    result = python(run, """
        for call in (cachealloc.dump, cachealloc.report_journal,
                     lambda path: cachealloc.report_journal("journal", path)):
            refuses(lambda: call("start\\0end"), repr("start\\0end"), "null byte")
    """, cwd=tmp_path)

    right(result)
    assert list(tmp_path.iterdir()) == []


# --- buffers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", MODES)
def test_arrays_tell_what_they_are(run, conf):
    result = python(run, """
        buffer = cachealloc.empty(shape=(3, 4), dtype="float32")
        assert live() == (1, 48)
        assert (buffer.shape, buffer.dtype, buffer.nbytes) == ((3, 4), "float32", 48)
        assert buffer.__cuda_array_interface__ == {
            "shape": (3, 4), "typestr": "<f4", "data": (buffer.ptr, False), "version": 3,
            "strides": None, "stream": None}
        assert buffer.__dlpack_device__() == (2, 0)
        managed = DLManagedTensor.from_address(take(buffer.__dlpack__()))
        tensor = managed.tensor
        assert (tensor.data, tensor.device_type, tensor.device_id) == (buffer.ptr, 2, 0)
        assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (2, 32, 1, 0)
        assert (tensor.ndim, tensor.shape[:2], tensor.strides[:2]) == (2, [3, 4], [4, 1])
        managed.deleter(managed)

        view = buffer.view(dtype="<i8", offset=16)
        assert (view.ptr, view.shape, view.dtype) == (buffer.ptr + 16, (4,), "int64")
        inner = view.view((2, 2), offset=0).view(3, "bool", 1)
        assert (inner.ptr, inner.shape) == (buffer.ptr + 17, (3,))
        assert cachealloc.empty(100).shape == (100,)
        class float16:
            pass
        class Named:
            def __str__(self):
                return "torch.complex64"
        assert [cachealloc.empty(8, dtype=dtype).dtype for dtype in (
            float16, Named(), "|b1", "<u4", "bfloat16")] == [
            "float16", "complex64", "bool", "uint32", "bfloat16"]
        other = cachealloc.empty(8, dtype="bfloat16")
        assert cachealloc.info(other).base == other.ptr
        del other
        nothing = cachealloc.empty(0)
        assert nothing.__cuda_array_interface__["data"] == (0, False)
        assert not hasattr(cachealloc.empty(4, dtype="bfloat16"), "__cuda_array_interface__")
        for wrong in (lambda: cachealloc.empty(10, shape=(11,)), lambda: cachealloc.empty(-1),
                      lambda: cachealloc.empty(), lambda: cachealloc.empty(1, dtype="string"),
                      lambda: buffer.view((13,)), lambda: buffer.view(offset=49),
                      lambda: buffer.view(offset=-1), lambda: buffer.view((-1,)),
                      lambda: buffer.__dlpack__(stream=0)):
            try:
                wrong()
            except ValueError as error:
                assert str(error)
            else:
                raise SystemExit("did not refuse")
        for wrong in (dict(copy=True), dict(dl_device=(1, 0)), dict(dl_device=(2, 1))):
            try:
                buffer.__dlpack__(**wrong)
            except BufferError:
                pass
            else:
                raise SystemExit(f"took {wrong}")
        Consumed(buffer.__dlpack__(stream=1, max_version=(1, 1), dl_device=(2, 0), copy=False))
        del buffer, view, inner, wrong, nothing
        gc.collect()
        assert live() == (0, 0), live()
    """, conf=conf)

    right(result)


@pytest.mark.parametrize("order", ["buffer view array", "view array buffer", "array buffer view",
                                   "array view buffer", "buffer array view", "view buffer array"])
def test_the_memory_goes_with_the_last_view_in_any_order(run, order):
    result = python(run, """
        buffer = cachealloc.empty(4096)
        things = {"buffer": buffer, "view": buffer.view(dtype="int32", offset=8),
                  "array": Consumed(buffer.__dlpack__())}
        del buffer
        order = sys.argv[1].split()
        for name in order:
            assert live() == (1, 4096)
            freed = cachealloc.stats().free_calls
            del things[name]
        assert live() == (0, 0) and cachealloc.stats().free_calls == freed + 1
        assert cachealloc.stats().wrong_frees == 0
    """, order)

    right(result)


def test_a_capsule_that_nobody_takes_frees_once(run):
    result = python(run, """
        buffer = cachealloc.empty(4096)
        capsule = buffer.__dlpack__()
        del buffer
        assert live() == (1, 4096)
        del capsule
        assert live() == (0, 0)
        buffer = cachealloc.empty(4096)
        for i in range(100):
            buffer.__dlpack__()
        assert live() == (1, 4096)
        del buffer
        assert live() == (0, 0)
        stats = cachealloc.stats()
        assert (stats.free_calls, stats.wrong_frees) == (2, 0)
    """)

    right(result)


def test_a_capsule_is_taken_once(run):
    result = python(run, """
        buffer = cachealloc.empty(4096)
        capsule = buffer.__dlpack__()
        del buffer
        array = Consumed(capsule)
        try:
            take(capsule)
        except ValueError as error:
            assert "incorrect name" in str(error)
        else:
            raise SystemExit("taken twice")
        del capsule
        assert live() == (1, 4096)
        del array
        assert live() == (0, 0)
        capsule = cachealloc.empty(100).__dlpack__()
        del_first = Consumed(capsule)
        del del_first
        assert live() == (0, 0)
        del capsule
        assert (cachealloc.stats().free_calls, cachealloc.stats().wrong_frees) == (2, 0)
    """)

    right(result)


def test_two_arrays_of_one_buffer_are_independent(run):
    result = python(run, """
        buffer = cachealloc.empty(4096)
        one, two = Consumed(buffer.__dlpack__()), Consumed(buffer.view(offset=64).__dlpack__())
        assert two.managed.tensor.data == one.managed.tensor.data + 64
        del buffer, one
        assert live() == (1, 4096)
        del two
        assert live() == (0, 0)
    """)

    right(result)


def test_exceptions_on_their_way_survive_a_capsules_end(run):
    result = python(run, """
        for thing in (lambda: cachealloc.empty(100).__dlpack__(),
                      lambda: Consumed(cachealloc.empty(100).__dlpack__())):
            try:
                int(thing())
            except TypeError as error:
                assert "int()" in str(error)
            assert live() == (0, 0)
    """)

    right(result)


def test_a_deleter_may_run_in_any_thread_and_without_the_interpreters_lock(run, program):
    result = python(run, """
        plugin = ctypes.CDLL(sys.argv[1])
        plugin.plugin_delete.argtypes = [ctypes.c_void_p]
        for i in range(20):
            plugin.plugin_delete(take(cachealloc.empty(1000).__dlpack__()))
        assert live() == (0, 0) and cachealloc.stats().free_calls == 20
    """, str(program("plugin_tensors.so")))

    right(result)


def test_a_deleter_after_the_interpreters_end_does_nothing(run, program):
    result = python(run, """
        plugin = ctypes.CDLL(sys.argv[1])
        plugin.plugin_keep.argtypes = [ctypes.c_void_p]
        plugin.plugin_keep(take(cachealloc.empty(1000).__dlpack__()))
    """, str(program("plugin_tensors.so")))

    assert (result.rc, result.out) == (0, "")
    assert leak_report.parse(result.err).totals == {(0, "device"): (1000, 1)}


@pytest.mark.parametrize("conf", MODES)
def test_threads_share_buffers(run, conf):
    result = python(run, """
        wrong = []
        shared = cachealloc.empty(777)

        def work():
            try:
                for i in range(100):
                    buffer = cachealloc.empty(64 + i, shape=(i + 1,), dtype="uint8")
                    arrays = [Consumed(buffer.__dlpack__()), Consumed(shared.__dlpack__())]
                    shared.view(offset=i).__dlpack__()
                    assert cachealloc.info(buffer).bytes == 64 + i
                    del buffer
                    assert cachealloc.info(arrays[0].managed.tensor.data).bytes == 64 + i
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for i in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not wrong, wrong
        assert live() == (1, 777)
        del shared
        stats = cachealloc.stats()
        assert live() == (0, 0) and (stats.free_calls, stats.wrong_frees) == (801, 0)
    """, conf=conf)

    right(result)


def test_cycles_are_collected(run):
    result = python(run, """
        gc.disable()
        class Node:
            pass
        for thing in (cachealloc.empty(100), cachealloc.empty(100).__dlpack__(),
                      Consumed(cachealloc.empty(100).__dlpack__())):
            node = Node()
            node.self, node.thing = node, thing
        del node, thing
        assert live() == (3, 300), live()
        gc.collect()
        assert live() == (0, 0)
        owner = Node()
        owner.buffer = cachealloc.Buffer(1 << 40, 100, owner=owner, device=0)
        owner.view = owner.buffer.view()
        dead = weakref.ref(owner)
        del owner
        gc.collect()
        assert dead() is None
    """)

    right(result)


def test_an_owner_lives_as_long_as_the_last_view(run):
    result = python(run, """
        class Owner:
            pass
        owner = Owner()
        dead = weakref.ref(owner)
        buffer = cachealloc.Buffer(1 << 40, 4096, owner=owner, dtype="int16")
        assert buffer.owner is owner and buffer.shape == (2048,)
        del owner
        try:
            buffer.__dlpack__()
        except BufferError as error:
            assert "device=" in str(error)
        else:
            raise SystemExit("took a guess")
        buffer = cachealloc.Buffer(1 << 40, 4096, owner=buffer.owner, device=3)
        array = Consumed(buffer.view(offset=16).__dlpack__())
        assert (array.managed.tensor.device_id, array.managed.tensor.data) == (3, (1 << 40) + 16)
        del buffer
        assert dead() is not None
        del array
        assert dead() is None and live() == (0, 0)
        whole = cachealloc.empty(1000)
        part = cachealloc.Buffer(whole.ptr + 100, 10, owner=whole)
        assert part.__dlpack_device__() == (2, 0)
        del whole
        assert live() == (1, 1000)
        del part
        assert live() == (0, 0)
    """)

    right(result)


def test_what_is_alive_at_the_end_is_reported_or_freed_by_the_interpreter(run):
    freed = python(run, "buffer = cachealloc.empty(1000); capsule = buffer.__dlpack__()")
    leaked = python(run, "leak(cachealloc.empty(2000).__dlpack__())")

    right(freed)
    assert leaked.rc == 0
    assert leak_report.parse(leaked.err).totals == {(0, "device"): (2000, 1)}


def test_a_child_frees_nothing_of_its_parents(run):
    result = python(run, """
        buffer = cachealloc.empty(1000)
        child = os.fork()
        if child == 0:
            calls = []
            buffer._memory.free = calls.append
            del buffer
            os._exit(7 if calls else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert live() == (1, 1000)
    """)

    right(result)


def test_memory_that_is_not_there_is_an_exception(run):
    result = python(run, """
        small = cachealloc.empty(1000)
        try:
            cachealloc.empty(1 << 40)
        except MemoryError as error:
            assert f"of {1 << 40} bytes: error 2, out of memory" in str(error)
        else:
            raise SystemExit("got it")
        assert ctypes.CDLL("libcudart.so.13").cudaGetLastError() == 0
        assert live() == (1, 1000)
    """, sim="memory:1G")

    right(result)


def test_without_a_runtime_it_says_so(run):
    result = python(run, """
        cachealloc._RUNTIMES = ("libno-such.so",)
        try:
            cachealloc.empty(1000)
        except cachealloc.CudaError as error:
            assert error.code == 302 and "no CUDA runtime was found" in str(error)
        else:
            raise SystemExit("got it")
    """)

    right(result)


def test_a_machine_without_a_driver_is_an_exception(run, build, tmp_path):
    for name in ("libcudart.so.13", "libcudart.so"):
        (tmp_path / name).symlink_to(build / "simcuda" / "libcudart.so.13")
    result = python(run, """
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            pass
        else:
            print("this machine has a driver")
            raise SystemExit(77)
        try:
            cachealloc.empty(1000)
        except cachealloc.CudaError as error:
            assert error.code == 35 and "driver version" in str(error), error
        else:
            raise SystemExit("got it")
    """, env={"LD_LIBRARY_PATH": tmp_path})

    right(result)


def test_numpy_refuses_it_cleanly(run):
    result = python(run, """
        try:
            import numpy
        except ImportError:
            print("numpy is not there")
            raise SystemExit(77)
        buffer = cachealloc.empty(1000)
        try:
            numpy.from_dlpack(buffer)
        except (RuntimeError, BufferError):
            pass
        else:
            raise SystemExit("numpy took it")
        del buffer
        assert live() == (0, 0)
    """)

    right(result)


def test_the_example_of_the_page_runs(run):
    page = (conftest.ROOT / "docs/api.md").read_text()
    example, = re.findall(r"```python\n(.*?)```", page, re.S)
    result = python(run, example)

    assert (result.rc, result.err) == (0, "")
    assert result.out == "20971520 bytes are live, 0 after that\n"
