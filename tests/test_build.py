"""Building, installing and checking: the checks must be able to fail, install leaves no trace."""

import ast
import os
import pathlib
import py_compile
import re
import shutil
import stat
import tarfile

import pytest

import conftest
import leak_report

SCRIPTS = conftest.ROOT / "scripts"
VERSION = re.search(r'^#define CACHEALLOC_VERSION "(.*)"$',
                    (conftest.ROOT / "include/cachealloc.h").read_text(), re.MULTILINE)[1]


def call(*cmd, limit=100, **env):
    rc, out, err = conftest.execute(cmd, conftest.plain_env(env), limit, cwd=conftest.ROOT)
    return rc, out + err


def files_below(top):
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir())


@pytest.fixture
def tree(tmp_path):
    for room in (*conftest.PRODUCT, "include"):
        shutil.copytree(conftest.ROOT / room, tmp_path / room)
    return tmp_path


def test_layers_of_this_tree_are_right(tree):
    assert call(SCRIPTS / "check_layers.sh", tree)[0] == 0


@pytest.mark.parametrize("folder, line", [
    ("base", '#include "config/options.h"'),
    ("config", '#include "pool/arena.h"'),
    ("config", '#include "../registry/table/registry.h"'),
    ("config", '#include "./registry/table/registry.h"'),
    ("registry/stack", '#include "registry/journal/journal.h"'),
    ("registry/stack", '#include "registry/table/registry.h"'),
    ("registry/table", '#include "registry/journal/journal.h"'),
    ("registry/table", '#include "registry/report/model.h"'),
    ("registry/names", '#include "registry/report/model.h"'),
    ("registry/journal", '#include "registry/report/model.h"'),
    ("registry/report", '#include "registry/journal/journal.h"'),
    ("registry/table", '#include "pool/arena.h"'),
    ("registry/table", '#include "registry/new/new.h"'),
    ("pool", '#include "registry/table/registry.h"'),
    ("pool/fence", '#include "registry/table/registry.h"'),
    ("pool/fence", '#include "shim/hooks.h"'),
    ("pool", "#  include <cuda.h>"),
    ("registry/report", "#include <cuda_runtime_api.h>"),
    ("pool", "#include SOME_MACRO"),
    ("shim/cuda", '#include "shim/upstream/upstream.h"'),
    ("shim/upstream", '#include "shim/alloc/track.h"'),
    ("shim/alloc", '#include "shim/life/life.h"'),
    ("shim/driver", '#include "shim/hooks/api_struct.h"'),
    ("shim/hooks", '#include "shim/driver/mappings.h"'),
])
def test_layers_refuse(tree, folder, line):
    (tree / folder / "wrong.c").write_text("int x;\n" + line + "\n")

    rc, said = call(SCRIPTS / "check_layers.sh", tree)

    assert rc != 0
    assert f"{folder}/wrong.c:2: " in said


@pytest.mark.parametrize("folder", ["base/new", "registry", "registry/new", "registry/table/new"])
def test_layers_refuse_a_folder_without_a_list(tree, folder):
    (tree / folder).mkdir(exist_ok=True)
    (tree / folder / "wrong.c").write_text("int x;\n")

    rc, said = call(SCRIPTS / "check_layers.sh", tree)

    assert rc != 0
    assert f"{folder}/wrong.c:1: {folder}/ is in no list" in said


@pytest.mark.parametrize("line, refused", [
    ("base: config", "config is in no line above"),
    ("config: base base/new", "base/new is in no line above"),
    ("base: ", "base has two lines"),
])
def test_layers_refuse_a_list_with_an_arrow_up(tmp_path, tree, line, refused):
    script = tmp_path / "check_layers.sh"
    text = (SCRIPTS / "check_layers.sh").read_text()
    first = "layers='\n"
    assert first in text
    script.write_text(text.replace(first, first + line + "\n"))

    rc, said = call("sh", script, tree)

    assert rc != 0
    assert refused in said


@pytest.mark.skipif(conftest.BUILD.name != "build", reason="links to another build")
def test_one_make_builds_what_is_taken_from_the_debug_build():
    rc, said = call("make", "-n", "tests")

    makes = [line for line in said.splitlines() if re.match(r"make .*BUILD=debug", line)]
    assert rc == 0 and len(makes) == 1, makes  # two would write the same objects at once


def test_nobody_yields_for_ever():
    """Who waits so for a thread of lower priority, on one processor, waits for ever."""
    sources = [path for room in conftest.PRODUCT
               for path in (conftest.ROOT / room).rglob("*.[ch]")]

    yielding = {path.name for path in sources if "sched_yield" in path.read_text()}

    # The first sleeps after some, the others look at the clock.
    assert yielding == {"lock.c", "journal.c", "modules.c", "unwind_others.c"}


def test_nothing_but_a_backoff_sleeps():
    """A sleep is a cancellation point: elsewhere it would end a thread amid a call."""
    objects = conftest.objects(*conftest.PRODUCT)

    rc, said = call("nm", "--undefined-only", "--print-file-name", *objects)

    assert rc == 0
    sleepers = re.findall(r"(\w+)\.o:.* U (?:clock_)?(?:nano|u)?sleep(?:@\S+)?$", said, re.MULTILINE)
    assert sleepers == ["lock"]
    # A thread of ours. All others sleep in the kernel by the system call, which is none (base/lock.c).
    waiters = re.findall(r"(\w+)\.o:.* U (?:pthread_cond|sem)_\w*wait(?:@\S+)?$", said, re.MULTILINE)
    assert set(waiters) == {"dump_signal"}


@pytest.mark.parametrize("name", [b"CA_MUTATION", b"CA_CLOCK_DIVISOR"])
def test_a_release_does_not_read_what_is_for_tests(name):
    debug = conftest.debug_shim(None).read_bytes()

    assert name in debug  # else this shows nothing
    assert (name in conftest.SHIM.read_bytes()) == (conftest.BUILD.name != "build")


@pytest.mark.parametrize("value", ["", "0", "1001", "-1", "2x", "ten"])
def test_a_divisor_of_bounds_that_is_none_is_told_and_changes_nothing(run, program, value):
    result = run([program("versioned"), 1], env=conftest.shortened(value))

    assert (result.rc, result.out) == (0, "")
    assert f"CA_CLOCK_DIVISOR={value}: a whole number from 1 to 1000 is accepted" in result.err


def test_exports_refuse_a_name_without_definition(tmp_path):
    shutil.copy(conftest.SHIM, tmp_path)
    exports = (conftest.BUILD / "exports.map").read_text()
    (tmp_path / "exports.map").write_text(exports.replace("global:", "global: cuNotThere;", 1))

    rc, said = call(SCRIPTS / "check_exports.sh", tmp_path)

    assert rc != 0
    assert "< cuNotThere" in said


@pytest.mark.parametrize("file, line, wrong, said", [
    ("known_entries", "CA_NO_WORK(cuCtxGetFlags)\n", "", "cuCtxGetFlags is in no list"),
    ("known_entries", "CA_NO_WORK(cuCtxGetFlags)\n", "CA_NO_WORK(cuLaunch)\n",
     "cuLaunch submits, and cuLaunch is in shim/hooks/known_entries.def"),
    ("known_entries", "CA_NO_WORK(cuCtxGetFlags)\n", "CA_NO_WORK(cuCtxGetFlags)\nCA_NO_WORK(cuA)\n",
     "shim/hooks/known_entries.def is not in order"),
    ("submissions", "(CUfunction function), (function), N", "(CUmodule function), (function), N",
     "cuLaunch has other parameters in cuda.h: CUfunction f"),
    ("submissions", 'CA_ONE(cuLaunch, "cuLaunch", 2000', 'CA_ONE(cuLaunch, "cuLaunch", 4000',
     "cuLaunch has another version in cudaTypedefs.h than 4000"),
    ("submissions", 'CA_ASYNC(cuLaunchHostFunc, "cuLaunchHostFunc", 10000, 10000,',
     'CA_ONE(cuLaunchHostFunc, "cuLaunchHostFunc", 10000,',
     "cuLaunchHostFunc has a twin in cuda.h that is in no list: cuLaunchHostFunc_ptsz"),
    ("submissions", 'CA_ONE(cuMemcpyDtoA, ', 'CA_ONE(cuMemcpyXtoA, ',
     "cuMemcpyDtoA is in no list"),
    ("submissions", "(function, width, height), NULL", "(function, height, width), NULL",
     "cuLaunchGrid passes on something else than it gets: function, height, width"),
    ("hooks", 'CA_DRIVER(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, 1)\n', "",
     "cuGraphLaunch_ptsz is in no list"),
])
def test_entries_refuse_what_cuda_h_has_otherwise(tmp_path, file, line, wrong, said):
    shutil.copytree(conftest.ROOT / "shim", tmp_path / "shim")
    path = tmp_path / "shim/hooks" / f"{file}.def"
    text = path.read_text()
    assert text.count(line) == 1
    path.write_text(text.replace(line, wrong))

    rc, out = call(SCRIPTS / "check_entries.py", cuda_include(), tmp_path)

    assert rc == 1 and said in out, out


def test_entries_of_this_tree_are_those_of_cuda_h():
    rc, said = call(SCRIPTS / "check_entries.py", cuda_include())

    assert rc == 0, said


def cuda_include():
    return call(SCRIPTS / "deps.sh", "--cuda-include")[1].strip()


def test_links_refuse_another_library(tmp_path):
    source = tmp_path / "x.c"
    source.write_text("#include <math.h>\ndouble f(double x) { return cos(x); }\n")
    library = tmp_path / "libcachealloc.so"
    assert call("gcc", "-shared", "-fPIC", "-o", library, source, "-Wl,--no-as-needed", "-lm")[0] == 0

    rc, said = call(SCRIPTS / "check_links.sh", tmp_path)

    assert rc != 0
    assert "libm.so.6" in said


def test_a_library_that_needs_a_newer_glibc_is_refused_by_its_names(tmp_path):
    source = tmp_path / "x.c"
    source.write_text("#define _GNU_SOURCE\n#include <stdio.h>\nint f(void)\n"
                      '{ return renameat2(0, "a", 0, "b", 0); }\n')
    library = tmp_path / "x.so"
    assert call("gcc", "-shared", "-fPIC", "-o", library, source) == (0, "")

    newest, older, none = (call(SCRIPTS / "check_glibc.sh", *words) for words in (
        (library, "2.28"), (library, "2.27"), (source, "2.28")))

    assert newest == (0, "")
    assert older == (1, f"{library}: renameat2 needs GLIBC_2.28\n"
                        f"{library}: made for glibc 2.27 or later\n")
    assert none[0] != 0


@pytest.mark.skipif(conftest.BUILD.name != "build", reason="it has a build of its own")
def test_a_portable_build_that_needs_a_newer_glibc_fails(tmp_path):
    """Of objects that were compiled without base/old_glibc.h."""
    if call(SCRIPTS / "check_glibc.sh", conftest.SHIM, "2.28")[0] == 0:
        pytest.skip("nothing that the library asks for is newer in this machine's glibc")
    core, shim = (" ".join(map(str, conftest.objects(*rooms)))
                  for rooms in (conftest.CORE, ("shim",)))

    rc, said = call("make", "-s", "lib", "BUILD=portable", f"B={tmp_path}", f"CORE_OBJ={core}",
                    f"SHIM_OBJ={shim}")

    assert rc != 0 and f"{tmp_path}/libcachealloc.so: made for glibc 2.28 or later\n" in said
    assert not (tmp_path / "libcachealloc.so").exists()


@pytest.mark.other_build
@pytest.mark.skipif(conftest.BUILD.name != "build", reason="it has a build of its own")
@pytest.mark.skipif(not pathlib.Path("/lib/x86_64-linux-gnu/libdl.so.2").exists(),
                    reason="its linker looks elsewhere")
def test_one_build_is_for_every_glibc_from_2_28_on(run, program):
    rc, said = call("make", "-s", "BUILD=portable", "lib")
    assert rc == 0, said
    portable = conftest.ROOT / "build-portable"

    library = portable / "libcachealloc.so"
    result = run([program("leaks"), "many", 10], preload=False,
                 env={"LD_PRELOAD": library, "ALLOC_CONF": "stats:exit"})

    assert call(SCRIPTS / "check_glibc.sh", library, "2.28") == (0, "")
    assert call(SCRIPTS / "check_glibc.sh", library, "2.14")[0] == 1  # else this shows nothing
    rc, said = call(SCRIPTS / "check_links.sh", portable)
    assert rc == 0 and {"libdl.so.2", "libpthread.so.0"} <= set(said.split()), said
    assert leak_report.parse(result.err).count == 10


@pytest.mark.other_build
@pytest.mark.skipif(conftest.BUILD.name != "build", reason="it has a build of its own")
@pytest.mark.skipif(not shutil.which("clang"), reason="there is no clang")
def test_clang_builds_the_library_without_a_warning_and_it_serves(run, program):
    rc, said = call("make", "-s", "clang")
    assert (rc, said) == (0, "")
    library = conftest.ROOT / "build-clang" / "libcachealloc.so"
    assert "clang version" in call("readelf", "-p", ".comment", library)[1]

    def serve(*command, **kwargs):
        return run([program(command[0]), *command[1:]], env={"LD_PRELOAD": library}, **kwargs)

    hot = serve("pairs", "hot", 1000, stats=True)
    leaks = serve("leaks", "many", 10)

    assert hot.rc == 0 and hot.sim["calls"]["cuMemAlloc_v2"] < 100, hot.err
    report = leak_report.parse(leaks.err)
    assert report.count == 10 and leak_report.places(report.groups[0])
    for case in ("own", "threads", "again"):
        result = serve("deadlock", case, 16 << 20, 4, sim="memory:256M,devices:2", timeout=10)
        assert (result.rc, result.err) == (0, "")
    for command in (["throws"], ["drv_mix", 2000, 50], ["async", "pairs", 500],
                    ["next_dlsym"], ["plugin_host", program("plugin_alloc.so")]):
        plain = run([program(command[0]), *command[1:]], preload=False)
        served = serve(*command)
        assert (served.rc, served.out) == (plain.rc, plain.out), (command, served.err)


def older_headers(release):
    folder = conftest.ROOT / "build" / "cuda-headers" / release
    if not (folder / "crt" / "host_defines.h").exists():
        pytest.skip(f"no headers of CUDA {release}: scripts/deps.sh --older-headers")
    assert f"#define CUDA_VERSION {release}" in (folder / "cuda.h").read_text()
    return folder


@pytest.mark.other_build
@pytest.mark.parametrize("release", ["11", "12"])
def test_no_header_of_another_cuda_stands_in(release):
    """Where a toolkit lies on the compiler's own path, it would have what the folder lacks."""
    folder = older_headers(release)
    sources = sorted((conftest.ROOT / "shim").rglob("*.c"))

    rc, said = call("gcc", "-M", "-std=c11", "-D_GNU_SOURCE", "-I.", "-isystem", folder, *sources)

    assert rc == 0, said
    read = {pathlib.Path(name) for name in re.findall(r"(?<= )/\S+", said)}
    assert folder / "crt" / "host_defines.h" in read
    assert [path for path in read if folder not in path.parents and
            "nvidia corporation" in path.read_text(errors="replace").lower()] == []


@pytest.mark.long
@pytest.mark.other_build
@pytest.mark.skipif(conftest.BUILD.name != "build", reason="it has a build of its own")
def test_the_headers_of_cuda_12_will_do():
    folder = older_headers("12")

    for source in sorted((conftest.ROOT / "shim").rglob("*.c")):
        assert call("gcc", "-fsyntax-only", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror",
                    "-I.", "-isystem", folder, source) == (0, "")


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.other_build
@pytest.mark.skipif(conftest.BUILD.name != "build", reason="it has a build of its own")
def test_a_library_built_with_the_headers_of_cuda_11_serves_a_program_of_cuda_13(run, program):
    """The rooms that see none of them are as they were built."""
    folder = older_headers("11")
    rooms = [f"build/obj/{path.relative_to(conftest.ROOT).with_suffix('.o')}" for room in conftest.CORE
             for path in sorted((conftest.ROOT / room).rglob("*.c"))]

    rc, said = call("make", "-s", "lib", "B=build/cuda11", f"CUDA_INC={folder}", "CFLAGS=-O0",
                    f"CORE_OBJ={' '.join(rooms)}", limit=300)
    assert (rc, said) == (0, "")
    library = conftest.BUILD / "cuda11" / "libcachealloc.so"
    hot, green = (run([program(name), *arguments], env={"LD_PRELOAD": library}, stats=True)
                  for name, *arguments in (("pairs", "hot", 1000), ("drv_green",)))

    assert hot.rc == 0 and hot.sim["calls"]["cuMemAlloc_v2"] < 100, hot.err
    assert green.rc == 0, green.err


def test_cuda_headers_come_from_the_toolkit_named(tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda.h").write_text("#define CUDA_VERSION 13000\n")
    (tmp_path / "include" / "cuda_runtime_api.h").touch()

    rc, said = call(SCRIPTS / "deps.sh", "--cuda-include", CUDA_HOME=tmp_path,
                    CA_NO_TOOLKIT="0")

    assert (rc, said) == (0, f"{tmp_path}/include\n")


def test_cuda_headers_without_a_toolkit_have_one_place():
    rc, said = call(SCRIPTS / "deps.sh", "--cuda-include", CA_NO_TOOLKIT="1")

    assert (rc, said) == (0, "build/cuda-headers/include\n")


@pytest.fixture
def missing(tmp_path):
    """missing(...) is what deps.sh tells a user who is not root to install, on a machine with nothing
    but the shell's tools."""
    for name in ("sh", "dirname", "grep", "sed", "readlink", "cat"):
        os.symlink(shutil.which(name), tmp_path / name)
    for name, body in (("id", "echo 1000"), ("apt-get", "exit 9"), ("fake", 'exec "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def ask(*arguments, **env):
        rc, said = call(SCRIPTS / "deps.sh", *arguments, PATH=tmp_path, **env)
        assert rc == 1
        command, = [line for line in said.splitlines() if "sudo apt-get install" in line]
        return command.split()
    return ask


def test_missing_packages_are_told_in_one_command(missing):
    assert {"libcmocka-dev", "gcc", "g++"} <= set(missing())


@pytest.mark.parametrize("words", ["{} -O2", "fake {}", " {} "])
def test_a_compiler_may_be_several_words(missing, words):
    c, cxx = (words.format(shutil.which(name)) for name in ("gcc", "g++"))

    assert not {"gcc", "g++", "libc6-dev"} & set(missing(CC=c, CXX=cxx))
    assert {"gcc", "g++"} <= set(missing(CC="fake no-such-gcc", CXX="fake no-such-g++"))


def test_uninstall_removes_exactly_what_install_put_there(tmp_path):
    (tmp_path / "opt/lib").mkdir(parents=True)
    (tmp_path / "opt/lib/libother.so").touch()
    flavour = conftest.BUILD.name.partition("-")[2] or "release"
    where = (f"BUILD={flavour}", "PREFIX=/opt", f"DESTDIR={tmp_path}")

    rc, said = call("make", "install", *where)
    assert rc == 0, said
    d3 = ["d3.min.js"] if (conftest.ROOT / "build/d3/d3.min.js").exists() else []
    page = [f"opt/libexec/cachealloc/report_page/{name}" for name in (
        "__init__.py", "areas.js", "areas.py", "as_folded.py", "as_pprof.py", "as_pytorch.py",
        "as_text.py", "command.py", *d3, "data.js", "diff.py", "flame.js", "head.js",
        "keys.py", "main.js", "page.css", "page.html", "page.py", "phases.js", "reports.py",
        "rows.js", "shown.py", "table.js", "text.js", "timeline.js", "version.py")]
    assert files_below(tmp_path) == [
        "opt/bin/cachealloc",
        "opt/include/cachealloc.h",
        *(f"opt/lib/cachealloc/cachealloc/{path.name}"
          for path in sorted((conftest.ROOT / "python/cachealloc").glob("*.py"))),
        "opt/lib/cmake/cachealloc/cachealloc-config-version.cmake",
        "opt/lib/cmake/cachealloc/cachealloc-config.cmake",
        "opt/lib/libcachealloc.so",
        "opt/lib/libother.so",
        "opt/lib/pkgconfig/cachealloc.pc",
        "opt/libexec/cachealloc/cachealloc-convert",
        "opt/libexec/cachealloc/cachealloc-journal",
        "opt/libexec/cachealloc/cachealloc-report",
        "opt/libexec/cachealloc/cachealloc-top",
        "opt/libexec/cachealloc/merge_reports",
        *page,
        "opt/libexec/cachealloc/top_screen.py",
        "opt/share/doc/cachealloc/LICENSE",
        *("opt/share/doc/cachealloc/LICENSE.d3" for _ in d3),
        "opt/share/doc/cachealloc/README.md",
        "opt/share/doc/cachealloc/SECURITY.md",
        *(f"opt/share/doc/cachealloc/docs/{page}.md" for page in (
            "api", "compatibility", "find-a-leak", "guarantees", "limitations", "monitoring",
            "options", "performance", "reports", "running", "several-processes",
            "troubleshooting")),
        "opt/share/man/man1/cachealloc.1",
        "opt/share/man/man7/cachealloc.7",
        f"opt/share/modulefiles/cachealloc/{VERSION}",
    ]
    assert "the Python package is in /opt/lib/cachealloc: " in said
    py_compile.compile(str(tmp_path / "opt/lib/cachealloc/cachealloc/__init__.py"))

    rc, said = call("make", "uninstall", *where)
    assert rc == 0, said
    assert files_below(tmp_path) == ["opt/lib/libother.so"]
    assert not (tmp_path / "opt/lib/cachealloc").exists()
    assert not (tmp_path / "opt/share/doc/cachealloc").exists()
    assert not (tmp_path / "opt/libexec/cachealloc").exists()


def make(*arguments, **kwargs):
    flavour = conftest.BUILD.name.partition("-")[2] or "release"
    rc, out, err = conftest.execute(["make", "-s", f"BUILD={flavour}", *arguments],
                                    conftest.plain_env(), 100, cwd=conftest.ROOT, **kwargs)
    assert rc == 0, out + err


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_what_is_installed_is_everybodys_to_read(tmp_path, umask):
    """Whatever root's umask is."""
    make("install", "PREFIX=/opt", f"DESTDIR={tmp_path}", umask=umask)

    for path in (tmp_path / "opt").rglob("*"):
        place = str(path.parent.relative_to(tmp_path))
        started = place in ("opt/bin", "opt/libexec/cachealloc") and path.suffix != ".py"
        runs = path.is_dir() or started or path.suffix == ".so"
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if runs else 0o644), path


def test_the_version_is_the_headers_everywhere(tmp_path):
    make("install", "PREFIX=/opt", f"DESTDIR={tmp_path}")
    changes = re.search(r"^## (\S+?),", (conftest.ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    package = (tmp_path / "opt/lib/pkgconfig/cachealloc.pc").read_text()
    page = (tmp_path / "opt/share/man/man7/cachealloc.7").read_text()
    launcher = (tmp_path / "opt/bin/cachealloc").read_text()

    assert changes[1] == VERSION
    assert f"Version: {VERSION}\n" in package
    assert "prefix=/opt\nlibdir=/opt/lib\nincludedir=/opt/include\n" in package
    assert page.startswith(f'.TH CACHEALLOC 7 "" "cachealloc {VERSION}"\n')
    assert f"ca_version='{VERSION}'\nca_libdir='/opt/lib'\n" in launcher
    filled = [*(tmp_path / "opt/lib/cmake/cachealloc").iterdir(),
              tmp_path / "opt/lib/cachealloc/cachealloc/_files.py",
              tmp_path / "opt/share/modulefiles/cachealloc" / VERSION]
    assert not re.search("@[A-Z]+@", package + page + launcher + "".join(
        path.read_text() for path in filled))


# Names of what came after Python 3.6, and that a script may well ask for.
LATER = {"capture_output", "missing_ok", "dirs_exist_ok", "removeprefix", "removesuffix", "isascii",
         "reconfigure", "fromisoformat", "nullcontext", "cached_property", "cache", "prod", "isqrt",
         "time_ns", "is_relative_to", "bit_count", "pairwise", "breakpoint", "dataclass",
         "dataclasses", "annotations", "Protocol", "Literal", "Final", "TypedDict", "strict"}


def names_in(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (getattr(node, "module", None), *(one.name for one in node.names))
        for field in ("attr", "id", "arg"):
            yield getattr(node, field, None)


def test_what_is_installed_runs_on_python_3_6(tmp_path):
    """As far as its syntax and the names in it say."""
    make("install", "PREFIX=/opt", f"DESTDIR={tmp_path}")
    scripts = [path for path in tmp_path.rglob("*") if path.is_file() and (
        path.suffix == ".py" or path.read_bytes().startswith(b"#!/usr/bin/env python3\n"))]

    assert len(scripts) == 19 + len(list((conftest.ROOT / "python/cachealloc").glob("*.py")))
    for path in scripts:
        tree = ast.parse(path.read_text(encoding="utf-8"), path.name, feature_version=(3, 6))
        assert not LATER & set(names_in(tree)), path.name


def test_the_manual_page_has_every_option(tmp_path):
    make("install", "PREFIX=/opt", f"DESTDIR={tmp_path}")
    page = tmp_path / "opt/share/man/man7/cachealloc.7"
    rows = re.findall(r"^CA_OPTION\((\w+), ([A-Z]+),",
                      (conftest.ROOT / "config/options.def").read_text(), re.MULTILINE)
    keys = [key for level in ("BASIC", "ADVANCED", "EXPERIMENTAL") for key, of in rows if of == level]

    assert re.findall(r"^\.TP\n\.B (\w+)\n(?=.*\n\.br\nDefault)", page.read_text(),
                      re.MULTILINE) == keys
    if shutil.which("groff"):
        for one in (page, page.parent.parent / "man1/cachealloc.1"):
            assert call("groff", "-man", "-Tascii", "-ww", "-z", one) == (0, "")


@pytest.mark.skipif(not (conftest.ROOT / ".git").exists(), reason="not a clone")
def test_a_release_is_the_same_bytes_each_time(tmp_path):
    archive = conftest.BUILD / f"cachealloc-{VERSION}.tar.gz"

    make("dist")
    first = archive.read_bytes()
    make("dist")
    with tarfile.open(archive) as files:
        names = files.getnames()

    assert archive.read_bytes() == first
    top = f"cachealloc-{VERSION}"
    assert {f"{top}/README.md", f"{top}/Makefile", f"{top}/LICENSE"} <= set(names)
    assert all(name.split("/")[0] == top and ".git/" not in name for name in names)


def test_the_module_for_python_goes_where_it_is_wanted(tmp_path):
    site = tmp_path / "opt/site-packages"
    site.mkdir(parents=True)
    (site / "other.py").touch()
    flavour = conftest.BUILD.name.partition("-")[2] or "release"
    where = (f"BUILD={flavour}", "PREFIX=/opt", f"DESTDIR={tmp_path}", "PYTHONDIR=/opt/site-packages")

    rc, said = call("make", "install", *where)
    assert rc == 0, said
    assert "opt/site-packages/cachealloc/__init__.py" in files_below(tmp_path)
    assert "opt/lib/cachealloc/cachealloc/__init__.py" not in files_below(tmp_path)

    rc, said = call("make", "uninstall", *where)
    assert rc == 0, said
    assert files_below(tmp_path) == ["opt/site-packages/other.py"]


# --- the Debian package ---------------------------------------------------------------------------

needs_dpkg = [
    pytest.mark.other_build,
    pytest.mark.skipif(conftest.BUILD.name != "build", reason="it has a build of its own"),
    pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="there is no dpkg-deb"),
    pytest.mark.skipif(not pathlib.Path("/lib/x86_64-linux-gnu/libdl.so.2").exists(),
                       reason="the linker looks elsewhere for what BUILD=portable needs"),
]


@pytest.fixture(scope="module")
def package():
    rc, said = call("make", "-s", "deb")
    assert rc == 0, said
    return conftest.ROOT / said.strip()


def field(package, name):
    rc, said = call("dpkg-deb", "-f", package, name)
    assert rc == 0, said
    return said.strip()


class TestDebianPackage:
    pytestmark = needs_dpkg

    def test_its_name_and_fields_say_what_it_is(self, package):
        assert package.name == f"cachealloc_{VERSION}-1_amd64.deb"
        assert field(package, "Version") == f"{VERSION}-1"
        assert field(package, "Architecture") == "amd64"
        assert field(package, "Depends") == "libc6 (>= 2.28)"
        assert field(package, "Recommends") == "libdw1"
        assert not any(field(package, name) for name in ("Pre-Depends", "Conflicts"))

    def test_it_has_every_file_where_debian_has_such(self, package, tmp_path):
        assert call("dpkg-deb", "-x", package, tmp_path) == (0, "")
        assert call("dpkg-deb", "-e", package, tmp_path / "DEBIAN") == (0, "")

        triplet = "x86_64-linux-gnu"
        make("install", "PREFIX=/usr", f"LIBDIR=/usr/lib/{triplet}", f"DESTDIR={tmp_path}/installed",
             "PYTHONDIR=/usr/lib/python3/dist-packages")
        doc = "share/doc/cachealloc/"
        installed = {name + ".gz" if name.startswith("share/man/") else name
                     for name in files_below(tmp_path / "installed/usr")} - {
                         doc + "LICENSE", doc + "LICENSE.d3",
                         f"share/modulefiles/cachealloc/{VERSION}"}
        assert f"lib/{triplet}/libcachealloc.so" in installed
        assert "lib/python3/dist-packages/cachealloc/__init__.py" in installed
        assert set(files_below(tmp_path / "usr")) == installed | {
            doc + "copyright", doc + "changelog.gz", doc + "changelog.Debian.gz"}
        config = (tmp_path / f"usr/lib/{triplet}/pkgconfig/cachealloc.pc").read_text()
        assert f"prefix=/usr\nlibdir=/usr/lib/{triplet}\n" in config and str(tmp_path) not in config
        copyright = (tmp_path / "usr" / doc / "copyright").read_text()
        assert "\nLicense: Expat\n Permission is hereby granted" in copyright
        if "libexec/cachealloc/report_page/d3.min.js" in installed:
            assert "\nCopyright: 2010-2023 Mike Bostock\nLicense: ISC\n Permission to" in copyright
        assert call("sh", "-c", f"cd {tmp_path} && md5sum --quiet -c DEBIAN/md5sums") == (0, "")
        listed = [line.split()[:2] for line in call("dpkg-deb", "-c", package)[1].splitlines()]
        assert {owner for mode, owner in listed} == {"root/root"}
        assert {mode for mode, owner in listed} <= {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x",
                                                    "lrwxrwxrwx"}

    def test_it_is_the_same_bytes_each_time(self, package, tmp_path):
        first = package.read_bytes()
        older = tmp_path / "umask.sh"
        older.write_text("umask 077\nexec make -s deb\n")

        rc, said = call("sh", older, TZ="Asia/Tokyo")

        assert rc == 0, said
        assert package.read_bytes() == first

    def test_it_installs_runs_by_name_and_goes(self, package, program, tmp_path):
        """In a root that holds libc, sh, the program and the simulated CUDA: nothing else is there."""
        if not shutil.which("dpkg") or os.geteuid() != 0 or call("chroot", "/", "true")[0] != 0:
            pytest.skip("needs dpkg, and the right to chroot")
        root = tmp_path / "root"
        for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers",
                       "var/log", "tmp"):
            (root / folder).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        commands = [shutil.which("env"), "/bin/sh", program("leaks")]
        libraries = {*(library for command in commands for library in needed(command)),
                     *needed(conftest.BUILD / "simcuda/libcudart.so.13"),
                     *needed(package.parent / "libcachealloc.so")}
        bring(root, *commands, *libraries, conftest.BUILD / "simcuda/libcuda.so.1")
        before = files_below(root / "usr")

        def dpkg(*arguments):
            return call("dpkg", f"--root={root}", "--force-unsafe-io", *arguments)

        rc, said = dpkg("-i", package)
        assert rc != 0 and "cachealloc depends on libc6 (>= 2.28)" in said
        assert dpkg("-i", empty_package(tmp_path, "libc6", "2.28-1"))[0] == 0
        rc, said = dpkg("-i", package)
        assert rc == 0, said
        rc, said = call("chroot", root, "/usr/bin/env", "LD_PRELOAD=libcachealloc.so",
                        f"LD_LIBRARY_PATH={conftest.BUILD / 'simcuda'}", program("leaks"), "many", 10)
        assert rc == 0 and leak_report.parse(said).count == 10, said
        rc, said = dpkg("--purge", "cachealloc", "libc6")
        assert rc == 0, said
        assert files_below(root / "usr") == before
        assert not (root / "usr/share").exists() and not (root / "usr/include").exists()


def needed(file):
    """The libraries, and the loader, that it needs."""
    rc, said = call("ldd", file, LD_LIBRARY_PATH=conftest.BUILD / "simcuda")
    assert rc == 0, said
    return re.findall(r"(/\S+) \(0x", said)


def bring(root, *files):
    """Copies them to the same place below root."""
    for file in map(str, files):
        target = root / file[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def empty_package(folder, name, version):
    control = folder / name / "DEBIAN" / "control"
    control.parent.mkdir(parents=True)
    control.write_text(f"Package: {name}\nVersion: {version}\nArchitecture: all\n"
                       "Maintainer: a test <test@localhost>\nDescription: nothing\n")
    package = folder / f"{name}.deb"
    rc, said = call("dpkg-deb", "--root-owner-group", "-b", control.parent.parent, package)
    assert rc == 0, said
    return package
