#!/bin/sh
# check_static.sh [TOOL...]: clang-format, cppcheck, clang-tidy and shellcheck over the tree, and
# the lists of the driver's entry points (entries); all where none is named. The last line is the totals. CUDA_INC is where cuda.h is.
set -u
cd "$(dirname "$0")/.." || exit

# The files come from git: an export without it has nothing to check.
git rev-parse --git-dir >/dev/null || exit
cuda=${CUDA_INC:-$(scripts/deps.sh --cuda-include)}
# Tracked files, and new ones that git does not ignore.
list() {
    git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
        [ ! -f "$file" ] || echo "$file"
    done
}

# FORMAT=-i corrects instead of checking.
run_clang_format() {
    list '*.c' '*.h' '*.cc' | xargs clang-format "${FORMAT:---dry-run}" -Werror
}

# The shim's and the tests' CUDA headers are not read: the compiler does that, and cppcheck would
# try every combination of their switches. sizeofDivisionMemfunc takes the element count of an array
# for a size.
run_cppcheck() {
    list '*.c' | xargs cppcheck --quiet -j "$(nproc)" --std=c11 --language=c \
        --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
        --suppress=missingInclude --suppress=missingIncludeSystem \
        --suppress=sizeofDivisionMemfunc -D_GNU_SOURCE -DNDEBUG -I. -Iinclude
}

# What is preloaded; TIDY=all reads the tests and the simulator too, which takes four times as long.
# The largest first, one at a time, so that no core waits for the last ones.
# With its memory in large pages, where this glibc knows them, it takes a tenth less.
run_clang_tidy() {
    [ "${TIDY:-}" != all ] || set -- '*.c'
    [ $# != 0 ] || set -- 'base/*.c' 'config/*.c' 'pool/*.c' 'registry/*.c' 'shim/*.c'
    # shellcheck disable=SC2016 # the inner shell's
    list "$@" | xargs ls -S | xargs -P "$(nproc)" -n 1 sh -c '
        cuda=$0
        GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
            clang-tidy --quiet --warnings-as-errors="*" "$@" -- \
                -std=c11 -D_GNU_SOURCE -I. -Iinclude -isystem "$cuda" 2>&1 |
            grep -vE "^[0-9]+ warnings? (generated|treated)|^Suppressed |^Use -header-filter" |
            awk "{ print } /: (error|warning): /{ bad = 1 } END { exit bad }"' "$cuda"
}

run_shellcheck() {
    # Scripts without a suffix are known by their first line.
    {
        list '*.sh'
        list scripts tools .ci | xargs grep -lE '^#!.*(/| )(sh|bash)$'
    } | sort -u | xargs shellcheck
}

run_entries() {
    python3 -B scripts/check_entries.py "$cuda"
}

[ $# != 0 ] || set -- clang-format cppcheck clang-tidy shellcheck entries
passed=0 failed=0
for tool; do
    echo "--- $tool"
    if [ "$tool" != entries ] && ! command -v "$tool" >/dev/null; then
        echo "not installed: scripts/deps.sh --static"
        failed=$((failed + 1))
    elif "run_$(echo "$tool" | tr - _)"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
