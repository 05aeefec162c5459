"""What makes call stacks of two runs the same, for the page and the text of what grew.

They go through the same functions of the same files: addresses, which a loader chooses, lines and
what the compiler inlined, which a small edit changes, do not count.
"""

import re


def last_name(path):
    return path and re.split(r"[/\\]", path)[-1]


class Keys:
    """Of the reports of both sides: of each side a list of (file name, report)."""

    def __init__(self, sides):
        builds = [{(last_name(frame["module"]), frame["build_id"]) for _, report in side
                   for frame in report["frames"] if frame["build_id"]} for side in sides]
        self.in_both = builds[0] & builds[1]

    def of_frame(self, frame):
        module = last_name(frame["module"])
        places = tuple((place["function"], last_name(place["file"]) or module)
                       for place in frame["places"] if place["function"])
        if places:
            return places
        # An offset says something of one build alone.
        known = (module, frame["build_id"]) in self.in_both
        return ((frame["offset"] or frame["text"] if known or module is None else None, module),)

    def of_stack(self, frames):
        return tuple(place for frame in frames for place in self.of_frame(frame))
