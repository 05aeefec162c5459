"""What reuse in order asks of a GPU before its driver counts as proven: the step `order` of check.py.

The facts order_* answer by themselves; each becomes one table here. Launches are counted under the
debug build of the library, whose wrappers count what comes by (shim/cuda/seen.h), against those that the
driver has put into a captured graph.
"""

import copy
import json
import pathlib
import sys

import suite

GROUPS = ("order_asleep", "order_copies", "order_waits", "order_programmatic", "order_handles")
CONF = "reuse:order,leak_report:off,oom_report:off"
SEEN = "order_seen"
FRAMEWORKS = pathlib.Path(__file__).with_name("frameworks.py")


# --- tables ---------------------------------------------------------------------------------------


def pivot(rows, down, across, cell):
    """One line for each value of `down`, one column for each of `across`."""
    columns = list(dict.fromkeys(str(row[across]) for row in rows))
    lines = {}
    for row in rows:
        names = tuple(str(row[key]) for key in down)
        lines.setdefault(names, {})[str(row[across])] = cell(row)
    return [(*down, *columns),
            *((*names, *(cells.get(column, "") for column in columns))
              for names, cells in lines.items())]


def void(row, text):
    return f"void: {row['void']}" if "void" in row else text


def refused(row, text):
    """The answer, or why there is none. A code that says that all went well is left out."""
    code = row.get("code", "CUDA_SUCCESS (0)")
    return void(row, text if code.endswith("(0)") else code)


def asleep(row):
    if not row["returns when the kernel has ended"]:
        return "never returns"
    says = "returns" if row["returns"] else "waits"
    if row["returns"] and "runs" in row:
        says += ", runs" if row["runs"] else ", does not run"
    if not row.get("it sleeps", True):
        says += " (nobody slept)"
    return refused(row, says)


def copied(row):
    return refused(row, ("the last write" if row["the copy is the last write"] else "overwritten")
                   + (", call waits" if row["the call waits"] else "")
                   + (", source read before" if row["its source is read before"] else ""))


def waited(row):
    return refused(row, ("waits" if row["waits"] else "does not wait")
                   + ("" if row["runs afterwards"] else ", never runs"))


def rows_of(facts, group, *keys):
    """Its rows that have these keys. Notes are no rows."""
    return [row for fact in facts if fact["name"].split("/")[0] == group for row in fact["rows"]
            if all(key in row for key in keys)]


def tables(facts):
    """(title, table) of each question that was answered."""
    rows = rows_of(facts, "order_asleep", "call")
    if rows:
        yield "While a kernel goes on", pivot(rows, ("call",), "when", asleep)
    rows = rows_of(facts, "order_copies", "bytes")
    if rows:
        yield ("Small copies, the old owner writes late",
               pivot(rows, ("call", "on", "from", "when"), "bytes", copied))
    rows = rows_of(facts, "order_waits", "work on")
    if rows:
        yield ("cuStreamWaitEvent of an event of cuCtxRecordEvent, by the waiting stream",
               pivot(rows, ("work on",), "on", waited))
    rows = rows_of(facts, "order_waits", "question")
    if rows:
        yield ("The same with several kernels",
               [("", ""), *((row["question"], refused(row, "yes" if row["answer"] else "no"))
                            for row in rows)])
    rows = rows_of(facts, "order_programmatic", "between")
    if rows:
        yield ("A programmatic launch",
               [("between the kernels", "begins early", "past its grid sync early"),
                *((row["between"], refused(row, "yes" if row["begins early"] else "no"),
                   "yes" if row["is past its grid sync early"] else "no") for row in rows)])
    rows = rows_of(facts, "order_handles", "its handle comes again")
    if rows:
        yield ("The handle of a stream that was destroyed at work",
               pivot(rows, ("kind",), "when", lambda row: refused(
                   row, "comes again" if row["its handle comes again"] else "does not")))


# --- launches -------------------------------------------------------------------------------------


def libraries_of_pip():
    """Folders of NVIDIA's libraries beside this Python."""
    return [str(folder) for folder in
            sorted(pathlib.Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/*/lib"))]


def counting(cuda, library):
    """The same CUDA, under the library that counts."""
    other = copy.copy(cuda)
    other.library = library
    folders = [cuda.env["LD_LIBRARY_PATH"], *libraries_of_pip()]
    other.env = {**cuda.env, "LD_LIBRARY_PATH": ":".join(filter(None, folders))}
    return other


def launches(step, cuda):
    """Counts them; what was made and not seen is a fault of ours."""
    library = cuda.build / "libcachealloc-debug.so"
    if not library.exists():
        step.notes.append(f"Launches are not counted: no {library.name} here.")
        return []
    counted = counting(cuda, library)
    facts = suite.facts_of(counted, SEEN, step.left(), "under the library", CONF)
    lines, asked = [], set()
    for fact in facts:
        name = fact["name"].split("/")[1]
        for row in fact["rows"]:
            if "cuGetExportTable" in row:
                asked.add(row["cuGetExportTable"])
            elif "note" in row:
                lines.append((name, row["note"], ""))
            elif "stopped at" in row:
                lines.append((name, f"stopped at {row['stopped at']}: {row['answer']}", ""))
            elif "launches seen" not in row:
                step.fail(f"{name}: {library.name} does not count")
            else:
                lines.append((name, row["launches made"], row["launches seen"]))
        if fact["status"] != "ok":
            lines.append((name, fact["status"], ""))
    torch_lines, more = of_torch(step, counted)
    lines += torch_lines
    for name, made, seen in lines:
        # Another thread of the library's may launch meanwhile, on a stream that is not captured.
        if seen != "" and seen < made:
            step.fail(f"{name}: {made} launches made, {seen} seen by the wrappers")
    step.tables.append(("Launches in a capture", [("", "made", "seen by the wrappers"), *lines]))
    step.tables.append(("cuGetExportTable was asked for",
                        [("table",), *((one,) for one in sorted(asked | more))]))
    return facts


def of_torch(step, counted):
    """(lines of the table, tables that cuGetExportTable was asked for)"""
    try:
        python = suite.python_with(counted, "torch")
    except suite.Missing as reason:
        return [("PyTorch", f"absent: {reason}", "")], set()
    ran = counted.run([python, "-B", FRAMEWORKS, "seen", 1], step.left(90), CONF,
                      more=suite.OWN_LIBRARIES)
    try:
        found = json.loads(ran.out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return [("PyTorch", f"does not run: {ran.last_line()}", "")], set()
    asked = set(found.pop("cuGetExportTable"))
    return [(f"PyTorch, {name}", f"stopped: {one['stopped']}", "") if "stopped" in one else
            (f"PyTorch, {name}", one["made"], one["seen"]) for name, one in found.items()], asked
