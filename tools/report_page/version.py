"""The version of the tools, which is the library's. `make install` fills it in; in the source tree
the public header has it."""

import argparse
import pathlib
import re

VERSION = "@VERSION@"
DEFINED = re.compile(r'^#define CACHEALLOC_VERSION "(.*)"', re.MULTILINE)
HERE = pathlib.Path(__file__).resolve().parent
# From the source tree's folder of tools, and from where packages put that.
HEADERS = [HERE.parents[level] / "include" / "cachealloc.h" for level in range(1, 4)
           if level < len(HERE.parents)]


def text():
    if not VERSION.startswith("@"):
        return VERSION
    for header in HEADERS:
        try:
            found = DEFINED.search(header.read_text())
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return found[1]
    return "of unknown version"


class Show(argparse.Action):
    def __call__(self, parser, *_):
        print(f"cachealloc {text()}")
        parser.exit()


def add_to(parser):
    parser.add_argument("--version", action=Show, nargs=0, help="the version")
