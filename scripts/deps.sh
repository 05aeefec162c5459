#!/bin/sh
# Looks for what building and testing need. As root on Debian or Ubuntu it installs what is missing;
# otherwise it prints the one command to run and fails. Silent when everything is there.
#
#   deps.sh                  to build and to run `make demo` and `make check`
#   deps.sh --build          to build and to run `make demo` only
#   deps.sh --static         to run `make static`
#   deps.sh --fuzz           to run `make fuzz`
#   deps.sh --bench          to run `make bench`
#   deps.sh --wheel          to run `make wheel`
#   deps.sh --launchers      to run `make check-launchers`
#   deps.sh --headers        only the CUDA headers
#   deps.sh --older-headers  those of CUDA 11 and 12, which tests/test_build.py compiles against
#   deps.sh --cuda-include   prints the directory of cuda.h, installs nothing
#   deps.sh --python         prints the python that has the test runner, installs nothing
#   deps.sh --bench-python   prints the python that can draw charts, or any, installs nothing
#   deps.sh --pip-python     prints the python that has pip, installs nothing
#   deps.sh --wheel-python   prints the python that builds wheels, installs nothing
#
# --no-toolkit, or CA_NO_TOOLKIT=1 in the environment, pretends that there is no CUDA toolkit.
set -eu
cd "$(dirname "$0")/.."

headers=build/cuda-headers/include # where headers from PyPI go, for every BUILD
headers_release='13.0.*'           # one release of all packages, so that they fit each other
older_headers=build/cuda-headers   # and below it those of CUDA 11 and 12, in 11 and 12
wheel_tools=build/wheel-tools      # for PYTHONPATH
mode=all
for arg; do
    case $arg in
    --no-toolkit) CA_NO_TOOLKIT=1 ;;
    --build | --static | --fuzz | --bench | --wheel | --launchers | --headers | --older-headers | \
        --cuda-include | --python | --bench-python | --pip-python | --wheel-python)
        mode=${arg#--}
        ;;
    *)
        echo "deps.sh: unknown argument $arg; see the top of the file" >&2
        exit 2
        ;;
    esac
done

# --- CUDA headers ---------------------------------------------------------------------------------

# The simulated runtime is libcudart.so.13, and CUDA 12 has other prototypes under the same names.
is_cuda_include() {
    [ -r "$1/cuda.h" ] && [ -r "$1/cuda_runtime_api.h" ] &&
        grep -q '^#define CUDA_VERSION 1[3-9]' "$1/cuda.h"
}

# Make calls this each time it reads the Makefile: it must stay quick.
cuda_include() {
    if [ "${CA_NO_TOOLKIT:-0}" != 1 ]; then
        nvcc=$(command -v nvcc 2>/dev/null) && nvcc=$(readlink -f "$nvcc") || nvcc=
        for dir in "${CUDA_HOME:+$CUDA_HOME/include}" /usr/local/cuda/include \
            "${nvcc:+${nvcc%/bin/nvcc}/include}"; do
            if [ -n "$dir" ] && is_cuda_include "$dir"; then
                echo "$dir"
                return
            fi
        done
    fi
    echo "$headers" # where fetch_headers will put them
}

# The wheels hold libraries too; only their headers are kept.
unpack_headers() { # (python, a folder of wheels: they go to its folder include)
    "$1" - "$2" <<'PY'
import pathlib, sys, zipfile
top = pathlib.Path(sys.argv[1])
for wheel in top.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, found, rest = name.partition("/include/")
            if found and not name.endswith("/"):
                target = top / "include" / rest
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
PY
}

pip_download() { # (python, a folder for the wheels, what pip download is told besides)
    python=$1 folder=$2
    shift 2
    mkdir -p "$folder"
    "$python" -m pip download --quiet --no-deps --only-binary :all: \
        --disable-pip-version-check --dest "$folder" "$@" >&2
}

fetch_headers() {
    tmp=build/cuda-headers.$$
    trap 'rm -rf "$tmp"' EXIT
    echo "deps.sh: no CUDA 13 toolkit found, fetching its headers from PyPI" >&2
    python=$(pip_python)
    pip_download "$python" "$tmp" "nvidia-cuda-runtime==$headers_release" \
        "nvidia-cuda-crt==$headers_release" "nvidia-cuda-profiler-api==$headers_release"
    unpack_headers "$python" "$tmp"
    if ! is_cuda_include "$tmp/include" || ! [ -r "$tmp/include/crt/host_defines.h" ] ||
        ! [ -r "$tmp/include/cudaProfiler.h" ]; then
        echo "deps.sh: the packages fetched do not hold the headers" >&2
        exit 1
    fi
    rm -rf "$headers"
    mkdir -p "${headers%/*}"
    mv "$tmp/include" "$headers"
}

has_older_headers() { # (a folder)
    [ -r "$1/cuda.h" ] && [ -r "$1/crt/host_defines.h" ]
}

# Each by the checksums of its wheels for x86_64 and aarch64. What these call crt/ came with the
# compiler before CUDA 13.
fetch_older_headers() {
    ! has_older_headers "$older_headers/11" || ! has_older_headers "$older_headers/12" || return 0
    tmp=build/cuda-headers.$$
    trap 'rm -rf "$tmp"' EXIT
    echo "deps.sh: fetching the headers of CUDA 11 and 12 from PyPI" >&2
    python=$(pip_python) || return 1
    mkdir -p "$tmp/11" "$tmp/12" "$older_headers"
    while read -r release package sums; do
        for sum in $sums; do
            package="$package --hash=sha256:$sum"
        done
        echo "$package" >>"$tmp/$release/wanted"
    done <<'END'
11 nvidia-cuda-runtime-cu11==11.8.89 f587bd726eb2f7612cf77ce38a2c1e65cf23251ff49437f6161ce0d647f64f7c e53bf160b6b660819cb6e4a9da2cc89e6aa2329858299780a2459780a2b8d012
11 nvidia-cuda-nvcc-cu11==11.8.89 f8e1e995166c884f2f5bf94975d7abb89175363b8712f7f81cd38d0df1b2cd85 8a33d735e6c374009dd8f965a26658956d4e98a4916e63fca4ac8df7a455c136
12 nvidia-cuda-runtime-cu12==12.9.79 25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3 83469a846206f2a733db0c42e223589ab62fd2fabac4432d2f8802de4bded0a4
12 nvidia-cuda-nvcc-cu12==12.9.86 5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0 44e1eca4d08926193a558d2434b1bf83d57b4d5743e0c431c0c83d51da1df62b
END
    for release in 11 12; do
        pip_download "$python" "$tmp/$release" --retries 1 --require-hashes \
            -r "$tmp/$release/wanted" || return 1
        unpack_headers "$python" "$tmp/$release" || return 1
        has_older_headers "$tmp/$release/include" || return 1
        rm -rf "${older_headers:?}/$release"
        mv "$tmp/$release/include" "$older_headers/$release" || return 1
    done
}

# What builds the wheel and judges it, in one version each so that the wheel is the same everywhere;
# twine, with 40 MB of what it needs, only for `make wheel`.
fetch_wheel_tools() { # (further packages...)
    missing=''
    for package in hatchling==1.33.0 auditwheel==6.8.2 "$@"; do
        [ -d "$wheel_tools/${package%==*}" ] || missing=yes
    done
    [ "$missing" ] || return 0
    rm -rf "${tmp:-}" # the headers' wheels, as the trap is for one folder
    tmp=build/wheel-tools.$$
    trap 'rm -rf "$tmp"' EXIT
    echo "deps.sh: fetching hatchling and auditwheel from PyPI" >&2
    python=$(pip_python) || return 1
    PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --disable-pip-version-check \
        --retries 1 --target "$tmp" hatchling==1.33.0 auditwheel==6.8.2 "$@" >&2 || return 1
    rm -rf "$wheel_tools"
    mv "$tmp" "$wheel_tools"
}

# --- what is there --------------------------------------------------------------------------------

has_command() {
    command -v "$1" >/dev/null 2>&1
}

# CC and CXX may be several words: gcc -m64, ccache gcc.
compiles() { # (a compiler, a language)
    # shellcheck disable=SC2086
    echo | $1 -x "$2" -E - >/dev/null 2>&1
}

has_header() {
    # shellcheck disable=SC2086
    echo "#if !__has_include(<$1>)
#error
#endif" | ${CC:-gcc} -E - >/dev/null 2>&1
}

has_library() {
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -qF "$1 "
}

# The distribution's own python first: a python of the user's that shadows it has none of the
# packages that the package manager installs.
first_python() { # (python code) -> the first python that runs it
    for python in /usr/bin/python3 python3; do
        if "$python" -c "$1" >/dev/null 2>&1; then
            echo "$python"
            return
        fi
    done
    return 1
}

test_python() {
    first_python 'import pytest, pytest_timeout, xdist'
}

# matplotlib draws the chart; the bench does without it.
bench_python() {
    first_python 'import matplotlib' || first_python ''
}

pip_python() {
    first_python 'import pip'
}

wheel_python() {
    [ -d "$wheel_tools/hatchling" ] && pip_python
}

apt='' dnf='' zypper=''
need() { # (names of a missing thing with apt, dnf and zypper)
    apt="$apt $1" dnf="$dnf $2" zypper="$zypper $3"
}

look_for_headers() {
    is_cuda_include "$(cuda_include)" && return
    pip_python >/dev/null || need python3-pip python3-pip python3-pip
}

look_for_build() {
    compiles "${CC:-gcc}" c || need gcc gcc gcc
    has_command make || need make make make
    has_header stdio.h || need libc6-dev glibc-devel glibc-devel
    has_library libunwind.so.8 || need libunwind8 libunwind libunwind8
    has_library libdw.so.1 || need libdw1 elfutils-libs libdw1
    look_for_headers
}

has_flamegraph() { # as tests/read_formats.py looks for it
    has_command flamegraph.pl || [ -e /usr/share/perl5/Devel/NYTProf/flamegraph.pl ] ||
        [ -e /usr/share/perl5/vendor_perl/Devel/NYTProf/flamegraph.pl ]
}

look_for_test() {
    compiles "${CXX:-g++}" c++ || need g++ gcc-c++ gcc-c++
    has_header zlib.h || need zlib1g-dev zlib-devel zlib-devel
    has_command valgrind || need valgrind valgrind valgrind
    has_flamegraph || need libdevel-nytprof-perl perl-Devel-NYTProf perl-Devel-NYTProf
    has_header cmocka.h || need libcmocka-dev libcmocka-devel libcmocka-devel
    test_python >/dev/null ||
        need "python3-pytest python3-pytest-timeout python3-pytest-xdist" \
            "python3-pytest python3-pytest-timeout python3-pytest-xdist" \
            "python3-pytest python3-pytest-timeout python3-pytest-xdist"
    first_python 'import pytest, pytest_timeout, xdist, jsonschema' >/dev/null ||
        need python3-jsonschema python3-jsonschema python3-jsonschema
    first_python 'import pytest, pytest_timeout, xdist, google.protobuf' >/dev/null ||
        need python3-protobuf python3-protobuf python3-protobuf
    first_python 'import pytest, pytest_timeout, xdist, prometheus_client' >/dev/null ||
        need python3-prometheus-client python3-prometheus_client python3-prometheus-client
    first_python 'import pytest, pytest_timeout, xdist, pyte' >/dev/null ||
        need python3-pyte python3-pyte python3-pyte
}

# Libraries that are preloaded beside the shim are not all on the linker's path.
has_preload() {
    for dir in /usr/lib/*-linux-gnu* /usr/lib64 /usr/lib; do
        [ ! -e "$dir/$1" ] || return 0
    done
    return 1
}

# Lmod reads the same files, and the two exclude each other.
has_modules() {
    has_command lmod || [ -d /usr/share/lmod ] || [ -e /usr/share/Modules ] ||
        has_command modulecmd
}

# What the matrix of processes runs, and the launcher of the reports of many ranks. Java, Go and nvcc
# are too large to be brought for that: their rows are skipped where they are not.
look_for_matrix() {
    has_command gfortran || need gfortran gcc-gfortran gcc-fortran
    first_python 'import cffi' >/dev/null || need python3-cffi python3-cffi python3-cffi
    has_preload faketime/libfaketime.so.1 || need libfaketime libfaketime libfaketime
    has_preload heaptrack/libheaptrack_preload.so || need heaptrack heaptrack heaptrack
    has_preload libjemalloc.so.2 || need libjemalloc2 jemalloc libjemalloc2
    has_preload libtcmalloc_minimal.so.4 ||
        need libtcmalloc-minimal4 gperftools-libs libtcmalloc4
    has_command mpirun || need openmpi-bin openmpi openmpi
    has_command cmake || need cmake cmake cmake
    has_modules || need environment-modules environment-modules Modules
}

has_browser() { # as tests/browser.py looks for one
    for name in chromium-headless-shell chromium chromium-browser google-chrome-stable \
        google-chrome; do
        ! has_command "$name" || return 0
    done
    return 1
}

# For tests/test_report_page.py, which skips where there is none. Not every distribution has one as
# a package: no part of the others.
bring_browser() {
    has_browser && return
    if ! has_command apt-get; then
        echo "deps.sh: no Chromium, so the report page is not tested in a browser" >&2
        return
    fi
    echo "deps.sh: installing chromium-headless-shell" >&2
    export DEBIAN_FRONTEND=noninteractive
    if ! apt-get update -qq >&2 ||
        ! apt-get install -y -qq --no-install-recommends chromium-headless-shell >/dev/null; then
        echo "deps.sh: no Chromium, so the report page is not tested in a browser" >&2
    fi
}

look_for_bench() {
    compiles "${CXX:-g++}" c++ || need g++ gcc-c++ gcc-c++
    # Only where it can be installed at once: the bench goes on without a chart.
    [ "$(id -u)" != 0 ] || first_python 'import matplotlib' >/dev/null ||
        need python3-matplotlib python3-matplotlib python3-matplotlib
}

# Launchers of jobs, and what reads the examples of containers and services, for
# tests/test_launchers.py and tests/test_examples.py, which skip what is not here. PyTorch, of which
# torchrun is a part, is too large to be brought for that.
look_for_launchers() {
    has_command mpirun.openmpi || need openmpi-bin openmpi openmpi
    has_command mpirun.mpich || need mpich mpich mpich
    has_command srun || need slurm-client slurm slurm
    has_command slurmctld || need slurmctld slurm-slurmctld slurm
    has_command slurmd || need slurmd slurm-slurmd slurm-node
    has_command munged || need munge munge munge
    has_command buildah || need buildah buildah buildah
    has_command systemd-analyze || need systemd systemd systemd
    first_python 'import pytest, yaml' >/dev/null ||
        need python3-yaml python3-pyyaml python3-PyYAML
    first_python 'import pytest, kubernetes' >/dev/null ||
        need python3-kubernetes python3-kubernetes python3-kubernetes
}

# For tests/test_aarch64.py, which skips where this has other names.
look_for_cross() {
    has_command apt-get || return 0
    has_command aarch64-linux-gnu-gcc || need gcc-aarch64-linux-gnu '' ''
    (CC=aarch64-linux-gnu-gcc && has_header stdio.h) || need libc6-dev-arm64-cross '' ''
    has_command qemu-aarch64 || need qemu-user '' ''
}

look_for_static() {
    has_command clang-format || need clang-format clang-tools-extra clang
    has_command clang-tidy || need clang-tidy clang-tools-extra clang
    has_command cppcheck || need cppcheck cppcheck cppcheck
    has_command shellcheck || need shellcheck ShellCheck ShellCheck
}

# clang's own fuzzer, and the sanitizers that it runs with.
has_fuzzer() {
    has_command clang &&
        echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return !d && n; }' |
        clang -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null
}

look_for_fuzz() {
    has_fuzzer || need 'clang libclang-rt-dev' 'clang compiler-rt' clang
}

# --- and what is to be done about it --------------------------------------------------------------

install_missing() {
    [ -n "$apt" ] || return 0
    if has_command apt-get; then
        if [ "$(id -u)" = 0 ]; then
            echo "deps.sh: installing$apt" >&2
            export DEBIAN_FRONTEND=noninteractive
            apt-get update -qq >&2
            # shellcheck disable=SC2086 # a list of names
            apt-get install -y -qq --no-install-recommends $apt >/dev/null
            return
        fi
        install="apt-get install -y --no-install-recommends$apt"
    elif has_command dnf; then
        install="dnf install -y$dnf"
    elif has_command zypper; then
        install="zypper install -y$zypper"
    else
        echo "deps.sh: missing (by their Debian names):$apt" >&2
        exit 1
    fi
    [ "$(id -u)" = 0 ] || install="sudo $install"
    echo "deps.sh: something is missing; run" >&2
    echo "    $install" >&2
    exit 1
}

case $mode in
cuda-include)
    cuda_include
    exit
    ;;
python)
    test_python
    exit
    ;;
bench-python)
    bench_python
    exit
    ;;
pip-python)
    pip_python
    exit
    ;;
wheel-python)
    wheel_python
    exit
    ;;
headers) look_for_headers ;;
wheel)
    look_for_build
    pip_python >/dev/null || need python3-pip python3-pip python3-pip
    ;;
older-headers)
    fetch_older_headers
    exit
    ;;
build) look_for_build ;;
static) look_for_static ;;
fuzz)
    look_for_build
    look_for_test
    look_for_fuzz
    ;;
bench)
    look_for_build
    look_for_bench
    ;;
launchers)
    look_for_build
    look_for_test
    look_for_launchers
    ;;
all)
    look_for_build
    look_for_test
    # Single tests are skipped where their tool is not: only what can be brought at once.
    if [ "$(id -u)" = 0 ]; then
        look_for_matrix
        look_for_cross
    fi
    ;;
esac
install_missing
[ "$mode" = static ] && exit
if [ "$mode" = all ] && [ "$(id -u)" = 0 ]; then
    bring_browser
fi
# After the packages, because pip may have been among them.
is_cuda_include "$(cuda_include)" || fetch_headers
[ "$mode" != all ] || fetch_older_headers ||
    echo "deps.sh: without them: the library is compiled against CUDA 13 alone" >&2
[ "$mode" != all ] || fetch_wheel_tools ||
    echo "deps.sh: without them: the wheel is not tested" >&2
[ "$mode" != wheel ] || fetch_wheel_tools twine==7.0.0
