"""tools/cachealloc: the program runs as it would, under the library, or it is said why not."""

import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess

import pytest

import conftest
import leak_report
from test_build import VERSION

SCRIPT = conftest.ROOT / "tools" / "cachealloc"
MATRIX = conftest.BUILD / "tests" / "matrix"
ROOT = os.geteuid() == 0
LIBRARY = ["--library", conftest.SHIM]


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """Where everything is installed."""
    top = tmp_path_factory.mktemp("opt")
    flavour = conftest.BUILD.name.partition("-")[2] or "release"
    rc, out, err = conftest.execute(["make", "-s", "install", f"BUILD={flavour}", f"PREFIX={top}"],
                                    conftest.plain_env(), 100, cwd=conftest.ROOT)
    assert rc == 0, out + err
    return top


@pytest.fixture
def launch(run):
    """launch(command, argument...) is cachealloc COMMAND --library SHIM ARGUMENT..."""
    def start(command, *arguments, script=SCRIPT, library=LIBRARY, **kwargs):
        # A sanitizer's run-time cannot be preloaded alone: conftest.py. Then ours is there already.
        return run([script, command, *library, *arguments],
                   preload=bool(conftest.SANITIZER_PRELOAD), **kwargs)
    return start


def variable(result, name):
    return re.findall(rf"^{name}=(.*)$", result.out, re.MULTILINE)


def preloaded(result):
    assert result.rc == 0, result.err
    return [word for word in variable(result, "LD_PRELOAD")[0].split()
            if word not in conftest.SANITIZER_PRELOAD]


# --- run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_a_program_that_leaks_is_reported_and_keeps_its_exit_status(launch, program, dashes):
    result = launch("run", *dashes, program("exit_status"), "exit", 42, 5000)

    assert result.rc == 42
    report = leak_report.parse(result.err)
    assert (report.bytes, report.count) == (5000, 1)


def test_options_reach_the_library_which_tells_those_that_are_wrong(launch, program):
    result = launch("run", "-o", "leak_exitcode:23", "-ostats:exit", "-o", "leek_max:1", "--",
                    program("leaks"))

    assert result.rc == 23
    assert result.err.count('unknown key "leek_max", did you mean "leak_max"?') == 1
    assert "LEAK SUMMARY" in result.err and "host bytes of our own" in result.err


def test_a_wrong_option_is_told_where_no_cuda_is_used_and_once_for_all_children(launch):
    result = launch("run", "-o", "leek_max:1,log:noisy", "-o", "leak_max:3", "sh", "-c",
                    "sh -c 'echo $CACHEALLOC_ASK-$ALLOC_CONF'; true", env={"ALLOC_CONF": ""})

    assert (result.rc, result.out) == (0, "-leek_max:1,log:noisy,leak_max:3\n")
    assert [line.partition("warning: ")[2] for line in result.err.splitlines()] == [
        'ALLOC_CONF character 1: unknown key "leek_max", did you mean "leak_max"?',
        "ALLOC_CONF character 16: log:noisy is not understood; accepted: off, error, warn, info, "
        "debug; stays warn"]


def test_a_shell_with_an_unsetenv_of_its_own_is_told_once(launch):
    shell = shutil.which("bash") or pytest.skip("no bash")
    result = launch("run", "-o", "leek_max:1", shell, "-c",
                    "echo $CACHEALLOC_ASK; /bin/true; /bin/true", env={"ALLOC_CONF": ""})

    assert (result.rc, result.out) == (0, "\n")
    assert result.err.count("leek_max") == 1


def test_what_the_program_sets_itself_is_told_when_it_uses_cuda(launch, program):
    result = launch("run", "-o", "leek_max:1", "sh", "-c",
                    f"ALLOC_CONF=leak_depht:2 exec {program('leaks')}", env={"ALLOC_CONF": ""})

    assert re.findall(r'unknown key "(\w+)"', result.err) == ["leek_max", "leak_depht"]


def test_check_tells_a_wrong_option_too(launch):
    result = launch("check", "-o", "leek_max:1", "true")

    assert result.rc == 0 and "is linked with no CUDA" in result.out
    assert 'unknown key "leek_max", did you mean "leak_max"?' in result.err


@pytest.mark.parametrize("before, items, after", [
    ({}, ["a:1", "b:2"], {"ALLOC_CONF": "a:1,b:2"}),
    ({"ALLOC_CONF": "x:0"}, ["a:1"], {"ALLOC_CONF": "x:0,a:1"}),
    ({"ALLOC_CONF": "x:0"}, [], {"ALLOC_CONF": "x:0"}),
    ({}, ["leak_report:'a b,c'"], {"ALLOC_CONF": "leak_report:'a b,c'"}),
    # What is read last wins.
    ({"ALLOC_CONF": "x:0", "CACHEALLOC_CONF": "y:0"}, ["a:1"],
     {"ALLOC_CONF": "x:0", "CACHEALLOC_CONF": "y:0,a:1"}),
])
def test_the_command_line_comes_behind_what_is_set(launch, before, items, after):
    options = [word for item in items for word in ("-o", item)]

    result = launch("run", *options, "env", env={"ALLOC_CONF": "", **before})

    for name, value in after.items():
        assert variable(result, name) == [value]


def test_other_preloads_are_kept_behind_the_library(launch):
    shim = os.path.realpath(conftest.SHIM)
    others = ["libm.so.6", "libpthread.so.0"]
    first = conftest.SANITIZER_PRELOAD

    for before, after in (
            (others, [shim, *others]),
            (["/old/libcachealloc.so"], [shim]),
            ([others[0], conftest.SHIM, others[1]], [others[0], shim, others[1]]),
            ([conftest.SHIM, conftest.SHIM], [shim])):
        if first and conftest.SHIM not in before:
            continue  # the shell itself would have the run-time alone
        result = launch("run", "env",
                        env={"LD_PRELOAD": ":".join(map(str, [*first, *before]))})
        assert preloaded(result) == after
        assert variable(result, "LD_PRELOAD")[0].split()[:len(first)] == first


@pytest.mark.skipif(bool(conftest.SANITIZER), reason="has a run-time that is in front already")
def test_the_run_time_of_a_sanitizer_stays_in_front(launch, tmp_path):
    runtime = tmp_path / "libasan.so.8"
    shutil.copy("/proc/self/exe", runtime)  # only looked at, and complained about by the loader

    result = launch("run", "env", env={"LD_PRELOAD": f"{runtime} libm.so.6"})

    assert preloaded(result) == [str(runtime), os.path.realpath(conftest.SHIM), "libm.so.6"]


def test_arguments_and_the_environment_are_the_programs_own(launch):
    words = ["a  b", '"', "'", "$HOME", "*", "", "-o", "--", "-v", "new\nline", "\\n"]

    result = launch("run", "sh", "-c", 'printf "%s\\0" "$@"; printf %s "$program-$library-$IFS-"',
                    "name", *words, env={"program": 1, "library": 2, "conf": 3})

    assert result.rc == 0, result.err
    *told, rest = result.out.split("\0")
    assert told == words
    assert rest == "1-2- \t\n-"


def test_the_environment_gets_nothing_but_the_preload(launch, run):
    bare = dict(preload=bool(conftest.SANITIZER_PRELOAD), env={"_": "mine", "PWD": os.getcwd()})
    before = set(run(["sh", "-c", "exec env"], **bare).out.splitlines())

    after = set(launch("run", "sh", "-c", "exec env", env=bare["env"]).out.splitlines())

    assert {line.partition("=")[0] for line in before ^ after} <= {"LD_PRELOAD"}


@pytest.mark.parametrize("folder", ["plain", "run=5"])
def test_variables_that_a_shell_has_no_name_for_reach_the_program(launch, tmp_path, folder):
    """dash drops them: a function that bash exports, and what programs name as they like."""
    (tmp_path / folder).mkdir()
    copy = shutil.copy(os.path.realpath(shutil.which("env")), tmp_path / folder)
    odd = {"BASH_FUNC_module%%": "() {  eval `'/opt/it''s' \"$@\"`;\n echo \\n\n}\n", "a.b": "",
           "-x": "$HOME *", "1": " two  words ", "ü": "=\t\x01", "with blank": "'"}

    result = launch("run", copy, "-0", env=odd)

    assert result.rc == 0, result.err
    told = dict(line.split("=", 1) for line in result.out.split("\0") if line)
    assert {name: told.get(name) for name in odd} == odd
    assert "LD_PRELOAD" in told
    code = launch("run", "bash", "-c", "module", env={
        "BASH_FUNC_module%%": "() { echo loaded; }"})
    assert (code.out, code.err) == ("loaded\n", "")


def test_a_signal_is_the_programs_own(launch):
    assert launch("run", "sh", "-c", "kill -TERM $$").rc == -signal.SIGTERM


def test_an_empty_place_in_the_path_is_this_folder(launch, tmp_path):
    (tmp_path / "tool").write_text("#!/bin/sh\necho here\n")
    (tmp_path / "tool").chmod(0o755)

    for path in ("/usr/bin:/bin:", ":/usr/bin:/bin", "/usr/bin::/bin"):
        result = launch("run", "tool", env={"PATH": path}, cwd=tmp_path)
        assert (result.rc, result.out) == (0, "here\n"), result.err


def test_a_program_is_found_as_shells_find_it(launch, tmp_path):
    for folder, mode in (("one", 0o644), ("two", 0o755)):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "tool with blanks"
        file.write_text(f"#!/bin/sh\necho {folder}\n")
        file.chmod(mode)
    path = f"{tmp_path}/one:{tmp_path}/two:{os.environ['PATH']}"

    assert launch("run", "tool with blanks", env={"PATH": path}).out == "two\n"
    assert launch("run", "./tool with blanks", cwd=tmp_path / "two").out == "two\n"


def recorders(folder, *names):
    """Puts programs of these names there, which note that they were started, in the file returned."""
    notes = folder / "notes"
    notes.touch()
    for name in names:
        path = folder / name
        path.write_text(f"#!/bin/sh\necho {name} >>{notes}\nexec {shutil.which(name)} \"$@\"\n")
        path.chmod(0o755)
    return notes


TOOLS = ("od", "sed", "readlink", "stat", "id", "head", "tr", "grep", "cat", "env", "nice", "uname",
         "dirname", "basename", "awk", "cut", "ls", "printf", "test", "expr", "nl", "python3")


@pytest.mark.parametrize("options", [[], ["-o", "leak_max:3"]])
def test_a_start_needs_few_programs(launch, tmp_path, options):
    notes = recorders(tmp_path, *(name for name in TOOLS if shutil.which(name)))
    launch("run", *options, "/bin/true", env={"PATH": tmp_path})
    with_odd_names = notes.read_text().split()  # whatever this environment has
    notes.write_text("")

    result = conftest.execute(
        ["env", "-i", *(f"{name}={value}" for name, value in conftest.SANITIZER_ENV.items()),
         f"LD_PRELOAD={' '.join(conftest.SANITIZER_PRELOAD)}", f"PATH={tmp_path}",
         SCRIPT, "run", "--library", conftest.SHIM, *options, "/bin/true"],
        conftest.plain_env(), 60 * conftest.SLOWDOWN)

    assert result == (0, "", "")
    link = ["readlink"] * conftest.SHIM.is_symlink()
    assert notes.read_text().split() == [*link, "od", "od", "sed"]
    assert len(with_odd_names) <= len(link) + 5


# --- what cannot be run ---------------------------------------------------------------------------


def refused(launch, status, *said, words=(), command="run", **kwargs):
    result = launch(command, *words, **kwargs)
    assert (result.rc, result.out) == (status, ""), result.err
    for piece in said:
        assert piece in result.err
    assert result.err.startswith("cachealloc: ") and result.err.count("\n") == 1


def test_what_is_not_there(launch, tmp_path):
    refused(launch, 127, "no_such_tool: not found in PATH", words=["no_such_tool"])
    refused(launch, 127, f"{tmp_path}/x: no such file", words=[tmp_path / "x"])
    (tmp_path / "train.py").touch()
    refused(launch, 127, "train.py: not found in PATH; the one here is ./train.py; name its "
            "Python: cachealloc run python3 ./train.py\n", words=["train.py"], cwd=tmp_path)
    (tmp_path / "train.py").chmod(0o755)
    refused(launch, 127, "train.py: not found in PATH; the one here is ./train.py\n",
            words=["train.py"], cwd=tmp_path)


def test_what_is_no_program(launch, tmp_path):
    (tmp_path / "x").write_text("x")
    (tmp_path / "x.py").touch()
    refused(launch, 126, f"{tmp_path}: is a directory", words=[tmp_path])
    refused(launch, 126, "x.py: not executable; name its Python: cachealloc run python3 ",
            words=[tmp_path / "x.py"])
    refused(launch, 126, f"{tmp_path}/x: not executable", words=[tmp_path / "x"])
    refused(launch, 126, f"{tmp_path}/x: not executable", words=["x"], env={
        "PATH": f"{tmp_path}:{os.environ['PATH']}"})


@pytest.mark.parametrize("command", ["run", "check"])
def test_what_is_linked_statically(launch, tmp_path, command):
    source = tmp_path / "x.c"
    source.write_text("int main(void) { return 0; }\n")
    if subprocess.run(["gcc", "-static", "-o", tmp_path / "x", source], check=False).returncode:
        pytest.skip("no static libc here")

    refused(launch, 126, "x is linked statically", words=[tmp_path / "x"], command=command)


def copy_of(tmp_path, name="sh"):
    return shutil.copy(os.path.realpath(shutil.which(name)), tmp_path / "copy")


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
@pytest.mark.parametrize("mode, user, group", [(0o4755, 1, 0), (0o2755, 0, 1)])
def test_what_would_have_the_rights_of_another(launch, tmp_path, mode, user, group):
    copy = copy_of(tmp_path)
    os.chown(copy, user, group)
    os.chmod(copy, mode)
    refused(launch, 126, "set-user-ID or set-group-ID", words=[copy, "-c", "exit 3"])

    os.chown(copy, 0, 0)
    os.chmod(copy, mode)
    assert launch("run", copy, "-c", "exit 3").rc == 3


@pytest.mark.parametrize("number, name", [(3, "2:1:3:0"), (183, "aarch64"), (62, "x86-64")])
def test_what_is_for_another_machine(launch, tmp_path, number, name):
    copy = copy_of(tmp_path)
    with open(copy, "r+b") as file:
        file.seek(18)
        own, = struct.unpack("<H", file.read(2))
        if own == number:
            pytest.skip("this machine")
        file.seek(18)
        file.write(struct.pack("<H", number))

    refused(launch, 126, f"{copy} is for ", name, words=[copy, "-c", ""])


def test_what_is_for_another_libc(launch, tmp_path):
    copy = copy_of(tmp_path)
    with open(copy, "rb") as file:
        content = file.read()
    old, new = b"/lib64/ld-linux-x86-64.so.2\0", b"/lib64/ld-musl-x86_64.so.01\0"
    if old not in content:
        pytest.skip("its loader has another name here")
    with open(copy, "wb") as file:
        file.write(content.replace(old, new, 1))

    refused(launch, 126, "for another C library (/lib64/ld-musl-x86_64.so.01)", words=[copy])


def test_headers_that_a_tool_moved_behind_the_rest_are_read(launch, tmp_path):
    """As patchelf does: neither they nor the loader's name are where a linker puts them."""
    copy = pathlib.Path(copy_of(tmp_path))
    content = bytearray(copy.read_bytes())
    at, = struct.unpack_from("<Q", content, 32)
    number, = struct.unpack_from("<H", content, 56)
    headers = bytearray(content[at:at + 56 * number])
    interpreter = next(56 * i for i in range(number)
                       if struct.unpack_from("<I", headers, 56 * i)[0] == 3)
    name = b"/opt/lib/ld-musl-any.so.1\0"
    struct.pack_into("<Q", headers, interpreter + 8, len(content) + len(headers))
    struct.pack_into("<Q", headers, interpreter + 32, len(name))
    struct.pack_into("<Q", content, 32, len(content))
    copy.write_bytes(content + headers + name)

    refused(launch, 126, "for another C library (/opt/lib/ld-musl-any.so.1)", words=[copy])


def test_a_library_that_is_not_there(launch, tmp_path):
    lone = shutil.copy(SCRIPT, tmp_path)
    refused(launch, 125, f"libcachealloc.so is not beside {tmp_path}", "--library PATH",
            words=["true"], script=lone, library=[])
    refused(launch, 125, f"{tmp_path}/x: no such library", words=["true"],
            library=["--library", tmp_path / "x"])


def test_a_library_that_is_none(launch, tmp_path):
    (tmp_path / "x").write_text("no ELF file\n")
    refused(launch, 125, f"{tmp_path}/x: is no library", words=["true"],
            library=["--library", tmp_path / "x"])


def test_a_library_whose_path_the_loader_would_cut(launch, tmp_path):
    (tmp_path / "a b").mkdir()
    shutil.copy(conftest.SHIM, tmp_path / "a b")
    refused(launch, 125, "blank or a colon", words=["true"],
            library=[f"--library={tmp_path}/a b/libcachealloc.so"])


def test_paths_are_taken_as_they_are(launch, tmp_path):
    folder = tmp_path / "back\\nslash"
    folder.mkdir()
    shutil.copy(conftest.SHIM, folder)

    result = launch("run", "env", library=["--library", folder / "libcachealloc.so"])

    assert preloaded(result) == [f"{folder}/libcachealloc.so"]


def test_wrong_use(launch):
    refused(launch, 125, "run: unknown option --bogus; accepted: -v, -o", words=["--bogus", "true"])
    refused(launch, 125, "run: no program is named", words=["-v"])
    refused(launch, 125, "run: -o lacks its value", words=["-o"])
    refused(launch, 2, "unknown command go; accepted: run, check, report, merge, convert",
            command="go")
    refused(launch, 2, "unknown command go; accepted: run", "top, help, options\n", command="help",
            words=["go"], library=[])


# --- lanes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, says", [
    ("shared", "is linked with the shared runtime: runtime and driver hooks"),
    ("shared_12", "is linked with the shared runtime: runtime and driver hooks"),
    ("static", "has the static runtime in it or opens the driver: driver hooks"),
    ("driver", "is linked with the driver: driver hooks"),
    ("opener", "is linked with no CUDA: driver hooks for modules that bring it, runtime hooks too for"),
])
def test_the_lane_is_told(launch, name, says):
    result = launch("check", MATRIX / name)

    assert (result.rc, result.err) == (0, "")
    assert result.out.startswith(f"{MATRIX / name} {says}")


@pytest.mark.parametrize("size", [0, 3, 51])
def test_of_what_is_no_program_that_it_knows_nothing_is_told(launch, tmp_path, size):
    copy = copy_of(tmp_path)
    os.truncate(copy, size)

    result = launch("check", copy)

    assert (result.rc, result.err) == (0, "")
    assert result.out == f"{copy}: no ELF file, or not to be read: nothing is known of it\n"


@pytest.mark.parametrize("size", [52, 60, 100])
def test_a_program_that_was_cut_off_is_refused(launch, tmp_path, size):
    copy = copy_of(tmp_path)
    os.truncate(copy, size)

    refused(launch, 126, "is linked statically", words=[copy])


def test_run_tells_the_lane_first_where_asked(launch):
    result = launch("run", "-v", MATRIX / "shared")

    assert result.rc == 0
    assert result.err == f"cachealloc: {MATRIX}/shared is linked with the shared runtime: " \
                         "runtime and driver hooks\n"


def test_a_library_of_the_program_may_bring_the_runtime(launch, tmp_path):
    (tmp_path / "x.c").write_text("int main(void) { return 0; }\n")
    shutil.copy(MATRIX / "libearly.so", tmp_path)
    subprocess.run(["gcc", "-o", tmp_path / "x", tmp_path / "x.c", f"-L{tmp_path}",
                    "-Wl,--no-as-needed,--allow-shlib-undefined", "-learly"], check=True)

    paths = f"{tmp_path}:{conftest.BUILD}/simcuda"
    assert "runtime and driver hooks" in launch("check", tmp_path / "x", env={"LD_LIBRARY_PATH": paths}).out
    told = launch("check", tmp_path / "x").out
    assert f"{tmp_path}/x wants libearly.so, which is not found\n" in told


def test_of_a_script_the_interpreter_counts(launch, tmp_path):
    (tmp_path / "inner").symlink_to(MATRIX / "shared")
    for name, first in (("a", f"{tmp_path}/inner -u"), ("b", f"{tmp_path}/a"),
                        ("c", "/usr/bin/env -S A=1 inner")):
        (tmp_path / name).write_text(f"#!{first}\n")
        (tmp_path / name).chmod(0o755)
        told = launch("check", tmp_path / name,
                      env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}).out
        assert told == f"{tmp_path}/inner is linked with the shared runtime: runtime and driver hooks\n"


# --- installed ------------------------------------------------------------------------------------


def test_installed_it_finds_the_library(launch, program, prefix, tmp_path):
    (tmp_path / "link").symlink_to(prefix / "bin/cachealloc")

    for script in (prefix / "bin/cachealloc", tmp_path / "link"):
        assert preloaded(launch("run", "env", script=script, library=[])) == [
            f"{prefix}/lib/libcachealloc.so"]
    result = launch("run", program("leaks"), script=script, library=[])
    assert leak_report.parse(result.err).count == 7


@pytest.mark.parametrize("place", ["lib", "lib64", "lib/x86_64-linux-gnu", "bin"])
def test_the_library_may_be_in_any_of_the_usual_places(launch, prefix, tmp_path, place):
    (tmp_path / "bin").mkdir()
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    script = shutil.copy(prefix / "bin/cachealloc", tmp_path / "bin")
    shutil.copy(conftest.SHIM, tmp_path / place)

    assert preloaded(launch("run", "env", script=script, library=[])) == [
        f"{tmp_path}/{place}/libcachealloc.so"]


@pytest.mark.skipif(conftest.BUILD.name != "build", reason="build/ is another flavour's")
def test_in_the_source_tree_it_finds_what_was_built(launch):
    assert preloaded(launch("run", "env", library=[])) == [
        f"{conftest.ROOT.resolve()}/build/libcachealloc.so"]


def plain(*cmd):
    return conftest.execute(cmd, conftest.plain_env(), 60)


def test_version_and_help(prefix):
    for script in (SCRIPT, prefix / "bin/cachealloc"):
        assert plain(script, "--version") == (0, f"cachealloc {VERSION}\n", "")
        rc, out, err = plain(script, "--help")
        assert (rc, err) == (0, "") and out == plain(script, "help")[1]
        if script == SCRIPT:
            assert plain(script, "help", "--help") == (0, out, "")
        assert plain(script) == (2, "", out)
        for command in ("report", "merge", "journal", "top"):
            rc, said, err = plain(script, "help", command)
            assert (rc, err) == (0, "") and said.startswith("usage: ")
            assert re.search(rf"^  {command} (\.\.\.|\[PID\]) ", out, re.MULTILINE)
    assert f'"cachealloc {VERSION}"' in (prefix / "share/man/man1/cachealloc.1").read_text()


IN_TREE = pytest.mark.skipif(conftest.BUILD.name != "build", reason="build/ is another flavour's")


@pytest.mark.parametrize("installed", [False, True])
def test_each_tool_says_its_version(prefix, installed):
    script = prefix / "bin/cachealloc" if installed else SCRIPT
    folder = prefix / "libexec/cachealloc" if installed else SCRIPT.parent
    for command in ("report", "merge", "journal", "top", "convert"):
        assert plain(script, command, "--version") == (0, f"cachealloc {VERSION}\n", "")
    for file in folder.iterdir():
        if file.is_file() and os.access(file, os.X_OK) and file.suffix == "":
            assert plain(file, "--version") == (0, f"cachealloc {VERSION}\n", ""), file


@IN_TREE
def test_the_options_are_told_without_a_program(launch):
    basic, every = (launch("help", "options", *words, library=[]) for words in ([], ["all"]))

    assert (basic.rc, basic.err, every.rc, every.err) == (0, "", 0, "")
    names = set(re.findall(r"^CA_OPTION\((\w+), [A-Z]", (
        conftest.ROOT / "config/options.def").read_text(), re.MULTILINE))
    assert set(re.findall(r"^  (\w+):", every.out, re.MULTILINE)) == names
    assert set(re.findall(r"^  (\w+):", basic.out, re.MULTILINE)) < names
    for words in (["leak_max"], ["leak_max:3"]):
        one = launch("help", "options", *words, library=[])
        assert one.rc == 0 and one.out.startswith("leak_max  (advanced, uint; default 0; accepted: ")
        assert "\n  example: ALLOC_CONF=leak_max:" in one.out


@IN_TREE
@pytest.mark.parametrize("key, said", [
    ("leek_max", '"leek_max"; near ones: leak_max ('), ("zzzz", '"zzzz"; no key is near it ('),
    ("leak", "near ones: leak_report, leak_min, leak_max, leak_depth,")])
def test_of_an_unknown_option_near_ones_are_told(launch, key, said):
    refused(launch, 2, "unknown key ", said, command="help", words=["options", key], library=[])


def test_a_library_that_has_no_table_is_told(launch, tmp_path):
    (tmp_path / "libcachealloc.so").symlink_to(os.path.realpath("/proc/self/exe"))
    script = shutil.copy(SCRIPT, tmp_path)
    refused(launch, 125, "says nothing of its options", command="help", words=["options"],
            script=script, library=[])


@pytest.mark.parametrize("installed", [False, True])
def test_reports_are_read_by_the_same_command(launch, program, prefix, tmp_path, installed):
    script = prefix / "bin/cachealloc" if installed else SCRIPT
    report, page = tmp_path / "leaks", tmp_path / "page.html"
    d3 = tmp_path / "d3.js"
    d3.write_text("// d3")
    launch("run", "-o", f"leak_report:{report},report_format:text+json", program("leaks"))

    rc, out, err = plain(script, "merge", report)
    assert (rc, err) == (0, "") and out.startswith("MERGED LEAK REPORT: 1 processes\n")
    rc, out, err = plain(script, "report", "--d3", d3, "-o", page, f"{report}.json")
    assert rc == 0, out + err
    assert page.stat().st_size > 1000
    rc, out, err = plain(script, "merge", tmp_path / "missing")
    assert rc == 1 and "No such file" in err


@pytest.mark.skipif(bool(conftest.SANITIZER), reason="Python would have to bring its run-time")
def test_a_journal_is_read_by_the_same_command(launch, prefix, tmp_path):
    (tmp_path / "journal").write_text("no journal")

    rc, out, err = plain(prefix / "bin/cachealloc", "journal", tmp_path / "journal")

    assert rc == 1 and f"cachealloc journal: {tmp_path}/journal: no report is" in out + err


@pytest.mark.parametrize("installed", [False, True])
def test_a_process_is_watched_by_the_same_command(prefix, tmp_path, installed):
    script = prefix / "bin/cachealloc" if installed else SCRIPT

    rc, out, err = plain(script, "top", 2**31 - 1)

    assert (rc, out) == (1, "") and err == f"cachealloc top: there is no process {2**31 - 1}\n"


def test_without_python_that_is_said(tmp_path):
    for name in ("sh", "readlink"):
        os.symlink(shutil.which(name), tmp_path / name)
    env = conftest.plain_env({"PATH": tmp_path})

    rc, _, err = conftest.execute([SCRIPT, "merge", "x"], env, 60)

    assert rc == 127 and "merge_reports needs python3" in err
