#!/usr/bin/env python3
"""check_entries.py CUDA_INCLUDE [ROOT]: the lists of the driver's entry points against cuda.h.

Every function of cuda.h, older forms included, is in shim/hooks/hooks.def or shim/hooks/submissions.def by its
symbol, or in shim/hooks/known_entries.def by the name that cuGetProcAddress is asked for; one that takes
a stream, device memory or a launch must be known by its symbol, or have no form in the first two.
What is in shim/hooks/submissions.def has the parameters of cuda.h, the version of cudaTypedefs.h, and its
per-thread twin where cuda.h has one.
"""
import pathlib
import re
import subprocess
import sys

# Not in cuda.h: CUDA 13.3, and the headers of graphics libraries.
ELSEWHERE = re.compile(r"cuStreamBeginRecapture|cuGL|cuEGL|cuEventCreateFromEGL|cuVDPAU")
# cudaTypedefs.h has other versions than the driver answers to, for the form without a suffix.
UNVERSIONED = {"cuStreamBeginCapture"}


def preprocess(text, *flags, cwd=None):
    done = subprocess.run(["gcc", "-E", "-P", *flags, "-x", "c", "-"], input=text,
                          capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        sys.exit(done.stderr)
    return re.sub(r"\s+", " ", done.stdout)


def types(parameters):
    """Of "void *a, unsigned int b" the types alone."""
    found = []
    for one in parameters.split(","):
        one = re.sub(r"\b(struct|CUDAAPI)\b", "", one).strip()
        one = re.sub(r"(?<=[\s*])\w+$", "", one) if one != "void" else one
        found.append(re.sub(r"\s+", "", one.replace("unsigned int", "unsigned")))
    return found


def names_of(parameters):
    return [re.sub(r".*[\s*]", "", one.strip()) for one in parameters.split(",")
            if one.strip() != "void"]


def declared(include):
    """{symbol: parameters} of cuda.h, with the older forms and the twins."""
    found = {}
    for flags in (["-D__CUDA_API_VERSION_INTERNAL"], []):
        text = preprocess("#define CUDA_ENABLE_DEPRECATED\n#include <cuda.h>\n", f"-I{include}",
                          *flags)
        text = re.sub(r"__attribute__ ?\(\([^)]*\)\)", "", text)
        found.update(re.findall(r"CUresult (cu[A-Z]\w*) ?\((.*?)\) ?;", text))
    return found


def listed(root):
    """({symbol: name} that are wrapped, {symbol: (name, version, per_thread, parameters,
    arguments)} of those that submit, the names that do not)"""
    text = preprocess('#define CA_DRIVER(symbol, name, ...) @#symbol, name@\n'
                      '#define CA_DRIVER_USED(symbol) @#symbol, ""@\n'
                      '#include "shim/hooks/hooks.def"\n', "-I.", cwd=root)
    wrapped = dict(re.findall(r'@"(\w+)", "(\w*)"@', text))
    text = preprocess("#define CA_SUBMISSION(symbol, name, version, per_thread, params, args, ...) "
                      "@#symbol, name, version, per_thread, params, args@\n"
                      '#include "shim/hooks/submissions.def"\n', "-I.", cwd=root)
    submitting = {symbol: (name, int(version), int(per_thread), parameters, arguments)
                  for symbol, name, version, per_thread, parameters, arguments in
                  re.findall(r'@"(\w+)", "(\w+)", (\d+), ([01]), \(([^()]*)\), \(([^()]*)\)@',
                             text)}
    text = (root / "shim/hooks/known_entries.def").read_text()
    return wrapped, submitting, re.findall(r"^CA_NO_WORK\((\w+)\)$", text, re.MULTILINE)


def base_of(symbol):
    return re.sub(r"_v\d+$", "", re.sub(r"_pt[sd][sz]$", "", symbol))


def check(include, root):
    functions = declared(include)
    wrapped, submitting, known = listed(root)
    typedefs = (pathlib.Path(include) / "cudaTypedefs.h").read_text()
    versions = set(re.findall(r"\(CUDAAPI \*PFN_(cu\w+?_v\d+(?:_pt[sd][sz])?)\)", typedefs))
    names = {name for name, *_ in submitting.values()}
    if len(functions) < 400 or not submitting or not known:
        yield "the headers or the lists could not be read"
    if known != sorted(set(known)):
        yield "shim/hooks/known_entries.def is not in order"
    for symbol, parameters in sorted(functions.items()):
        base = base_of(symbol)
        if symbol in wrapped or (base in known and base not in names):
            continue
        if base in wrapped.values() and "CUdeviceptr_v1" in parameters and base not in names:
            continue  # of CUDA 3.1: its memory is not ours
        at_work = re.search(r"\bCUstream\b(?! ?\*)|\bCUdeviceptr|\bCUlaunchConfig\b|LAUNCH_PARAMS",
                            parameters)
        if base in names or at_work or base not in wrapped.values():
            yield f"{symbol} is in no list: shim/hooks/submissions.def, or shim/hooks/known_entries.def"
    for symbol, (name, version, per_thread, parameters, arguments) in sorted(submitting.items()):
        if names_of(parameters) != [one.strip() for one in arguments.split(",") if one.strip()]:
            yield f"{symbol} passes on something else than it gets: {arguments}"
        if name in known:
            yield f"{symbol} submits, and {name} is in shim/hooks/known_entries.def"
        if ELSEWHERE.match(symbol):
            continue
        if symbol not in functions:
            yield f"{symbol} is not in cuda.h"
            continue
        if types(parameters) != types(functions[symbol]):
            yield f"{symbol} has other parameters in cuda.h: {functions[symbol]}"
        twin = re.search(r"_pt[sd][sz]$", symbol)
        if bool(twin) != bool(per_thread):
            yield f"{symbol} is no per-thread form, or is one"
        for suffix in ("_ptsz", "_ptds"):
            if symbol + suffix in functions and symbol + suffix not in submitting:
                yield f"{symbol} has a twin in cuda.h that is in no list: {symbol}{suffix}"
        if f"{name}_v{version}{twin.group() if twin else ''}" not in versions - UNVERSIONED:
            yield f"{symbol} has another version in cudaTypedefs.h than {version}"


def main():
    root = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parents[1]
    wrong = list(check(sys.argv[1], root))
    for one in wrong:
        print(one)
    if not wrong:
        wrapped, submitting, known = listed(root)
        print(f"{len(submitting)} of {len(wrapped)} symbols submit or wait, {len(known)} names do "
              "not")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
