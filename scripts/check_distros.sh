#!/bin/bash
# check_distros.sh FOLDER: what a newcomer meets. For each of DISTROS (Debian's releases, "bookworm
# trixie") debootstrap makes a root without a CUDA toolkit below FOLDER. The committed tree is cloned
# there, and README's two commands run: as a user who is told what is missing, as that user once
# root has installed just that, and as root. Its wheel goes into a clean environment of Python
# (check_wheel.sh), its Debian package onto the root. Then the demo of each runs under BUILD=portable
# of the others.
#
# K=NAME goes to `make check`, ONLY=packages leaves out `make check` and all that root builds, KEEP=1
# keeps the roots and what the commands said. TORCH_trixie=DIR is a PyTorch for the wheel's part
# there, and TORCH_FILES=DIR a folder that it links to. The last line is the totals. It needs root,
# and takes mirror, proxies and certificates from this machine.
#
# root sees what a container has: /proc, /sys to read, terminals and shared memory. The user sees /proc
# alone, as after a plain chroot. All of it is mounted in a namespace that ends with its command,
# and so do all processes there: nothing is left to unmount, whatever ends this script.
set -u
umask 022
cd "$(dirname "$0")/.." || exit
top=$(realpath -m "${1:?a folder to make roots in}")
read -ra distros <<<"${DISTROS:-bookworm trixie}"
passed=0 failed=0 child=''

if [ "$(id -u)" != 0 ]; then
    echo "check_distros.sh: needs root, to make roots and enter them" >&2
    exit 1
fi
if ! command -v debootstrap >/dev/null; then
    echo "check_distros.sh: something is missing; run" >&2
    echo "    apt-get install -y --no-install-recommends debootstrap" >&2
    exit 1
fi
# Security updates are an archive of their own, with a label of its own.
# shellcheck disable=SC2016 # apt's words
mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' |
    sed -n 's/^Debian Debian //p' | head -n 1)
if [ -z "$mirror" ]; then
    echo "check_distros.sh: apt names no mirror of Debian; apt-get update may help" >&2
    exit 1
fi

remove() {
    rm -rf --one-file-system "${top:?}"
}

# What was killed may write for a moment yet.
finish() {
    [ -z "$child" ] || { kill -KILL -- "-$child" && wait "$child"; } 2>/dev/null
    [ "${KEEP:-0}" = 1 ] || remove 2>/dev/null || { sleep 2 && remove; }
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
remove
mkdir -p "$top" || exit

# Runs a command in a process group of its own, which a signal to this script ends too, and prints how
# long it took and what came of it. A line of totals is part of that.
step() { # (what is told of it, command...)
    local log begin=$SECONDS rc=0 what=$1 totals result=ok
    log=$top/${what//[^A-Za-z0-9]/_}.log
    shift
    set -m
    "$@" </dev/null >"$log" 2>&1 &
    child=$!
    set +m
    wait "$child" || rc=$?
    child=''
    totals=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    case $totals in
    *', 0 failed,'* | '') ;;
    *) rc=1 ;;
    esac
    [ "$rc" = 0 ] || result=FAILED
    printf '%5d s  %-6s  %s%s\n' $((SECONDS - begin)) "$result" "$what" "${totals:+: $totals}"
    if [ "$rc" = 0 ]; then
        passed=$((passed + 1))
        return 0
    fi
    failed=$((failed + 1))
    { grep -E '^(FAILED|ERROR) ' "$log" || tail -n 20 "$log"; } | cut -c 1-200 | sed 's/^/    /'
    return 1
}

alone() {
    unshare --mount --pid --fork --kill-child -- "$@"
}

# Of this machine's environment only how packages are fetched.
settings=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8)
while IFS='' read -r setting; do
    settings+=("$setting")
done < <(env | grep -iE \
    '^((https?|ftp|all|no)_proxy|SSL_CERT_FILE|PIP_(INDEX_URL|CERT|PROXY|TRUSTED_HOST|DEFAULT_TIMEOUT))=')

in_root() { # (a release, a user, command...)
    local root=$top/$1 user=$2 home=/home/$2
    shift 2
    [ "$user" != root ] || home=/root
    local torch=TORCH_${root##*/}
    # shellcheck disable=SC2016 # the inner shell's
    TORCH_FOLDERS="${!torch:-} ${TORCH_FILES:-}" alone bash -c 'set -e
        root=$0 user=$1
        shift
        mount -t proc proc "$root/proc"
        for folder in $TORCH_FOLDERS; do
            mkdir -p "$root$folder"
            mount --rbind "$folder" "$root$folder"
            mount -o remount,bind,ro "$root$folder"
        done
        if [ "$user" = root ]; then
            mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
            mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
            mount -t tmpfs -o mode=1777,nosuid,nodev,noexec,size=1g tmpfs "$root/dev/shm"
        fi
        exec "$@"' "$root" "$user" env -i "${settings[@]}" "HOME=$home" \
        chroot --userspec="$user" --groups='' "$root" \
        sh -c 'cd "$HOME" && { [ ! -d cachealloc ] || cd cachealloc; } && exec "$@"' sh "$@"
}

# --- the steps ------------------------------------------------------------------------------------

make_root() { # (a release)
    local root=$top/$1 file
    alone debootstrap --variant=minbase --include=ca-certificates,git,make "$1" "$root" \
        "$mirror" || return
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt \
        "${PIP_CERT:-}" "${SSL_CERT_FILE:-}"; do
        [ ! -f "$file" ] || install -D -m 644 "$file" "$root$file" || return
    done
    apt-config dump | grep -E '^Acquire::(Check-|https?::|Retries)' \
        >"$root/etc/apt/apt.conf.d/99machine"
    in_root "$1" root useradd -m newcomer || return
    # Not by links to this repository's files, whose owner would change.
    git clone -q --no-hardlinks . "$root/root/cachealloc" &&
        cp -a "$root/root/cachealloc" "$root/home/newcomer/" &&
        in_root "$1" root chown -R newcomer: /home/newcomer/cachealloc
}

is_told() { # (a release): and the command is kept for install_told
    in_root "$1" newcomer make check >"$top/$1.told" 2>&1 && return 1
    cat "$top/$1.told"
    grep -q '^ *sudo apt-get install ' "$top/$1.told"
}

install_told() { # (a release)
    local words
    read -ra words < <(sed -n 's/^ *sudo \(apt-get install .*\)/\1/p' "$top/$1.told")
    in_root "$1" root apt-get update -qq &&
        in_root "$1" root env DEBIAN_FRONTEND=noninteractive "${words[@]}"
}

# The demo leaks, and the report says so.
demo() { # (a release, a user, command...)
    local said
    said=$(in_root "$@" 2>&1)
    local rc=$?
    echo "$said"
    [ "$rc" = 0 ] && grep -q 'LEAK SUMMARY' <<<"$said"
}

demo_under() { # (a release whose library it is, a release)
    install -D -m 644 "$top/$1/home/newcomer/cachealloc/build-portable/libcachealloc.so" \
        "$top/$2/opt/$1/libcachealloc.so" &&
        demo "$2" newcomer env LD_LIBRARY_PATH=build/simcuda tools/cachealloc run \
            --library "/opt/$1/libcachealloc.so" build/demo/tiles
}

# As a user; root has installed what Python keeps apart.
wheel_works() { # (a release)
    local torch=TORCH_$1
    in_root "$1" root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends python3-pip python3-venv libdw1 &&
        in_root "$1" newcomer make -s wheel &&
        in_root "$1" newcomer env ${!torch:+"TORCH=${!torch}"} sh -c \
            'scripts/check_wheel.sh build-portable/cachealloc-*.whl'
}

# With what it recommends, and by names that need no folder.
package_works() { # (a release)
    # shellcheck disable=SC2016 # the inner shell's
    in_root "$1" newcomer make -s deb &&
        in_root "$1" root sh -c \
            'apt-get install -y /home/newcomer/cachealloc/build-portable/*.deb' &&
        in_root "$1" newcomer sh -c 'set -e
            tree=$PWD
            mkdir -p build/package
            cd build/package
            export LD_LIBRARY_PATH=$tree/build/simcuda
            cachealloc run -o leak_report:x,report_format:text+json -- "$tree/build/demo/tiles"
            grep load_tile_halo.at.tiles.c x
            cachealloc report x.json
            python3 -c "import cachealloc; print(cachealloc.library_path())" | grep ^/usr/lib/
            python3 -m cachealloc run "$tree/tests/demo/train.py"
            export LD_PRELOAD=libcachealloc.so
            python3 -c "import cachealloc; print(cachealloc.version())"' &&
        in_root "$1" root python3 -c 'import cachealloc' &&
        in_root "$1" root apt-get purge -y cachealloc &&
        [ ! -e "$top/$1/usr/lib/python3/dist-packages/cachealloc" ]
}

for distro in "${distros[@]}"; do
    step "$distro: a root of its own" make_root "$distro" || continue
    step "$distro: a user is told what is missing" is_told "$distro"
    step "$distro: root installs that" install_told "$distro"
    for user in newcomer root; do
        [ "$user" = newcomer ] || [ "${ONLY:-}" != packages ] || continue
        step "$distro: make demo as $user" demo "$distro" "$user" make demo
        [ "${ONLY:-}" = packages ] ||
            step "$distro: make check as $user" in_root "$distro" "$user" make check ${K:+"K=$K"}
    done
    step "$distro: make BUILD=portable" in_root "$distro" newcomer make -s lib BUILD=portable
    step "$distro: the wheel in a clean environment" wheel_works "$distro"
    step "$distro: the Debian package" package_works "$distro"
done
for from in "${distros[@]}"; do
    for to in "${distros[@]}"; do
        [ "$from" = "$to" ] ||
            step "$to: the demo under the library of $from" demo_under "$from" "$to"
    done
done

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
