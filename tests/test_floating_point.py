"""No floating point in the library: the program may have traps on, or look at the flags."""

import platform
import re
import subprocess

import pytest

import conftest

# Of scalars and vectors that compute, compare or convert; moves and bits are not among them.
COMPUTES = re.compile(r"v?(?:add|sub|mul|div|sqrt|min|max|cmp|u?comi|round|rcp|rsqrt|hadd|hsub|"
                      r"addsub|dp|fn?m(?:add|sub)\d+)[ps][sd]$|v?cvt\w+$|f\w+$")
ENVIRONMENT = {"fnstenv", "fldenv"}  # of registry/names/fp_state.h


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="a run-time's code")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="its instructions")
def test_no_code_of_the_library_computes_so():
    code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", conftest.SHIM], text=True,
                          check=True, capture_output=True).stdout
    function, found, instructions = None, set(), 0
    for line in code.splitlines():
        if match := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            function = match[1]
        elif match := re.match(r" +[0-9a-f]+:\t(?:(?:rep|repz|lock|bnd|notrack) )*(\w+)", line):
            instructions += 1
            if COMPUTES.match(match[1]) and match[1] not in ENVIRONMENT:
                found.add((function, match[1]))

    assert found == set()
    assert instructions > 10000  # else this shows nothing


@pytest.mark.skipif(platform.machine() != "x86_64", reason="where traps are to be had")
@pytest.mark.parametrize("look", ["flags", "traps"])
@pytest.mark.parametrize("conf", [None, "stacks:sample:64K", "x_runtime_hooks:false", "backend:off",
                                  "debug:frees+poison+redzone"])
def test_traps_and_flags_are_the_programs(run, program, tmp_path, conf, look):
    result = run([program("fp_traps"), look, tmp_path / "dump"],
                 conf=f"{conf or ''},oom_report:1s".strip(","))

    assert result.rc == 0, (result.rc, result.err)
    assert "out of memory" in result.err
    assert (tmp_path / "dump").stat().st_size > 0


def test_so_they_are_without_it(run, program, tmp_path):
    """Else the simulated CUDA is what traps."""
    for look in ("flags", "traps"):
        assert run([program("fp_traps"), look, tmp_path / "dump"], preload=False).rc == 0
