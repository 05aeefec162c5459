"""Every kind of process is served, or goes on unharmed: the rows of matrix/rows.py."""

import subprocess

import pytest

from matrix import rows


@pytest.mark.parametrize("lane", rows.LANES)
@pytest.mark.parametrize("row", rows.ROWS, ids=lambda row: row.name)
def test_process_is_served(tmp_path, row, lane):
    rows.check(row, lane, tmp_path)


@pytest.mark.parametrize("name, bound", [
    ("shared", "cudaMalloc@libcudart.so.13"), ("shared_12", "cudaMalloc@libcudart.so.12"),
    ("static", None)])
def test_programs_are_what_their_rows_say(name, bound):
    symbols = subprocess.run(["readelf", "-W", "--dyn-syms", rows.made(name)], text=True,
                             check=True, capture_output=True).stdout
    assert f"{bound} " in symbols if bound else "cuda" not in symbols
