"""The work of pattern.h from Python: work.py ctypes|cffi cudart|cuda LIBRARY."""

import sys

ROUNDS = 200
TO_DEVICE, TO_HOST = 1, 2
DECLARATIONS = """
int cudaMalloc(size_t *, size_t);
int cudaFree(size_t);
int cudaMemcpy(size_t, size_t, size_t, int);
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(size_t *, int);
int cuCtxSetCurrent(size_t);
int cuMemAlloc_v2(size_t *, size_t);
int cuMemFree_v2(size_t);
int cuMemcpyHtoD_v2(size_t, size_t, size_t);
int cuMemcpyDtoH_v2(size_t, size_t, size_t);
"""  # every pointer as the number that it is, so that one work() fits both bindings


class WithCtypes:
    def __init__(self, library):
        import ctypes
        self.ctypes = ctypes
        self.library = ctypes.CDLL(library)

    def call(self, name, *arguments):
        converted = [a if isinstance(a, int) and a < 2 else
                     self.ctypes.c_size_t(a) if isinstance(a, int) else self.ctypes.byref(a)
                     for a in arguments]
        code = getattr(self.library, name)(*converted)
        assert code == 0, (name, code)

    def number(self):
        return self.ctypes.c_size_t()

    def value(self, number):
        return number.value

    def buffer(self, data):
        return self.ctypes.create_string_buffer(data, len(data))

    def address(self, buffer):
        return self.ctypes.addressof(buffer)

    def content(self, buffer):
        return buffer.raw


class WithCffi:
    def __init__(self, library):
        import cffi
        self.ffi = cffi.FFI()
        self.ffi.cdef(DECLARATIONS)
        self.library = self.ffi.dlopen(library)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, (name, code)

    def number(self):
        return self.ffi.new("size_t *")

    def value(self, number):
        return number[0]

    def buffer(self, data):
        return self.ffi.new("unsigned char[]", list(data))  # bytes would get a zero at the end

    def address(self, buffer):
        return int(self.ffi.cast("size_t", buffer))

    def content(self, buffer):
        return bytes(self.ffi.buffer(buffer))


def through_runtime(cuda, number, source, target, size):
    cuda.call("cudaMalloc", number, size)
    memory = cuda.value(number)
    cuda.call("cudaMemcpy", memory, source, size, TO_DEVICE)
    cuda.call("cudaMemcpy", target, memory, size, TO_HOST)
    cuda.call("cudaFree", memory)


def through_driver(cuda, number, source, target, size):
    cuda.call("cuMemAlloc_v2", number, size)
    memory = cuda.value(number)
    cuda.call("cuMemcpyHtoD_v2", memory, source, size)
    cuda.call("cuMemcpyDtoH_v2", target, memory, size)
    cuda.call("cuMemFree_v2", memory)


def main(binding, api, library):
    cuda = {"ctypes": WithCtypes, "cffi": WithCffi}[binding](library)
    one_round = {"cudart": through_runtime, "cuda": through_driver}[api]
    if api == "cuda":
        cuda.call("cuInit", 0)
        context = cuda.number()
        cuda.call("cuDevicePrimaryCtxRetain", context, 0)
        cuda.call("cuCtxSetCurrent", cuda.value(context))
    total = 0
    for r in range(ROUNDS):
        data = bytes((31 * r + 7 * i) % 256 for i in range(1000 + 512 * (r % 8)))
        source, target = cuda.buffer(data), cuda.buffer(bytes(len(data)))
        one_round(cuda, cuda.number(), cuda.address(source), cuda.address(target), len(data))
        received = cuda.content(target)
        assert received == data
        total += sum(byte * (i % 251 + 1) for i, byte in enumerate(received))
    print(total)


main(*sys.argv[1:])
