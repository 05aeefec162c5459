"""Fills a device three times until PyTorch is out of memory, by tensors of changing size, and says
how much was there each time, and that what is there has its own bytes."""

import json

import torch

SIZES = [7 << 20, 3 << 20, 11 << 20, 1 << 20, 640 << 10]


def fill():
    kept, total = [], 0
    while True:
        size = SIZES[len(kept) % len(SIZES)]
        try:
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        except RuntimeError as error:  # of several classes
            assert "out of memory" in str(error), error
            break
        tensor.copy_(torch.full((size,), len(kept) % 251, dtype=torch.uint8))
        kept.append(tensor)
        total += size
    right = all((tensor.cpu() == number % 251).all().item() for number, tensor in enumerate(kept))
    return total, right


def main():
    found = [fill() for _ in range(3)]
    torch.cuda.synchronize()
    print(json.dumps({"totals": [total for total, _ in found],
                      "right": all(right for _, right in found)}))


main()
