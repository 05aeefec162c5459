"""Ranges of addresses whose memory comes and goes page by page (expandable_segments:true): pool/range.h.
tests/unit/test_range.c has the rules of the pool."""

import pytest

import conftest

UNITS = {"test_range": ("map_half", "unmap_unfenced", "range_left")}


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
