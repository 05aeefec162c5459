#!/bin/bash
# check_wheel.sh WHEEL [FOLDER]: what a Python user meets. A clean environment of PYTHON (python3) is
# made in FOLDER, gets the wheel without the network, and runs the examples on the simulated CUDA:
# the launcher, `python -m cachealloc`, the report page, and at last `pip uninstall`, which must
# leave nothing.
#
# TORCH=DIR is a folder of packages with a PyTorch for that Python, but without nvidia-cuda-runtime,
# so that the simulated runtime is found. Then tests/demo/pytorch.py runs too, with its cache off, and
# says what a step takes with and without the library; driver calls take as long as on an H100. The
# last line is the totals.
set -u
cd "$(dirname "$0")/.." || exit
wheel=$(realpath "${1:?a wheel}")
top=$(realpath -m "${2:-build/check-wheel}")
python=$(command -v "${PYTHON:-python3}") || exit
passed=0 failed=0
root=$PWD
rm -rf "$top"
mkdir -p "$top" || exit
export LD_LIBRARY_PATH=$root/build/simcuda
export SIMCUDA=memory:16G,arch:90
unset LD_PRELOAD ALLOC_CONF PYTHONPATH
cd "$top" || exit # where no module of the tree is found

check() { # (what is told of it, command...)
    local what=$1
    shift
    if "$@" >log 2>&1; then
        passed=$((passed + 1))
        echo "    ok      $what"
    else
        failed=$((failed + 1))
        echo "    FAILED  $what"
        tail -n 20 log | cut -c 1-200 | sed 's/^/        /'
    fi
}

files() {
    find v -not -type d -not -path '*/__pycache__/*' | LC_ALL=C sort
}

install_wheel() {
    "$python" -m venv v && files >before && v/bin/pip install --no-index "$wheel"
}
check "installed by $("$python" --version)" install_wheel

knows_itself() {
    v/bin/python -m cachealloc --version && v/bin/cachealloc --version &&
        [ -f "$(v/bin/python -c 'import cachealloc; print(cachealloc.library_path())')" ]
}
check "version and library_path()" knows_itself

runs_a_program() {
    v/bin/cachealloc run -o leak_report:tiles,report_format:text+json -- "$root/build/demo/tiles" &&
        grep 'load_tile_halo' tiles
}
check "cachealloc run, with names of C" runs_a_program

runs_python() {
    v/bin/python -m cachealloc run -o leak_report:train "$root/tests/demo/train.py" &&
        grep 'step at train.py:41' train
}
check "python -m cachealloc run, with names of Python" runs_python

makes_a_page() {
    v/bin/cachealloc report -o page.html tiles.json && grep 'Mike Bostock' page.html >/dev/null
}
check "cachealloc report, with D3" makes_a_page

if [ "${TORCH:-}" ]; then
    echo "$TORCH" >"$(echo v/lib/python3*/site-packages)/torch.pth"
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    for call in cuMemAlloc_v2=60000 cuMemFree_v2=20000 cuEventRecord=300 cuCtxRecordEvent=240 \
        cuEventQuery=1270 cuLaunchKernel=2500 cuLaunchKernelEx=2500; do
        SIMCUDA=$SIMCUDA,latency:$call
    done
    milliseconds() {
        sed -n 's/^\([0-9.]*\) ms per step$/\1/p' "$1" | grep .
    }
    trains_faster() {
        local plain served
        v/bin/python "$root/tests/demo/pytorch.py" >plain &&
            v/bin/python -m cachealloc run -o leak_report:torch "$root/tests/demo/pytorch.py" \
                >served || return
        plain=$(milliseconds plain) && served=$(milliseconds served) || return
        echo "$plain ms, under the library $served ms" | tee said
        awk "BEGIN { exit !($served * 1.5 < $plain) }"
    }
    check "a step of PyTorch takes two thirds at most" trains_faster
    sed 's/^/            /' said
    check "its leak has the name of its function in Python" \
        grep 'remember at pytorch.py:24' torch
    sed -n '/^LEAK SUMMARY/p; /remember at pytorch.py/{p;q}' torch | sed 's/^/            /'
    rm v/lib/python3*/site-packages/torch.pth
fi

leaves_nothing() {
    v/bin/pip uninstall --yes cachealloc && files | diff before - &&
        [ -z "$(find v -name '*cachealloc*')" ]
}
check "pip uninstall leaves nothing" leaves_nothing

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
