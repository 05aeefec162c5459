"""The modes of the pool, each through its option: what a program gets, and what stays as it was."""

import pytest

ELEVEN = "32K+256K+1M+2M+4M+8M+16M+32M+64M+128M+256M"
MIB = 1 << 20


def printed(run, cmd, conf=None, sim="memory:1G", **kwargs):
    result = run(cmd, conf=conf, sim=sim, **kwargs)
    assert (result.rc, result.err) == (0, ""), result.err
    return int(result.out)


@pytest.mark.parametrize("conf, size, least, most", [
    (None, 33 << 10, 8, 8),
    (f"size_classes:{ELEVEN}", 33 << 10, 25, 32),  # 100 of 256 KiB
    ("size_classes:1M+300K", 33 << 10, 29, 38),
    ("roundup:1", 33 << 10, 8, 8),
    ("roundup:1", (1 << 20) + 1, 200, 250),
    ("roundup:4", (1 << 20) + 1, 125, 160),
    (None, (1 << 20) + 1, 100, 130),
])
def test_rounding_counts(run, program, conf, size, least, most):
    peak = printed(run, [program("modes"), 100, size], conf)

    assert least * MIB <= peak <= most * MIB


@pytest.mark.parametrize("conf", [f"size_classes:{ELEVEN}", "roundup:1"])
def test_a_request_that_fits_only_as_it_is_goes_to_the_driver(run, program, conf):
    assert printed(run, [program("modes"), 1, 130 * MIB], conf, sim="memory:240M") == 0
