"""Call stacks are told as they are, whichever way they are found (DESIGN 7)."""

import pytest

import leak_report


@pytest.mark.parametrize("conf", [None, "lane_r:false", "backend:off", "stack_depth:64"])
def test_stacks_that_start_alike_are_told_apart(run, program, conf):
    result = run(program("same_start"), conf=conf)

    assert (result.rc, result.out) == (0, ""), result.err
    assert leak_report.nothing_leaked(result.err), result.err
