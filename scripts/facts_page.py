#!/usr/bin/env python3
"""Renders the fact script's JSON as a Markdown page: facts_page.py FACTS.json > PAGE.md

Facts named GROUP/CASE become one table with a column for the case. Rows with the same keys share
a table; notes become lines between them.
"""

import json
import sys


def cell(value):
    if value is True:
        return "yes"
    if value is False:
        return "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int):
        return str(value)
    return str(value).replace("|", "\\|")


# Rows that differ in one of these alone become one row that lists the values.
LISTED = ["bytes", "width", "from version", "flags", "in relaxed mode", "from", "capture mode",
          "work on", "held by"]


def merged(rows):
    for column in LISTED:
        found = {}
        for row in rows:
            if "call_us" in row or "call_median_ns" in row or "get_median_ns" in row:
                key = id(row)  # a measurement is a row of its own
            else:
                key = (column in row, *((k, v) for k, v in row.items() if k != column))
            found.setdefault(key, []).append(row)
        rows = []
        for same in found.values():
            if column in same[0] and len(same) > 1:
                values = dict.fromkeys(cell(row[column]) for row in same)
                rows.append(same[0] | {column: ", ".join(values)})
            else:
                rows += same
    return rows


def table(rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    rows = merged(rows)
    # A column that says the same in every row (more than one) stands above the table.
    common = [c for c in columns
              if len(rows) > 2 and all(c in r and r[c] == rows[0][c] for r in rows)]
    columns = [c for c in columns if c not in common]
    if common:
        yield "In every row: " + ", ".join(f"{c} {cell(rows[0][c])}" for c in common) + "."
        yield ""
    if not columns:
        return
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(cell(row.get(c, "")) for c in columns) + " |"
    yield ""


def shape(row):
    return tuple(row) if "call" not in row and "when" not in row else "calls"


def tables(rows):
    pending = []
    for row in rows:
        if set(row) - {"case"} == {"note"} or (pending and shape(row) != shape(pending[-1])):
            yield from table(pending)
            pending = []
        if set(row) - {"case"} == {"note"}:
            yield (f"{row['case']}: " if "case" in row else "") + row["note"]
            yield ""
        else:
            pending.append(row)
    if pending:
        yield from table(pending)


def groups(facts):
    found = {}
    for fact in facts:
        group, _, case = fact["name"].partition("/")
        entry = found.setdefault(group, {"answers": fact["answers"], "rows": [], "status": []})
        entry["rows"] += [({"case": case} if case else {}) | row for row in fact["rows"]]
        if fact["status"] != "ok":
            entry["status"].append(f"{fact['name']}: {fact['status']}")
    return found


def page(result):
    yield f"# Facts, answered by: {result['answered by']}"
    yield ""
    if "simulated" in result["answered by"]:
        yield "**These are the simulator's answers. They show that the script runs and say nothing " \
              "about hardware.**"
        yield ""
    for name, group in groups(result["facts"]).items():
        yield f"## {name}: {group['answers']}"
        yield ""
        for status in group["status"]:
            yield f"**{status}**; the rows before that stand."
            yield ""
        yield from tables(group["rows"])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        result = json.load(file)
    print("\n".join(page(result)).rstrip())


if __name__ == "__main__":
    main()
