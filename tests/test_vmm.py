"""Ranges of addresses whose memory comes and goes page by page (expandable_segments:true), and what
is mapped a second time to be in one piece: pool/range.h, pool/view.h. tests/unit/test_range.c and
test_view.c have the rules of the pool."""

import pytest

import conftest

UNITS = {"test_range": ("map_half", "unmap_unfenced", "range_left"),
         "test_view": ("view_pages_kept", "view_early", "view_pinned_returned", "view_counted",
                       "unmap_unfenced", "range_left")}


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
