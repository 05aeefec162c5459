"""The bench runs and writes what it promises."""

import json
import re
import subprocess
import sys

import pytest

import conftest

pytestmark = pytest.mark.skipif(conftest.SANITIZER is not None or conftest.FAULT is not None,
                                reason="measured without a sanitizer and without a fault")


def test_bench_writes_what_it_promises(build, tmp_path):
    cases = [("hot_1KiB", 1), ("hot_1KiB", 2), ("live_64", 1), ("order_1000", 1), ("prodcons", 2),
             ("async_8", 1), ("pinned_64KiB", 1), ("hot_1KiB_busy", 1), ("miss_64MiB", 1)]
    result = subprocess.run(
        [sys.executable, "-B", conftest.ROOT / "tests" / "bench" / "bench.py", "--build", build,
         "--output", tmp_path, "--pairs", "50", "--rounds", "1",
         "--allocators", "cachealloc,driver,glibc",
         "--cases", ",".join(f"{case}:{threads}" for case, threads in cases)],
        text=True, capture_output=True, env=conftest.plain_env(), timeout=100)

    assert result.returncode == 0, result.stderr
    results = json.loads((tmp_path / "bench.json").read_text())
    for one in results:
        assert set(one) == {"allocator", "case", "threads", "ns_per_pair", "repetitions"}
        assert one["ns_per_pair"] > 0 and len(one["repetitions"]) == 1
    found = {(one["allocator"], one["case"], one["threads"]) for one in results}
    # The C library has no streams, and no driver behind it.
    assert found == {(name, *case) for case in cases for name in ("cachealloc", "driver", "glibc")
                     if name != "glibc" or case[0] not in ("async_8", "miss_64MiB")}
    assert re.search(r"pinned hit .* (ok|MISSED)", result.stdout) is None  # no device hit beside it
    assert re.search(r"two threads over one's +\| [0-9.]+ +\| >= 1.70 \| (ok|MISSED)",
                     result.stdout)
