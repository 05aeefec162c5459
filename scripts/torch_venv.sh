#!/bin/sh
# Brings what `make check-torch` runs, from PyPI, each into an environment of its own below build/:
#
#   torch_venv.sh [2.15] [2.9] [others]      all of them where none is named
#
#   build/torch-2.15    PyTorch 2.15, of CUDA 13.2; 4.3 GB, ten minutes
#   build/torch-2.9     PyTorch 2.9, of CUDA 12.8; the same
#   build/python-cuda   numba-cuda, cuda-bindings, PyCUDA, RMM, CuPy
#
# The packages of the CUDA runtime (nvidia-cuda-runtime) are left out: PyTorch then takes that of
# LD_LIBRARY_PATH, which is the simulator's. What is there already stays as it is; an environment is
# whole when it has a file `complete`.
set -eu
cd "$(dirname "$0")/.."

[ $# != 0 ] || set -- 2.15 2.9 others
for what; do
    case $what in
    2.15 | 2.9 | others) ;;
    *)
        echo "torch_venv.sh: unknown environment $what: accepted are 2.15, 2.9 and others" >&2
        exit 2
        ;;
    esac
done

# Wheels of both releases are for CPython 3.10 to 3.13 alike.
python=
for candidate in python3.13 python3.12 python3.11 python3.10 python3; do
    if "$candidate" -c 'import ensurepip, sys, venv
sys.exit(not (3, 10) <= sys.version_info < (3, 14))' >/dev/null 2>&1; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "torch_venv.sh: no Python 3.10 to 3.13 with venv (Debian: python3-venv)" >&2
    exit 1
fi

install() { # (an environment, what pip install is told)
    folder=$1
    shift
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# What both need besides CUDA.
pure='filelock typing-extensions sympy networkx jinja2 fsspec numpy'

bring_2_15() { # (a folder)
    install "$1" --no-deps torch==2.15.0 nvidia-cudnn-cu13==9.26.0.51 \
        nvidia-cusparselt-cu13==0.8.1 nvidia-nccl-cu13==2.30.7 nvidia-nvshmem-cu13==3.7.2
    parts=cublas,cufft,cufile,cupti,cusolver,cusparse,nvjitlink,nvrtc,nvtx
    # shellcheck disable=SC2086 # a list of names
    install "$1" "cuda-toolkit[$parts]==13.2.2" 'cuda-bindings<14,>=13.0.3' $pure
}

bring_2_9() { # (a folder)
    install "$1" --no-deps torch==2.9.1
    # shellcheck disable=SC2086 # a list of names
    install "$1" $pure
    needed=$("$1/bin/python" -c '
import importlib.metadata
for line in importlib.metadata.requires("torch"):
    if line.startswith("nvidia-") and "cuda-runtime" not in line:
        print(line.partition(";")[0].replace(" ", ""))')
    # shellcheck disable=SC2086 # a list of names
    install "$1" --no-deps $needed
}

# PyCUDA is compiled, against the headers and the driver that there are here; where it cannot be,
# its test is skipped.
bring_others() { # (a folder)
    install "$1" numpy==2.4.* numba-cuda==0.30.4 'cuda-bindings<14,>=13.0.3' rmm-cu13==26.10.* \
        cupy-cuda13x==14.2.0
    scripts/deps.sh --headers
    root=$(pwd)/$1/cuda
    mkdir -p "$root"
    ln -sfn "$(realpath "$(scripts/deps.sh --cuda-include)")" "$root/include"
    ln -sfn "$(realpath build/simcuda)" "$root/lib64"
    CUDA_ROOT=$root LIBRARY_PATH=$root/lib64 install "$1" pycuda==2026.1 >/dev/null ||
        echo "torch_venv.sh: PyCUDA was not built, so its test is skipped" >&2
}

for what; do
    folder=build/torch-$what
    [ "$what" != others ] || folder=build/python-cuda
    [ ! -e "$folder/complete" ] || continue
    echo "torch_venv.sh: making $folder" >&2
    rm -rf "$folder"
    "$python" -m venv "$folder"
    case $what in
    2.15) bring_2_15 "$folder" ;;
    2.9) bring_2_9 "$folder" ;;
    others) bring_others "$folder" ;;
    esac
    : >"$folder/complete"
done
