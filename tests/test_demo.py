"""The example of `make demo`: right results, and a report that names both bugs."""

import re

import pytest

import leak_report

EDGES, ROW = (2 * 2048, 2), (1024, 1)  # bytes and buffers forgotten in the two places


@pytest.mark.parametrize("preload", [False, True])
def test_demo_verifies_its_result(run, build, preload):
    result = run(build / "demo" / "tiles", preload=preload)

    assert result.rc == 0, result.err
    assert re.match(r"^tiles: .*, 0 pixels wrong\n$", result.out)


@pytest.mark.parametrize("conf", [None, "lane_r:false", "backend:off"])
def test_report_names_both_places(run, build, conf):
    report = leak_report.parse(run(build / "demo" / "tiles", conf=conf).err)

    assert (report.bytes, report.count) == (EDGES[0] + ROW[0], 3)
    by_place = {"load_tile_halo": [0, 0], "update_statistics": [0, 0]}
    for group in report.groups:
        place, = [name for name in leak_report.places(group) if name in by_place]
        assert any(re.search(rf"^{place} at \S*tiles\.c:\d+", frame) for frame in group.frames)
        by_place[place][0] += group.bytes
        by_place[place][1] += group.count
    assert by_place == {"load_tile_halo": list(EDGES), "update_statistics": list(ROW)}


def test_temporaries_come_from_the_pool(run, build):
    result = run(build / "demo" / "tiles", stats=True)

    assert result.rc == 0, result.err
    assert result.sim["calls"]["cuMemAlloc_v2"] < 50  # of more than 250 allocations
