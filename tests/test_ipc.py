"""Device memory that another process opens. tests/preload/ipc.c is both processes."""

import pytest

import conftest
import leak_report

LANES = ["x_runtime_hooks:true", "x_runtime_hooks:false"]
MODES = ["ipc:auto", "ipc:dedicated"]
MIB = 1 << 20
INVALID_VALUE = "1"  # what the driver says of memory that it cannot export


@pytest.fixture
def ipc(run, program, tmp_path):
    def run_ipc(*arguments, conf=None, sim="memory:1G", **kwargs):
        result = run([program("ipc"), *arguments], conf=conf,
                     sim=f"{sim},shared:{tmp_path / 'device'}", **kwargs)
        assert result.rc == 0, result.err
        assert leak_report.parse(result.err) is None, result.err
        return result

    return run_ipc


def warnings(result):
    assert all("IPC handle" in line for line in result.err.splitlines()), result.err
    return result.err.splitlines()


# --- what the other process sees ------------------------------------------------------------------


@pytest.mark.parametrize("conf", ["backend:off", *(f"{mode},{lane}" for mode in MODES for lane in LANES),
                                  "ipc:auto,max_split:1M", "ipc:auto,x_small:1M"])
def test_base_and_offset_lead_to_the_same_bytes(ipc, conf):
    assert not warnings(ipc("offsets", conf=conf))


def test_base_and_offset_lead_to_the_same_bytes_without_the_shim(ipc):
    ipc("offsets", preload=False)


@pytest.mark.parametrize("kib", [2048, 3000, 4096, 65536])
@pytest.mark.parametrize("lane", LANES)
def test_dedicated_handles_lead_to_their_block(ipc, kib, lane):
    plain = ipc("own", kib << 10, preload=False)
    dedicated = ipc("own", kib << 10, conf=f"ipc:dedicated,{lane}")

    assert plain.out.split() == dedicated.out.split() == ["right"] * 4
    assert not warnings(dedicated)


@pytest.mark.parametrize("conf", [*LANES, "x_small:1M", "backend:off"])
def test_the_pieces_of_a_pool_of_the_programs_own_have_handles_of_their_own(ipc, conf):
    plain = ipc("pool", preload=False)
    result = ipc("pool", conf=conf)

    assert plain.out.split() == result.out.split() == ["right"] * 27
    assert not warnings(result)


@pytest.mark.parametrize("lane", LANES)
def test_from_the_first_interior_handle_on_which_is_refused_blocks_are_dedicated(ipc, lane):
    result = ipc("own", 4 * MIB + 512, conf=lane)

    # The first begins where its segment does; the second is what turns it on.
    assert result.out.split() == ["right", INVALID_VALUE, "right", "right"]
    assert len(warnings(result)) == 1 and "set ipc:dedicated" in result.err


def test_small_blocks_are_never_dedicated_and_told_once(ipc):
    result = ipc("own", MIB, conf="ipc:dedicated")

    assert result.out.split() == ["right", INVALID_VALUE, INVALID_VALUE, INVALID_VALUE]
    assert len(warnings(result)) == 1 and "below 2M" in result.err


# --- what becomes of the memory -------------------------------------------------------------------


# While something lives in its segment; a block that has one of its own goes back at once.
@pytest.mark.parametrize("case, mib, conf, kept", [
    ("kept", 1, "ipc:auto", 1), ("base", 1, "ipc:auto", 1), ("base", 1, "ipc:dedicated", 1),
    ("kept", 4, "ipc:dedicated", 0), ("base", 4, "ipc:dedicated", 0), ("kept", 4, "ipc:auto", 0)])
@pytest.mark.parametrize("lane", LANES)
def test_exported_memory_is_not_handed_out_again(ipc, case, mib, conf, kept, lane):
    assert ipc(case, mib, conf=f"{conf},{lane}").out.split() == ["kept", str(kept * MIB)]


@pytest.mark.parametrize("lane", LANES)
def test_exported_memory_stays_when_memory_is_short_until_its_segment_goes(ipc, lane):
    ipc("memory", conf=f"headroom:0,{lane}", sim="memory:256M")


@pytest.mark.parametrize("conf", ["x_runtime_hooks:true", "x_runtime_hooks:false", "ipc:dedicated"])
def test_memory_that_is_exported_and_freed_again_and_again_goes_back(ipc, conf):
    ipc("loop", preload=False)
    ipc("loop", conf=conf)


@pytest.mark.parametrize("lane", LANES)
def test_a_handle_that_is_refused_changes_nothing(ipc, lane):
    result = ipc("refused", conf=lane, sim="fail:cuIpcGetMemHandle@1=CUDA_ERROR_NOT_SUPPORTED")

    assert not warnings(result)


@pytest.mark.parametrize("case", ["kept", "base"])
def test_otherwise_it_would_be(run, program, tmp_path, case):
    result = run([program("ipc"), case, 1], sim=f"shared:{tmp_path / 'device'}", preload=False,
                 env=conftest.mutated("reuse_exported"))

    assert result.rc == 1 and "overlap" in result.err, result.err


def test_the_statistics_tell_what_is_kept(ipc):
    result = ipc("held", conf="stats:exit,leak_report:off")

    rows = [line for line in result.err.splitlines() if "bytes kept for other processes" in line]
    assert str(MIB) in [row.split()[-1] for row in rows]
