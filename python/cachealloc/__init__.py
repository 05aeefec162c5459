"""libcachealloc.so from Python, by ctypes: it needs nothing but the standard library.

The library must be preloaded: LD_PRELOAD=libcachealloc.so python3 program.py. This module can be
imported without it: preloaded() is then false, mark() and phase() do nothing, library_path() says
where it lies, and everything else raises NotPreloadedError. cachealloc.torch, .cupy, .numba and
.rmm make it the allocator of those libraries, and open it where it is not preloaded: it then serves
them alone, and nothing else of the process is seen.

    import cachealloc

    with cachealloc.phase("load"):                  # named in JSON reports
        weights = cachealloc.empty(1 << 20, shape=(512, 512), dtype="float32")
    print(cachealloc.stats().live_bytes)
    tensor = torch.from_dlpack(weights)             # or cupy.asarray(weights)

Sizes are bytes. Every function may be called from any thread. What include/cachealloc.h says of a
function holds here too.
"""

import contextlib
import ctypes
import errno
import functools
import operator
import os
import threading
import traceback
import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from ._files import library_path

__all__ = ["Buffer", "CudaError", "Error", "Info", "NotPreloadedError", "Stats", "UnsupportedError",
           "alias", "allocate", "dump", "empty", "free", "info", "is_registered", "library_path",
           "mark", "on_oom", "open_library", "phase", "pin_mode", "preloaded", "register",
           "report_journal", "set_pin_mode", "stats", "trim", "unregister", "version"]


class Error(RuntimeError):
    """The library refused something; `errno` is the reason that it gave, where it gave one."""

    def __init__(self, message: str, number: Optional[int] = None):
        super().__init__(message)
        self.errno = number


class NotPreloadedError(Error):
    """This process runs without libcachealloc.so."""


class UnsupportedError(Error):
    """The preloaded library is older than what was asked for."""


class CudaError(Error):
    """A call of the CUDA runtime failed; `code` is its cudaError_t."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


# --- the library ----------------------------------------------------------------------------------

_DELETER = ctypes.c_void_p
_OOM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_SIGNATURES = {
    "cachealloc_version": (ctypes.c_char_p,),
    "cachealloc_stats": (ctypes.c_int, ctypes.c_void_p),
    "cachealloc_trim": (ctypes.c_size_t,),
    "cachealloc_set_pin_mode": (ctypes.c_int, ctypes.c_int),
    "cachealloc_dump": (ctypes.c_int, ctypes.c_char_p),
    "cachealloc_report_journal": (ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p),
    "cachealloc_on_oom": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    "cachealloc_mark": (None, ctypes.c_char_p),
    "cachealloc_info": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    "cachealloc_alias": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    "cachealloc_register": (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, _DELETER,
                            ctypes.c_void_p),
    "cachealloc_unregister": (ctypes.c_int, ctypes.c_void_p),
    "cachealloc_is_registered": (ctypes.c_int, ctypes.c_void_p),
    "cachealloc_python": (ctypes.c_int, ctypes.c_void_p),
    "cachealloc_alloc": (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int,
                         ctypes.c_void_p),
    "cachealloc_free": (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                        ctypes.c_void_p),
    "cachealloc_record_stream": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    # Their addresses alone are used: PyTorch calls them.
    "cachealloc_torch_on_refusal": (None, ctypes.c_void_p),
    "cachealloc_torch_alloc": (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p),
    "cachealloc_torch_free": (None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int,
                              ctypes.c_void_p),
    "cachealloc_torch_record_stream": (None, ctypes.c_void_p, ctypes.c_void_p),
    "cachealloc_torch_begin_pool": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64,
                                    ctypes.c_void_p),
    "cachealloc_torch_end_pool": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
    "cachealloc_torch_release_pool": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
    "cudaMalloc": (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t),
    "cudaFree": (ctypes.c_int, ctypes.c_void_p),
}


class _DlInfo(ctypes.Structure):
    _fields_ = [("path", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]


_opened: List[ctypes.CDLL] = []  # by open_library


@functools.lru_cache(maxsize=None)
def _library() -> Optional[ctypes.CDLL]:
    """The library by its own handle, which leads to its cudaMalloc too; or None."""
    return _preloaded_library() or (_opened[0] if _opened else None)


@functools.lru_cache(maxsize=None)
def _preloaded_library() -> Optional[ctypes.CDLL]:
    process = ctypes.CDLL(None)
    try:
        anchor = ctypes.cast(process.cachealloc_version, ctypes.c_void_p)
    except AttributeError:
        return None
    found = _DlInfo()
    process.dladdr.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    if not process.dladdr(anchor, ctypes.byref(found)):
        return process
    try:
        return ctypes.CDLL(os.fsdecode(found.path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return process


@functools.lru_cache(maxsize=None)
def _function(name: str) -> Callable[..., Any]:
    library = _library()
    if library is None:
        raise NotPreloadedError("libcachealloc.so is not preloaded: start this program by "
                                "cachealloc run, or with LD_PRELOAD=/path/to/libcachealloc.so")
    try:
        function = library[name]  # an object of its own, unlike library.NAME
    except AttributeError:
        raise UnsupportedError(f"the preloaded libcachealloc.so, {version()}, has no {name}: "
                               "it takes a newer one") from None
    function.restype, *function.argtypes = _SIGNATURES[name]
    return function


_REASONS = {errno.EINVAL: "an argument is not valid", errno.ENOMEM: "no host memory",
            errno.ENOENT: "no live allocation or name begins there",
            errno.EEXIST: "it is a live allocation or name already",
            errno.EBUSY: "it is in use",
            errno.ENOTSUP: "the library serves nothing in this process"}


_MOST = ctypes.c_size_t(-1).value


def _check(what: str, code: int, reason: Optional[str] = None) -> None:
    if code:  # no variable holds what is raised: it would hold the caller's buffers in a cycle
        raise Error(f"{what}: {reason or _REASONS.get(code) or os.strerror(code)}", code)


def _size(size: Any) -> int:
    """An int, or numpy's equivalent. ctypes would cut off more than 64 bits."""
    number = operator.index(size)
    if not 0 <= number <= _MOST:
        raise ValueError(f"size {number}: accepted is 0 to {_MOST}")
    return number


def _address(pointer: Any) -> int:
    """The address that an int, a ctypes pointer, a Buffer or another array on the device has."""
    if isinstance(pointer, Buffer):
        return pointer.ptr
    interface = getattr(pointer, "__cuda_array_interface__", None)
    if interface is not None:
        return interface["data"][0]
    try:
        address = operator.index(pointer)
    except TypeError:
        return ctypes.cast(pointer, ctypes.c_void_p).value or 0
    if not 0 <= address <= _MOST:
        raise ValueError(f"address {address:#x}: accepted is 0 to {_MOST:#x}")
    return address


def preloaded() -> bool:
    """Whether the library is preloaded (or linked), so that it serves the whole process."""
    return _preloaded_library() is not None


def open_library() -> str:
    """Opens the library of library_path() where none is preloaded; the path of the one that serves.
    What the process allocates by other calls than allocate() is then not seen, and not in its
    reports."""
    if _library() is None:
        path = "libcachealloc.so"
        try:
            path = library_path()
            library = ctypes.CDLL(path)
        except FileNotFoundError as error:
            raise Error(str(error)) from None
        except OSError as error:  # the loader's; most have the path
            raise Error(str(error) if path in str(error) else f"{path}: {error}") from None
        if not hasattr(library, "cachealloc_alloc"):
            raise Error(f"{path} has no cachealloc_alloc: it is not libcachealloc.so, or an older "
                        "one")
        _opened.append(library)
        for cached in (_library, _function, _marker):
            cached.cache_clear()
    return _library()._name or library_path()


def _address_of(name: str) -> int:
    """Of a function of the library, for a caller in C."""
    return ctypes.cast(_function(name), ctypes.c_void_p).value or 0


def version() -> str:
    """The library's version, "MAJOR.MINOR.PATCH"."""
    return _function("cachealloc_version")().decode()


# --- statistics and steering ----------------------------------------------------------------------


class Stats(NamedTuple):
    """Statistics of the whole process; cachealloc.h says what they mean. A value is None where the
    preloaded library is too old for it."""

    version: int
    incomplete: bool
    alloc_calls: int
    free_calls: int
    hits: int
    misses: int
    upstream_allocs: int
    upstream_frees: int
    live_bytes: int
    live_peak_bytes: int
    reserved_bytes: int
    reserved_peak_bytes: int
    fence_records: int
    fence_queries: int
    fence_waits: int
    live_allocations: Optional[int]
    lost_allocations: Optional[int]
    lost_bytes: Optional[int]
    block_bytes: Optional[int]
    pending_bytes: Optional[int]
    ready_bytes: Optional[int]
    largest_ready_bytes: Optional[int]
    idle_bytes: Optional[int]
    segments: Optional[int]
    blocks: Optional[int]
    contexts: Optional[int]
    splits: Optional[int]
    merges: Optional[int]
    passed_through: Optional[int]
    out_of_memory: Optional[int]
    wrong_frees: Optional[int]
    stacks: Optional[int]
    host_bytes: Optional[int]
    pinned_reserved_bytes: Optional[int]
    pinned_reserved_peak_bytes: Optional[int]
    fence_joins: Optional[int]
    exported_bytes: Optional[int]


# The last field that each version of the struct has.
_STATS_LAST = {1: "fence_waits", 2: "exported_bytes"}


class _Stats(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("version", ctypes.c_uint),
                ("incomplete", ctypes.c_uint)]
    _fields_ += [(name, ctypes.c_uint64) for name in Stats._fields[2:]]


def stats() -> Stats:
    """The statistics of this moment. Makes no CUDA call."""
    raw = _Stats(size=ctypes.sizeof(_Stats))
    _check("stats", _function("cachealloc_stats")(ctypes.byref(raw)))
    end = _STATS_LAST.get(raw.version, Stats._fields[-1])
    known = Stats._fields[:Stats._fields.index(end) + 1]
    values = {name: getattr(raw, name) if name in known else None for name in Stats._fields}
    values["incomplete"] = bool(raw.incomplete)
    return Stats(**values)


def trim() -> int:
    """Releases idle memory of the pool to the driver; how many bytes that was."""
    return _function("cachealloc_trim")()


def set_pin_mode(on: bool) -> None:
    """Counted: as many calls with False as with True end it. pin_mode() does that by itself."""
    _check("set_pin_mode", _function("cachealloc_set_pin_mode")(bool(on)))


@contextlib.contextmanager
def pin_mode():
    """While it is on memory keeps its addresses, and none goes back to the driver."""
    set_pin_mode(True)
    try:
        yield
    finally:
        set_pin_mode(False)


def _path(path: Any) -> Optional[bytes]:
    """For C, where a null byte would end it."""
    raw = None if path is None else os.fsencode(path)
    if raw and b"\0" in raw:
        raise ValueError(f"path {path!r}: it has a null byte")
    return raw


def dump(path: Any = None) -> None:
    """Writes a leak report of what is live now; without a path to where ALLOC_CONF says."""
    code = _function("cachealloc_dump")(_path(path))
    if code:
        raise OSError(code, os.strerror(code), path)


def report_journal(journal: Any, path: Any = None) -> None:
    """Writes the leak report of a process that was killed, from its journal; for a process that does
    not use CUDA. Where there is no library preloaded: tools/cachealloc-journal."""
    code = _function("cachealloc_report_journal")(_path(os.fspath(journal)), _path(path))
    if code:
        raise OSError(code, os.strerror(code), journal, None, path)  # it may be of either


_oom_functions: List[Any] = []  # for good: threads may still be in an older one


def on_oom(function: Optional[Callable[[int, int, bool], Any]]) -> None:
    """Calls function(size, device, pinned) where an allocation is out of memory, in the thread that
    allocates: it may free memory, and returns True for one more try. What it raises is printed,
    and the allocation fails. None: no function; there is one at a time."""
    def call(size: int, device: int, pinned: int, _: Any) -> int:
        try:
            return 1 if function and function(size, device, bool(pinned)) else 0
        except BaseException:  # the caller is C, and cannot catch it
            traceback.print_exc()
            return 0

    wanted = _OOM(call) if function else None
    _oom_functions.append(wanted)
    _check("on_oom", _function("cachealloc_on_oom")(
        ctypes.cast(wanted, ctypes.c_void_p) if wanted else None, None))


# --- memory in the order of a stream --------------------------------------------------------------


def allocate(size: int, stream: Any = 0, device: int = -1, alignment: int = 0) -> int:
    """The address of device memory in the order of `stream` (a handle: an int, or an object that
    has one as `cuda_stream`, `ptr` or `handle`, or __cuda_stream__), as cachealloc_alloc of cachealloc.h; 0 for 0 bytes."""
    number = _size(size)
    ctypes.set_errno(0)
    address = _allocator()(number, _size(alignment), device, _stream(stream))
    if not address and number:
        code = ctypes.get_errno()
        if code == errno.ENOMEM:
            raise MemoryError(f"allocate: {number} bytes of device memory: out of memory")
        _check(f"allocate: {number} bytes", code or errno.EIO, _REASONS_ORDERED.get(code))
    return address or 0


def free(pointer: Any, stream: Any = 0, device: int = -1) -> None:
    """Frees that memory, or other device memory, behind the work that is on `stream` now."""
    code = _function("cachealloc_free")(_address(pointer), 0, device, _stream(stream))
    _check(f"free({_address(pointer):#x})", code, _REASONS_ORDERED.get(code))


def _release(pointer: int, stream: Any, device: int) -> None:
    """free() for those that others call, where what is raised would reach C or no one: memory of a
    stream that is captured stays, as the library has said, and anything else is printed."""
    try:
        free(pointer, stream, device)
    except Error as error:
        if error.errno != errno.EBUSY:
            traceback.print_exc()


_REASONS_ORDERED = {errno.EINVAL: "no live memory begins there, or no such device, stream or "
                                  "alignment",
                    errno.EBUSY: "the stream is being captured, and the library does not see "
                                 "captures here",
                    errno.ENODEV: "there is no CUDA driver", errno.EIO: "the driver answers errors"}


@functools.lru_cache(maxsize=None)
def _allocator() -> Callable[..., Any]:
    """cachealloc_alloc, which answers by errno."""
    _function("cachealloc_alloc")
    library = ctypes.CDLL(_library()._name, use_errno=True)
    function = library["cachealloc_alloc"]
    function.restype, *function.argtypes = _SIGNATURES["cachealloc_alloc"]
    return function


_PER_THREAD = 2  # the calling thread's own default stream


def _stream(stream: Any) -> int:
    """The handle of a stream, by the names that libraries give it; None is the legacy stream."""
    if hasattr(stream, "__cuda_stream__"):
        return stream.__cuda_stream__()[1]
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            stream = getattr(stream, name)
            break
    return operator.index(getattr(stream, "value", stream) or 0)


# --- phases ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _marker() -> Callable[[bytes], None]:
    try:
        return _function("cachealloc_mark")
    except (NotPreloadedError, UnsupportedError):
        return lambda name: None


def mark(name: str) -> None:
    """Gives this moment a name in JSON reports, up to 95 bytes of it. Does nothing where the
    library is not preloaded, so that programs can keep their marks."""
    _marker()(name.replace("\0", " ").encode("utf-8", "replace"))


class phase(contextlib.ContextDecorator):
    """with phase("load"): marks "begin load" and, however it is left, "end load". Also a decorator;
    phases may lie in each other."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> "phase":
        mark(f"begin {self.name}")
        return self

    def __exit__(self, *error: Any) -> None:
        mark(f"end {self.name}")


# --- single allocations ---------------------------------------------------------------------------

(KIND_OTHER, KIND_DEVICE, KIND_PITCHED, KIND_ASYNC, KIND_MANAGED, KIND_PINNED,
 KIND_EXTERNAL) = range(7)
_FRAMES = 64


class Info(NamedTuple):
    """What a pointer leads to; see cachealloc_info_t in cachealloc.h."""

    kind: int  # KIND_DEVICE and so on
    kind_name: str
    base: int
    bytes: int
    block_bytes: int
    names: int
    device: int
    thread: int
    stream: int
    age: int
    stack: Tuple[int, ...]  # return addresses, innermost first


class _Info(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("version", ctypes.c_uint), ("kind", ctypes.c_int),
                ("kind_name", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("bytes", ctypes.c_size_t), ("block_bytes", ctypes.c_size_t),
                ("names", ctypes.c_size_t), ("device", ctypes.c_int), ("thread", ctypes.c_uint32),
                ("stream", ctypes.c_void_p), ("age", ctypes.c_uint64), ("stack", ctypes.c_void_p),
                ("stack_capacity", ctypes.c_size_t), ("stack_count", ctypes.c_size_t)]


def info(pointer: Any) -> Optional[Info]:
    """What `pointer` (an int, a ctypes pointer, a Buffer) leads to: a live allocation, one of its
    names, or for memory of the pool an address inside; None where it leads to none."""
    frames = (ctypes.c_void_p * _FRAMES)()
    raw = _Info(size=ctypes.sizeof(_Info), stack=ctypes.addressof(frames), stack_capacity=_FRAMES)
    code = _function("cachealloc_info")(_address(pointer), ctypes.byref(raw))
    if code == errno.ENOENT:
        return None
    _check("info", code)
    return Info(raw.kind, raw.kind_name.decode(), raw.base or 0, raw.bytes, raw.block_bytes,
                raw.names, raw.device, raw.thread, raw.stream or 0, raw.age,
                tuple(frame or 0 for frame in frames[:raw.stack_count]))


def alias(owner: Any, name: Any) -> None:
    """Makes `name` another name of the allocation `owner`; each is freed once, the last one frees
    the memory."""
    _check(f"alias({_address(owner):#x}, {_address(name):#x})",
           _function("cachealloc_alias")(_address(owner), _address(name)))


class _OnFree:
    """A deleter in Python, called when the library drops it."""

    __slots__ = ("pointer", "bytes", "call", "__weakref__")

    def __init__(self, pointer: int, size: int, call: Callable[[int, int], Any]):
        self.pointer, self.bytes, self.call = pointer, size, call

    def __del__(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            call(self.pointer, self.bytes)


_on_free: Any = weakref.WeakValueDictionary()  # by address
_registering = threading.Lock()


def register(pointer: Any, size: int, deleter: Optional[Callable[[int, int], Any]] = None) -> None:
    """Makes memory from elsewhere an allocation that reports know. cudaFree of it then calls
    deleter(address, size), once, in the thread that frees; without a deleter the driver gets the
    free. After the interpreter's end no deleter is called."""
    address = _address(pointer)
    size = _size(size)
    what = f"register({address:#x}, {size})"
    if size == 0:
        raise ValueError(f"{what}: a size is above 0")
    if deleter is None:
        _check(what, _function("cachealloc_register")(address, size, None, None))
        return
    glue = _glue()
    kept = _OnFree(address, size, deleter)
    with _registering:
        glue.keep(kept)  # what the library's deleter drops
        code = _function("cachealloc_register")(address, size, glue.delete_registered, id(kept))
        if code:
            kept.call = None
            glue.unkeep(kept)
        else:
            _on_free[address] = kept
    _check(what, code)


def unregister(pointer: Any) -> None:
    """Forgets registered memory without calling its deleter."""
    address = _address(pointer)
    with _registering:
        kept = _on_free.get(address)
        code = _function("cachealloc_unregister")(address)
        if code == 0 and kept is not None:
            kept.call = None
            _glue().unkeep(kept)
    _check(f"unregister({address:#x})", code, {
        errno.ENOENT: "it was not registered, or is freed",
        errno.EBUSY: "it has aliases"}.get(code))


def is_registered(pointer: Any) -> bool:
    """Whether it was registered and neither freed nor unregistered since."""
    return bool(_function("cachealloc_is_registered")(_address(pointer)))


# --- Python objects that C holds ------------------------------------------------------------------


class _Python(ctypes.Structure):
    """cachealloc_python_t."""

    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_void_p) for name in (
        "is_initialized", "this_thread", "ensure", "release", "drop", "is_capsule", "content",
        "tensor_name", "delete_tensor", "end_capsule", "delete_registered")]


class _Glue:
    """Functions of C that drop what `keep` keeps: a ctypes callback in their place would lose the
    exception that is being raised, and could not be called after the interpreter's end."""

    def __init__(self) -> None:
        python = ctypes.PyDLL(None)  # not ctypes.pythonapi, whose signatures are shared
        names = ("Py_IsInitialized", "PyGILState_GetThisThreadState", "PyGILState_Ensure",
                 "PyGILState_Release", "Py_DecRef", "PyCapsule_IsValid", "PyCapsule_GetPointer")
        raw = _Python(ctypes.sizeof(_Python),
                      *(ctypes.cast(python[name], ctypes.c_void_p) for name in names))
        _check("python", _function("cachealloc_python")(ctypes.byref(raw)))
        self.delete_tensor = raw.delete_tensor
        self.delete_registered = raw.delete_registered
        self._tensor_name, self._end_capsule = raw.tensor_name, raw.end_capsule
        self.keep, self.unkeep = python["Py_IncRef"], python["Py_DecRef"]
        for function in (self.keep, self.unkeep):
            function.argtypes, function.restype = [ctypes.py_object], None
        self._new_capsule = python["PyCapsule_New"]
        self._new_capsule.argtypes = [ctypes.c_void_p] * 3
        self._new_capsule.restype = ctypes.py_object

    def capsule(self, tensor: int) -> Any:
        return self._new_capsule(tensor, self._tensor_name, self._end_capsule)


_glue = functools.lru_cache(maxsize=None)(_Glue)


# --- buffers --------------------------------------------------------------------------------------

# name: DLPack's type code, bits, the array interface's type string
_DTYPES = {"bool": (6, 8, "|b1"), "int8": (0, 8, "|i1"), "uint8": (1, 8, "|u1")}
for _name, _code, _letter, _sizes in (
        ("int", 0, "i", (16, 32, 64)), ("uint", 1, "u", (16, 32, 64)),
        ("float", 2, "f", (16, 32, 64)), ("complex", 5, "c", (64, 128))):
    for _bits in _sizes:
        _DTYPES[f"{_name}{_bits}"] = (_code, _bits, f"<{_letter}{_bits // 8}")
_DTYPES["bfloat16"] = (4, 16, None)

_CUDA, _CUDA_HOST, _CUDA_MANAGED = 2, 3, 13  # DLDeviceType
_DEVICE_TYPES = {KIND_PINNED: _CUDA_HOST, KIND_MANAGED: _CUDA_MANAGED}


def _dtype_name(dtype: Any) -> str:
    """Its name: of "float32", "<f4", numpy.dtype("float32"), numpy.float32, torch.float32."""
    name = (dtype.__name__ if isinstance(dtype, type) else str(dtype)).rpartition(".")[2]
    for known, (_, _, typestr) in _DTYPES.items():
        if name in (known, typestr):
            return known
    raise ValueError(f"dtype {dtype!r}: accepted are {', '.join(_DTYPES)}")


def _extents(shape: Any) -> Tuple[int, ...]:
    return tuple(map(operator.index, shape if hasattr(shape, "__iter__") else (shape,)))


def _product(numbers: Tuple[int, ...], start: int) -> int:
    return functools.reduce(operator.mul, numbers, start)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]


class _Export:
    """What a consumer of DLPack holds, by its tensor's manager_ctx."""

    __slots__ = ("tensor", "shape", "strides", "memory")


class _Memory:
    """What all views of one memory share: it is freed with the last of them."""

    __slots__ = ("pointer", "bytes", "owner", "free", "process")

    def __init__(self, pointer: int, size: int, owner: Any, free: Optional[Callable[[int], int]]):
        self.pointer, self.bytes, self.owner, self.free = pointer, size, owner, free
        self.process = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        free, self.free = self.free, None
        if free is not None and getpid() == self.process:  # CUDA does not survive a fork
            free(self.pointer)


class Buffer:
    """Memory on the device, as a one- or more-dimensional array without gaps, for everything that
    takes __cuda_array_interface__ or DLPack.

    `owner` is kept while the buffer, a view of it or a consumer's array is there; without one the
    memory is the caller's to keep. `shape` is by default all of `size` in one dimension. Memory
    that the library does not know needs its `device` for DLPack."""

    __slots__ = ("_memory", "_pointer", "_shape", "_dtype", "_device", "__weakref__")

    def __init__(self, pointer: Any, size: int, *, owner: Any = None,
                 shape: Optional[Tuple[int, ...]] = None, dtype: Any = "uint8",
                 device: Optional[int] = None):
        self._fill(_Memory(_address(pointer), _size(size), owner, None), 0, shape, dtype, device)

    def _fill(self, memory: _Memory, offset: int, shape: Optional[Tuple[int, ...]], dtype: Any,
              device: Optional[int]) -> None:
        name = _dtype_name(dtype)
        item = _DTYPES[name][1] // 8
        if not 0 <= offset <= memory.bytes:
            raise ValueError(f"offset {offset}: the memory has {memory.bytes} bytes")
        if shape is None:
            shape = ((memory.bytes - offset) // item,)
        shape = _extents(shape)
        if any(extent < 0 for extent in shape):
            raise ValueError(f"shape {shape}: an extent is not negative")
        self._memory, self._shape, self._dtype, self._device = memory, shape, name, device
        self._pointer = memory.pointer + offset
        if self.nbytes > memory.bytes - offset:
            raise ValueError(f"shape {shape} of {name} takes {self.nbytes} bytes, there are "
                             f"{memory.bytes - offset}")

    @property
    def ptr(self) -> int:
        return self._pointer

    @property
    def shape(self) -> Tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> str:
        return self._dtype

    @property
    def nbytes(self) -> int:
        return _product(self._shape, _DTYPES[self._dtype][1] // 8)

    @property
    def owner(self) -> Any:
        return self._memory.owner

    def __repr__(self) -> str:
        return f"<cachealloc.Buffer {self._pointer:#x} {self._dtype}{list(self._shape)}>"

    def view(self, shape: Optional[Tuple[int, ...]] = None, dtype: Any = None,
             offset: int = 0) -> "Buffer":
        """The same memory, `offset` bytes from this buffer's start, as another array."""
        view = Buffer.__new__(Buffer)
        start = self._pointer - self._memory.pointer + operator.index(offset)
        view._fill(self._memory, start, shape, self._dtype if dtype is None else dtype,
                   self._device)
        return view

    @property
    def __cuda_array_interface__(self) -> dict:
        typestr = _DTYPES[self._dtype][2]
        if typestr is None:
            raise AttributeError(f"the array interface has no {self._dtype}")
        return {"shape": self._shape, "typestr": typestr, "strides": None, "version": 3,
                "data": (self._pointer if self.nbytes else 0, False),
                "stream": None}  # nothing was submitted that a consumer would have to wait for

    def __dlpack_device__(self) -> Tuple[int, int]:
        known = info(self._memory.pointer) if preloaded() and self._memory.pointer else None
        kind = known.kind if known else KIND_DEVICE
        device = self._device
        if device is None and known and kind != KIND_EXTERNAL:
            device = known.device
        if device is None and self._memory.free is not None:
            device = 0
        if device is None:
            raise BufferError(f"{self!r}: the library does not know its device; pass device=")
        return _DEVICE_TYPES.get(kind, _CUDA), device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
                   copy: Optional[bool] = None) -> Any:
        """A capsule with a DLManagedTensor. As nothing was submitted for the memory by the library,
        the consumer's `stream` has nothing to wait for."""
        device_type, device = self.__dlpack_device__()
        if dl_device is not None and tuple(map(int, dl_device)) != (device_type, device):
            raise BufferError(f"{self!r} is on device {(device_type, device)}, not {dl_device}")
        if copy:
            raise BufferError(f"{self!r} is exported without a copy only")
        if stream == 0 and stream is not None and device_type == _CUDA:
            raise ValueError("stream 0 is ambiguous: 1 is the legacy stream, 2 the thread's own")
        code, bits, _ = _DTYPES[self._dtype]
        export = _Export()
        export.memory = self._memory
        export.shape = (ctypes.c_int64 * len(self._shape))(*self._shape)
        export.strides = (ctypes.c_int64 * len(self._shape))()
        step = 1
        for i in reversed(range(len(self._shape))):
            export.strides[i] = step
            step *= self._shape[i]
        glue = _glue()
        export.tensor = _DLManagedTensor(
            _DLTensor(self._pointer if self.nbytes else None, device_type, device,
                      len(self._shape), code, bits, 1,
                      ctypes.cast(export.shape, ctypes.POINTER(ctypes.c_int64)),
                      ctypes.cast(export.strides, ctypes.POINTER(ctypes.c_int64)), 0),
            id(export), glue.delete_tensor)
        glue.keep(export)
        try:
            return glue.capsule(ctypes.addressof(export.tensor))
        except BaseException:
            glue.unkeep(export)
            raise


# Where a process has no runtime yet, one is loaded: the newest first.
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
_NO_RUNTIME = 302  # cudaErrorSharedObjectSymbolNotFound, of a cudaMalloc that has none to call


def _load_runtime() -> bool:
    for name in _RUNTIMES:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


def _take_error(code: int) -> str:
    """What it means. The exception reports it, so that it is not the runtime's last error too."""
    text = "no CUDA runtime was found" if code == _NO_RUNTIME else ""
    for name in _RUNTIMES:
        with contextlib.suppress(OSError, AttributeError):
            runtime = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            runtime.cudaGetLastError()
            runtime.cudaGetErrorString.restype = ctypes.c_char_p
            text = runtime.cudaGetErrorString(code).decode()
    return text


def _cuda_malloc(size: int) -> int:
    pointer = ctypes.c_void_p()
    code = _function("cudaMalloc")(ctypes.byref(pointer), size)
    if code == _NO_RUNTIME and _load_runtime():
        code = _function("cudaMalloc")(ctypes.byref(pointer), size)
    if code == 0:
        return pointer.value or 0
    message = f"cudaMalloc of {size} bytes: error {code}, {_take_error(code)}"
    if code == 2:  # cudaErrorMemoryAllocation
        raise MemoryError(message)
    raise CudaError(message, code)


def empty(size: Optional[int] = None, *, shape: Optional[Tuple[int, ...]] = None,
          dtype: Any = "uint8") -> Buffer:
    """A buffer of memory from cudaMalloc on the current device, uninitialised. `size` may be left
    out where there is a shape. It is freed with the last of the buffer, its views and all that
    consumers made of it."""
    item = _DTYPES[_dtype_name(dtype)][1] // 8
    if size is None:
        if shape is None:
            raise ValueError("empty: a size or a shape is needed")
        size = _product(_extents(shape), item)
    size = _size(size)
    free = _function("cudaFree")
    buffer = Buffer.__new__(Buffer)
    buffer._fill(_Memory(_cuda_malloc(size), size, None, free), 0, shape, dtype, None)
    return buffer
