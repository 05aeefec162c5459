#!/bin/sh
# check_links.sh [BUILD_DIR]: libcachealloc.so links to libc, libdl and libpthread only, so that it
# can be loaded into every program. 77: skipped.
set -eu
build=${1:-$(dirname "$0")/../build}
lib=$build/libcachealloc.so

if nm -D --undefined-only "$lib" | grep -qE ' __(asan|tsan)_init'; then
    echo "a sanitizer build brings its run-time"
    exit 77
fi

# NEEDED is what we ask for; ldd also shows what those would pull in.
needed=$(readelf -dW "$lib" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
loaded=$(ldd "$lib" | awk '{ sub(".*/", "", $1); print $1 }')
for name in $needed $loaded; do
    case $name in
    libc.so.6 | libdl.so.2 | libpthread.so.0 | ld-linux*.so.* | linux-vdso.so.1) ;;
    *) bad="${bad:+$bad }$name" ;;
    esac
done
if [ -n "${bad:-}" ]; then
    echo "libcachealloc.so links to $bad"
    exit 1
fi
echo "$needed"
