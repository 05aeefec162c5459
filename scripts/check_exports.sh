#!/bin/sh
# check_exports.sh [BUILD_DIR]: libcachealloc.so exports the hook table and the public API, nothing
# else. A name in the map without a definition is dropped by the linker in silence, so the map alone
# proves nothing.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build}

wanted=$(
    {
        # exports.map is made from the hook table; `local: *` has no letter before its `;`.
        grep -oE '[A-Za-z_][A-Za-z0-9_]* *;' "$build/exports.map" | tr -d ' ;'
        grep -oE 'cachealloc_[a-z0-9_]+ *\(' "$root/include/cachealloc.h" | tr -d ' ('
    } | sort -u
)
exported=$(nm -D --defined-only "$build/libcachealloc.so" | awk '{ print $3 }' | sort -u)

if [ "$wanted" = "$exported" ]; then
    echo "$(echo "$wanted" | wc -l) names"
    exit
fi
echo "exports differ: < wanted (hook table, cachealloc.h), > exported"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
echo "$wanted" >"$tmp/wanted"
echo "$exported" >"$tmp/exported"
diff "$tmp/wanted" "$tmp/exported"
