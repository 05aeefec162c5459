"""A script that calls the runtime by ctypes: the stack is the interpreter's.

arguments: %S/libcudart.so.13
conf: stack_depth:64,fold:off
expect: 2750 bytes in 1, device, thread *python*: ... < [libffi*] < ... < [*_ctypes*|*python*] < ...
    < [*python*]
"""

import ctypes
import sys


def main():
    runtime = ctypes.CDLL(sys.argv[1])
    pointer = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(2750)) == 0
    freed = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(freed), ctypes.c_size_t(12000)) == 0
    assert runtime.cudaFree(freed) == 0


main()
