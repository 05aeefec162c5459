"""Where the library and the launcher lie that came with this package: in a wheel, in a source tree
that is built, as installed."""

import os

# `make install` fills these in; elsewhere they stay as they are.
_LIBDIR = "@LIBDIR@"
_BINDIR = "@BINDIR@"

_HERE = os.path.dirname(os.path.abspath(__file__))
# Inside the package, as in a wheel; in the source tree; as installed, which may have moved.
_LIBRARIES = ("lib", "../../build", "../..", _LIBDIR)
_LAUNCHERS = ("bin", "../../tools", "../../../bin", _BINDIR)


def _find(name: str, places: tuple) -> str:
    tried = [os.path.normpath(os.path.join(_HERE, place, name)) for place in places]
    for path in tried:
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"{name} is none of {', '.join(tried)}: build it (make lib), or "
                            "install the package anew")


def library_path() -> str:
    """The library that the variable CACHEALLOC_LIBRARY names, otherwise the one that came with this
    package, as a path for LD_PRELOAD. It need not be preloaded. FileNotFoundError says where it was
    looked for."""
    named = os.environ.get("CACHEALLOC_LIBRARY")
    if not named:
        return _find("libcachealloc.so", _LIBRARIES)
    if not os.path.isfile(named):
        raise FileNotFoundError(f"{named}, which CACHEALLOC_LIBRARY names, is no file; accepted: "
                                "the path of libcachealloc.so")
    return os.path.abspath(named)


def launcher_path() -> str:
    """The launcher, a script of sh; as library_path()."""
    return _find("cachealloc", _LAUNCHERS)
