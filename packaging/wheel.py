"""What the wheel holds, for hatchling. scripts/make_wheel.sh runs it, and names the library in
CACHEALLOC_LIBRARY: the package is `cachealloc`, and in it the launcher, the library and the tools
lie to each other as `make install` puts them, so that they find each other."""

import os
import pathlib
import struct

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GLIBC = "2_28"  # what scripts/check_glibc.sh holds BUILD=portable to
MACHINES = {62: "x86_64", 183: "aarch64"}  # by ELF's e_machine


def machine_of(library):
    with open(library, "rb") as file:
        header = file.read(20)
    if len(header) < 20 or header[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{library}: not a library of 64 bits")
    number, = struct.unpack_from("<H", header, 18)
    if number not in MACHINES:
        raise ValueError(f"{library}: for machine {number}; accepted are {MACHINES}")
    return MACHINES[number]


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        root = pathlib.Path(self.root)
        library = os.environ.get("CACHEALLOC_LIBRARY")
        if not library:
            raise ValueError("CACHEALLOC_LIBRARY does not name the library: `make wheel` builds it "
                             "and the wheel")
        tools = "cachealloc/libexec/cachealloc/"
        files = {
            library: "cachealloc/lib/libcachealloc.so",
            root / "tools/cachealloc": "cachealloc/bin/cachealloc",
            root / "include/cachealloc.h": "cachealloc/include/cachealloc.h",
            root / "build/d3/d3.min.js": tools + "report_page/d3.min.js",
        }
        for path in (root / "python/cachealloc").glob("*.py"):
            files[path] = f"cachealloc/{path.name}"
        for path in (root / "tools").iterdir():
            runs = path.suffix == ".py" or os.access(path, os.X_OK)
            if path.is_file() and path.name != "cachealloc" and runs:
                files[path] = tools + path.name
        for path in (root / "tools/report_page").glob("*.*"):
            files[path] = tools + f"report_page/{path.name}"
        for path in files:
            if not pathlib.Path(path).is_file():
                raise ValueError(f"{path} is missing: `make wheel` brings it")
        build_data["force_include"].update({str(path): name for path, name in files.items()})
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{GLIBC}_{machine_of(library)}"
