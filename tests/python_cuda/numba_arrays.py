"""numba-cuda's arrays, pinned memory, streams and events, with no kernel of its own, and one array
of 3 MiB that nothing frees."""

import ctypes
import gc
import json

import numpy
from numba import cuda

COUNT, ROUNDS = 1 << 16, 40


def forget():
    array = cuda.device_array(3 << 18, dtype=numpy.float32)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))


def main():
    found, stream = [], cuda.stream()
    pinned = cuda.pinned_array(COUNT, dtype=numpy.float32)
    for number in range(ROUNDS):
        pinned[:] = number
        first = cuda.to_device(pinned, stream=stream)
        second = cuda.device_array_like(first)
        second.copy_to_device(first, stream=stream)
        event = cuda.event(timing=False)
        event.record(stream)
        event.synchronize()
        found.append(float(second.copy_to_host(stream=stream).sum()) / COUNT)
    forget()
    del first, second
    gc.collect()
    cuda.current_context().deallocations.clear()  # what it frees later otherwise
    print(json.dumps({"found": found}))


main()
