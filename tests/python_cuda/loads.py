"""Says in one line of JSON what a package answers to its first allocation: loads.py PACKAGE"""

import json
import sys


def cupy():
    import cupy as package
    return package.asarray([1, 2, 3]).get().tolist()


def rmm():
    import rmm as package
    return package.DeviceBuffer(size=1000).size


def cuda_bindings_runtime():
    from cuda.bindings import runtime
    error, _ = runtime.cudaMalloc(1 << 20)
    if error != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(error.name)
    return 0


def main():
    try:
        print(json.dumps({"works": globals()[sys.argv[1]]()}))
    except Exception as error:  # whatever the package raises
        print(json.dumps({"refused": str(error)}))


main()
