#!/bin/sh
# demo_page.sh [BUILD_DIR]: the example's leak report as a page, BUILD_DIR/demo.html, and where there
# is a browser its picture, BUILD_DIR/demo.png; docs/reports.md shows a copy, tests/demo/report.png.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}

rm -f "$build/demo.json" # reports replace nothing
cuda=$(scripts/pick_cuda.sh "$build")
LD_LIBRARY_PATH=$cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} tools/cachealloc run \
    --library "$build/libcachealloc.so" -o "leak_report:$build/demo.json,history:10000" \
    "$build/demo/tiles"
tools/cachealloc-report -o "$build/demo.html" "$build/demo.json"
if python3 -B tests/browser.py "$build/demo.html" "$build/demo.png"; then
    echo "$build/demo.png: its picture"
fi
