#!/bin/sh
# make_deb.sh BUILD_DIR: a Debian package of what `make install` installs, by dpkg-deb alone. It is
# BUILD_DIR/cachealloc_VERSION-1_ARCHITECTURE.deb, the same bytes each time: its files have the time
# of the commit, or SOURCE_DATE_EPOCH. STRIP is for files of another architecture than this one.
set -eu
umask 022
cd "$(dirname "$0")/.."
build=$1
version=$(sed -n 's/^#define CACHEALLOC_VERSION "\(.*\)"/\1/p' include/cachealloc.h)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
flavour=${build#build-}
[ "$flavour" != build ] || flavour=release

case $(readelf -h "$build/libcachealloc.so") in
*AArch64*) arch=arm64 triplet=aarch64-linux-gnu ;;
*X86-64*) arch=amd64 triplet=x86_64-linux-gnu ;;
*)
    echo "make_deb.sh: $build/libcachealloc.so is for none of amd64 and arm64" >&2
    exit 1
    ;;
esac

top=$(mktemp -d "$build/deb.XXXXXX")
trap 'rm -rf "$top" "$top.deb"' EXIT
chmod 755 "$top"
doc=$top/usr/share/doc/cachealloc
# Where the loader looks for libraries that are named without a path.
env -u MAKEFLAGS make -s --no-print-directory "BUILD=$flavour" install PREFIX=/usr "LIBDIR=/usr/lib/$triplet" \
    "DESTDIR=$top" >/dev/null

# Names in reports come from the symbol table, which stays; lines of our own are of no interest.
"${STRIP:-strip}" --strip-debug "$top/usr/lib/$triplet/libcachealloc.so"
chmod 644 "$top/usr/lib/$triplet/libcachealloc.so"
{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    echo "Upstream-Name: cachealloc"
    echo
    echo "Files: *"
    sed -n 's/^Copyright (c) /Copyright: /p' "$doc/LICENSE"
    echo "License: Expat"
    sed '1,/^Copyright/d' "$doc/LICENSE" | sed '/./,$!d; s/^$/./; s/^/ /'
} >"$doc/copyright"
rm "$doc/LICENSE"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
maintainer="The cachealloc authors <cachealloc@localhost>"
{
    echo "cachealloc ($version-1) unstable; urgency=medium"
    echo
    echo "  * This version; changelog.gz has its changes."
    echo
    echo " -- $maintainer  $(LC_ALL=C date -u -R -d "@$epoch")"
} | gzip -9n >"$doc/changelog.Debian.gz"
gzip -9n "$top"/usr/share/man/man*/*

# What it links to is libc alone (check_links.sh): of that, the newest version that a name asks for.
glibc=$(readelf -W --dyn-syms "$top/usr/lib/$triplet/libcachealloc.so" |
    sed -n 's/.* UND .*@GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1)
mkdir "$top/DEBIAN"
size=$(find "$top/usr" -printf '%y %s\n' |
    awk '{ n += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print n }')
cat >"$top/DEBIAN/control" <<END
Package: cachealloc
Version: $version-1
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $size
Depends: libc6 (>= $glibc)
Suggests: libunwind8, libdw1, python3, node-d3
Section: libs
Priority: optional
Description: caching and accounting allocator for CUDA programs, by preloading
 LD_PRELOAD=libcachealloc.so makes the memory calls of a program that uses CUDA
 fast, keeps the call stack of each live allocation, and reports at exit what
 was not freed. The program is not built anew. cachealloc(7) has the options.
END
# The loader's cache is made anew: the library is in one of its folders.
echo "activate-noawait ldconfig" >"$top/DEBIAN/triggers"
(cd "$top" && find usr -type f | LC_ALL=C sort | xargs md5sum) >"$top/DEBIAN/md5sums"

find "$top" -exec touch -h -d "@$epoch" {} +
package=$build/cachealloc_$version-1_$arch.deb
SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zxz --build "$top" "$top.deb" >/dev/null
mv "$top.deb" "$package"
echo "$package"
