"""The model of reuse in order (tests/order_model.py): no interleaving is at fault, and each deliberate
fault is found in one of the programs."""

import subprocess
import sys

import pytest

import conftest
import order_model


@pytest.mark.parametrize("name", order_model.PROGRAMS)
def test_no_interleaving_reaches_memory_of_a_former_owner(name):
    states, fault, debts = order_model.explore(order_model.PROGRAMS[name])

    assert fault is None
    # It is about memory in flight, in more than one way to get there.
    assert states > 200 and debts > 1


@pytest.mark.parametrize("mutation", order_model.MUTATIONS)
def test_what_is_left_out_is_found(mutation):
    faults = {name: order_model.explore(programs, mutation)[1]
              for name, programs in order_model.PROGRAMS.items()}

    assert any(faults.values()), "no program shows it"


def test_it_says_what_it_found():
    model = [sys.executable, "-B", conftest.ROOT / "tests/order_model.py"]

    found = subprocess.run([*model, "order_jumps"], capture_output=True, text=True, check=True)
    refused = subprocess.run([*model, "order_none"], capture_output=True, text=True)

    assert "a call that is late: " in found.stdout and "is not behind that of owner 0" in found.stdout
    assert refused.returncode == 1 and "is none of order_once" in refused.stderr
