#!/bin/sh
# pick_cuda.sh [BUILD_DIR]: prints the directory to put first in LD_LIBRARY_PATH, and on stderr which
# CUDA that is: the real one where a driver answers, otherwise the simulator.
set -eu
build=${1:-build}

include=$("$(dirname "$0")/deps.sh" --cuda-include)
if real=$("$build/cuda_probe" "${include%/include}/lib64" "${include%/include}/lib"); then
    echo "CUDA: the driver of this machine" >&2
    echo "$real"
else
    echo "CUDA: simulated ($build/simcuda), because no driver with a GPU answers here" >&2
    echo "$(pwd)/$build/simcuda"
fi
