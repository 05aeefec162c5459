#!/bin/sh
# run_matrix.sh [NAME...]: runs the matrix of processes (tests/matrix/rows.py) and prints one line
# for each row and lane: PASS name, FAIL name: why, SKIP name: reason. Exit status 1 where one
# failed. NAME: only rows whose name contains it. BUILD_DIR names a build directory, else build/;
# the programs must have been built (`make tests`; `make matrix` does both).
set -eu
cd "$(dirname "$0")/.."
exec "$(scripts/deps.sh --python)" -B tests/matrix/show.py "$@"
