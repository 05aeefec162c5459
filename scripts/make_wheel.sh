#!/bin/sh
# make_wheel.sh BUILD_DIR: a wheel for pip of what `make install` installs, by hatchling as
# pyproject.toml has it. It is BUILD_DIR/cachealloc-VERSION-py3-none-manylinux_2_28_MACHINE.whl, the
# same bytes each time: its files have the time of the commit, or SOURCE_DATE_EPOCH. STRIP is for
# files of another architecture than this one. auditwheel must agree to its tag, and twine to its
# metadata, where they are there (deps.sh --wheel).
set -eu
umask 022
cd "$(dirname "$0")/.."
build=$1
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
python=$(scripts/deps.sh --wheel-python) || {
    echo "make_wheel.sh: no hatchling: scripts/deps.sh --wheel" >&2
    exit 1
}
scripts/check_glibc.sh "$build/libcachealloc.so" 2.28
scripts/d3.sh

top=$(mktemp -d "$build/wheel.XXXXXX")
trap 'rm -rf "$top"' EXIT
# Names in reports come from the symbol table, which stays; lines of our own are of no interest.
"${STRIP:-strip}" --strip-debug -o "$top/libcachealloc.so" "$build/libcachealloc.so"

module() { # (one of build/wheel-tools, arguments...)
    PYTHONPATH=build/wheel-tools "$python" -B -m "$@"
}
if ! CACHEALLOC_LIBRARY=$top/libcachealloc.so SOURCE_DATE_EPOCH=$epoch \
    module hatchling build -t wheel -d "$top" >"$top/said" 2>&1; then
    cat "$top/said" >&2
    exit 1
fi
set -- "$top"/*.whl
wheel=${1##*/}

tag=${wheel##*-}
tag=${tag%.whl}
if [ -d build/wheel-tools/auditwheel ]; then
    module auditwheel show "$1" >"$top/said" 2>&1 || true
    if ! tr -s '\n ' '  ' <"$top/said" |
        grep -qF "consistent with the following platform tag: \"$tag\""; then
        cat "$top/said" >&2
        echo "make_wheel.sh: auditwheel does not agree to $tag" >&2
        exit 1
    fi
fi
if [ -d build/wheel-tools/twine ] && ! module twine check --strict "$1" >"$top/said" 2>&1; then
    cat "$top/said" >&2
    exit 1
fi
mv "$1" "$build/$wheel"
echo "$build/$wheel"
