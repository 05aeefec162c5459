#!/bin/sh
# demo.sh [BUILD_DIR]: runs the example under the shim, with statistics and the leak report at exit.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}

cuda=$(scripts/pick_cuda.sh "$build")
export LD_LIBRARY_PATH="$cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# By the launcher, which knows what the loader would pass over with a message that is soon missed.
set -- tools/cachealloc run --library "$build/libcachealloc.so" -o stats:exit "$build/demo/tiles"
echo "+ $*"
exec "$@"
