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
# Where the loader looks for libraries that are named without a path, and Python for modules.
env -u MAKEFLAGS make -s --no-print-directory "BUILD=$flavour" install PREFIX=/usr "LIBDIR=/usr/lib/$triplet" \
    PYTHONDIR=/usr/lib/python3/dist-packages "DESTDIR=$top" >/dev/null
rm -r "$top/usr/share/modulefiles" # for prefixes that are not on every path already

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
    if [ -e "$doc/LICENSE.d3" ]; then
        echo
        echo "Files: usr/libexec/cachealloc/report_page/d3.min.js"
        sed -n 's/^Copyright /Copyright: /p' "$doc/LICENSE.d3"
        echo "License: ISC"
        sed '1,/^Copyright/d' "$doc/LICENSE.d3" | sed '/./,$!d; s/^$/./; s/^/ /'
    fi
} >"$doc/copyright"
suggests="libunwind8, python3"
[ -e "$doc/LICENSE.d3" ] || suggests="$suggests, node-d3"
rm -f "$doc/LICENSE" "$doc/LICENSE.d3"
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
Recommends: libdw1
Suggests: $suggests
Section: libs
Priority: optional
Description: caching and accounting allocator for CUDA programs, by preloading
 LD_PRELOAD=libcachealloc.so makes the memory calls of a program that uses CUDA
 fast, keeps the call stack of each live allocation, and reports at exit what
 was not freed. The program is not built anew. cachealloc(7) has the options.
END
# The loader's cache is made anew: the library is in one of its folders.
echo "activate-noawait ldconfig" >"$top/DEBIAN/triggers"
# Python would write compiled modules of its own, which would stay behind.
maintainer_script() { # (its name, when, command)
    cat >"$top/DEBIAN/$1" <<END
#!/bin/sh
set -e
if [ "\$1" $2 ] && command -v ${3%% *} >/dev/null; then
    $3
fi
END
    chmod 755 "$top/DEBIAN/$1"
}
maintainer_script postinst '= configure' 'py3compile -p cachealloc'
maintainer_script prerm '!= failed-upgrade' 'py3clean -p cachealloc'
(cd "$top" && find usr -type f | LC_ALL=C sort | xargs md5sum) >"$top/DEBIAN/md5sums"

find "$top" -exec touch -h -d "@$epoch" {} +
package=$build/cachealloc_$version-1_$arch.deb
SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zxz --build "$top" "$top.deb" >/dev/null
mv "$top.deb" "$package"
echo "$package"
