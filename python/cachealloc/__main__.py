"""python -m cachealloc COMMAND ...: the launcher that came with this package, cachealloc(1).

A program that is a Python file is run by this Python: `python -m cachealloc run train.py` is
`python train.py` under the library. The command `cachealloc` that pip installs is script(): there a
file that is executable decides by its first line, as it does without pip.
"""

import os
import shutil
import sys
from typing import Dict, List

from cachealloc import _files

_TAKE_A_VALUE = ("-o", "--library")  # of the options of run and check


def _program_at(words: List[str]) -> int:
    """Which of the words after `run` is the program; len(words) where none is."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return at + 1
        at += 2 if words[at] in _TAKE_A_VALUE else 1
    return at


def _with_python(words: List[str], always: bool) -> List[str]:
    at = _program_at(words)
    program = words[at] if at < len(words) else ""
    if not program.endswith(".py") or not os.path.isfile(program) or not sys.executable:
        return words
    # As the launcher finds a program: by its path, or in PATH.
    if not always and shutil.which(program):
        return words
    return words[:at] + [sys.executable] + words[at:]


def _environment() -> Dict[bytes, bytes]:
    """This process's own, as it began: in the C locale Python sets an LC_CTYPE, which the program
    would not have."""
    environment = dict(os.environb)
    try:
        with open("/proc/self/environ", "rb") as file:
            first = file.read().split(b"\0")
    except OSError:
        return environment
    environment.pop(b"LC_CTYPE", None)
    for entry in first:
        if entry.startswith(b"LC_CTYPE="):
            environment[b"LC_CTYPE"] = entry[len(b"LC_CTYPE="):]
    return environment


def _launch(words: List[str], always: bool) -> None:
    try:
        launcher = _files.launcher_path()
    except FileNotFoundError as error:
        sys.exit(f"cachealloc: {error}")
    environment = _environment()
    if words[:1] in (["run"], ["check"]):
        words = words[:1] + _with_python(words[1:], always)
    elif sys.executable:
        # The tools are Python's, and this one may not be in PATH. They start no program.
        folder = os.fsencode(os.path.dirname(sys.executable))
        environment[b"PATH"] = folder + b":" + environment.get(b"PATH", os.fsencode(os.defpath))
    os.execve(launcher, [launcher] + words, environment)


def main() -> None:
    """python -m cachealloc."""
    _launch(sys.argv[1:], always=True)


def script() -> None:
    """The command of pip."""
    _launch(sys.argv[1:], always=False)


if __name__ == "__main__":
    main()
