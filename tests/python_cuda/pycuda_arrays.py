"""PyCUDA's allocations, its own pool, pinned memory and asynchronous copies, and one allocation of
3 MiB that nothing frees."""

import ctypes
import json

import numpy
import pycuda.autoinit  # noqa: F401, which makes a context
import pycuda.driver as driver
import pycuda.tools

COUNT, ROUNDS = 1 << 16, 40


def forget():
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(driver.mem_alloc(3 << 20)))


def main():
    stream, pool, found = driver.Stream(), pycuda.tools.DeviceMemoryPool(), []
    for number in range(ROUNDS):
        source = driver.pagelocked_empty(COUNT, numpy.float32)
        source[:] = number
        first = driver.mem_alloc(source.nbytes)
        second = pool.allocate(source.nbytes)
        driver.memcpy_htod_async(first, source, stream)
        driver.memcpy_dtod_async(int(second), int(first), source.nbytes, stream)
        stream.synchronize()
        back = numpy.empty_like(source)
        driver.memcpy_dtoh(back, int(second))
        found.append(float(back.sum()) / COUNT)
        first.free()
        second.free()
    pool.stop_holding()
    forget()
    print(json.dumps({"found": found}))


main()
