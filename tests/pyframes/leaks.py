"""leaks.py [fork]: leaks by the runtime from functions of every sort; prints {bytes: [[function,
file name, line], ...]} of each as the interpreter has it. Each has a size of its own. After that
`fork`: the same in a child alone, whose parent has called nothing of CUDA."""

import atexit
import ctypes
import json
import os
import sys
import threading

released = ctypes.CDLL("libcudart.so.13")
held = ctypes.PyDLL("libcudart.so.13")
pointer = ctypes.c_void_p()
truth = {}
last = 1000


def note(frame):
    """What the line that calls this has just leaked, or is about to."""
    global last
    last += 8
    found = []
    while frame is not None:
        code = frame.f_code
        found.append([getattr(code, "co_qualname", code.co_name),
                      os.path.basename(code.co_filename), frame.f_lineno])
        frame = frame.f_back
    truth[last] = found
    return last


def leak_one(way):
    way.cudaMalloc(ctypes.byref(pointer), note(sys._getframe()))


def leak_two(way):
    return way.cudaMalloc(ctypes.byref(pointer), note(sys._getframe()))


class Model:
    def forward(self, way):
        leak_one(way)
        return way.cudaMalloc(ctypes.byref(pointer), note(sys._getframe()))


def generated(way):
    yield way.cudaMalloc(ctypes.byref(pointer), note(sys._getframe()))
    leak_two(way)
    yield


async def awaited(way):
    leak_one(way)


async def awaiting(way):
    await awaited(way)


def everything():
    for way in (released, held):
        for _ in range(2):
            leak_one(way)
            leak_two(way)
            Model().forward(way)
            list(generated(way))
            try:
                awaiting(way).send(None)
            except StopIteration:
                pass
            thread = threading.Thread(target=leak_two, args=(way,))
            thread.start()
            thread.join()


@atexit.register
def at_exit():
    if truth:
        leak_one(held)
        print(json.dumps(truth), flush=True)


if "fork" in sys.argv:
    child = os.fork()
    if child:
        sys.exit(os.waitpid(child, 0)[1])
everything()
if "_exit" in sys.argv:
    at_exit()
    os._exit(0)
if "kill" in sys.argv:
    at_exit()
    os.kill(os.getpid(), 9)
