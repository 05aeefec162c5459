"""steps.py, or another script, with the library as PyTorch's allocator, or with PyTorch's own:
plugin_steps.py plugin|native [SCRIPT]. Behind what steps.py prints comes how many tensors'
allocations there were."""

import json
import pathlib
import runpy
import sys

import torch

if sys.argv[1] == "plugin":
    import cachealloc.torch

    cachealloc.torch.enable()
if len(sys.argv) > 2:
    runpy.run_path(sys.argv[2], run_name="__main__")
    sys.exit()
runpy.run_path(str(pathlib.Path(__file__).with_name("steps.py")))
print(json.dumps({"allocations": torch.cuda.memory_stats()["allocation.all.allocated"]}))
