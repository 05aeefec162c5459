#!/bin/sh
# Brings the library that draws the page of tools/cachealloc-report, which is not ours to ship:
# D3, from PyPI into build/d3/d3.min.js. Prints nothing when it is there already.
#
# Without pip or the network it says so and fails; the script then takes any other copy of that
# file: `cachealloc-report --d3 FILE`.
set -eu
cd "$(dirname "$0")/.."

target=build/d3/d3.min.js
# A wheel that holds an unaltered copy of D3 7.9.0, and the checksum of that release as its authors
# publish it: it is what counts, not the wheel.
wheel='d3blocks==2.3.2'
sha512=bdce7caafbc176b0d1e1eb5bc4c7654ede06050935aa3bf23914769ebb0fb053f2aecfbfbb9737fb50adeaea4e81d668225edeaba9376b550f0d2340422ff7d8

[ ! -r "$target" ] || exit 0

python=$(scripts/deps.sh --pip-python) || {
    echo "d3.sh: no pip to bring D3 with" >&2
    exit 1
}

tmp=build/d3.$$
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp"
echo "d3.sh: fetching D3 from PyPI" >&2
"$python" -m pip download --quiet --no-deps --only-binary :all: --disable-pip-version-check --retries 1 \
    --dest "$tmp" "$wheel" >&2
"$python" - "$tmp" "$sha512" <<'PY'
import hashlib, pathlib, sys, zipfile
top, wanted = pathlib.Path(sys.argv[1]), sys.argv[2]
for wheel in top.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".min.js"):
                continue
            content = archive.read(name)
            if hashlib.sha512(content).hexdigest() == wanted:
                (top / "d3.min.js").write_bytes(content)
                sys.exit()
sys.exit("d3.sh: the package fetched does not hold D3 as it was released")
PY
mkdir -p "${target%/*}"
mv "$tmp/d3.min.js" "$target"
