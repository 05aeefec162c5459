"""The C unit programs and the drift checks, one test each."""

import pytest

import conftest

UNIT = sorted(path.stem for path in (conftest.ROOT / "tests" / "unit").glob("test_*.c"))
CHECKS = ("exports", "layers", "links", "options")


@pytest.mark.parametrize("name", UNIT)
def test_unit(name):
    env = conftest.plain_env()
    if conftest.SANITIZER == "asan":
        # These programs are ours from main on: they may not leak.
        env["ASAN_OPTIONS"] += ":detect_leaks=1"
    rc, out, err = conftest.execute([conftest.BUILD / "tests" / "unit" / name], env,
                                    300 * conftest.SLOWDOWN)  # one takes 6 s of a core alone
    conftest.skip_if_asked(rc, out)
    assert rc == 0, f"exit status {rc}\n{out}\n{err}"


@pytest.mark.parametrize("name", CHECKS)
def test_check(name):
    cmd = [conftest.ROOT / "scripts" / f"check_{name}.sh"]
    if name != "layers":
        cmd.append(conftest.BUILD)
    rc, out, err = conftest.execute(cmd, conftest.plain_env(), 60)
    conftest.skip_if_asked(rc, out)
    assert rc == 0, out + err
