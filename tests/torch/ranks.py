"""One of the ranks that torchrun starts: sums its gradients with the others' by gloo, and forgets a
tensor whose size says which rank it was."""

import ctypes
import json
import os

import torch
import torch.distributed as distributed

SIZE = 2 << 20


def forget(rank):
    tensor = torch.zeros((rank + 1) * SIZE, dtype=torch.uint8, device="cuda")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))


def main():
    distributed.init_process_group("gloo")
    rank, count = distributed.get_rank(), distributed.get_world_size()
    weights = torch.full((1 << 16,), float(rank)).cuda()
    for _ in range(3):
        gradients = weights.clone().cpu()
        distributed.all_reduce(gradients)
        weights = gradients.cuda()
    forget(rank)
    torch.cuda.synchronize()
    distributed.destroy_process_group()
    total = weights.cpu()[-1].item()
    with open(os.path.join(os.environ["RANKS"], f"rank{rank}.json"), "w") as file:
        json.dump({"total": total, "count": count}, file)


main()
