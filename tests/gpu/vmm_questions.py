"""What expandable segments ask of a GPU's virtual memory management: the step `vmm` of check.py.

The facts vmm_* answer by themselves; each becomes one table here. A code that says that all went
well is `yes`.
"""

from order_questions import pivot, refused, rows_of, void

GROUPS = ("vmm_device", "vmm_ranges", "vmm_pointers", "vmm_copies", "vmm_alias", "vmm_busy",
          "vmm_capture", "vmm_gone", "vmm_peers", "vmm_cost", "vmm_again", "vmm_many")


def code(row):
    return refused(row, "yes")


def us(nanoseconds):
    return f"{nanoseconds / 1000:.1f}"


def pointer(row):
    if "units" in row:
        return refused(row, f"unit {row['begins at unit']:.0f}, {row['units']:.0f} units")
    return refused(row, "yes" if row.get("of a context") else
                   f"{row.get('answer', 0):.0f}")


def busy(row):
    kernel = row["the kernel"]
    return (refused(row, "yes"), "yes" if row["returns while the kernel is at work"] else "waits",
            "ends well" if kernel.endswith("(0)") else kernel)


def copied(row):
    return refused(row, "right" if row["the bytes are right"] else "wrong")


def captured(row):
    return refused(row, "yes" if row["the capture lives"] else "yes, and ends the capture")


def cost(row):
    return refused(row, us(row["call_median_ns"]) + (" (waits)" if row.get("waits") else ""))


def calls(facts, group):
    """(call or question, answer) of a fact whose rows are few and unlike."""
    for fact in facts:
        if fact["name"].split("/")[0] != group:
            continue
        case = fact["name"].partition("/")[2]
        for row in fact["rows"]:
            if "question" in row:
                answer = row["answer"]
                yield case, row["question"], {True: "yes", False: "no"}.get(answer, answer) \
                    if isinstance(answer, bool) else answer
            elif "note" in row:
                yield case, row["note"], ""
            elif "when" in row:
                yield case, f"{row['call']}, {row['when']}", code(row)


def tables(facts):
    """(title, table) of each question that was answered."""
    for group, title in (("vmm_device", "Virtual memory management"),
                         ("vmm_ranges", "Ranges that calls take")):
        rows = [(what, answer) for _, what, answer in calls(facts, group)]
        if rows:
            yield title, [("", ""), *rows]
    rows = rows_of(facts, "vmm_pointers", "pointer")
    if rows:
        yield ("What a pointer to mapped memory tells, in units of a handle",
               pivot(rows, ("call",), "pointer", pointer))
    rows = [(what, answer) for _, what, answer in calls(facts, "vmm_pointers")]
    if rows:
        yield "Calls with mapped memory", [("", ""), *rows]
    rows = rows_of(facts, "vmm_copies", "the bytes are right")
    if rows:
        yield ("Over two handles", [("", ""), *((row["call"], copied(row)) for row in rows),
                                    *(row[1:] for row in calls(facts, "vmm_copies"))])
    rows = rows_of(facts, "vmm_alias", "stale")
    if rows:
        yield ("Written by one address, read by another: rounds that saw old bytes",
               pivot(rows, ("work", "then"), "on", lambda row: refused(
                   row, f"{row['stale']} of {row['rounds']}")))
    rows = rows_of(facts, "vmm_busy", "the kernel")
    if rows:
        yield ("While a kernel writes to mapped memory",
               [("call", "", "returns", "the kernel"),
                *((row["call"], *busy(row)) for row in rows)])
    rows = rows_of(facts, "vmm_capture", "capture mode")
    if rows:
        yield "Captures, by mode", pivot(rows, ("call",), "capture mode", captured)
    for group, title in (("vmm_gone", "When a context ends"), ("vmm_peers", "Another device")):
        rows = list(calls(facts, group))
        if rows:
            yield title, [("", "", ""), *rows]
    rows = [{**row, "MiB": row["bytes"] // 2 ** 20, "handles": row.get("handles", "")}
            for row in rows_of(facts, "vmm_cost", "call_median_ns")]
    if rows:
        yield ("What calls cost, us, median; with several handles for the whole call",
               pivot(rows, ("call", "MiB", "handles"), "state", cost))
    rows = rows_of(facts, "vmm_again", "create_ns")
    if rows:
        yield ("1 GiB in one handle, us",
               [("", "to create", "to map, access and write to"),
                *((row["state"], refused(row, us(row["create_ns"])), us(row["open_ns"]))
                  for row in rows)])
    rows = rows_of(facts, "vmm_many", "mappings")
    if rows:
        yield ("Mappings of one handle",
               [("mappings", "stopped by", "us each, the first 1,000", "the last"),
                *((row["mappings"], void(row, f"{row['stopped by']}, {row['code']}"),
                   us(row["each of the first 1000_ns"]), us(row["each of the last 1000_ns"]))
                  for row in rows)])
