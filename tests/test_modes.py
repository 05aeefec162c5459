"""The modes of the pool, each through its option: what a program gets, and what stays as it was."""

import pytest

ELEVEN = "32K+256K+1M+2M+4M+8M+16M+32M+64M+128M+256M"
MIB = 1 << 20
# Long, so that a machine that is busy does not make the device seem to hang.
WAITS = "reuse:wait,reuse_wait:10s"


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
    # So large a device that what cutting may strand is no matter.
    mixed, apart = (printed(run, [program("modes"), 4, 64 * MIB, 4096], conf, sim="memory:80G")[1]
                    for conf in (WAITS, f"{WAITS},x_small:1M"))

    assert (mixed, apart) == (64 * MIB, 10 * MIB)


@pytest.mark.parametrize("conf", ["x_small:1M", "x_small:16M", "max_split:1M", "gc_threshold:1"])
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
    held, _ = printed(run, [program("modes"), 4, 64 * MIB, 100 * MIB], f"{WAITS},{conf}")

    assert most - 64 * MIB < held <= most


def test_nothing_goes_back_for_tidiness_during_a_capture(run, program):
    """Past the peak, above the threshold and into the headroom: segments stay where they are."""
    conf = f"{WAITS},gc_threshold:1,headroom:700M"
    plain, _ = printed(run, [program("modes"), 4, 64 * MIB, 100 * MIB], conf)
    captured, _ = printed(run, [program("modes"), 4, 64 * MIB, 100 * MIB, "capture"], conf)

    assert (plain, captured) == (100 * MIB, 356 * MIB)


# --- under compute-sanitizer ----------------------------------------------------------------------

SET_BY_IT = ["NV_SANITIZER_INJECTION_PORT_BASE", "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN"]
STEPS_ASIDE = "compute-sanitizer runs this program: backend:off"


def sanitized(run, program, conf, variable=SET_BY_IT[0]):
    result = run([program("pairs"), "hot", 1000], conf=conf, env={variable: "49152"}, stats=True)
    assert result.rc == 0, result.err
    return result.sim["calls"]["cuMemAlloc_v2"], result.err


@pytest.mark.parametrize("variable", SET_BY_IT)
@pytest.mark.parametrize("conf", [None, "x_runtime_hooks:false", "stats:exit"])
def test_under_compute_sanitizer_the_driver_has_every_allocation(run, program, conf, variable):
    plain = run([program("pairs"), "hot", 1000], preload=False, stats=True)

    calls, err = sanitized(run, program, conf, variable)

    assert calls == plain.sim["calls"]["cuMemAlloc_v2"]
    assert err.count(STEPS_ASIDE) == 1


@pytest.mark.parametrize("conf, pooled", [("backend:pool", True), ("backend:off", False)])
def test_under_compute_sanitizer_a_backend_that_is_asked_for_stays(run, program, conf, pooled):
    calls, err = sanitized(run, program, conf)

    assert (calls < 100, err) == (pooled, "")


def test_under_compute_sanitizer_a_wrong_backend_leaves_the_default_there(run, program):
    calls, err = sanitized(run, program, "backend:none,print:true")

    assert calls >= 1000
    assert STEPS_ASIDE in err and "backend" in err.splitlines()[0] and "ALLOC_CONF=backend:off," in err


def test_under_compute_sanitizer_log_error_is_quiet(run, program):
    assert sanitized(run, program, "log:error")[1] == ""
