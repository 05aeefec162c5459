"""Each module that begins anew in the child of a fork, or reads the options, is called for it: it is
in shim/life/modules.def, or another such function calls it."""
import re

import pytest

import conftest

KINDS = {"fork": r"ca_\w+_reset_after_fork", "configure": r"ca_\w+_configure"}


def sources():
    for room in conftest.PRODUCT:
        for path in (conftest.ROOT / room).rglob("*.c"):
            yield path.read_text()


def unlisted(texts, listed, kind):
    """Functions of a kind that are neither listed nor called by one that is."""
    bodies = {}
    for text in texts:
        for name, body in re.findall(rf"^void ({KINDS[kind]})\([^)]*\)\n\{{\n(.*?)^\}}", text, re.M | re.S):
            bodies[name] = body
    assert len(bodies) > 5, "the scan finds none"
    called = set(re.findall(KINDS[kind], listed)) | {"ca_modules_configure"}
    todo = list(called)
    while todo:
        found = set(re.findall(rf"\b({KINDS[kind]})\(", bodies.get(todo.pop(), ""))) - called
        called |= found
        todo += found
    return sorted(set(bodies) - called)


@pytest.fixture
def listed():
    return (conftest.ROOT / "shim/life/modules.def").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_every_module_is_listed(listed, kind):
    assert unlisted(sources(), listed, kind) == []


@pytest.mark.parametrize("kind, line, named", [
    ("fork", "ca_mappings_reset_after_fork", ["ca_mappings_reset_after_fork"]),
    ("configure", "ca_metrics_configure", ["ca_metrics_configure", "ca_stats_page_configure"]),
])
def test_a_module_that_is_not_listed_is_refused(listed, kind, line, named):
    assert unlisted(sources(), listed.replace(line, ""), kind) == named


def test_each_module_has_one_row(listed):
    names = re.findall(r"^CA_MODULE\((\w+)", listed, re.M)
    functions = re.findall(r"\bCA_(?!MODULE)\w+\((ca_\w+)\)", listed)
    assert sorted(set(names)) == sorted(names)
    assert sorted(set(functions)) == sorted(functions)
