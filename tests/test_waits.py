"""The table of waits of docs/internals/testing.md, and the sources: neither has one that the other lacks."""

import re

import conftest

WAITS = re.compile(r"\b(ca_signal_wait|pthread_cond_(?:timed)?wait|ca_sleep|ca_backoff|ca_lock_take_timed|sched_yield|"
                   r"sem_(?:timed)?wait|cuCtxSynchronize|cuEventSynchronize|cuStreamSynchronize|poll|FUTEX_WAIT_PRIVATE)"
                   r"(?:\(|, )")
NO_WAITS = {"base/lock.h", "base/lock.c",  # what the others call, and short waits for locks
            "base/old_glibc.h",            # names
            "shim/life/report_destination.c"}     # a deliberate fault alone


def rows():
    text = (conftest.ROOT / "docs/internals/testing.md").read_text()
    table = text.split("## Where a call waits")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")]
            for line in table.splitlines() if line.startswith("| `")]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_every_wait_is_in_the_table():
    listed = {name for row in rows() for name in names(row[0])}
    found = {str(path.relative_to(conftest.ROOT))
             for room in conftest.PRODUCT
             for path in (conftest.ROOT / room).rglob("*.[ch]") if WAITS.search(path.read_text())}

    assert len(listed) > 10
    assert found - NO_WAITS == listed


def test_every_row_says_a_bound_and_has_its_tests():
    tests = conftest.ROOT / "tests"
    known = "\n".join(path.read_text() for path in
                      [*tests.glob("test_*.py"), *(tests / "unit").glob("test_*.c")])
    modules = {path.stem for path in [*tests.glob("test_*.py"), *tests.glob("unit/test_*.c")]}

    for row in rows():
        assert len(row) == 6 and row[3], row
        assert names(row[5]), row
        for name in names(row[5]):
            assert name in modules or re.search(rf"\b{name}\b", known), name
