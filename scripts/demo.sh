#!/bin/sh
# demo.sh [BUILD_DIR]: runs the example under the shim, with statistics and the leak report at exit.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}

cuda=$(scripts/pick_cuda.sh "$build")
echo "+ LD_PRELOAD=$build/libcachealloc.so ALLOC_CONF=stats:exit $build/demo/tiles"
# No exec: LD_PRELOAD is for the example alone, not for this shell.
LD_LIBRARY_PATH=$cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    LD_PRELOAD=$PWD/$build/libcachealloc.so ALLOC_CONF=stats:exit "$build/demo/tiles"
