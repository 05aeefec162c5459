"""Which tests run in which tier (conftest.chosen): no case is lost, and what is added is named."""

import types

import pytest

import conftest

# What a build under a sanitizer alone has found, and where it would be found again: `git log` has
# the words. A snapshot of the registry beside its writers, a thread cache's limit that is read where
# it spills, options that are read beside a reset.
FOUND_BY_ONE = {"tsan": ["unit/test_regions.c", "unit/test_cache.c",
                         "test_contexts.py::test_a_context_that_is_made_during_a_reset_goes_with_it"]}


def test_what_a_test_runs_is_of_no_tier():
    """test_traps.py names tests one by one, and each must run."""
    assert "CA_TIER" not in conftest.plain_env()


def item(function, marks=(), **params):
    return types.SimpleNamespace(
        nodeid=f"tests/test_x.py::{function}[{params}]", callspec=types.SimpleNamespace(params=params),
        get_closest_marker=lambda name: name in marks or None)


def names(items):
    return [item.nodeid.split("::")[1] for item in items]


def test_long_tests_begin_first_each_with_a_worker_of_its_own(monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    items = [item(f"test_{n}", marks=["long"] if n in (30, 31, 39) else []) for n in range(40)]
    alone = [item("test_alone", marks=["alone"])]

    ordered = conftest.spread(items, alone)

    assert sorted(map(id, ordered)) == sorted(map(id, items + alone)) and ordered[-1] is alone[0]
    # Of the 41 each of the two is given five to begin with.
    assert ordered[:2] == [items[30], items[39]] and ordered[5] is items[31]


CROSS = [item("test_a", preload=preload, conf=conf, size=size) for size in (1, 2)
         for preload, conf in ((False, None), (True, None), (True, "x_runtime_hooks:false"), (True, "x"))]


def test_check_has_each_case_once_with_the_library_and_no_option():
    assert [each.callspec.params for each in conftest.chosen(CROSS, "check")] == [
        {"preload": True, "conf": None, "size": size} for size in (1, 2)]


def test_a_case_without_the_default_stays_in_its_nearest_variant():
    odd = [*CROSS, item("test_a", preload=True, conf="y", size=3),
           item("test_a", preload=True, conf="x", size=3)]

    assert names(conftest.chosen(odd, "check")) == names([CROSS[1], CROSS[5], odd[-2]])


def test_full_varies_one_axis_and_night_all():
    cross = [item("test_b", conf=conf, devices=devices) for conf in (None, "x")
             for devices in (1, 2, 3)]

    assert names(conftest.chosen(cross, "full")) == names([*cross[:3], cross[3]])
    assert conftest.chosen(cross, "night") == cross


def test_check_and_more_are_full():
    everything = [*CROSS, item("test_c"), item("test_d", ("other_build",))]
    parts = conftest.chosen(everything, "check") + conftest.chosen(everything, "more")

    assert sorted(names(parts)) == sorted(names(conftest.chosen(everything, "full")))
    assert names(conftest.chosen(everything, "check"))[-1] == names([everything[-2]])[0]


@pytest.mark.parametrize("sanitizer", conftest.SANITIZED)
def test_what_a_sanitizer_runs_is_there(sanitizer):
    """A module that was renamed would be left out without a word."""
    missing = [name for name in conftest.SANITIZED[sanitizer]
               if not (conftest.ROOT / "tests" / f"test_{name}.py").exists()]
    assert missing == []


@pytest.mark.parametrize("sanitizer", conftest.LEFT_OUT)
def test_what_a_sanitizer_leaves_out_is_there(sanitizer):
    """What was renamed would be run again without a word."""
    texts = [path.read_text() for name in conftest.SANITIZED[sanitizer]
             for path in [conftest.ROOT / "tests" / f"test_{name}.py"]]
    for part in conftest.LEFT_OUT[sanitizer]:
        unit = conftest.ROOT / "tests" / "unit" / f"{part.strip('[]')}.c"
        function = part.partition("[")[0]
        assert unit.exists() if not function else any(function in text for text in texts), part


@pytest.mark.parametrize("sanitizer", FOUND_BY_ONE)
def test_what_one_sanitizer_alone_found_stays_there(sanitizer):
    modules = conftest.SANITIZED[sanitizer]
    for place in FOUND_BY_ONE[sanitizer]:
        file, _, function = place.partition("::")
        path = conftest.ROOT / "tests" / file
        assert function in path.read_text()
        assert not any(part in f"{place}[{path.stem}]" for part in conftest.LEFT_OUT[sanitizer])
        assert ("programs" if file.startswith("unit/") else path.stem.removeprefix("test_")) in modules
