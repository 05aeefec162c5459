"""Ranges of addresses whose memory comes and goes page by page (expandable_segments:true), and what
is mapped a second time to be in one piece: pool/range/range.h, pool/range/view.h. tests/unit/test_range.c and
test_view.c have the rules of the pool."""

import json

import pytest

import conftest

UNITS = {"test_range": ("map_half", "unmap_unfenced", "range_left"),
         "test_view": ("view_pages_kept", "view_early", "view_pinned_returned", "view_counted",
                       "unmap_unfenced", "range_left")}
ON = "expandable_segments:True,leak_report:off"  # as PyTorch's users write it
IN_ORDER = ON + ",reuse:order"
OFF = "expandable_segments:false,leak_report:off"
CALLS = ("cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate",
         "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")


def rules(unit, mutation):
    program = conftest.BUILD / "tests/unit" / f"{unit}-debug"
    if not program.exists():
        pytest.skip(f"{program} is missing: deliberate faults need a debug build")
    return conftest.execute([program], {**conftest.plain_env(), "CA_MUTATION": mutation}, 60)


@pytest.mark.parametrize("unit", UNITS)
def test_the_rules_hold(unit):
    rc, out, err = rules(unit, "none")

    assert rc == 0, out + err


@pytest.mark.parametrize("unit, fault", [(unit, fault) for unit in UNITS for fault in UNITS[unit]])
def test_a_rule_that_is_left_out_is_missed(unit, fault):
    rc, out, err = rules(unit, fault)

    assert rc > 0 and "unknown mutation" not in err


def calls(path):
    return {name: count for name, count in json.loads(path.read_text())["calls"].items()
            if name.startswith(("cuMem", "cuCtxRecord", "cuEvent"))}


@pytest.mark.parametrize("conf, answer", [(ON, "fits\n"), (IN_ORDER, "fits\n"),
                                          (OFF, "refused\n")])
def test_what_is_free_serves_as_one_wherever_it_lies(run, program, conf, answer):
    result = run([program("pieces"), "hole"], conf=conf, sim="memory:2G")

    assert (result.rc, result.out) == (0, answer), result.err


@pytest.mark.parametrize("seed, conf, streams", [
    (1, ON, 1), (2, ON, 3), (3, IN_ORDER, 1), (4, IN_ORDER, 2)])
def test_buffers_behind_work_in_flight(run, program, seed, conf, streams):
    """Each byte has two addresses, and the race check goes by the byte."""
    result = run([program("pieces"), "shapes", seed, streams], conf=conf,
                 sim="memory:2G,racecheck:1,kernel_ns:20000")

    assert result.rc == 0, result.err


@pytest.mark.parametrize("fault, conf, streams", [
    ("view_pages_kept", ON, 3), ("view_early", ON, 3), ("unmap_unfenced", IN_ORDER, 1)])
def test_a_deliberate_fault_shows(run, program, fault, conf, streams):
    """In one of several programs: what is in flight when is a matter of time."""
    for seed in range(1, 9):
        result = run([program("pieces"), "shapes", seed, streams], conf=conf,
                     sim="memory:2G,racecheck:1,kernel_ns:300000", env=conftest.mutated(fault))
        assert "unknown mutation" not in result.err
        if result.rc != 0:
            return
    pytest.fail("the fault was missed")


def test_nothing_is_left_after_a_reset(run, program, tmp_path):
    stats = tmp_path / "stats.json"

    result = run([program("pieces"), "resets", 50], conf=ON, sim=f"memory:2G,stats:{stats}")

    assert result.rc == 0, result.err
    made = calls(stats)
    assert made["cuMemCreate"] == made["cuMemRelease"] > 50 * 10
    assert made["cuMemAddressReserve"] == made["cuMemAddressFree"] > 2 * 50


def test_where_the_device_cannot_all_is_as_without(run, program, tmp_path):
    counts = []
    for name, conf, sim in (("without", "expandable_segments:false", "vmm:0"),
                            ("cannot", "expandable_segments:true", "vmm:0")):
        stats = tmp_path / name
        result = run([program("pieces"), "hole"], conf=conf + ",leak_report:off,log:info",
                     sim=f"memory:2G,{sim},stats:{stats}")
        assert result.rc == 0, result.err
        assert result.err.count("expandable_segments: device 0 cannot") == (name == "cannot")
        counts.append(calls(stats))
        # Asked before a growth, once more where the answer before is 10 ms old.
        assert counts[-1].pop("cuMemGetInfo_v2") > 0

    assert counts[0] == counts[1]
    assert not set(counts[0]) & set(CALLS)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_costs_no_more_than_memory_in_one_piece(run, program, call):
    for nth in (1, 2, 12):
        result = run([program("pieces"), "shapes", 3], conf=ON, sim=f"memory:2G,fail:{call}@{nth}")
        assert result.rc == 0, (nth, result.err)
