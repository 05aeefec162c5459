"""What brings the library to a machine: the package's own launcher, CMake, modules."""

import os
import pathlib
import shutil
import sys

import pytest

import conftest
from test_build import VERSION, call

PACKAGE = conftest.ROOT / "python"
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
WHO = "import sys\nprint(sys.executable, *sys.argv[1:])\n"


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """Where everything is installed, moved since."""
    top = tmp_path_factory.mktemp("packaging")
    flavour = conftest.BUILD.name.partition("-")[2] or "release"
    rc, said = call("make", "-s", "install", f"BUILD={flavour}", f"PREFIX={top}/first")
    assert rc == 0, said
    (top / "first").rename(top / "moved")
    return top / "moved"


@pytest.fixture
def python(run):
    """python(arguments...) runs Python with the package of the source tree, or of `package`."""
    def start(*arguments, package=PACKAGE, env=None, **kwargs):
        return run([PYTHON, "-B", *arguments], preload=False,
                   env={"PYTHONPATH": package, **(env or {})}, **kwargs)
    return start


# --- python -m cachealloc -------------------------------------------------------------------------


def test_the_package_knows_its_library_in_the_tree_and_as_installed(python, prefix):
    said = "import cachealloc; print(cachealloc.library_path())"
    built = conftest.ROOT / "build" / "libcachealloc.so"

    in_tree, installed = (python("-c", said, package=package)
                          for package in (PACKAGE, prefix / "lib" / "cachealloc"))

    assert built.exists() and in_tree.out == f"{built}\n", in_tree.err
    assert installed.out == f"{prefix}/lib/libcachealloc.so\n", installed.err


def test_a_package_without_its_library_says_where_it_looked(python, tmp_path):
    shutil.copytree(PACKAGE / "cachealloc", tmp_path / "cachealloc")

    path = python("-c", "import cachealloc; cachealloc.library_path()", package=tmp_path)
    launcher = python("-m", "cachealloc", "run", "true", package=tmp_path)

    assert path.rc == 1 and "FileNotFoundError: libcachealloc.so is none of " in path.err
    assert f"{tmp_path}/cachealloc/lib/libcachealloc.so, " in path.err
    assert launcher.rc == 1 and launcher.err.startswith("cachealloc: cachealloc is none of ")


def test_the_launcher_is_that_of_the_package(python, prefix):
    for package in (PACKAGE, prefix / "lib" / "cachealloc"):
        result = python("-m", "cachealloc", "--version", package=package)
        assert (result.rc, result.out, result.err) == (0, f"cachealloc {VERSION}\n", "")


@pytest.mark.skipif(bool(conftest.SANITIZER), reason="Python would have to bring its run-time")
def test_a_python_file_is_run_by_the_python_that_was_asked(python, tmp_path):
    """Whether the file could be run by itself or not."""
    file = tmp_path / "who.py"
    file.write_text("#!/bin/false\n" + WHO)
    for mode in (0o644, 0o755):
        file.chmod(mode)
        for options in ([], ["-o", "log:error"], ["--library", conftest.SHIM, "--"]):
            name = "who.py" if options else file
            result = python("-m", "cachealloc", "run", *options, name, "-o", "x", cwd=tmp_path)
            assert result.out == f"{PYTHON} -o x\n", result.err


@pytest.mark.skipif(bool(conftest.SANITIZER), reason="Python would have to bring its run-time")
def test_what_is_no_python_file_runs_as_without_python(python, tmp_path):
    (tmp_path / "other.py").mkdir()
    script = "import sys; sys.argv[0] = 'cachealloc'; import cachealloc.__main__ as m; m.script()"
    own = tmp_path / "own.py"
    own.write_text("#!/bin/sh\necho its own: $1\n")
    own.chmod(0o755)

    folder, missing = (python("-m", "cachealloc", "run", word, cwd=tmp_path)
                       for word in ("./other.py", "./missing.py"))
    executable = python("-c", script, "run", own, "x.py")
    own.chmod(0o644)
    by_python = python("-c", script, "run", own, "x.py")

    assert folder.rc == 126 and missing.rc == 127
    assert executable.out == "its own: x.py\n", executable.err
    assert by_python.rc == 1 and "SyntaxError" in by_python.err


@pytest.mark.skipif(bool(conftest.SANITIZER), reason="Python would have to bring its run-time")
@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C"}])
def test_the_program_has_the_environment_that_python_got(python, given):
    """In the C locale Python sets an LC_CTYPE of its own."""
    words = ["env", "-i", *(f"{name}={value}" for name, value in given.items()),
             f"PYTHONPATH={PACKAGE}", f"PATH={os.environ['PATH']}", PYTHON, "-B"]
    code = "import subprocess; subprocess.run(['env'])"
    set_by_python = call(*words, "-c", code)[1]

    _, said = call(*words, "-m", "cachealloc", "run", "env")

    assert "LC_CTYPE=C.UTF-8" in set_by_python.splitlines()  # else this shows nothing
    names = dict(line.split("=", 1) for line in said.splitlines())
    assert {name: names[name] for name in names if name.startswith("L")} == {
        "LD_PRELOAD": str(conftest.ROOT / "build/libcachealloc.so"), **given}


# --- CMake, modules -------------------------------------------------------------------------------

CMAKE = """
cmake_minimum_required(VERSION 3.11)
project(user C)
find_package(cachealloc {version} REQUIRED)
add_executable(user user.c)
target_link_libraries(user cachealloc::headers)
add_executable(linked user.c)
target_link_libraries(linked cachealloc::cachealloc)
target_compile_definitions(user PRIVATE CACHEALLOC_WEAK)
file(GENERATE OUTPUT said CONTENT "${{cachealloc_LIBRARY}} $<TARGET_FILE:cachealloc::cachealloc>")
"""
USER = """
#include <cachealloc.h>
#include <stdio.h>
int main(void)
{
#ifdef CACHEALLOC_WEAK
    if (!cachealloc_version)
        return puts("none") < 0;
#endif
    return puts(cachealloc_version()) < 0;
}
"""


@pytest.mark.skipif(not shutil.which("cmake"), reason="there is no cmake")
def test_cmake_finds_the_header_and_the_library(prefix, run, tmp_path):
    (tmp_path / "user.c").write_text(USER)

    def configure(version):
        (tmp_path / "CMakeLists.txt").write_text(CMAKE.format(version=version))
        return call("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}")

    for other in (f"{int(VERSION.split('.')[0]) + 1}.0", "99"):
        rc, said = configure(other)
        assert rc != 0 and f"version: {VERSION}" in said, said
    rc, said = configure(VERSION.rpartition(".")[0])
    assert rc == 0, said
    rc, said = call("cmake", "--build", tmp_path / "b")
    assert rc == 0, said
    library = prefix / "lib/libcachealloc.so"
    assert (tmp_path / "b/said").read_text() == f"{library} {library}"
    if not conftest.SANITIZER:
        user, linked = (run([tmp_path / "b" / name], preload=False) for name in ("user", "linked"))
        assert (user.out, linked.out) == ("none\n", f"{VERSION}\n"), linked.err


MODULECMD = [path for path in (*pathlib.Path("/usr/lib").glob("*-linux-gnu/modulecmd.tcl"),
                               pathlib.Path("/usr/share/Modules/libexec/modulecmd.tcl"))
             if path.exists()]


@pytest.mark.skipif(not MODULECMD, reason="there are no Environment Modules")
def test_a_module_leads_to_what_is_installed(tmp_path):
    rc, said = call("make", "-s", "install", f"PREFIX={tmp_path}",
                    f"BUILD={conftest.BUILD.name.partition('-')[2] or 'release'}")
    assert rc == 0, said

    rc, said = call("sh", "-c", f'eval "$({MODULECMD[0]} sh load cachealloc)" && '
                    'cachealloc --version && ls "$CACHEALLOC_LIBRARY" && '
                    f"{PYTHON} -B -c 'import cachealloc; print(cachealloc.library_path())' && "
                    f'eval "$({MODULECMD[0]} sh unload cachealloc)" && '
                    'echo "$CACHEALLOC_LIBRARY-$PYTHONPATH"',
                    MODULEPATH=tmp_path / "share/modulefiles", PYTHONPATH="", LOADEDMODULES="",
                    _LMFILES_="")

    library = f"{tmp_path}/lib/libcachealloc.so\n"
    assert said == f"cachealloc {VERSION}\n{library}{library}-\n"
