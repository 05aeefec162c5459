"""Runs the rows of a table by tests/rows/rows.c, in one test: each is a program in a process of its
own, under the environment that conftest's `run` gives it."""

import types

import pytest

import conftest

RUNNER = conftest.BUILD / "tests" / "rows" / "rows"


def row(name, cmd, conf=None, sim=None, preload=True, env=None, answers=(), without=(), limit=None):
    """`cmd` must end with exit status 0, say one of `answers` (anything where there are none), and
    have nothing of `without` in its stderr. conf, sim, preload and env are as for `run`. `limit`:
    its seconds, where they are not those of the others."""
    full = conftest.settings(conf, preload) | ({} if sim is None else {"SIMCUDA": sim})
    return types.SimpleNamespace(name=name, env=full | (env or {}), cmd=[str(word) for word in cmd],
                                 answers=list(answers), without=list(without), limit=limit)


def lines(one, limit):
    yield "row", one.name
    yield "limit", str((one.limit or limit) * conftest.SLOWDOWN)
    yield from (("env", f"{name}={value}") for name, value in one.env.items())
    yield from (("out", answer) for answer in one.answers)
    yield from (("without", text) for text in one.without)
    yield "run", *one.cmd


def run_rows(run, folder, rows, limit=60, together=2, judge=None):
    """Runs `rows`, `together` at a time and each for `limit` seconds at most; the test fails with
    every row that does. judge(out, err) asserts what else must hold of each. Returns what each
    wrote to stdout. `folder` is the test's own."""
    rows = list(rows)
    assert rows and len({one.name for one in rows}) == len(rows)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table").write_text("".join("\t".join(line) + "\n"
                                          for one in rows for line in lines(one, limit)))

    result = run([RUNNER, folder, together], preload=False, timeout=limit * len(rows))

    assert result.rc in (0, 1), f"the runner ended with {result.rc}\n{result.out}{result.err}"
    *failed, totals = result.out.splitlines()
    assert totals.startswith(f"{len(rows)} rows, "), totals
    said, wrong = [], int(totals.split()[2])
    for i, one in enumerate(rows):
        texts = [read(folder / f"{i}.{kind}") for kind in ("out", "err")]
        said.append(texts[0])
        if judge and not any(line.startswith(f"FAILED {one.name}: ") for line in failed):
            found = judged(one.name, judge, *texts)
            failed += found
            wrong += bool(found)
    if wrong:
        pytest.fail("\n".join([*failed, f"{len(rows)} rows, {wrong} failed"]), pytrace=False)
    return said


def read(path):
    """Nothing where the row was not run."""
    return path.read_text(errors="replace") if path.exists() else ""


def judged(name, judge, out, err):
    try:
        judge(out, err)
    except AssertionError as error:
        return [f"FAILED {name}: {error}", *(f"    stderr: {line}" for line in err.splitlines())]
    return []
