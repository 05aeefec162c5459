"""What brings the library to a machine: the wheel, the package's own launcher, CMake, modules."""

import ast
import email
import fcntl
import os
import pathlib
import re
import runpy
import shutil
import sys
import types
import zipfile

import pytest

import conftest
from test_build import VERSION, call, files_below

PACKAGE = conftest.ROOT / "python"
PORTABLE = conftest.ROOT / "build-portable"
WHEEL = PORTABLE / f"cachealloc-{VERSION}-py3-none-manylinux_2_28_x86_64.whl"
D3 = conftest.ROOT / "build" / "d3" / "d3.min.js"
TRAIN = conftest.ROOT / "tests" / "demo" / "train.py"
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
pytestmark = pytest.mark.skipif(conftest.BUILD.name != "build",
                                reason="the package of a source tree finds the library of that build")

WHO = "import sys\nprint(sys.executable, *sys.argv[1:])\n"


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, worker_id):
    """made_once(name, make) is a folder that `make` filled, once for all of pytest's workers."""
    top = tmp_path_factory.getbasetemp()
    top = top if worker_id == "master" else top.parent

    def once(name, make):
        folder = top / name
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                folder.mkdir()
                make(folder)
        return folder
    return once


@pytest.fixture(scope="session")
def prefix(made_once):
    """Where everything is installed."""
    def install(folder):
        rc, said = call("make", "-s", "install", f"PREFIX={folder}")
        assert rc == 0, said
    return made_once("prefix", install)


@pytest.fixture
def moved(prefix, tmp_path):
    """The same in another place, with what is in it still naming the first."""
    return shutil.copytree(prefix, tmp_path / "moved")


@pytest.fixture
def python(run):
    """python(arguments...) runs Python with the package of the source tree, or of `package`."""
    def start(*arguments, package=PACKAGE, env=None, **kwargs):
        return run([PYTHON, "-B", *arguments], preload=False,
                   env={"PYTHONPATH": package, **(env or {})}, **kwargs)
    return start


# --- python -m cachealloc -------------------------------------------------------------------------


def test_the_package_knows_its_library_in_the_tree_and_as_installed(python, prefix, moved):
    said = "import cachealloc; print(cachealloc.library_path())"
    built = conftest.ROOT / "build" / "libcachealloc.so"

    elsewhere = shutil.copytree(prefix / "lib/cachealloc", moved / "elsewhere/below/packages")
    in_tree, installed, taken, alone = (python("-c", said, package=package) for package in (
        PACKAGE, prefix / "lib/cachealloc", moved / "lib/cachealloc", elsewhere))

    assert built.exists() and in_tree.out == f"{built}\n", in_tree.err
    assert taken.out == f"{moved}/lib/libcachealloc.so\n", taken.err
    assert installed.out == alone.out == f"{prefix}/lib/libcachealloc.so\n", alone.err


def test_a_package_without_its_library_says_where_it_looked(python, tmp_path):
    shutil.copytree(PACKAGE / "cachealloc", tmp_path / "cachealloc")

    path = python("-c", "import cachealloc; cachealloc.library_path()", package=tmp_path)
    launcher = python("-m", "cachealloc", "run", "true", package=tmp_path)

    assert path.rc == 1 and "FileNotFoundError: libcachealloc.so is none of " in path.err
    assert f"{tmp_path}/cachealloc/lib/libcachealloc.so, " in path.err
    assert launcher.rc == 1 and launcher.err.startswith("cachealloc: cachealloc is none of ")


def test_the_launcher_is_that_of_the_package(python, moved):
    for package in (PACKAGE, moved / "lib" / "cachealloc"):
        result = python("-m", "cachealloc", "--version", package=package)
        assert (result.rc, result.out, result.err) == (0, f"cachealloc {VERSION}\n", "")


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


# --- the wheel ------------------------------------------------------------------------------------

needs_wheel = [
    pytest.mark.other_build,
    pytest.mark.skipif(not pathlib.Path("/lib/x86_64-linux-gnu/libdl.so.2").exists(),
                       reason="the linker looks elsewhere for what BUILD=portable needs"),
]


def make_wheel(**env):
    rc, said = call("make", "-s", "--no-print-directory", "run-wheel", "BUILD=portable", **env)
    assert rc == 0 and said.strip().endswith(str(WHEEL.relative_to(conftest.ROOT))), said
    return WHEEL.read_bytes()


@pytest.fixture(scope="session")
def wheel(made_once):
    """A copy, which no other run writes anew."""
    if call("scripts/deps.sh", "--wheel-python")[0] != 0 or not D3.exists():
        pytest.skip("no hatchling or no D3: scripts/deps.sh --wheel, scripts/d3.sh")
    return made_once("wheel", lambda folder: (folder / WHEEL.name).write_bytes(
        make_wheel())) / WHEEL.name


@pytest.fixture
def venv(wheel, tmp_path):
    """A clean environment with the wheel alone, without pip, which leaves it as clean then."""
    folder = tmp_path / "v"
    assert call(PYTHON, "-m", "venv", "--without-pip", folder)[0] == 0
    before = set(files_below(folder))
    rc, said = pip(folder, "install", "--no-index", wheel)
    if rc != 0 and "no such option: --python" in said:
        pytest.skip("pip is older than 22.3")
    assert rc == 0, said
    yield folder
    rc, said = pip(folder, "uninstall", "--yes", "cachealloc")
    assert rc == 0, said
    assert set(files_below(folder)) == before
    assert not list(folder.glob("lib/python3*/site-packages/cachealloc"))


def pip(folder, *arguments):
    rc, python = call("scripts/deps.sh", "--pip-python")
    assert rc == 0
    return call(python.strip(), "-m", "pip", "--python", folder / "bin/python", "-q",
                "--disable-pip-version-check", *arguments)


class TestWheel:
    pytestmark = needs_wheel

    def test_it_holds_all_that_is_installed_and_says_what_it_is(self, wheel, prefix):
        with zipfile.ZipFile(wheel) as archive:
            info = f"cachealloc-{VERSION}.dist-info/"
            files = {one.filename: one for one in archive.infolist()}
            metadata = email.message_from_bytes(archive.read(info + "METADATA"))
            tags = email.message_from_bytes(archive.read(info + "WHEEL"))
            d3 = archive.read("cachealloc/libexec/cachealloc/report_page/d3.min.js")
            licence = archive.read(info + "licenses/packaging/LICENSE.d3").decode()

        assert metadata["Version"] == VERSION and metadata["Requires-Dist"] is None
        assert metadata["License-Expression"] == "MIT AND ISC"
        assert tags["Root-Is-Purelib"] == "false"
        assert tags.get_all("Tag") == ["py3-none-manylinux_2_28_x86_64"]
        assert d3 == D3.read_bytes() and "Mike Bostock" in licence
        ours = {name.partition("/")[2] for name in files if not name.startswith(info)}
        tools = {name for name in files_below(prefix) if name.startswith("libexec/")}
        modules = {path.name for path in (PACKAGE / "cachealloc").glob("*.py")}
        assert ours == {"bin/cachealloc", "lib/libcachealloc.so", "include/cachealloc.h", *tools,
                        *modules}
        for name, one in files.items():
            runs = re.search(r"/bin/|/libexec/cachealloc/[^/.]*$", name)
            assert name.endswith(".so") or (one.external_attr >> 16) & 0o777 == (
                0o755 if runs else 0o644), name

    def test_it_is_the_same_bytes_each_time(self, wheel, tmp_path):
        older = tmp_path / "umask.sh"
        older.write_text("umask 077\nexec make -s run-wheel BUILD=portable\n")

        rc, said = call("sh", older, TZ="Asia/Tokyo")

        assert rc == 0, said
        assert WHEEL.read_bytes() == wheel.read_bytes()

    @pytest.mark.parametrize("asks, said", [
        (["-DWANTS=tzset", "-lcmocka"],
         "make_wheel.sh: auditwheel does not agree to manylinux_2_28_x86_64\n"),
        (["-DWANTS=pthread_sigmask"], "libcachealloc.so: pthread_sigmask needs GLIBC_2.32\n"),
    ])
    def test_a_library_that_is_not_for_every_distribution_is_refused(self, wheel, tmp_path, asks,
                                                                     said):
        source = tmp_path / "x.c"
        source.write_text("void WANTS(void);\nvoid f(void) { WANTS(); }\n")
        assert call("gcc", "-w", "-shared", "-fPIC", "-o", tmp_path / "libcachealloc.so", source,
                    "-Wl,--no-as-needed", *asks) == (0, "")

        rc, refused = call("scripts/make_wheel.sh", tmp_path)

        assert rc != 0 and said in refused, refused
        assert not list(tmp_path.glob("*.whl"))

    def test_programs_and_tools_run_in_a_clean_environment(self, venv, run, program, tmp_path):
        installed, = venv.glob("lib/python3*/site-packages/cachealloc")
        script, module = [venv / "bin/cachealloc"], [venv / "bin/python", "-m", "cachealloc"]
        tools = tmp_path / "bin"  # no Python among them
        tools.mkdir()
        for name in ("sh", "env", "readlink", "sed", "od"):
            os.symlink(shutil.which(name), tools / name)
        shutil.copy(TRAIN, tmp_path)

        def start(*words, **env):
            return run(words, preload=False, cwd=tmp_path, env=env)

        version = start(*module, "--version")
        path = start(module[0], "-c", "import cachealloc; print(cachealloc.library_path())")
        native = start(*script, "run", "-o", "leak_report:x.json,report_format:json", "--",
                       program("leaks"), "many", 10)
        trained = start(*module, "run", "-o", "python:only,leak_report:trained", "train.py")
        page = start(*script, "report", "-o", "page.html", "x.json", PATH=tools)
        top = start(*module, "top", 2**31 - 1, PATH=tools)
        journal = start(*script, "journal", "x.json", PATH=tools)

        assert (version.rc, version.out) == (0, f"cachealloc {VERSION}\n"), version.err
        assert path.out == f"{installed}/lib/libcachealloc.so\n", path.err
        assert native.rc == 0 and '"count": 10' in (tmp_path / "x.json").read_text(), native.err
        assert trained.rc == 0, trained.err
        assert "    step at train.py:41\n" in (tmp_path / "trained").read_text()
        assert page.rc == 0 and D3.read_text() in (tmp_path / "page.html").read_text(), page.err
        assert top.err == f"cachealloc top: there is no process {2**31 - 1}\n"
        assert "cachealloc journal: x.json: no report is made" in journal.err


def test_the_wheel_is_refused_without_a_library_for_it(tmp_path):
    (tmp_path / "libcachealloc.so").write_text("no library")

    rc, said = call("scripts/make_wheel.sh", tmp_path)

    assert rc != 0 and not list(tmp_path.glob("*.whl")), said


# --- CMake, modules, Spack ------------------------------------------------------------------------

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
def test_cmake_finds_the_header_and_the_library(moved, run, tmp_path):
    (tmp_path / "user.c").write_text(USER)

    def configure(version):
        (tmp_path / "CMakeLists.txt").write_text(CMAKE.format(version=version))
        return call("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={moved}")

    for other in (f"{int(VERSION.split('.')[0]) + 1}.0", "99"):
        rc, said = configure(other)
        assert rc != 0 and f"version: {VERSION}" in said, said
    for same in (VERSION, "", VERSION.split(".")[0] + ".0"):
        rc, said = configure(same)
        assert rc == 0, said
    rc, said = call("cmake", "--build", tmp_path / "b")
    assert rc == 0, said
    library = moved / "lib/libcachealloc.so"
    assert (tmp_path / "b/said").read_text() == f"{library} {library}"
    user, linked = (run([tmp_path / "b" / name], preload=False) for name in ("user", "linked"))
    assert (user.out, linked.out) == ("none\n", f"{VERSION}\n"), linked.err


MODULECMD = [path for path in (*pathlib.Path("/usr/lib").glob("*-linux-gnu/modulecmd.tcl"),
                               pathlib.Path("/usr/share/Modules/libexec/modulecmd.tcl"))
             if path.exists()]


@pytest.mark.skipif(not MODULECMD, reason="there are no Environment Modules")
def test_a_module_leads_to_what_is_installed(prefix):
    _, said = call("sh", "-c", f'eval "$({MODULECMD[0]} sh load cachealloc)" && '
                    'cachealloc --version && ls "$CACHEALLOC_LIBRARY" && '
                    f"{PYTHON} -B -c 'import cachealloc; print(cachealloc.library_path())' && "
                    f'eval "$({MODULECMD[0]} sh unload cachealloc)" && '
                    'echo "$CACHEALLOC_LIBRARY-$PYTHONPATH"',
                    MODULEPATH=prefix / "share/modulefiles", PYTHONPATH="", LOADEDMODULES="",
                    _LMFILES_="")

    library = f"{prefix}/lib/libcachealloc.so\n"
    assert said == f"cachealloc {VERSION}\n{library}{library}-\n"


RECIPE = (conftest.ROOT /
          "packaging/spack/spack_repo/cachealloc/packages/cachealloc/package.py")


def test_the_recipe_of_spack_names_what_the_makefile_takes():
    """As far as it can be read without Spack."""
    recipe = RECIPE.read_text()
    made = (conftest.ROOT / "Makefile").read_text() + (
        conftest.ROOT / "scripts/check.mk").read_text()

    ast.parse(recipe)
    above = int(re.search(r"parents\[(\d+)\]", recipe)[1])
    assert RECIPE.parents[above] == conftest.ROOT
    for name in re.findall(r'"([A-Z0-9_]+)=', recipe.replace('f"', '"')):
        assert re.search(rf"^{name} [:?]?=", made, re.MULTILINE), name


class Makefile:
    """Spack's MakefilePackage, as far as the recipe asks for it."""

    prefix = "/there"
    spec = {"cuda": types.SimpleNamespace(prefix=types.SimpleNamespace(include="/cuda/include"))}


@pytest.mark.parametrize("since", ["0.22", "1.0"])
def test_the_recipe_of_spack_is_read_where_spack_has_its_parts(monkeypatch, since):
    """Since 1.0 the build systems are in a repository of packages, and before in spack.package."""
    said = {}
    package = types.ModuleType("spack.package")
    package.__all__ = ["conflicts", "depends_on", "license", "requires", "version"]
    for name in package.__all__:
        setattr(package, name, lambda *what, **how: said.setdefault(what[0], how))
    systems = {"spack": types.ModuleType("spack"), "spack.package": package}
    if since == "1.0":
        for name in ("", ".builtin", ".builtin.build_systems", ".builtin.build_systems.makefile"):
            systems[f"spack_repo{name}"] = types.ModuleType(f"spack_repo{name}")
        systems["spack_repo.builtin.build_systems.makefile"].MakefilePackage = Makefile
    else:
        systems["spack_repo"] = None
        package.MakefilePackage = Makefile
        package.__all__.append("MakefilePackage")
    for name, module in systems.items():
        monkeypatch.setitem(sys.modules, name, module)

    recipe = runpy.run_path(str(RECIPE))["Cachealloc"]

    assert issubclass(recipe, Makefile) and recipe.git == conftest.ROOT.as_uri()
    assert recipe().build_targets == ["lib", "CUDA_INC=/cuda/include"]
    assert recipe().install_targets == ["install", "PREFIX=/there", "D3=", "CUDA_INC=/cuda/include"]
    assert said["cuda@11.7:"] == {"type": "build"} and said["python@3.6:"] == {"type": "run"}
