"""What rows of the matrix need that a machine may not have: found, or made, or skipped with a
reason. The functions without arguments are asked when a row is run."""

import fcntl
import functools
import os
import pathlib
import shutil
import subprocess
import sysconfig

import pytest

import conftest

HERE = pathlib.Path(__file__).resolve().parent
MADE = conftest.BUILD / "tests" / "matrix"
SIM = conftest.BUILD / "simcuda"


def command(*names, where=None):
    """The first of these programs that is there."""
    for name in names:
        found = shutil.which(name) or (where and shutil.which(name, path=where))
        if found:
            return found
    return pytest.skip(f"there is no {names[0]}")


def make(target, sources, words, env=None):
    """target, made by this command from these sources unless it is newer; by one process at a
    time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{target}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists() and all(target.stat().st_mtime > source.stat().st_mtime
                                   for source in sources):
            return target
        rc, out, err = conftest.execute(words, conftest.plain_env(env), 300)
        assert rc == 0, f"{target.name} was not made: {out}{err}"
    return target


@functools.cache
def cuda_include():
    return subprocess.run([conftest.ROOT / "scripts" / "deps.sh", "--cuda-include"], text=True,
                          check=True, capture_output=True, cwd=conftest.ROOT).stdout.strip()


# --- libraries that are preloaded beside the shim -------------------------------------------------


def library(*names):
    """The first of these files that a folder of the system's libraries has."""
    folders = ["/usr/lib/" + (sysconfig.get_config_var("MULTIARCH") or ""), "/usr/lib64", "/usr/lib"]

    def find():
        for folder in folders:
            for name in names:
                path = pathlib.Path(folder) / name
                if path.exists():
                    return path
        return pytest.skip(f"there is no {names[0]}")

    return find


def of_compiler(name):
    def find():
        path = subprocess.run(["gcc", f"-print-file-name={name}"], text=True, check=True,
                              capture_output=True).stdout.strip()
        return path if os.path.isabs(path) else pytest.skip(f"the compiler has no {name}")

    return find


def fixed_addresses():
    """gcc's thread sanitizer cannot live with much address randomisation."""
    works = shutil.which("setarch") and subprocess.run(["setarch", "-R", "true"], check=False,
                                                       capture_output=True).returncode == 0
    return ["setarch", "-R"] if works else []


FIXED_ADDRESSES = fixed_addresses()

# --- programs that other tools make ---------------------------------------------------------------


def python_with(module):
    """The distribution's python first, as scripts/deps.sh has it."""
    def find():
        for python in ("/usr/bin/python3", shutil.which("python3")):
            if python and subprocess.run([python, "-c", f"import {module}"], check=False,
                                         capture_output=True).returncode == 0:
                return python
        return pytest.skip(f"no python has {module}")

    return find


def fortran():
    source = HERE / "work.f90"
    out = MADE / "fortran"
    return make(out, [source], [command("gfortran"), "-O1", "-o", out, source, f"-L{SIM}",
                                "-lcudart"])


def java():
    source = HERE / "Work.java"
    javac = command("javac")
    make(MADE / "Work.class", [source], [javac, "-d", MADE, source])
    return command(str(pathlib.Path(javac).resolve().parent / "java"), "java")


def jni_library():
    include = pathlib.Path(command("javac")).resolve().parent.parent / "include"
    if not (include / "jni.h").exists():
        pytest.skip("there is no jni.h")
    source = HERE / "work_jni.cc"
    out = MADE / "libwork_jni.so"
    return make(out, [source], [
        "g++", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{conftest.ROOT}",
        "-isystem", include, "-isystem", include / "linux", "-isystem", cuda_include(), "-o", out,
        source, f"-L{SIM}", "-lcudart"])


def go():
    source = HERE / "work.go"
    out = MADE / "go"
    env = {"CGO_ENABLED": 1, "GO111MODULE": "off", "GOCACHE": MADE / "go-cache",
           "CGO_CFLAGS": f"-I{cuda_include()}", "CGO_LDFLAGS": f"-L{SIM} -lcudart"}
    return make(out, [source], [command("go"), "build", "-o", out, source], env)


def nvcc(name, *flags):
    """Compiled once for all that run it, which takes half a minute of Thrust."""
    source = conftest.ROOT / "simcuda" / "cu" / name

    def build():
        homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
        where = os.pathsep.join(f"{home}/bin" for home in homes if home)
        out = MADE / "".join((f"nvcc-{source.stem}", *flags))
        return make(out, [source], [command("nvcc", where=where), "-cudart", "shared", *flags, "-o",
                                    out, source])

    return build
