"""Batches that two workers make, pinned by the DataLoader's thread, copied to the device and back;
prints the sum of each, on the way back and as the host counts it."""

import json

import torch
from torch.utils.data import DataLoader, Dataset

ITEMS, BATCH, WIDTH = 48, 8, 1 << 14


class Numbers(Dataset):
    def __len__(self):
        return ITEMS

    def __getitem__(self, number):
        return torch.full((WIDTH,), float(number))


def main():
    torch.zeros(1, device="cuda")  # the workers are children of a process that has a context
    found = []
    for _ in range(2):
        loader = DataLoader(Numbers(), batch_size=BATCH, num_workers=2, pin_memory=True)
        for batch in loader:
            assert batch.is_pinned()
            found.append(batch.to("cuda", non_blocking=True).clone().cpu().double().sum().item())
    right = [float(sum(range(at, at + BATCH)) * WIDTH) for at in range(0, ITEMS, BATCH)] * 2
    torch.cuda.synchronize()
    print(json.dumps({"found": found, "right": right}))


main()
