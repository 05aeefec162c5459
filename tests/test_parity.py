"""Error parity: every case of tests/parity answers as its row in table.tsv says, without the shim,
with it, without its fast lane, and with its pool off (design.md 1.1 and 11)."""

import pathlib
import re
import subprocess

import pytest

import run_rows

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "parity" / "table.tsv"
COLUMNS = ["case", "lane", "sim", "code", "last error", "output", "with shim", "source"]
SOURCE = re.compile(r"(cuda|cuda_runtime_api|driver_types)\.h:\d+ |Programming Guide|"
                    r"hardware: (pending )?facts:\w")


def read_table():
    lines = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()
             if line and not line.startswith("#")]
    assert lines[0] == COLUMNS
    return [dict(zip(COLUMNS, line, strict=True)) for line in lines[1:]]


ROWS = read_table()


def program(build):
    return build / "tests" / "parity" / "parity"


def plain(row):
    return f"{row['code']} {row['last error']} {row['output']}"


def allowed(row):
    """What the shim may answer: what the plain call answers, or an intended difference."""
    return [plain(row)] + [other.strip() for other in row["with shim"].split("|") if other.strip()]


@pytest.mark.long
@pytest.mark.parametrize("preload, conf", [
    pytest.param(False, None, id="without-the-shim"), pytest.param(True, None, id="with-the-shim"),
    pytest.param(True, "x_runtime_hooks:false", id="through-the-driver-lane-alone"),
    pytest.param(True, "backend:off", id="with-the-pool-off")])
def test_every_row_answers_as_the_table_says(run, build, tmp_path, preload, conf):
    pooled = preload and conf != "backend:off"
    run_rows.run_rows(run, tmp_path, limit=30, rows=[
        run_rows.row(row["case"], [program(build), row["case"]], sim=row["sim"] or None,
                     answers=allowed(row) if pooled else [plain(row)], preload=preload, conf=conf,
                     without=["cannot be preloaded"]) for row in ROWS])


def test_every_case_has_one_row_and_every_row_a_case(build):
    listed = subprocess.run([program(build), "--list"], text=True, capture_output=True, check=True,
                            env={"LD_LIBRARY_PATH": str(build / "simcuda")}).stdout.splitlines()
    assert sorted(listed) == sorted(f"{row['case']} {row['lane']}" for row in ROWS)


def test_every_row_names_its_source():
    assert [row["case"] for row in ROWS if not SOURCE.search(row["source"])] == []


def test_every_pending_fact_is_one_that_the_fact_script_asks(build):
    listed = subprocess.run([build / "facts", "--list"], text=True, capture_output=True, check=True,
                            env={"LD_LIBRARY_PATH": str(build / "simcuda")}).stdout.splitlines()
    facts = {line.split()[0] for line in listed}
    pending = {name for row in ROWS for name in re.findall(r"facts:([\w/-]+)", row["source"])}
    assert pending - facts == set()
