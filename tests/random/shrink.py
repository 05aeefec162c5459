#!/usr/bin/env python3
"""Shrinks a failing random program: leaves out operations as long as it fails in the same way.

    shrink.py --seed N --ops N --profile NAME [--configuration shim] [--seconds 60] [--build DIR]

Delta debugging over the operations. The program can be run without any of them: those that need
what is missing are skipped. A run that depends on timing is tried a few times before it counts as
passed.
"""

import argparse
import subprocess
import sys
import time

import programs


def as_list(numbers):
    """1,2,3,7 as "1-3,7"."""
    parts, numbers = [], sorted(numbers)
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "999999999"


class Shrinker:
    def __init__(self, runner, program, configuration, kind, seconds=60, tries=3):
        self.runner, self.program, self.configuration = runner, program, configuration
        self.kind, self.tries = kind, tries
        self.end = time.monotonic() + seconds
        self.runs = 0

    def fails(self, keep):
        more = ["--only", as_list(keep)]
        for _ in range(self.tries):
            if time.monotonic() > self.end:
                return False
            self.runs += 1
            if self.runner.run(self.program, self.configuration, more).what() == self.kind:
                return True
        return False

    def shrink(self):
        """The operations that are left, the last of the program (which always runs) not counted."""
        keep = list(range(self.program.ops - 1))
        pieces = 2
        while len(keep) > 1 and time.monotonic() < self.end:
            size = max(1, (len(keep) + pieces - 1) // pieces)
            # The end first: what comes after the failure goes at once.
            for start in range((len(keep) - 1) // size * size, -1, -size):
                fewer = keep[:start] + keep[start + size:]
                if self.fails(fewer):
                    keep = fewer
                    pieces = max(pieces - 1, 2)
                    break
            else:
                if size == 1:
                    break
                pieces = min(pieces * 2, len(keep))
        return keep


def shrink_and_tell(runner, program, configuration, result, seconds=60):
    """The text to print about a failure: the shrunk program, and how to run it."""
    shrinker = Shrinker(runner, program, configuration, result.what(), seconds)
    keep = shrinker.shrink()
    more = ["--only", as_list(keep)]
    last = runner.run(program, configuration, more)
    listing = subprocess.run(runner.command(program, [*more, "--list"]), text=True, check=False,
                             env={**runner.env, **runner.environment(program, "plain")},
                             stdin=subprocess.DEVNULL, capture_output=True).stdout
    return "\n".join([
        f"shrunk to {len(keep)} of {program.ops} operations in {shrinker.runs} runs:", listing,
        (last if last.failed else result).says(), "by hand:",
        "  " + runner.by_hand(program, configuration, more)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--ops", type=int, required=True)
    parser.add_argument("--profile", default="mixed")
    parser.add_argument("--configuration", choices=programs.CONFIGURATIONS | programs.OTHERS,
                        default="shim")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--build", default=programs.ROOT / "build")
    parser.add_argument("--shim")
    parser.add_argument("--no-racecheck", action="store_true")
    parser.add_argument("--mutation", help="a deliberate fault of a debug build of the shim")
    parser.add_argument("--break", dest="broken", help="an operation whose waits are left out")
    asked = parser.parse_args()
    runner = programs.Runner(asked.build, asked.shim, racecheck=not asked.no_racecheck,
                             env={"CA_MUTATION": asked.mutation} if asked.mutation else None)
    program = programs.Program(asked.seed, asked.ops, asked.profile,
                               ("--break", asked.broken) if asked.broken else ())
    result = runner.run(program, asked.configuration)
    if not result.failed:
        print("it does not fail")
        return 1
    print(shrink_and_tell(runner, program, asked.configuration, result, asked.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
