"""A JSON report as folded stacks, as the library writes them (registry/report/format_folded.c)."""

from report_page.shown import escape, last_component, not_listed


def name(text):
    return escape(text).replace(";", ":")


def names_of(frame):
    """Outermost first."""
    if frame["language"] == "python" and frame["places"]:
        place = frame["places"][0]
        return [f"{name(place['function'] or '')} ({name(last_component(place['file'] or ''))})"]
    return [name(frame["text"] if place["function"] is None else place["function"])
            for place in reversed(frame["places"])] or [name(frame["text"])]


def lines_of(report):
    for title, suffix in (("leaked", ""), ("destroyed", ", context destroyed")):
        section = report["sections"].get(title)
        if section is None:
            continue
        for group in section["groups"]:
            if group["bytes"] == 0:
                continue
            names = [f"device {group['device']}, {name(group['kind'])} memory{suffix}"]
            for number in reversed(group["frames"]):
                names += names_of(report["frames"][number])
            if not group["frames"]:
                names.append("(no call stack)")
            yield f"{';'.join(names)} {group['bytes']}"
        if not_listed(section)[1]:
            yield f"(not listed){suffix} {not_listed(section)[1]}"


def write(report):
    return "".join(f"{line}\n" for line in lines_of(report)).encode("utf-8", "replace")
