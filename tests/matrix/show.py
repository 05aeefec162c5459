"""Prints one line for each row of the matrix; the exit status is 1 where one failed.
show.py [NAME...]: the rows whose name contains one of these."""

import pathlib
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from matrix import rows  # noqa: E402 (the path comes first)


def outcome(row, lane):
    """The first words of the line, and what comes after the name."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            rows.check(row, lane, pathlib.Path(directory))
        except pytest.skip.Exception as reason:
            return "SKIP", f": {reason}"
        except (AssertionError, pytest.fail.Exception) as why:
            return "FAIL", ": " + " ".join(str(why).split())
    return "PASS", ""


def main(names):
    chosen = [row for row in rows.ROWS
              if not names or any(name in row.name for name in names)]
    if not chosen:
        print("FAIL no row has such a name")
    failed = not chosen
    for row in chosen:
        for lane in rows.LANES:
            word, rest = outcome(row, lane)
            print(f"{word} {row.name}, {lane}{rest}", flush=True)
            failed |= word == "FAIL"
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
