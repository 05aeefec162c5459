#!/bin/sh
# Brings the allocators that `make bench` compares with, which are not ours to ship: RMM, with the
# CCCL (cub) that fits it, from PyPI into build/peers. Prints nothing when they are there already.
#
# Without pip or the network it says so and fails; the bench then goes on without them.
set -eu
cd "$(dirname "$0")/.."

peers=build/peers
# The last release line whose resources are templates in headers: later ones are compiled into
# librmm.so with a CUDA runtime inside, which no simulated driver satisfies.
rmm='26.4.*'
logger='0.2.*'

[ ! -r "$peers/rmm/mr/pool_memory_resource.hpp" ] || exit 0

python=$(scripts/deps.sh --pip-python) || {
    echo "peers.sh: no pip to bring RMM with" >&2
    exit 1
}

tmp=build/peers.$$
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp"
echo "peers.sh: fetching RMM from PyPI" >&2
"$python" -m pip download --quiet --no-deps --only-binary :all: --disable-pip-version-check \
    --dest "$tmp" "librmm-cu13==$rmm" "rapids-logger==$logger" >&2
"$python" - "$tmp" <<'PY'
import pathlib, sys, zipfile
top = pathlib.Path(sys.argv[1])
for wheel in top.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, slash, rest = name.partition("/")
            folder = rest.partition("/")[0]
            if folder not in ("include", "lib64") or name.endswith("/"):
                continue
            target = top / "out" / (rest.partition("/")[2] if folder == "include" else rest)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
PY
if ! [ -r "$tmp/out/rmm/mr/pool_memory_resource.hpp" ]; then
    echo "peers.sh: the packages fetched do not hold RMM" >&2
    exit 1
fi
rm -rf "$peers"
mv "$tmp/out" "$peers"
