#!/bin/sh
# check_options.sh [BUILD_DIR]: what docs/options.md says between `<!-- options -->` and
# `<!-- /options -->` is what the code has. `make docs` writes it anew.
set -eu
root=$(dirname "$0")/..
build=${1:-$root/build}

"$build/option_table" --check "$root/docs/options.md" && exit
"$build/option_table" | diff "$root/docs/options.md" - | grep '^>' || true # the lines it lacks
exit 1
