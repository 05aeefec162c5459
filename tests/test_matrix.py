"""Every kind of process is served, or goes on unharmed: the rows of matrix/rows.py."""

import subprocess

import pytest

from matrix import rows


@pytest.mark.parametrize("lane", rows.LANES)
@pytest.mark.parametrize("row", [
    pytest.param(row, id=row.name, marks=[pytest.mark.other_build, pytest.mark.long]
                 if row.name.startswith("nvcc") else [])
    for row in rows.ROWS])
def test_process_is_served(tmp_path, row, lane):
    rows.check(row, lane, tmp_path)


@pytest.mark.parametrize("mutation, name, lane", [
    ("runtime_first", "runtime-12-in-a-program-with-13", "both lanes"),
    ("runtime_next", "runtimes-12-and-13", "both lanes"),
    ("dlsym_blind", "linked-static", "both lanes"),
    ("dlsym_blind", "python-ctypes-cuda", "both lanes"),
    ("lookup_blind", "linked-shared", "both lanes"),
    ("lookup_blind", "driver-11.4-shared", "x_runtime_hooks:false")])
def test_a_row_fails_without_the_fix(tmp_path, mutation, name, lane):
    row, = (row for row in rows.ROWS if row.name == name)
    rows.check(row, lane, tmp_path, "none")

    with pytest.raises(AssertionError):
        rows.check(row, lane, tmp_path, mutation)


@pytest.mark.parametrize("name, bound", [
    ("shared", "cudaMalloc@libcudart.so.13"), ("shared_12", "cudaMalloc@libcudart.so.12"),
    ("static", None)])
def test_programs_are_what_their_rows_say(name, bound):
    symbols = subprocess.run(["readelf", "-W", "--dyn-syms", rows.made(name)], text=True,
                             check=True, capture_output=True).stdout
    assert f"{bound} " in symbols if bound else "cuda" not in symbols
