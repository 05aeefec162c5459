#!/bin/sh
# check_readme.sh [BUILD_DIR]: the README's option table, between `<!-- options -->` and
# `<!-- /options -->`, is what the code has. `make readme` writes it anew.
set -eu
root=$(dirname "$0")/..
build=${1:-$root/build}

"$build/option_table" --check "$root/README.md" && exit
"$build/option_table" | diff "$root/README.md" - | grep '^>' || true # the lines it lacks
exit 1
