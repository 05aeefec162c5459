"""The modes of the pool, each through its option: what a program gets, and what stays as it was."""

import pytest

ELEVEN = "32K+256K+1M+2M+4M+8M+16M+32M+64M+128M+256M"
MIB = 1 << 20


def printed(run, cmd, conf=None, sim="memory:1G", **kwargs):
    result = run(cmd, conf=conf, sim=sim, **kwargs)
    assert (result.rc, result.err) == (0, ""), result.err
    return [int(word) for word in result.out.split()]


@pytest.mark.parametrize("conf, size, least, most", [
    (None, 33 << 10, 10, 10),
    (f"size_classes:{ELEVEN}", 33 << 10, 25, 32),  # 100 of 256 KiB
    ("size_classes:1M+300K", 33 << 10, 29, 38),
    ("roundup:1", 33 << 10, 10, 10),
    ("roundup:1", (1 << 20) + 1, 200, 250),
    ("roundup:4", (1 << 20) + 1, 125, 160),
    (None, (1 << 20) + 1, 100, 135),
])
def test_rounding_counts(run, program, conf, size, least, most):
    peak, = printed(run, [program("modes"), 100, size], conf)

    assert least * MIB <= peak <= most * MIB


@pytest.mark.parametrize("conf", [f"size_classes:{ELEVEN}", "roundup:1"])
def test_a_request_that_fits_only_as_it_is_goes_to_the_driver(run, program, conf):
    assert printed(run, [program("modes"), 1, 130 * MIB], conf, sim="memory:240M") == [0]


def test_small_blocks_do_not_break_up_large_ones(run, program):
    mixed, apart = (printed(run, [program("modes"), 4, 64 * MIB, 4096], conf)[1]
                    for conf in ("reuse:wait", "reuse:wait,small:1M"))

    assert (mixed, apart) == (64 * MIB, 10 * MIB)


@pytest.mark.parametrize("conf", ["small:1M", "small:16M", "max_split:1M", "gc_threshold:1"])
@pytest.mark.parametrize("count, size", [(1, 130 * MIB), (3, 70 * MIB), (8, 25 * MIB),
                                         (200, MIB), (2000, 100 << 10)])
def test_what_fits_the_device_is_served(run, program, conf, count, size):
    """What a mode keeps apart is there for all when memory runs out."""
    result = run([program("modes"), count, size], conf=conf, sim="memory:256M")

    assert (result.rc, result.err) == (0, ""), result.err


@pytest.mark.parametrize("conf, most", [
    ("gc_threshold:0", 256 * MIB), ("gc_threshold:90", 256 * MIB), ("gc_threshold:10", 204 * MIB),
    ("gc_threshold:50,limit:300M,headroom:0", 230 * MIB), ("gc_threshold:1", 110 * MIB)])
def test_above_the_threshold_idle_memory_goes_first(run, program, conf, most):
    """256 MiB are idle when 100 more are needed. The highest reserve so far is kept in any case."""
    held, _ = printed(run, [program("modes"), 4, 64 * MIB, 100 * MIB], f"reuse:wait,{conf}")

    assert most - 64 * MIB < held <= most


def test_nothing_goes_back_for_tidiness_during_a_capture(run, program):
    """Past the peak, above the threshold and into the headroom: segments stay where they are."""
    conf = "reuse:wait,gc_threshold:1,headroom:700M"
    plain, _ = printed(run, [program("modes"), 4, 64 * MIB, 100 * MIB], conf)
    captured, _ = printed(run, [program("modes"), 4, 64 * MIB, 100 * MIB, "capture"], conf)

    assert (plain, captured) == (100 * MIB, 356 * MIB)
