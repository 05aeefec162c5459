"""cuda.bindings.driver: memory, a stream and copies by the driver's functions, and one allocation
of 3 MiB that nothing frees."""

import json

import numpy
from cuda.bindings import driver

SIZE, ROUNDS = 1 << 18, 40


def done(result):
    error, *values = result
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values


def forget():
    return done(driver.cuMemAlloc(3 << 20))


def main():
    done(driver.cuInit(0))
    device = done(driver.cuDeviceGet(0))
    done(driver.cuCtxSetCurrent(done(driver.cuDevicePrimaryCtxRetain(device))))
    stream, found = done(driver.cuStreamCreate(0)), []
    back = numpy.empty(SIZE, dtype=numpy.uint8)
    for number in range(ROUNDS):
        first, second = done(driver.cuMemAlloc(SIZE)), done(driver.cuMemAlloc(SIZE))
        done(driver.cuMemsetD8Async(first, number, SIZE, stream))
        done(driver.cuMemcpyDtoDAsync(second, first, SIZE, stream))
        done(driver.cuMemFree(first))
        done(driver.cuMemcpyDtoHAsync(back.ctypes.data, second, SIZE, stream))
        done(driver.cuStreamSynchronize(stream))
        found.append([int(back.min()), int(back.max())])
        done(driver.cuMemFree(second))
    forget()
    print(json.dumps({"found": found}))


main()
