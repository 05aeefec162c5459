#!/usr/bin/env python3
"""Writes api.def: every function that cuda.h declares, by link name.

Not part of the build: run it when the toolkit changes and check the result in.
    gen_api.py /usr/local/cuda/include > api.def

Link names come from cuda.h (preprocessed with __CUDA_API_VERSION_INTERNAL, which declares every
version). The CUDA version that introduced each one comes from cudaTypedefs.h (PFN_<base>_v<ver>),
matched in order: the oldest version is the link name without a suffix, then _v2, _v3.
"""
import re
import subprocess
import sys

inc = sys.argv[1]
text = subprocess.run(
    ["gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-x", "c", "-I" + inc, "-"],
    input="#include <cuda.h>\n#include <cudaProfiler.h>\n", capture_output=True, text=True,
    check=True).stdout
links = sorted(set(re.findall(r"CUresult\s+(cu[A-Z]\w*)\s*\(", text)))
typedefs = "".join(open(f"{inc}/{f}").read() for f in ("cudaTypedefs.h", "cudaProfilerTypedefs.h"))

def split(link):
    stem, kind = link, "PLAIN"
    m = re.fullmatch(r"(\w+)_(ptds|ptsz)", stem)
    if m:
        stem, kind = m.group(1), "PTHREAD"
    m = re.fullmatch(r"(\w+)_v(\d)", stem)
    return (m.group(1), int(m.group(2)), kind) if m else (stem, 1, kind)

versions = {}
for base, ver, pt in set(re.findall(r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)", typedefs)):
    versions.setdefault((base, "PTHREAD" if pt else "PLAIN"), []).append(int(ver))
groups = {}
for link in links:
    base, n, kind = split(link)
    groups.setdefault((base, kind), []).append((n, link))

# What the pairing by order cannot see.
FIXED = {"cuGetProcAddress": 11030, "cuGetProcAddress_v2": 12000, "cuStreamBeginCapture": 10000,
         "cuStreamBeginCapture_v2": 10010}

# Newer than the headers.
for base, ver in {"cuStreamBeginRecaptureToGraph": 13030}.items():
    groups[base, "PLAIN"], groups[base, "PTHREAD"] = [(1, base)], [(1, base + "_ptsz")]
    versions[base, "PLAIN"] = versions[base, "PTHREAD"] = [ver]

print("/* Every driver function of cuda.h, once: link name, base name and the CUDA version that\n"
      " * cuGetProcAddress knows it by, PTHREAD for the per-thread-default-stream twin.\n"
      " * Written by gen_api.py from CUDA 13.0's headers, with what it adds; counters, stubs,\n"
      " * cuGetProcAddress and fault injection all come from this list. */")
for (base, kind), members in sorted(groups.items()):
    members.sort()
    vers = sorted(versions.get((base, kind), []))
    if len(vers) < len(members):
        vers = [None] * (len(members) - len(vers)) + vers
    elif len(vers) > len(members):
        print(f"versions of {base} {kind}: {vers} for {members}", file=sys.stderr)
        vers = vers[-len(members):]
    known = None
    for (n, link), ver in zip(members, vers):
        if link in FIXED:
            ver = FIXED[link]
        if ver is None:
            ver = 2000 if kind == "PLAIN" else 7000
            print(f"no version for {link}: {ver}", file=sys.stderr)
        print(f"SIM_FN({link}, {base}, {ver}, {kind})")
