"""Reuse in order: where all work goes to one stream, freed memory that is still in flight serves at once
(pool/fence/order.h). tests/unit/test_order.c has its rules, tests/test_order.py what tells of submissions."""

import re

import pytest

import conftest

FAULTS = re.findall(r"X\((order_\w+)\)", re.search(r"#define CA_ORDER_FAULTS\(X\).*?\n\n", (
    conftest.ROOT / "base/mutation.h").read_text(), re.DOTALL)[0])


def rules(mutation):
    program = conftest.BUILD / "tests/unit/test_order-debug"
    if not program.exists():
        pytest.skip(f"{program} is missing: deliberate faults need a debug build")
    return conftest.execute([program], {**conftest.plain_env(), "CA_MUTATION": mutation}, 60)


def test_the_rules_hold():
    rc, out, err = rules("none")

    assert rc == 0, out + err


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rule_that_is_left_out_is_missed(fault):
    rc, out, err = rules(fault)

    assert rc > 0 and "unknown mutation" not in err
    assert re.search(r"\[  FAILED  \] \w+", out + err)


def test_there_are_faults():
    assert len(FAULTS) >= 17
