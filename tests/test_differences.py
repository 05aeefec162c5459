"""What the shim intends to do differently, as the table of docs/guarantees.md says, and nothing else."""

import pytest

import conftest


def lines(result):
    assert result.rc == 0, result.err
    return result.out.splitlines()


def test_address_ranges_are_those_of_the_segment(run, program):
    assert lines(run(program("drv_views"), preload=False))[0] == "base of both: own"
    assert lines(run(program("drv_views")))[0] == "base of both: shared"
    assert lines(run(program("drv_views"), conf="backend:off"))[0] == "base of both: own"


def test_a_freed_pointer_still_looks_like_device_memory(run, program):
    assert lines(run(program("drv_views"), preload=False))[1] == "freed: unknown"
    assert lines(run(program("drv_views")))[1] == "freed: device memory"


def test_stream_ordered_memory_is_of_no_memory_pool(run, program):
    assert lines(run(program("drv_async_views"), preload=False)) == ["of a pool", "has no handle"]
    assert lines(run(program("drv_async_views"))) == ["of no pool", "has a handle"]
    assert lines(run(program("drv_async_views"), conf="stream_ordered:driver")) == ["of a pool",
                                                                           "has no handle"]


def test_the_driver_sees_fewer_calls(run, program):
    plain = run([program("pairs"), "hot", 1000], preload=False, stats=True)
    pooled = run([program("pairs"), "hot", 1000], stats=True)

    assert plain.sim["calls"]["cuMemAlloc_v2"] == 1000
    assert pooled.sim["calls"]["cuMemAlloc_v2"] < 50


def test_the_limit_refuses_what_the_device_would_give(run, program):
    assert lines(run(program("at_limit"), sim="memory:1G", preload=False)) == ["64 0"]
    count, code = lines(run(program("at_limit"), sim="memory:1G", conf="limit:64M"))[0].split()
    assert 6 <= int(count) <= 8  # of 8 MiB each; segments may leave a little over
    assert code == "2"


@pytest.mark.parametrize("conf", [None, "limit:512M", "backend:async"])
def test_what_is_refused_has_the_output_that_the_driver_gives_it(run, program, conf):
    """Nothing: by the limit's refusal, too, which the driver does not hear of."""
    plain = lines(run(program("drv_refused"), sim="memory:512M", preload=False))
    assert lines(run(program("drv_refused"), sim="memory:512M", conf=conf)) == plain
    assert plain[0] == "cuMemAlloc: 2, 0"


@pytest.mark.parametrize("lane", ["x_runtime_hooks:true", "x_runtime_hooks:false"])
@pytest.mark.parametrize("share", ["25%", "1/4"])
def test_the_limit_may_be_a_share_of_what_the_device_has(run, program, share, lane):
    result = run(program("at_limit"), sim="memory:256M", conf=f"limit:{share},{lane}")
    count, code = lines(result)[0].split()
    assert 6 <= int(count) <= 8
    assert (code, result.err) == ("2", "")


@pytest.mark.parametrize("backend", ["off", "async"])
def test_without_a_pool_the_limit_bounds_nothing_and_a_message_says_so(run, program, backend):
    result = run(program("at_limit"), sim="memory:256M", conf=f"limit:1/4,backend:{backend}")
    assert lines(result) == ["32 2"]
    assert result.err.endswith(
        f"limit bounds the pool, and backend:{backend} has none: it bounds nothing\n")
    assert len(result.err.splitlines()) == 1


def test_each_device_has_its_own_share(run, program):
    """The limit is asked of each context's device once, when it is first used."""
    result = run(program("multi_ctx"), sim="devices:2,memory:4G", conf="limit:50%", stats=True)
    assert result.rc == 0, result.err
    assert result.sim["calls"]["cuDeviceTotalMem_v2"] >= 2


def test_a_share_of_what_cannot_be_told_is_no_limit(run, program):
    result = run(program("at_limit"), sim="memory:1G,without:cuDeviceTotalMem_v2", conf="limit:10%")
    assert lines(result) == ["64 0"]
    assert len(result.err.splitlines()) == 1 and "limit" in result.err


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="a sanitizer brings more than we do")
def test_a_weak_reference_to_the_runtime_is_there_without_one(run, program):
    """It is answered with cudaErrorSharedObjectSymbolNotFound."""
    assert lines(run(program("weak_host"), preload=False)) == ["not there"]
    assert lines(run(program("weak_host"))) == ["there, and answers 302"]
